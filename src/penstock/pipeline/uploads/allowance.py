"""What uploads of one batch may still do: there is an end to their time, and to their bytes."""

from __future__ import annotations

import threading

from penstock.pipeline.delivery import Budget

_RENEWAL_SECONDS = 1.0


class LeftBehindError(Exception):
    """Nobody waits any more for what is being done: it is to end as soon as possible."""


class Allowance:
    """For all threads of a delivery."""

    def __init__(self, budget: Budget, max_bytes: int | None) -> None:
        self._budget = budget
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._is_left_behind = False
        self._sent_bytes = 0
        self._renewals = 0
        self._has_ended = False

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    def may_renew(self, most: int) -> bool:
        """Whether only the time is up, which others may not need, and has not been so often."""
        is_late = self._budget.is_over() and not self._has_ended
        return is_late and self._has_room() and self._renewals < most

    def renew(self) -> None:
        self._renewals += 1
        self._budget.renew(_RENEWAL_SECONDS)

    def end(self) -> None:
        """Others need the time."""
        self._has_ended = True
        self._budget.renew(0.0)

    def _has_room(self) -> bool:
        is_spent = self._max_bytes is not None and self._sent_bytes >= self._max_bytes
        return not is_spent and not self._is_left_behind

    def may_begin(self) -> bool:
        """Whether another call may be begun."""
        return self._has_room() and not self._budget.is_over()

    def begin(self, size: int) -> bool:
        """The same of one with so many bytes, which is begun then."""
        with self._lock:
            if not self.may_begin():
                return False
            self._sent_bytes += size
            return True

    def pause(self, seconds: float) -> bool:
        """Waits; False, at once, if no call could be begun afterwards."""
        return self.may_begin() and self._budget.pause(seconds)

    def take(self, size: int) -> None:
        """A call with so many bytes is made in any case."""
        with self._lock:
            self._sent_bytes += size

    def leave_behind(self) -> None:
        self._is_left_behind = True

    def go_on(self) -> None:
        """LeftBehindError if there is no use in it."""
        if self._is_left_behind:
            raise LeftBehindError
