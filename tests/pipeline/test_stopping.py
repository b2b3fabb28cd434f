"""The signal that ends deliveries."""

from __future__ import annotations

import time

import pytest

from penstock.pipeline.stopping import StoppedError, StopSignal
from tests.support import PATIENCE_S, running


def test_stopped_delivery_may_finish_its_calls() -> None:
    stop = StopSignal()
    assert (stop.is_set, stop.is_lost) == (False, False)
    stop.stop()
    assert (stop.is_set, stop.is_lost) == (True, False)
    stop.check()


def test_lost_lease_ends_calls_that_run() -> None:
    stop = StopSignal()
    stop.stop(is_lost=True)
    # It stays lost.
    stop.stop()
    assert (stop.is_set, stop.is_lost) == (True, True)
    with pytest.raises(StoppedError):
        stop.check()


def test_wait_ends_after_its_time() -> None:
    stop = StopSignal()
    began = time.monotonic()
    assert stop.wait(0.05)
    assert time.monotonic() - began >= 0.05
    assert stop.wait(-1)


def test_stop_ends_a_wait() -> None:
    stop = StopSignal()
    results: list[bool] = []
    # `running` fails if it takes as long as that.
    with running(lambda: results.append(stop.wait(2 * PATIENCE_S))):
        stop.stop()
    assert results == [False]
    assert not stop.wait(2 * PATIENCE_S)
