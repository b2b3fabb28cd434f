"""Checks Python, the installed packages, Java and the clock."""

from __future__ import annotations

import operator
import platform
import re
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from penstock.cli.checks.check import Check, Outcome, fail, ok, skip, warn
from penstock.cli.checks.context import CheckContext
from penstock.distribution import DISTRIBUTION, requirement
from penstock.errors import SettingError

_MIN_YEAR = 2024


def check_python(_: CheckContext) -> Outcome:
    version = platform.python_version()
    try:
        needed = metadata.metadata(DISTRIBUTION)["Requires-Python"]
    except metadata.PackageNotFoundError:
        return skip(f"{version}; not checked: penstock is not installed as a package")
    found = f"{version} at {sys.executable}"
    return ok(found) if satisfies(version, needed) else fail(found, f"use Python {needed}")


# Packages


def check_packages(_: CheckContext) -> Outcome:
    found, wrong = _packages(extra=None)
    if wrong:
        return fail(", ".join(wrong), _install_line(requirement()))
    return _found_all(found)


def check_fast_packages(_: CheckContext) -> Outcome:
    found, wrong = _packages(extra="fast")
    if wrong:
        return warn(
            f"{', '.join(wrong)}: only needed for speed", _install_line(requirement("fast"))
        )
    return _found_all(found)


def check_pyspark(_: CheckContext) -> Outcome:
    try:
        return ok(metadata.version("pyspark"))
    except metadata.PackageNotFoundError:
        return warn(
            "pyspark is missing",
            "only the pipeline needs it, the broker does not: "
            + _install_line(requirement("spark")),
        )


def _found_all(found: list[str]) -> Outcome:
    return ok(", ".join(found)) if found else skip("penstock is not installed as a package")


def _install_line(package: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", package])


def _packages(extra: str | None) -> tuple[list[str], list[str]]:
    """Checks the packages that Penstock or an extra requires: versions found, and problems."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return [], []
    found, wrong = [], []
    for line in requirements:
        wanted, _, condition = line.partition(";")
        named = re.search(r"extra == ['\"](\w+)['\"]", condition)
        if (named[1] if named else None) != extra:
            continue
        parts = re.match(r"\s*([\w.-]+)\s*(.*)", wanted)
        assert parts is not None, line
        name, specifier = parts[1], parts[2].strip()
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if satisfies(version, specifier):
            found.append(f"{name} {version}")
        else:
            wrong.append(f"{name} {version} is not {specifier}")
    return found, wrong


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version is in a range such as `>=5.9,<7`. Only numbers are compared."""
    return all(
        _OPERATORS[sign](_numbers(version), _numbers(bound))
        for sign, bound in re.findall(r"([<>=!]=|[<>])\s*([\d.]+)", specifier)
    )


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    return (*numbers, *[0] * (3 - len(numbers)))


# Java


def check_java(context: CheckContext) -> Outcome:
    try:
        from penstock.spark.java import find_java
    except ImportError:
        return skip("only Spark needs it, and Spark is not installed")
    try:
        java = find_java(context.environment)
    except SettingError as error:
        return warn(str(error), "only the pipeline needs it, the broker does not")
    return ok(f"{java.version} at {java.home} ({java.origin})")


# The clock


def check_clock(context: CheckContext) -> Outcome:
    now = datetime.fromtimestamp(context.epoch_seconds, UTC)
    if now.year < _MIN_YEAR:
        return fail(
            f"the date is {now:%Y-%m-%d}: messages get wrong times, and certificates are refused",
            "set the clock, with systemd by `timedatectl set-ntp true`",
        )
    return ok(f"{now:%Y-%m-%d %H:%M:%S} UTC")


CHECKS: dict[str, Check] = {
    "python": check_python,
    "packages": check_packages,
    "fast packages": check_fast_packages,
    "java": check_java,
    "pyspark": check_pyspark,
    "clock": check_clock,
}
