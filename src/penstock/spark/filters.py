"""What a query's filters say about the messages it needs.

Spark hands over the filters that all rows have to pass. Those on the stream and on the sequence
number are met exactly by what is planned. Those on the ingest time decide which segments are read;
Spark applies them again to the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.model.limits import INT64_MAX

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = ("stream", "sequence_number", "ingest_time", "payload")


class Bounds(NamedTuple):
    """Which messages are wanted: of some streams, [first, end), of these times in milliseconds."""

    streams: frozenset[str] | None = None
    first: int = 0
    end: int = INT64_MAX
    oldest_time: int = -INT64_MAX
    newest_time: int = INT64_MAX

    def within(self, *, first: int = 0, end: int = INT64_MAX) -> Bounds:
        return self._replace(first=max(self.first, first), end=min(self.end, end))

    def within_times(self, *, oldest: int = -INT64_MAX, newest: int = INT64_MAX) -> Bounds:
        return self._replace(
            oldest_time=max(self.oldest_time, oldest), newest_time=min(self.newest_time, newest)
        )

    def within_streams(self, names: Iterable[str]) -> Bounds:
        streams = frozenset(names)
        return self._replace(streams=streams if self.streams is None else self.streams & streams)


def push_filters(filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """The bounds that the filters give, and those that Spark still has to apply."""
    bounds = Bounds()
    remaining: list[Filter] = []
    for item in filters:
        narrowed = _narrow(bounds, item)
        if narrowed is not None:
            bounds = narrowed
        if narrowed is None or not _is_met_exactly(item):
            remaining.append(item)
    return bounds, remaining


def _is_met_exactly(item: Filter) -> bool:
    match item:
        case IsNotNull():
            return True
        case In(attribute=("sequence_number",)):
            return False  # what is read is all that lies between the first and the last
    return getattr(item, "attribute", None) != ("ingest_time",)


def _narrow(bounds: Bounds, item: Filter) -> Bounds | None:
    """The bounds with this filter; None if it says nothing that they can hold."""
    match item:
        case IsNotNull(attribute=(column,)) if column in _COLUMNS:
            return bounds  # none of them ever is
        case EqualTo(attribute=("stream",), value=str(name)):
            return bounds.within_streams([name])
        case In(attribute=("stream",), value=names) if all(isinstance(n, str) for n in names):
            return bounds.within_streams(names)
        case EqualTo(attribute=("sequence_number",), value=int(number)):
            return bounds.within(first=number, end=number + 1)
        case In(attribute=("sequence_number",), value=numbers) if numbers and all(
            isinstance(number, int) for number in numbers
        ):
            return bounds.within(first=min(numbers), end=max(numbers) + 1)
        case GreaterThan(attribute=("sequence_number",), value=int(number)):
            return bounds.within(first=number + 1)
        case GreaterThanOrEqual(attribute=("sequence_number",), value=int(number)):
            return bounds.within(first=number)
        case LessThan(attribute=("sequence_number",), value=int(number)):
            return bounds.within(end=number)
        case LessThanOrEqual(attribute=("sequence_number",), value=int(number)):
            return bounds.within(end=number + 1)
    if getattr(item, "attribute", None) == ("ingest_time",):
        return _narrow_times(bounds, item)
    return None


def _narrow_times(bounds: Bounds, item: Any) -> Bounds | None:
    if not isinstance(getattr(item, "value", None), datetime):
        return None
    # Ingest times are whole milliseconds; what is asked for may lie between two of them.
    down, up = _milliseconds(item.value)
    match item:
        case EqualTo():
            return bounds.within_times(oldest=up, newest=down)
        case GreaterThan():
            return bounds.within_times(oldest=down + 1)
        case GreaterThanOrEqual():
            return bounds.within_times(oldest=up)
        case LessThan():
            return bounds.within_times(newest=up - 1)
        case LessThanOrEqual():
            return bounds.within_times(newest=down)
    return None


def _milliseconds(moment: datetime) -> tuple[int, int]:
    """The last millisecond up to this moment, and the first from it on."""
    if moment.tzinfo is None:
        moment = moment.astimezone()
    micros = (moment - _EPOCH) // timedelta(microseconds=1)
    return micros // 1000, -(-micros // 1000)
