"""`python -m soak`: load, kills, damage, full disks and power cuts; what is lost is reported."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import threading
from pathlib import Path

from soak.report import render
from soak.run import ARENAS, SoakOptions, run_soak


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long; %(default)s")
    parser.add_argument(
        "--rounds", type=int, help="run so many rounds of each arena, however long they take"
    )
    parser.add_argument(
        "--max-load-seconds",
        type=float,
        default=4.0,
        help="the longest load between two faults; %(default)s",
    )
    parser.add_argument("--seed", type=int, help="repeats the plan of a run; a random one")
    parser.add_argument(
        "--arena", action="append", choices=ARENAS, metavar="NAME", help=", ".join(ARENAS)
    )
    parser.add_argument(
        "--directory",
        type=Path,
        # Not /tmp, which is memory on many machines.
        default=Path("/var/tmp"),
        help="where stores and logs are kept while it runs; %(default)s",
    )
    parser.add_argument("--simulate-power", action="store_true", help="never mount ext4")
    parser.add_argument("--keep", action="store_true", help="keep stores and logs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words = parser.parse_args()
    # A soak that is stopped checks what it did until then, and ends what it started and mounted.
    is_stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_stopped.set())
    seed = secrets.randbelow(1_000_000) if words.seed is None else words.seed
    extent = f"{words.minutes:g} minutes" if words.rounds is None else f"{words.rounds} rounds"
    print(f"soak: {extent}, SEED={seed}", file=sys.stderr, flush=True)
    result = run_soak(
        SoakOptions(
            words.minutes * 60,
            words.rounds,
            words.max_load_seconds,
            seed,
            tuple(words.arena or ARENAS),
            words.directory,
            words.simulate_power,
            words.keep,
        ),
        is_stopped,
    )
    print(json.dumps(result, indent=2) if words.json else render(result))
    for failure in result["failures"]:
        print(f"the soak broke: {failure}", file=sys.stderr)
    sys.exit(0 if result["isClean"] else 1)


if __name__ == "__main__":
    main()
