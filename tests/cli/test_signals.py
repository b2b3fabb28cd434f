"""Signals that ask a command to end, whatever its main thread is at."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from penstock.cli.signals import call_at_signal
from tests.support import TIMEOUT_S

_NUMBERS = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", _NUMBERS)
def test_each_of_the_signals_makes_the_call(number: signal.Signals) -> None:
    is_over = threading.Event()
    call_at_signal(_NUMBERS, is_over.set)
    assert not is_over.is_set()

    signal.raise_signal(number)

    assert is_over.wait(TIMEOUT_S)


def test_what_is_called_may_need_a_lock_that_the_main_thread_holds() -> None:
    lock = threading.Lock()
    is_over = threading.Event()

    def end() -> None:
        # Without end it would keep the tests from going on.
        if lock.acquire(timeout=TIMEOUT_S):
            is_over.set()

    call_at_signal(_NUMBERS, end)
    with lock:
        signal.raise_signal(signal.SIGUSR1)

    assert is_over.wait(TIMEOUT_S)


def test_signals_that_come_again_and_at_once_call_once() -> None:
    calls: list[int] = []
    is_over = threading.Event()

    def end() -> None:
        calls.append(1)
        is_over.set()

    call_at_signal(_NUMBERS, end)
    for _ in range(1000):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)

    assert is_over.wait(TIMEOUT_S)
    assert calls == [1]
