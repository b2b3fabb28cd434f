"""Ranges of ingest times, from the options startingTimestamp and endingTimestamp."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self

from penstock.errors import SettingError
from penstock.model.limits import INT64_MAX
from penstock.model.storage import SegmentSummary

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NUMBER = re.compile("[0-9]{1,19}")


class TimeRange(NamedTuple):
    """Ingest times [start, end), in milliseconds since the epoch.

    Ingest times follow the broker's clock, which may be set back. So a range of times is usually,
    but not always, a range of sequence numbers.
    """

    start: int = -INT64_MAX
    end: int = INT64_MAX

    @classmethod
    def parse(cls, starting: str | None, ending: str | None) -> Self:
        """Parses both options; SettingError for a bad value, or a start after the end."""
        times = cls()
        if starting is not None:
            times = times._replace(start=parse_timestamp("startingTimestamp", starting))
        if ending is not None:
            times = times._replace(end=parse_timestamp("endingTimestamp", ending))
        if times.start > times.end:
            raise SettingError(
                f"option startingTimestamp is {starting!r}, and endingTimestamp is {ending!r}: "
                "expected startingTimestamp <= endingTimestamp"
            )
        return times

    def may_be_in(self, segment: SegmentSummary) -> bool:
        """Whether a segment may have messages with these times."""
        # The times of a lost segment are unknown.
        is_lost = segment.size == 0
        return is_lost or (segment.newest_time >= self.start and segment.oldest_time < self.end)


ALL_TIMES = TimeRange()


def parse_timestamp(option: str, text: str) -> int:
    """Returns a time in milliseconds since the epoch, rounded up."""
    text = text.strip()
    if _NUMBER.fullmatch(text) and int(text) <= INT64_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise SettingError(
            f"option {option} is {text!r}: expected milliseconds since the epoch, or an ISO-8601 "
            "time with a zone, such as 2026-01-31T12:00:00Z or 2026-01-31T13:00:00+01:00"
        )
    # Floor division of the negated difference rounds up.
    return -((_EPOCH - moment) // _MILLISECOND)
