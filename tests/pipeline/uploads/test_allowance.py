"""What uploads of a batch may still do."""

from __future__ import annotations

import pytest

from penstock.pipeline.delivery import Budget
from penstock.pipeline.uploads.allowance import Allowance, LeftBehindError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_no_call_is_begun_once_the_time_is_up() -> None:
    clock = Clock()
    allowance = Allowance(Budget(2.0, clock, clock.sleep), None)
    assert allowance.may_begin()
    assert allowance.pause(1.5)
    assert not allowance.pause(1.0)
    assert clock.now == 1.5
    clock.now = 2.0
    assert not allowance.may_begin()


def test_no_call_is_begun_once_the_bytes_are_spent() -> None:
    allowance = Allowance(Budget(100.0), 10)
    allowance.take(9)
    # A call may be larger than what is left: parts of files are large, and budgets may be small.
    assert allowance.begin(500)
    assert not allowance.begin(1)
    assert not allowance.pause(0.0)
    assert allowance.sent_bytes == 509


def test_the_time_can_be_renewed_and_the_bytes_cannot() -> None:
    clock = Clock()
    allowance = Allowance(Budget(2.0, clock, clock.sleep), 10)
    assert not allowance.may_renew(most=1)
    clock.now = 2.5
    assert allowance.may_renew(most=1)
    allowance.renew()
    assert allowance.begin(5)
    clock.now = 3.5
    assert not allowance.begin(5)
    assert not allowance.may_renew(most=1)
    assert allowance.may_renew(most=2)
    allowance.take(5)
    assert not allowance.may_renew(most=2)


def test_what_others_need_is_not_renewed() -> None:
    allowance = Allowance(Budget(100.0), None)
    allowance.end()
    assert not allowance.may_begin()
    assert not allowance.may_renew(most=5)


def test_what_nobody_waits_for_ends() -> None:
    allowance = Allowance(Budget(100.0), None)
    allowance.go_on()
    allowance.leave_behind()
    assert not allowance.may_begin()
    with pytest.raises(LeftBehindError):
        allowance.go_on()
