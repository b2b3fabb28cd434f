"""The type of a check, its outcomes, and how it is run."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from penstock.cli.checks.context import CheckContext
from penstock.errors import SettingError


class State(StrEnum):
    ok = "ok"
    warn = "warn"
    fail = "fail"
    skip = "skip"


class Outcome(NamedTuple):
    state: State
    found: str
    mend: str = ""


class CheckFinding(NamedTuple):
    """The outcome of a named check."""

    name: str
    state: State
    found: str
    mend: str = ""


Check: TypeAlias = Callable[[CheckContext], Outcome]


def ok(found: str) -> Outcome:
    return Outcome(State.ok, found)


def skip(found: str) -> Outcome:
    return Outcome(State.skip, found)


def warn(found: str, mend: str) -> Outcome:
    return Outcome(State.warn, found, mend)


def fail(found: str, mend: str) -> Outcome:
    return Outcome(State.fail, found, mend)


def run(name: str, check: Check, context: CheckContext) -> CheckFinding:
    try:
        outcome = check(context)
    except SettingError:
        outcome = skip("not checked: the settings are wrong")
    except (OSError, ValueError) as error:
        # Usually a file that belongs to another user.
        outcome = fail(str(error), "run this as the user that runs the broker")
    return CheckFinding(name, *outcome)
