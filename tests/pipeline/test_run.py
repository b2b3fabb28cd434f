"""Texts and settings of the driver. How it runs, recovers and ends is tested in `tests/exports`."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.settings import Settings
from penstock.pipeline.run import _choose_java, destination_settings, first_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Writing job failed.\nat org.apache.spark", "Writing job failed."),
        ("\n\nsomething", "something"),
        (
            "[FAILED] in latestOffset: Traceback (most recent call last):\n"
            '  File "planning.py", line 1, in latestOffset\n'
            "    plan = self._connected()\n"
            "ConnectionError: nobody is there\n"
            "\n"
            "at org.apache.spark",
            "ConnectionError: nobody is there",
        ),
        (
            "Job aborted due to stage failure: Traceback (most recent call last):\n"
            '  File "worker.py", line 1, in main\n'
            "ModuleNotFoundError: No module named 'penstock'\n",
            "ModuleNotFoundError: No module named 'penstock': install the same packages on the "
            "workers of the cluster, with pip install 'penstock[spark]', or name a Python that has "
            "them with --conf spark.pyspark.python=PATH",
        ),
        ("", "Exception('')"),
        ("x" * 1000, "x" * 500),
    ],
)
def test_errors_of_spark_are_one_line(text: str, line: str) -> None:
    assert first_line(Exception(text)) == line


def test_settings_of_the_user_override_those_for_a_small_java() -> None:
    environment = {"SPARK_SUBMIT_OPTS": "-XX:+UseG1GC"}
    _choose_java(environment, Path("/some where"))
    assert environment["SPARK_DRIVER_MEMORY"] == "512m"
    assert '-Djava.io.tmpdir="/some where"' in environment["SPARK_SUBMIT_OPTS"]
    # Of two equal options the last one counts.
    assert environment["SPARK_SUBMIT_OPTS"].endswith("-XX:+UseG1GC")
    environment["SPARK_DRIVER_MEMORY"] = "2g"
    _choose_java(environment, Path("/some where"))
    assert environment["SPARK_DRIVER_MEMORY"] == "2g"


def test_destinations_have_the_settings_of_the_broker() -> None:
    settings = Settings(
        root="/root",
        exporter_kinesis_inter_call_delay_ms=5,
        kinesis_partition_key="field:a.b",
        channels="/channels",
        s3_parts_at_once=2,
        s3_delete_uploaded_files=True,
        read_only_dirs="/files",
    )
    found = destination_settings(settings)
    assert found.kinesis_inter_call_delay_ms == 5
    assert found.kinesis_partition_key == "field:a.b"
    assert found.channels == "/channels"
    assert (found.s3_parts_at_once, found.s3_delete_uploaded_files) == (2, True)
    assert found.read_only_directories == ("/files",)
