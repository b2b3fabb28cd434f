"""`python -m benchmarks` runs benchmarks and stores results; `--plot` draws charts of them."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import (
    appends,
    dashboard,
    edge_cost,
    exports,
    files,
    memory,
    plot,
    reads,
    spark_latency,
    spark_scan,
    startup,
)
from benchmarks.report import Comparison, load, print_comparison, print_verdict, save
from benchmarks.servers import install_missing_peers
from benchmarks.timing import FULL, QUICK, Scale

PARTS: dict[str, Callable[[Path, Scale], Iterator[Comparison]]] = {
    "memory": memory.measure,
    "appends": appends.measure_unflushed,
    "flushed": appends.measure_flushed,
    "reads": reads.measure,
    "startup": startup.measure,
    "spark-scan": spark_scan.measure,
    "spark-latency": spark_latency.measure,
    "edge-cost": edge_cost.measure,
    "exports": exports.measure,
    "files": files.measure,
    "dashboard": dashboard.measure,
}

_PACKAGES = ("uvloop", "redis", "hiredis", "nats-py", "pyspark", "pyarrow", "boto3")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer messages, fewer repetitions")
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="NAME", help=", ".join(PARTS)
    )
    parser.add_argument(
        "--directory",
        type=Path,
        # /tmp is in memory on many machines.
        default=Path("/var/tmp"),
        help="directory for the files of the servers (default: %(default)s)",
    )
    parser.add_argument(
        "--plot",
        nargs="?",
        const="",
        metavar="FILE",
        help="draw the charts in docs from a results file (default: the newest)",
    )
    options = parser.parse_args()
    # SIGTERM raises SystemExit, so that the started servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.plot is not None:
        print(*plot.write(load(Path(options.plot) if options.plot else None)), sep="\n")
        return
    _measure(options.only or list(PARTS), QUICK if options.quick else FULL, options.directory)


def _measure(names: list[str], scale: Scale, parent: Path) -> None:
    started = time.monotonic()
    machine = {**_describe_machine(), **install_missing_peers()}
    for name, value in machine.items():
        print(f"{name:16} {value}")
    if os.getloadavg()[0] > 0.5:
        print("\nThe machine has other load: expect noise.")
    comparisons = []
    for name in names:
        directory = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=parent))
        try:
            for comparison in PARTS[name](directory, scale):
                print_comparison(comparison)
                comparisons.append(comparison)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print_verdict(comparisons)
    print(f"\n{save(machine, comparisons)} after {time.monotonic() - started:.0f} seconds")


def _describe_machine() -> dict[str, str]:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": f"{os.cpu_count()} x {found[1] if found else platform.machine()}",
        "system": f"{platform.system()} {platform.release()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
