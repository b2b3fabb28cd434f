"""Checks one segment without changing it: by the checksums of its files, or by message.

Files are read in pieces, which bounds the memory. They are not mapped, because a bad sector under a
mapping kills the process instead of raising an error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

from penstock.model.storage import SegmentSummary
from penstock.store.journal import JournalRecord
from penstock.store.record import (
    ENTRY,
    checksum_seed,
    count_intact,
    crc32,
    data_path,
    index_path,
)

_PIECE_BYTES = 1 << 20
_ENTRIES_A_PIECE = 4096
# Errors of this process, which are not damage to messages.
_NOT_DAMAGE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM))

# Called with the number of bytes read.
Meter: TypeAlias = Callable[[int], None]


def ignore_bytes(_: int) -> None:
    """A meter that does nothing."""


class CheckedSpan(NamedTuple):
    """Messages [first, end) whose payloads are bytes [start, stop) of the data file.

    `reason` says why they cannot be read; None if they are intact.
    """

    first: int
    end: int
    start: int
    stop: int
    reason: str | None = None


class SegmentSource:
    """The two files of a segment, opened for reading, with the journal's records applied.

    Raises OSError if one of them cannot be opened.
    """

    def __init__(self, directory: Path, first: int, records: Sequence[JournalRecord] = ()) -> None:
        written = [record.written for record in records]
        with ExitStack() as opened:
            self._data = _CheckedFile(
                data_path(directory, first), [(each.position, each.data) for each in written]
            )
            opened.callback(self._data.close)
            self._index = _CheckedFile(
                index_path(directory, first),
                [(each.number * ENTRY.size, each.entries) for each in written],
            )
            opened.callback(self._index.close)
            self._opened = opened.pop_all()
        self.data_size = self._data.size
        self.count = self._index.size // ENTRY.size
        self.index_size = self._index.size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read_data(self, start: int, size: int) -> bytes:
        return self._data.read(start, size)

    def read_index(self, start: int, size: int) -> bytes:
        return self._index.read(start, size)

    def read_entries(self, start: int, count: int) -> list[tuple[int, int, int] | None]:
        """Index entries; None for entries that cannot be read."""
        try:
            return list(ENTRY.iter_unpack(self.read_index(start * ENTRY.size, count * ENTRY.size)))
        except OSError as error:
            raise_unless_damage(error)
        entries: list[tuple[int, int, int] | None] = []
        for number in range(start, start + count):
            try:
                packed = self.read_index(number * ENTRY.size, ENTRY.size)
            except OSError:
                entries.append(None)
            else:
                entries.append(ENTRY.unpack(packed) if len(packed) == ENTRY.size else None)
        return entries


class _CheckedFile:
    """A read-only file, with the writes of the journal as patches."""

    def __init__(self, path: Path, patches: Sequence[tuple[int, bytes]]) -> None:
        self._patches = patches
        self._descriptor = -1
        self.size = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # The journal may have all messages of a segment that a power cut removed.
            if not patches or min(position for position, _ in patches) > 0:
                raise
        else:
            self.size = os.fstat(self._descriptor).st_size
        self.size = max([self.size, *(position + len(data) for position, data in patches)])

    def read(self, start: int, size: int) -> bytes:
        """Reads `size` bytes, or fewer at the end of the file."""
        parts = []
        position, left = start, size if self._descriptor >= 0 else 0
        while left and (data := os.pread(self._descriptor, left, position)):
            parts.append(data)
            position += len(data)
            left -= len(data)
        found = b"".join(parts)
        for at, patch in self._patches:
            begin, end = max(at, start), min(at + len(patch), start + size)
            if begin < end:
                patched = bytearray(found.ljust(end - start, b"\0"))
                patched[begin - start : end - start] = patch[begin - at : end - at]
                found = bytes(patched)
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def check_messages(
    source: SegmentSource, first: int, count: int, meter: Meter = ignore_bytes
) -> Iterator[CheckedSpan]:
    """Checks the first `count` messages of a segment; yields spans that are as long as possible."""
    last: CheckedSpan | None = None
    for span in _check_pieces(source, first, count, meter):
        if (
            last is not None
            and last.reason == span.reason
            and (span.reason is not None or last.stop == span.start)
        ):
            last = last._replace(end=span.end, stop=span.stop)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _check_pieces(
    source: SegmentSource, first: int, count: int, meter: Meter
) -> Iterator[CheckedSpan]:
    # None if the previous entry cannot be read.
    position: int | None = 0
    for begin in range(0, count, _ENTRIES_A_PIECE):
        entries = source.read_entries(begin, min(_ENTRIES_A_PIECE, count - begin))
        meter(len(entries) * ENTRY.size)
        place = one_by_one_until = 0
        while place < len(entries):
            number = first + begin + place
            run = 0
            if place >= one_by_one_until and position is not None:
                run = _count_joined(entries, place, position, source.data_size)
            if run == 0 or position is None:
                entry = entries[place]
                start, stop = position or 0, entry[0] if entry else 0
                yield CheckedSpan(
                    number, number + 1, start, stop, _check_message(source, position, entry, meter)
                )
                position = entry[0] if entry else None
                place += 1
                continue
            joined = [entry for entry in entries[place : place + run] if entry is not None]
            ends, checksums, ingest_times = zip(*joined, strict=True)
            try:
                data = source.read_data(position, ends[-1] - position)
            except OSError as error:
                # Reads messages one by one, because a bad sector may affect only one message.
                raise_unless_damage(error)
                one_by_one_until = place + run
                continue
            meter(len(data))
            stops = [end - position for end in ends]
            payloads = list(map(data.__getitem__, map(slice, [0, *stops[:-1]], stops)))
            intact = count_intact(payloads, ingest_times, checksums)
            if intact:
                yield CheckedSpan(number, number + intact, position, ends[intact - 1])
                position = ends[intact - 1]
                place += intact
            if intact < run:
                yield CheckedSpan(
                    number + intact,
                    number + intact + 1,
                    position,
                    ends[intact],
                    "checksum does not match",
                )
                position = ends[intact]
                place += 1


def _count_joined(
    entries: Sequence[tuple[int, int, int] | None], place: int, position: int, data_size: int
) -> int:
    """The number of entries from `place` on with ascending ends that fit one piece."""
    limit = min(position + _PIECE_BYTES, data_size)
    before, count = position, 0
    for entry in entries[place:]:
        if entry is None or not before < entry[0] <= limit:
            break
        before = entry[0]
        count += 1
    return count


def _check_message(
    source: SegmentSource,
    position: int | None,
    entry: tuple[int, int, int] | None,
    meter: Meter,
) -> str | None:
    """The reason why one message cannot be read; None if it is intact."""
    if entry is None:
        return "index entry cannot be read"
    end, stored, ingest_time = entry
    if position is None:
        return "previous index entry cannot be read"
    if end <= position:
        return "end position in the index is wrong"
    if end > source.data_size:
        return "payload is missing"
    found = checksum_seed(ingest_time)
    while position < end:
        try:
            data = source.read_data(position, min(_PIECE_BYTES, end - position))
        except OSError as error:
            raise_unless_damage(error)
            return f"the disk reports: {error.strerror}"
        if not data:
            return "payload is missing"
        meter(len(data))
        found = crc32(data, found)
        position += len(data)
    return None if found == stored else "checksum does not match"


def raise_unless_damage(error: OSError) -> None:
    """Raises errors that are not damage, such as a lack of descriptors."""
    if error.errno in _NOT_DAMAGE:
        raise error


def matches_checksums(source: SegmentSource, summary: SegmentSummary, meter: Meter) -> bool:
    """Whether both files match the checksums of the sealed segment."""
    index_size = (summary.end - summary.first) * ENTRY.size
    return _checksum_of(source.read_index, index_size, meter) == summary.index_crc and (
        _checksum_of(source.read_data, summary.size, meter) == summary.data_crc
    )


def _checksum_of(read: Callable[[int, int], bytes], size: int, meter: Meter) -> int | None:
    """The CRC-32 of the first `size` bytes; None if they are missing or cannot be read."""
    position = crc = 0
    while position < size:
        try:
            data = read(position, min(_PIECE_BYTES, size - position))
        except OSError as error:
            raise_unless_damage(error)
            return None
        if not data:
            return None
        meter(len(data))
        crc = crc32(data, crc)
        position += len(data)
    return crc
