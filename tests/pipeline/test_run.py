"""What the pipeline says of Spark. How it lives, recovers and ends is in `tests/exports`."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipeline.run import _choose_java, first_line


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
        ("", "Exception('')"),
        ("x" * 1000, "x" * 500),
    ],
)
def test_of_what_spark_says_one_line_is_told(text: str, line: str) -> None:
    assert first_line(Exception(text)) == line


def test_java_is_small_unless_the_user_says_otherwise() -> None:
    environment = {"SPARK_SUBMIT_OPTS": "-XX:+UseG1GC"}
    _choose_java(environment, Path("/some where"))
    assert environment["SPARK_DRIVER_MEMORY"] == "512m"
    assert '-Djava.io.tmpdir="/some where"' in environment["SPARK_SUBMIT_OPTS"]
    # Of two the last one counts.
    assert environment["SPARK_SUBMIT_OPTS"].endswith("-XX:+UseG1GC")
    environment["SPARK_DRIVER_MEMORY"] = "2g"
    _choose_java(environment, Path("/some where"))
    assert environment["SPARK_DRIVER_MEMORY"] == "2g"
