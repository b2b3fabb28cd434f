"""The Python of Spark's workers: the program they are, and what makes one quicker."""

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
    """A program that runs this Python with the installed PySpark alone.

    Spark puts its own zipped copy of PySpark before everything else that a worker imports, and
    what is imported from a zip is compiled anew by each process: nearly a second for each of the
    half dozen that a query needs.
    """
    copies = Path(pyspark.__path__[0]) / "python" / "lib"
    if environment.get("SPARK_HOME") or not (copies / "pyspark.zip").exists():
        return Path(executable)  # a Spark of the user's own, whose PySpark may not be ours
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
    """What a worker has imported by now is left alone by the garbage collector.

    Spark has all of it looked through after each task, which takes a third of the time of a short
    one. Once for a process: garbage that was settled would stay for good.
    """
    gc.freeze()


def end_source_process() -> None:
    """Ends the process of a streaming source once Java has closed the connection to it.

    For a source's `stop`, which PySpark calls last. PySpark would try to report the closed
    connection to Java, fail, and print a traceback, unless Java kills the process before that.
    """
    if isinstance(sys.exc_info()[1], (EOFError, BrokenPipeError, ConnectionResetError)):
        os._exit(0)
