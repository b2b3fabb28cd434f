"""When the messages of an export may leave: pure decisions about batches and back-off."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_FIRST_BACKOFF_SECONDS = 0.5
# Also if a destination asks for a longer pause.
MAX_PAUSE_SECONDS = 300.0


class Due(NamedTuple):
    """Which messages may leave, and what to wait for if there are more."""

    # Messages below may leave.
    end: int
    # When more messages may, in milliseconds since 1970; None if that does not depend on time.
    at: int | None
    # The end of the stream at which more messages may.
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
    # A time in the future was stored while the clock was wrong: the age is unknown.
    if began > now or began + interval_millis <= now:
        return Due(end, None, end + 1)
    return Due(whole, began + interval_millis, whole + batch_size)


def backoff_seconds(failures: int, chance: float) -> float:
    """The pause after so many failures in a row; `chance` is in [0, 1)."""
    # A larger shift overflows.
    doubled: float = _FIRST_BACKOFF_SECONDS * (1 << min(failures - 1, 16))
    # Exports that failed at the same time are not retried at the same time.
    return min(doubled, MAX_PAUSE_SECONDS) * (0.75 + 0.25 * chance)
