"""Signals that stop a command while its main thread runs."""

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
def test_each_signal_calls_the_function(number: signal.Signals) -> None:
    is_over = threading.Event()
    call_at_signal(_NUMBERS, is_over.set)
    assert not is_over.is_set()

    signal.raise_signal(number)

    assert is_over.wait(TIMEOUT_S)


def test_function_may_wait_for_a_lock_of_the_main_thread() -> None:
    lock = threading.Lock()
    is_over = threading.Event()

    def end() -> None:
        # A timeout, so that a failure does not block the tests.
        if lock.acquire(timeout=TIMEOUT_S):
            is_over.set()

    call_at_signal(_NUMBERS, end)
    with lock:
        signal.raise_signal(signal.SIGUSR1)

    assert is_over.wait(TIMEOUT_S)


def test_repeated_signals_call_once() -> None:
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
