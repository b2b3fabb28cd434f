"""The Python of Spark's workers: its program, and adjustments inside a worker process."""

from __future__ import annotations

import gc
import hashlib
import os
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pyspark

from penstock.spark.cache import cached_directory, write_program

_PROGRAM = "python"


def worker_python(executable: str, environment: Mapping[str, str]) -> Path:
    """Returns a program that runs this Python with the installed PySpark only.

    Spark puts its zipped copy of PySpark first on the path of workers. Each process compiles
    modules of a zip again, which takes nearly a second in each of about six processes of a query.
    """
    copies = Path(pyspark.__path__[0]) / "python" / "lib"
    if environment.get("SPARK_HOME") or not (copies / "pyspark.zip").exists():
        return Path(executable)  # another Spark, whose PySpark may have another version
    script = _script(executable, copies)
    name = f"python/{hashlib.sha256(script.encode()).hexdigest()[:16]}"

    def fill(directory: Path) -> None:
        write_program(directory / _PROGRAM, script.splitlines())

    return cached_directory(name, _PROGRAM, fill, environment) / _PROGRAM


def _script(executable: str, copies: Path) -> str:
    return "\n".join(
        [
            "kept=",
            "IFS=:",
            "for entry in $PYTHONPATH; do",
            "  case $entry in",
            f"    {shlex.quote(str(copies))}/*.zip) ;;",
            '    *) kept="$kept:$entry" ;;',
            "  esac",
            "done",
            "unset IFS",
            'PYTHONPATH="${kept#:}"',
            "export PYTHONPATH",
            f'exec {shlex.quote(executable)} "$@"',
        ]
    )


@cache
def freeze_gc() -> None:
    """Excludes all existing objects of a worker from garbage collection.

    Spark collects garbage after each task, which takes a third of the time of a short task. Done
    once in a process, because frozen garbage is never freed.
    """
    gc.freeze()


def end_source_process() -> None:
    """Ends the process of a streaming source if Java has closed the connection to it.

    Called by a source's `stop`, which PySpark calls last. Otherwise PySpark fails to report the
    closed connection to Java and prints a traceback, unless Java kills the process earlier.
    """
    if isinstance(sys.exc_info()[1], (EOFError, BrokenPipeError, ConnectionResetError)):
        os._exit(0)
