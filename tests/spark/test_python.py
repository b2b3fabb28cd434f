from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.spark.python import freeze_gc, worker_python

ZIPPED = Path(pyspark.__path__[0]) / "python" / "lib"


def path_in(python: Path, entries: list[str]) -> list[str]:
    """Returns the file of PySpark and the path of a Python that is started like Spark's workers."""
    code = "import pyspark, sys; print(pyspark.__file__); print(*sys.path, sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entries)}
    output = subprocess.check_output([python, "-c", code], env=environment, text=True)
    return output.splitlines()


def test_workers_import_the_installed_pyspark(tmp_path: Path) -> None:
    python = worker_python(sys.executable, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    zips = [str(path) for path in ZIPPED.glob("*.zip")]
    assert len(zips) == 2
    own = tmp_path / "own modules"
    where, *entries = path_in(python, [*zips, str(own), "/elsewhere"])
    assert where == pyspark.__file__
    assert not set(zips) & set(entries)
    # Entries of the user stay, in their order.
    assert entries.index(str(own)) < entries.index("/elsewhere")
    assert ".zip" in path_in(Path(sys.executable), zips)[0]


def test_program_is_the_same_for_the_same_python(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert worker_python(sys.executable, environment) == worker_python(sys.executable, environment)
    assert worker_python("/usr/bin/python3", environment) != worker_python(
        sys.executable, environment
    )


def test_spark_home_of_the_user_disables_the_program(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "SPARK_HOME": "/opt/spark"}
    assert worker_python(sys.executable, environment) == Path(sys.executable)


def test_gc_is_frozen_once() -> None:
    freeze_gc.cache_clear()
    try:
        freeze_gc()
        frozen = gc.get_freeze_count()
        later = [[number] for number in range(100)]
        freeze_gc()
        # Frozen objects may have been freed by their reference counts.
        assert 0 < gc.get_freeze_count() <= frozen
        assert frozen > len(later)
    finally:
        gc.unfreeze()
        freeze_gc.cache_clear()


SOURCE_PROCESS = """
from penstock.spark.python import end_source_process

try:
    raise {error}
finally:
    end_source_process()
"""


@pytest.mark.parametrize(
    ("error", "is_reported"),
    [
        ("EOFError", False),
        ("BrokenPipeError", False),
        ("ConnectionResetError", False),
        ("ValueError", True),
        ("PermissionError", True),
    ],
)
def test_source_process_reports_errors_except_a_closed_connection(
    error: str, is_reported: bool
) -> None:
    program = SOURCE_PROCESS.format(error=error)
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (error in ended.stderr) == is_reported
    assert (ended.returncode != 0) == is_reported
