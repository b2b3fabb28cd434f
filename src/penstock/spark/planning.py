"""From slices of streams to the tasks of a query: plain values, planned on the driver.

A piece is the part of a slice that lies in one segment. A task gets pieces one behind the other,
so that the rows of a stream stay in order from one partition to the next.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.model.storage import Location, SegmentSummary
from penstock.spark.place import Place
from penstock.spark.times import ALL_TIMES, TimeRange

# A task costs some fifty milliseconds before it reads anything; less than this is not worth one.
_MIN_BYTES = 8 * 1024 * 1024
# More is read in several rounds, so that one that fails is not much to do again.
_MAX_BYTES = 256 * 1024 * 1024
# A message costs about as much as so many bytes, however small it is.
_MESSAGE_BYTES = 64


class Piece(NamedTuple):
    """Messages [first, end) of one segment of a stream, and where that is."""

    stream: str
    stream_id: str
    segment: SegmentSummary
    first: int
    end: int
    # None for a stream that has no files.
    root: str | None
    instance: str
    # Only messages of these times are rows.
    times: TimeRange

    @property
    def cost(self) -> int:
        """Bytes that it has to move, as far as they are known without looking."""
        segment = self.segment
        count = self.end - self.first
        size = segment.size * count // (segment.end - segment.first)
        # A message has a byte at least: of a segment that is lost, any number costs nothing.
        return max(size + min(count, size) * _MESSAGE_BYTES, 1)


class ReadTask(InputPartition):
    """What one Spark task reads."""

    def __init__(self, place: Place, pieces: Sequence[Piece]) -> None:
        self.place = place
        self.pieces = list(pieces)

    def __repr__(self) -> str:
        slices = ", ".join(f"{p.stream} [{p.first}, {p.end})" for p in self.pieces)
        return f"<Task {slices}>"


def plan_pieces(
    stream: str,
    stream_id: str,
    location: Location,
    first: int,
    end: int,
    times: TimeRange = ALL_TIMES,
) -> list[Piece]:
    """The pieces of [first, end) in the segments that may hold messages of these times."""
    return [
        Piece(
            stream,
            stream_id,
            segment,
            max(first, segment.first),
            min(end, segment.end),
            location.root if location.has_files else None,
            location.instance,
            times,
        )
        for segment in location.segments
        if max(first, segment.first) < min(end, segment.end) and times.may_be_in(segment)
    ]


def plan_tasks(
    place: Place, pieces: Iterable[Piece], min_partitions: int, cores: int | None = None
) -> list[ReadTask]:
    """Tasks of about equal cost: one for each core as long as that is worth it."""
    pieces = list(pieces)
    if not pieces:
        return []
    total = sum(piece.cost for piece in pieces)
    cores = cores or os.cpu_count() or 1
    # As many for each core: a task that is left over at the end would be waited for.
    rounds = -(-total // (cores * _MAX_BYTES))
    share = max(-(-total // (cores * rounds)), _MIN_BYTES)
    most = max(total // min_partitions, 1)
    # Half of a piece may stand over: a segment that is read whole is checked at once. But not
    # where so many tasks are asked for that each gets less.
    in_place = 2 if share <= most else 1
    share = min(share, most)
    tasks: list[list[Piece]] = []
    room = 0
    for piece in _cut(pieces, share):
        if not tasks or room < piece.cost // in_place:
            tasks.append([])
            room = share
        tasks[-1].append(piece)
        room -= piece.cost
    return [ReadTask(place, task) for task in tasks]


def _cut(pieces: Iterable[Piece], share: int) -> Iterable[Piece]:
    """Pieces that are larger than a share, in parts."""
    for piece in pieces:
        parts = min(-(-piece.cost // share), piece.end - piece.first)
        for part in range(parts):
            count = piece.end - piece.first
            yield piece._replace(
                first=piece.first + count * part // parts,
                end=piece.first + count * (part + 1) // parts,
            )
