"""Stored messages, with verification of checksums and conversion to Arrow columns.

Mapped messages and messages from the wire are two buffers: index entries and payloads. The payloads
of a segment have the layout of an Arrow binary column, so only end positions are copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.storage import SegmentSummary
from penstock.spark.times import ALL_TIMES, TimeRange
from penstock.store.record import crc32

# The layout of `penstock.store.record.ENTRY`.
ENTRY_TYPE = np.dtype([("end", "<u4"), ("checksum", "<u4"), ("ingest_time", "<i8")])

_COLUMNS: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "sequence_number": pa.int64(),
    "ingest_time": pa.timestamp("us", tz="UTC"),
    "payload": pa.binary(),
}
# The schema that Spark derives from the schema of the source.
ARROW_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _COLUMNS.items()])

# The limits of a batch: large batches exceed the CPU cache, small batches have overhead.
_MAX_BATCH_BYTES = 4 * 1024 * 1024
_MAX_BATCH_MESSAGES = 16_384
# The number of checksums that are compared at once. It limits the memory for Python objects, as a
# task may have millions of small messages.
_MAX_CHECKED_MESSAGES = 65_536

Mask = npt.NDArray[np.bool_]
_NONE: Mask = np.empty(0, np.bool_)


class StoredMessages(NamedTuple):
    """Consecutive messages from `first` on. `payloads` begins at `position` of the data file."""

    first: int
    entries: npt.NDArray[np.void]
    payloads: pa.Buffer
    position: int
    # The position of the first payload in `payloads`.
    start: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.entries)

    def part(self, first: int, end: int) -> StoredMessages:
        """Returns the messages [first, end)."""
        skipped = first - self.first
        start = int(self.entries["end"][skipped - 1]) - self.position if skipped else self.start
        entries = self.entries[skipped : end - self.first]
        return StoredMessages(first, entries, self.payloads, self.position, start)

    def is_intact(self, segment: SegmentSummary) -> bool:
        """Whether these are all messages of the segment, with the checksums of its files."""
        return (
            self.first == segment.first
            and self.end == segment.end
            and self.payloads.size == segment.size
            and crc32(self.entries.data) == segment.index_crc
            and crc32(self.payloads) == segment.data_crc
        )

    def intact_parts(self) -> list[StoredMessages]:
        """Returns the runs of messages whose own checksums match."""
        steps = range(self.first, self.end, _MAX_CHECKED_MESSAGES)
        parts = (self.part(step, min(step + _MAX_CHECKED_MESSAGES, self.end)) for step in steps)
        return self._runs(np.concatenate([_NONE, *map(_find_intact, parts)]))

    def between(self, times: TimeRange) -> list[StoredMessages]:
        """Returns the runs of messages in these times: one, unless the clock was set back."""
        if times == ALL_TIMES:
            return [self]
        ingest_times = self.entries["ingest_time"]
        return self._runs((ingest_times >= times.start) & (ingest_times < times.end))

    def _runs(self, mask: Mask) -> list[StoredMessages]:
        """Returns the runs of messages that the mask selects."""
        if mask.all():
            return [self]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
        return [
            self.part(self.first + int(start), self.first + int(stop))
            for start, stop in zip(edges[::2], edges[1::2], strict=True)
        ]

    def batches(self, stream: str) -> Iterator[pa.RecordBatch]:
        """Yields the messages as rows; the messages must be intact."""
        offsets = self._offsets()
        count = len(self.entries)
        start = 0
        while start < count:
            window = offsets[start : start + _MAX_BATCH_MESSAGES + 1]
            # A Python integer, because the sum may exceed 32 bits.
            fitting = np.searchsorted(window, int(window[0]) + _MAX_BATCH_BYTES, side="right") - 1
            stop = start + max(int(fitting), 1)
            yield self._batch(stream, start, stop, offsets)
            start = stop

    def _batch(
        self, stream: str, start: int, stop: int, offsets: npt.NDArray[np.int32]
    ) -> pa.RecordBatch:
        count = stop - start
        name = stream.encode()
        name_offsets = np.arange(0, (count + 1) * len(name), len(name), dtype=np.int32)
        numbers = np.arange(self.first + start, self.first + stop, dtype=np.int64)
        micros = self.entries["ingest_time"][start:stop] * 1000
        buffers = (
            (pa.py_buffer(name_offsets.data), pa.py_buffer(name * count)),
            (pa.py_buffer(numbers.data),),
            (pa.py_buffer(micros.data),),
            (pa.py_buffer(offsets[start : stop + 1].data), self.payloads),
        )
        return pa.RecordBatch.from_arrays(
            [
                pa.Array.from_buffers(field.type, count, [None, *parts])
                for field, parts in zip(ARROW_SCHEMA, buffers, strict=True)
            ],
            schema=ARROW_SCHEMA,
        )

    def _offsets(self) -> npt.NDArray[np.int32]:
        """Returns the position of each payload in `payloads`, and the end of the last one."""
        offsets = np.empty(len(self.entries) + 1, np.int32)
        offsets[0] = self.start
        offsets[1:] = self.entries["end"] - np.uint32(self.position)
        return offsets


def _find_intact(stored: StoredMessages) -> Mask:
    """Returns a mask of the messages whose own checksums match."""
    times = stored.entries["ingest_time"]
    seeds = ((times ^ (times >> 32)) & 0xFFFFFFFF).tolist()
    # 64 bits wide, because a damaged end may be any number, even a negative one.
    ends = stored.entries["end"].astype(np.int64) - stored.position
    begins = np.concatenate(([stored.start], ends[:-1]))
    view = memoryview(stored.payloads)
    payloads = map(view.__getitem__, map(slice, begins.tolist(), ends.tolist()))
    checksums = np.fromiter(map(crc32, payloads, seeds), np.uint32, len(seeds))
    is_inside = (begins >= 0) & (begins < ends) & (ends <= len(view))
    mask: Mask = (checksums == stored.entries["checksum"]) & is_inside
    return mask
