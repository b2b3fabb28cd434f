"""When an export's messages may leave: pure decisions about batches, back-off and bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

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


class Account(Protocol):
    """What may leave of one kind."""

    def room(self, now: float) -> float:
        """How many bytes may leave now; 0 if it is not worth a batch yet."""

    def seconds_until_room(self, now: float) -> float:
        """How long to wait for that, if nothing else leaves meanwhile."""

    def take(self, size: float) -> None:
        """So many bytes leave; less than none, if it was charged with too many before."""


class Bandwidth:
    """A budget of bytes for all exports together, that fills as time goes by.

    It may be overdrawn by a batch, whose size on the wire is known only afterwards: on average it
    holds all the same. A part of a file is so large that it may take minutes to make up for it, in
    which no message would leave. So files run up a debt of their own: half of what comes in goes
    to it, and all that messages leave unused.
    """

    def __init__(self, kilobits_a_second: int | None) -> None:
        self.bytes_a_second = (kilobits_a_second or 0) * 125
        self.most = self.bytes_a_second * _BURST_SECONDS
        # For messages.
        self.left = self.most
        # What files have sent, and not made up for.
        self.debt = 0.0
        self._filled_at: float | None = None
        self.messages: Account = _Messages(self) if kilobits_a_second else _Unlimited()
        self.files: Account = _Files(self) if kilobits_a_second else _Unlimited()

    def fill(self, now: float) -> None:
        if self._filled_at is not None:
            gained = (now - self._filled_at) * self.bytes_a_second
            paid = min(gained / 2, self.debt)
            self.debt -= paid
            self.give(gained - paid)
        self._filled_at = now

    def give(self, size: float) -> None:
        """To messages first; what they cannot take goes to the debt."""
        left = self.left + size
        self.left = min(left, self.most)
        self.debt = max(self.debt - (left - self.left), 0.0)


class _Unlimited:
    def room(self, now: float) -> float:  # noqa: ARG002 - at any time
        return float("inf")

    def seconds_until_room(self, now: float) -> float:  # noqa: ARG002 - at any time
        return 0.0

    def take(self, size: float) -> None:
        """There is enough."""


class _Messages:
    def __init__(self, bandwidth: Bandwidth) -> None:
        self._all = bandwidth
        self._least = bandwidth.bytes_a_second * _LEAST_SECONDS

    def room(self, now: float) -> float:
        self._all.fill(now)
        return self._all.left if self._all.left >= self._least else 0.0

    def seconds_until_room(self, now: float) -> float:
        self._all.fill(now)
        missing = self._least - self._all.left
        # As long as there is a debt, half of what comes in goes there.
        return max(missing + min(missing, self._all.debt), 0.0) / self._all.bytes_a_second

    def take(self, size: float) -> None:
        self._all.left -= size


class _Files:
    def __init__(self, bandwidth: Bandwidth) -> None:
        self._all = bandwidth

    def room(self, now: float) -> float:
        self._all.fill(now)
        # Less than a byte is what rounding leaves of a debt.
        return self._all.most if self._all.debt < 1 else 0.0

    def seconds_until_room(self, now: float) -> float:
        if self.room(now):
            return 0.0
        # Messages have to be full before all of it goes to the debt.
        debt, missing = self._all.debt, self._all.most - self._all.left
        return (debt + min(missing, debt)) / self._all.bytes_a_second

    def take(self, size: float) -> None:
        debt = self._all.debt + size
        self._all.debt = max(debt, 0.0)
        if debt < 0:
            # It was charged with more than was sent, and part of that is paid by now.
            self._all.give(-debt)
