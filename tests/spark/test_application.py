"""Messages and settings of a Spark application. `tests/exports` tests its start and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.application import _configure_java, describe_error

REMEDY = (
    "workers need the same version of Python as the driver, with the same packages "
    "(pip install 'penstock-streams[spark]'); set it with --conf spark.pyspark.python=PATH"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Writing job failed.\nat org.apache.spark", "Writing job failed."),
        ("\n\nsomething", "something"),
        (
            "[FAILED] in latestOffset: Traceback (most recent call last):\n"
            '  File "planning.py", line 1, in latestOffset\n'
            "    plan = self._connected()\n"
            "ConnectionError: connection refused\n"
            "\n"
            "at org.apache.spark",
            "ConnectionError: connection refused",
        ),
        (
            "Job aborted due to stage failure: Traceback (most recent call last):\n"
            '  File "worker.py", line 1, in main\n'
            "ModuleNotFoundError: No module named 'penstock'\n",
            f"ModuleNotFoundError: No module named 'penstock': {REMEDY}",
        ),
        (
            "Job aborted due to stage failure: Lost task 0.0 in stage 0.0 (127.0.0.1 executor 0): "
            'java.io.IOException: Cannot run program "/opt/python": error=2, No such file\n'
            "at java.base/java.lang.ProcessBuilder.start",
            f'Cannot run program "/opt/python": error=2, No such file: {REMEDY}',
        ),
        (
            "Job aborted due to stage failure: Traceback (most recent call last):\n"
            '  File "worker.py", line 1, in main\n'
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.12 than that in driver: 3.11, PySpark cannot run with that.\n",
            "Python in worker has different version: 3.12 than that in driver: 3.11: " + REMEDY,
        ),
        ("", "Exception('')"),
        ("x" * 1000, "x" * 500),
    ],
)
def test_spark_errors_are_described_in_one_line(text: str, line: str) -> None:
    assert describe_error(Exception(text)) == line


def test_user_settings_override_defaults_for_java() -> None:
    environment = {"SPARK_SUBMIT_OPTS": "-XX:+UseG1GC"}
    _configure_java(environment, Path("/some where"))
    assert environment["SPARK_DRIVER_MEMORY"] == "512m"
    assert '-Djava.io.tmpdir="/some where"' in environment["SPARK_SUBMIT_OPTS"]
    # The last one of two equal options takes effect.
    assert environment["SPARK_SUBMIT_OPTS"].endswith("-XX:+UseG1GC")
    environment["SPARK_DRIVER_MEMORY"] = "2g"
    _configure_java(environment, Path("/some where"))
    assert environment["SPARK_DRIVER_MEMORY"] == "2g"
