"""When an export's messages may leave: pure decisions about batches, back-off and bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_FIRST_BACKOFF_SECONDS = 0.5
# Whatever a destination asks for: nothing is left alone for longer.
LONGEST_PAUSE_SECONDS = 300.0

# A burst is what so many seconds allow; less than the other is not worth a batch.
_BURST_SECONDS = 1.0
_LEAST_SECONDS = 0.2


class Due(NamedTuple):
    """What may leave by now, and what there is to wait for."""

    # Messages below may leave.
    end: int
    # When more may, in milliseconds since 1970; None if time alone changes nothing.
    at: int | None
    # The end of the stream at which more may.
    needed_end: int


def plan_due(
    first: int,
    end: int,
    batch_size: int,
    interval_millis: int | None,
    time_of: Callable[[int], int],
    now: int,
) -> Due:
    """Which messages of [first, end) may leave: whole batches, and what waited long enough."""
    if interval_millis is None:
        return Due(end, None, end + 1)
    whole = first + (end - first) // batch_size * batch_size
    if whole == end:
        # The next message begins a batch, whose time begins with it.
        return Due(end, None, end + 1)
    began = time_of(whole)
    # A message from the future was stored when the clock was wrong: nobody knows how old it is.
    if began > now or began + interval_millis <= now:
        return Due(end, None, end + 1)
    return Due(whole, began + interval_millis, whole + batch_size)


def backoff_seconds(failures: int, chance: float) -> float:
    """How long to leave a destination alone that has failed so many times; `chance` in [0, 1)."""
    # Longer would only overflow.
    doubled: float = _FIRST_BACKOFF_SECONDS * (1 << min(failures - 1, 16))
    # Those that failed together do not come back together.
    return min(doubled, LONGEST_PAUSE_SECONDS) * (0.75 + 0.25 * chance)


class Bandwidth:
    """A budget of bytes for all exports together, that fills as time goes by.

    It may be overdrawn by a batch, whose size on the wire is known only afterwards: on average it
    holds all the same.
    """

    def __init__(self, kilobits_a_second: int | None) -> None:
        self._bytes_a_second = (kilobits_a_second or 0) * 125
        self._left = self._bytes_a_second * _BURST_SECONDS
        self._filled_at: float | None = None

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            gained = (now - self._filled_at) * self._bytes_a_second
            self._left = min(self._left + gained, self._bytes_a_second * _BURST_SECONDS)
        self._filled_at = now

    def room(self, now: float) -> float:
        """How many bytes may leave now; 0 if it is not worth a batch yet."""
        if not self._bytes_a_second:
            return float("inf")
        self._fill(now)
        return self._left if self._left >= self._bytes_a_second * _LEAST_SECONDS else 0.0

    def seconds_until_room(self, now: float) -> float:
        if not self._bytes_a_second:
            return 0.0
        self._fill(now)
        return max(_LEAST_SECONDS - self._left / self._bytes_a_second, 0.0)

    def take(self, size: float) -> None:
        if self._bytes_a_second:
            self._left -= size
