"""Planning of a query's tasks from slices of streams, as plain values on the driver.

A piece is the part of a slice in one segment. A task gets consecutive pieces, so the rows of a
stream stay in order across partitions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.model.storage import Location, SegmentSummary
from penstock.spark.place import Place
from penstock.spark.times import ALL_TIMES, TimeRange

# The minimum for a task: its start takes about 50 milliseconds.
_MIN_TASK_BYTES = 8 * 1024 * 1024
# The maximum for a task, which limits the work of a retry.
_MAX_TASK_BYTES = 256 * 1024 * 1024
# The cost of a message beside its payload, in bytes.
_MESSAGE_BYTES = 64


class Piece(NamedTuple):
    """Messages [first, end) of one segment of a stream, and the location of the segment."""

    stream: str
    stream_id: str
    segment: SegmentSummary
    first: int
    end: int
    # None for a memory stream.
    root: str | None
    instance: str
    # Messages with other ingest times are left out.
    times: TimeRange

    @property
    def cost(self) -> int:
        """The estimated cost of reading, in bytes."""
        segment = self.segment
        count = self.end - self.first
        size = segment.size * count // (segment.end - segment.first)
        # Each message has at least one byte. A lost segment has size 0 and costs nothing.
        return max(size + min(count, size) * _MESSAGE_BYTES, 1)


class ReadTask(InputPartition):
    """The pieces that one Spark task reads."""

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
    """Plans the pieces of [first, end) in the segments that may have messages of these times."""
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
    """Plans tasks of about equal cost: one or more for each core, or fewer for little data."""
    pieces = list(pieces)
    if not pieces:
        return []
    total = sum(piece.cost for piece in pieces)
    cores = cores or os.cpu_count() or 1
    # Each core gets the same number of tasks, so that no core is idle while another runs the last.
    rounds = -(-total // (cores * _MAX_TASK_BYTES))
    share = max(-(-total // (cores * rounds)), _MIN_TASK_BYTES)
    max_share = max(total // min_partitions, 1)
    # A task may exceed its share by half of a piece, because the check of a whole segment is
    # faster, except if min_partitions reduces the share.
    divisor = 2 if share <= max_share else 1
    share = min(share, max_share)
    tasks: list[list[Piece]] = []
    free = 0
    for piece in _cut(pieces, share):
        if not tasks or free < piece.cost // divisor:
            tasks.append([])
            free = share
        tasks[-1].append(piece)
        free -= piece.cost
    return [ReadTask(place, task) for task in tasks]


def _cut(pieces: Iterable[Piece], share: int) -> Iterable[Piece]:
    """Cuts pieces that are larger than a share into parts."""
    for piece in pieces:
        parts = min(-(-piece.cost // share), piece.end - piece.first)
        for part in range(parts):
            count = piece.end - piece.first
            yield piece._replace(
                first=piece.first + count * part // parts,
                end=piece.first + count * (part + 1) // parts,
            )
