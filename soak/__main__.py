"""`python -m soak` runs load with kills, damage, full disks and power cuts, and reports losses."""

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
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="duration (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each arena, instead of a duration")
    parser.add_argument(
        "--max-load-seconds",
        type=float,
        default=4.0,
        help="max load between two faults (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, help="repeat the plan of a run (default: random)")
    parser.add_argument(
        "--arena", action="append", choices=ARENAS, metavar="NAME", help=", ".join(ARENAS)
    )
    parser.add_argument(
        "--directory",
        type=Path,
        # /tmp is in memory on many machines.
        default=Path("/var/tmp"),
        help="directory for stores and logs (default: %(default)s)",
    )
    parser.add_argument(
        "--simulate-power", action="store_true", help="simulate power cuts instead of mounting ext4"
    )
    parser.add_argument("--keep", action="store_true", help="keep stores and logs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words = parser.parse_args()
    # After a signal the soak still runs its checks, stops its processes and unmounts its disks.
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
        print(f"soak failed: {failure}", file=sys.stderr)
    sys.exit(0 if result["isClean"] else 1)


if __name__ == "__main__":
    main()
