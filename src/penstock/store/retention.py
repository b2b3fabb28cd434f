"""Retention: which segments to drop, as pure functions over sizes, times and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from penstock.model import MessageStreamDefinition, StrategyOnFull

_MIN_SEGMENT = 1024


class SegmentSpan(Protocol):
    """The properties of a segment that retention uses."""

    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def newest_time(self) -> int: ...


class Limits(NamedTuple):
    """The retention settings of a definition."""

    max_size: int
    segment_size: int
    overwrites: bool
    time_to_live_millis: int | None

    @classmethod
    def of(cls, definition: MessageStreamDefinition) -> Limits:
        segment_size = definition.stream_segment_size
        if segment_size >= definition.max_size:
            # Otherwise dropping one segment would empty the stream.
            segment_size = max(definition.max_size // 4, _MIN_SEGMENT)
        return cls(
            definition.max_size,
            segment_size,
            definition.strategy_on_full is StrategyOnFull.OverwriteOldestData,
            definition.time_to_live_millis,
        )


def plan_room(
    segments: Sequence[SegmentSpan], total: int, needed: int, limits: Limits, exported_end: int
) -> int | None:
    """The number of oldest segments to drop so that `needed` bytes fit; None if they cannot.

    `total` is the size of all segments. A stream that overwrites drops the oldest segments. A
    stream that rejects new data drops only segments below `exported_end`, which all its enabled
    exports have exported.
    """
    dropped = 0
    while total + needed > limits.max_size:
        if dropped == len(segments):
            return None
        oldest = segments[dropped]
        if not limits.overwrites and oldest.end > exported_end:
            return None
        total -= oldest.size
        dropped += 1
    return dropped


def count_expired(segments: Iterable[SegmentSpan], limits: Limits, now: int) -> int:
    """The number of oldest segments that hold only expired messages."""
    if limits.time_to_live_millis is None:
        return 0
    count = 0
    for segment in segments:
        is_empty = segment.first == segment.end
        if is_empty or segment.newest_time + limits.time_to_live_millis >= now:
            break
        count += 1
    return count
