"""A signal to a delivery that it is to end soon."""

from __future__ import annotations

import threading


class StoppedError(Exception):
    """The delivery was stopped: its result is of no use."""


class StopSignal:
    """For all threads of a delivery."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._is_lost = False

    @property
    def is_set(self) -> bool:
        """No further call may begin."""
        return self._event.is_set()

    @property
    def is_lost(self) -> bool:
        """The lease has ended as well: calls that run are of no use."""
        return self._is_lost

    def stop(self, *, is_lost: bool = False) -> None:
        self._is_lost = self._is_lost or is_lost
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Waits; False, at once, if no call may begin afterwards."""
        return not self._event.wait(max(seconds, 0.0))

    def check(self) -> None:
        """StoppedError if the lease has ended."""
        if self._is_lost:
            raise StoppedError
