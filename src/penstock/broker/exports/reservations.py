"""Bandwidth for parts of files: requests wait until it is granted, the most urgent first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.broker.exports.bandwidth import Bandwidth

_MIN_WAIT_SECONDS = 0.01


class Timer(Protocol):
    def cancel(self) -> None: ...


class Reservation:
    """A request that waits. Requests of equal priority are granted in their order."""

    def __init__(
        self, priority: int, size: int, answer: Callable[[], None], is_held: Callable[[], bool]
    ) -> None:
        self.priority = priority
        self.size = size
        self.answer = answer
        self.is_held = is_held


class Reservations:
    """Called from the event loop only."""

    def __init__(
        self,
        bandwidth: Bandwidth,
        call_later: Callable[[float, Callable[[], None]], Timer],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when requests were granted or canceled: other work may be due."""
        self._bandwidth = bandwidth
        self._call_later = call_later
        self._on_change = on_change
        self._waiting: list[Reservation] = []
        self._timer: Timer | None = None

    @property
    def min_priority(self) -> int | None:
        """That of the most urgent request; None if none waits."""
        return min((each.priority for each in self._waiting), default=None)

    def request(
        self, priority: int, size: int, answer: Callable[[], None], is_held: Callable[[], bool]
    ) -> Reservation:
        """Calls `answer` when so many bytes may be sent; at once if they may be sent now.

        No bytes are charged if the lease is no longer held then.
        """
        reservation = Reservation(priority, size, answer, is_held)
        self._waiting.append(reservation)
        # `sort` is stable.
        self._waiting.sort(key=lambda each: each.priority)
        self._look()
        return reservation

    def has(self, reservation: Reservation) -> bool:
        """Whether it still waits."""
        return reservation in self._waiting

    def cancel(self, reservation: Reservation) -> None:
        if reservation in self._waiting:
            self._waiting.remove(reservation)
            self._look()
            self._on_change()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        answered = []
        while self._waiting:
            first = self._waiting[0]
            if first.is_held() and not self._bandwidth.grant(first.priority, first.size):
                seconds = self._bandwidth.seconds_until_grant(first.priority)
                self._timer = self._call_later(max(seconds, _MIN_WAIT_SECONDS), self._look)
                break
            answered.append(self._waiting.pop(0))
        for reservation in answered:
            reservation.answer()
        if answered:
            self._on_change()
