"""Segments: the part of a stream that is written to, and the parts that are closed.

The active segment is appended to and read by one thread, the broker's, which owns the pool of open
files. Only `SegmentFiles.sync` and `close` may be called from another one. They share a lock with
the pool's eviction, so that a file is never closed under a sync that runs.
"""

from __future__ import annotations

import errno
import struct
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import gt
from pathlib import Path

import msgspec

from penstock.model.message import MessageRun
from penstock.model.storage import SegmentSummary, StoredRun
from penstock.store.files import Disk
from penstock.store.pool import lacks_descriptors
from penstock.store.record import (
    ENTRY,
    checksum,
    count_intact,
    crc32,
    data_path,
    index_path,
    pack_entries,
)

# How many index entries one read looks at: bounds what a request for a billion messages costs.
_MAX_ENTRIES_A_READ = 16_384


class DamagedError(Exception):
    """A message that cannot be read: its bytes are gone or not what was written.

    `next_number` is where reading may go on.
    """

    def __init__(self, sequence_number: int, reason: str, next_number: int | None = None) -> None:
        super().__init__(f"message {sequence_number} is damaged: {reason}")
        self.reason = reason
        self.sequence_number = sequence_number
        self.next_number = next_number or sequence_number + 1


class LostError(DamagedError):
    """Messages of which nothing is left: their files are gone."""


def _read_error(number: int, error: OSError, next_number: int | None = None) -> Exception:
    """The error that a failed read of a message raises."""
    if lacks_descriptors(error):
        return error
    return DamagedError(number, f"the disk says {error}", next_number)


class WrittenRun(msgspec.Struct, frozen=True, gc=False):
    """What an append wrote, and where: enough to write it again."""

    position: int
    number: int
    data: bytes
    entries: bytes


_NOT_OPEN = -1


class SegmentFiles:
    """The two files of a segment, which are open while the pool of their disk has room.

    The owner of the pool calls `ensure_open` before each use of a descriptor.
    """

    def __init__(self, disk: Disk, directory: Path, first: int) -> None:
        self.disk = disk
        self.directory = directory
        self.first = first
        # The index is set before the data, and cleared after it: both are open if the data is.
        self.data = _NOT_OPEN
        self.index = _NOT_OPEN
        self.is_used = True
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_directory_synced = False
        # An eviction that failed, which the next sync has to report.
        self._failed_close: OSError | None = None

    @classmethod
    def create(cls, disk: Disk, directory: Path, first: int) -> SegmentFiles:
        files = cls(disk, directory, first)
        disk.pool.open(files, files._create)
        return files

    @classmethod
    def open(cls, disk: Disk, directory: Path, first: int) -> SegmentFiles:
        files = cls(disk, directory, first)
        disk.pool.open(files, files._open)
        return files

    def ensure_open(self) -> None:
        self.is_used = True
        if self.data < 0:
            if self._is_closed:
                raise OSError(errno.EBADF, "the segment is closed", str(self._data_path))
            self.disk.pool.open(self, self._open)

    @property
    def _data_path(self) -> Path:
        return data_path(self.directory, self.first)

    @property
    def _index_path(self) -> Path:
        return index_path(self.directory, self.first)

    def _create(self) -> None:
        data = self.disk.create(self._data_path)
        try:
            self.index = self.disk.create(self._index_path)
        except OSError:
            self.disk.close(data)
            self.disk.remove(self._data_path)
            raise
        self.data = data

    def _open(self) -> None:
        self.index, self.data = reversed(self._open_both())

    def _open_both(self) -> tuple[int, int]:
        data = self.disk.open(self._data_path)
        try:
            return data, self.disk.open(self._index_path)
        except OSError:
            self.disk.close(data)
            raise

    def sync(self) -> None:
        """Everything written before this call is on the disk after it; from any thread."""
        with self._lock:
            if self._is_closed:
                return
            error, self._failed_close = self._failed_close, None
            if error is not None:
                raise error
            data, index = self.data, self.index
            if data >= 0:
                self._sync(data, index)
                return
            # Evicted: not worth a place in the pool, which this thread could not make either.
            data, index = self._open_both()
            try:
                self._sync(data, index)
            finally:
                self.disk.close(data)
                self.disk.close(index)

    def _sync(self, data: int, index: int) -> None:
        self.disk.sync(data)
        self.disk.sync(index)
        if not self._is_directory_synced:
            self.disk.sync_directory(self.directory)
            self._is_directory_synced = True

    def evict(self) -> bool:
        """Closes the files for the time being, unless another thread syncs them."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._close_both()
        except OSError as error:
            # Network file systems report failed writes here.
            self._failed_close = error
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """Closes the files for good; from any thread."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._close_both()
        self.disk.pool.discard(self)

    def _close_both(self) -> None:
        data, index = self.data, self.index
        self.data = self.index = _NOT_OPEN
        if data >= 0:
            try:
                self.disk.close(data)
            finally:
                self.disk.close(index)

    def remove(self) -> None:
        self.close()
        self.disk.remove(self._data_path)
        self.disk.remove(self._index_path)

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        """Messages [start, stop), as many as fit `max_bytes` but one at least.

        Every payload is checked. What precedes a damaged message is returned; a damaged one at
        the start raises.
        """
        try:
            self.is_used = True
            if self.data < 0:
                self.ensure_open()
            return self._read(start, stop, max_bytes)
        except OSError as error:
            raise _read_error(start, error) from None

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        """The same, unchecked and as it is stored."""
        try:
            self.is_used = True
            if self.data < 0:
                self.ensure_open()
            return self._read_stored(start, stop, max_bytes)
        except OSError as error:
            raise _read_error(start, error) from None

    def position_of(self, number: int) -> int:
        """Where the payload of a message begins, which is where the one before it ends."""
        if number == self.first:
            return 0
        try:
            self.ensure_open()
            entry = self.disk.read(self.index, ENTRY.size, (number - self.first - 1) * ENTRY.size)
            end: int = ENTRY.unpack(entry)[0]
        except OSError as error:
            raise _read_error(number, error) from None
        except struct.error:
            raise DamagedError(number, "its index entry is missing") from None
        return end

    def time_of(self, number: int) -> int:
        """When a message was appended, without a look at its payload."""
        try:
            self.ensure_open()
            entry = self.disk.read(self.index, ENTRY.size, (number - self.first) * ENTRY.size)
            ingest_time: int = ENTRY.unpack(entry)[2]
        except OSError as error:
            raise _read_error(number, error) from None
        except struct.error:
            raise DamagedError(number, "its index entry is missing") from None
        return ingest_time

    def count_stored(self, count: int) -> int:
        """How many of the first `count` messages end within the data file, by their entries."""
        numbers = range(self.first + 1, self.first + count + 1)
        try:
            return bisect_right(numbers, self.disk.size(self.data), key=self.position_of)
        except DamagedError:
            return 0

    def _read_index(self, start: int, stop: int) -> tuple[bytes, int, int]:
        """Packed entries, how many of them precede `start`, and where its payload begins."""
        before = 1 if start > self.first else 0
        packed = self.disk.read(
            self.index,
            (stop - start + before) * ENTRY.size,
            (start - self.first - before) * ENTRY.size,
        )
        position = ENTRY.unpack_from(packed)[0] if before and len(packed) >= ENTRY.size else 0
        return packed, before, position

    def _read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        packed, before, position = self._read_index(start, stop)
        limit = position + max_bytes
        fitting = _count_fitting(packed, before, limit)
        entries = packed[before * ENTRY.size : (before + fitting) * ENTRY.size]
        # Behind an end that makes no sense another read begins. One message at least.
        count = _count_valid(entries, position, limit) or 1
        entries = packed[before * ENTRY.size : (before + count) * ENTRY.size]
        if len(entries) < ENTRY.size:
            raise DamagedError(start, "its index entry is missing")
        end = ENTRY.unpack_from(entries, len(entries) - ENTRY.size)[0]
        return StoredRun(start, position, entries, self._read_data(position, end, max_bytes))

    def _read_data(self, position: int, end: int, max_bytes: int) -> bytes:
        size = max(end - position, 0)
        if size > max_bytes:
            # One message that is large, or that claims to be: a device may not have as much memory.
            size = min(size, max(self.disk.size(self.data) - position, 0))
        return self.disk.read(self.data, size, position)

    def _read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        stop = min(stop, start + _MAX_ENTRIES_A_READ)
        packed, before, position = self._read_index(start, stop)
        entries = _unpack_fitting(packed, before, position + max_bytes)
        if not entries:
            raise DamagedError(start, "its index entry is missing")
        ends, checksums, ingest_times = zip(
            *_take_fitting(entries, position, max_bytes), strict=True
        )
        data = self._read_data(position, ends[-1], max_bytes)
        # A wrong end gives a slice of another length, and that another checksum.
        stops = [end - position for end in ends]
        payloads = list(map(data.__getitem__, map(slice, [0, *stops[:-1]], stops)))
        intact = count_intact(payloads, ingest_times, checksums)
        if intact == 0 and len(payloads) > 1:
            # The end of a later message may be wrong, and so too few bytes were read.
            return self._read(start, start + 1, max_bytes)
        if intact == 0:
            raise DamagedError(start, "its checksum does not match")
        return MessageRun(start, list(ingest_times[:intact]), payloads[:intact])


def _unpack_fitting(packed: bytes, skipped: int, limit: int) -> list[tuple[int, int, int]]:
    """The entries behind those that are skipped, up to the first that ends behind the limit.

    Unpacking is what a read of small messages is made of: what will not be used is not unpacked.
    """
    stop = min(skipped + _count_fitting(packed, skipped, limit) + 1, len(packed) // ENTRY.size)
    return list(ENTRY.iter_unpack(packed[skipped * ENTRY.size : stop * ENTRY.size]))


def _count_fitting(packed: bytes, skipped: int, limit: int) -> int:
    """How many entries behind those that are skipped end at the limit or before."""
    return bisect_right(
        range(skipped, len(packed) // ENTRY.size),
        limit,
        key=lambda place: ENTRY.unpack_from(packed, place * ENTRY.size)[0],
    )


def _count_valid(entries: bytes, position: int, limit: int) -> int:
    """How many of the first entries end behind the one before them, and not behind the limit."""
    # All ends in one go: small messages would be read at half the pace otherwise.
    ends = array("I", entries)[:: ENTRY.size // 4]
    if sys.byteorder == "big":
        ends.byteswap()
    rising = [position, *ends]
    if rising != sorted(rising):
        falls = map(gt, rising, ends)
        del rising[list(falls).index(True) + 1 :]
    return bisect_right(rising, limit) - 1


def _take_fitting(
    entries: list[tuple[int, int, int]], position: int, max_bytes: int
) -> list[tuple[int, int, int]]:
    """The first entries, as long as the payloads fit `max_bytes` and their ends make sense."""
    if position < entries[-1][0] <= position + max_bytes:
        return entries
    count = 1
    while (
        count < len(entries) and entries[count - 1][0] < entries[count][0] <= position + max_bytes
    ):
        count += 1
    return entries[:count]


class ActiveSegment:
    """The newest segment, open for appending.

    An append is in both files or in neither: where writing fails, what got written is cut off
    again before anything else is appended.
    """

    def __init__(self, files: SegmentFiles, recovered: SegmentSummary | None = None) -> None:
        self.files = files
        self.first = files.first
        self.end = recovered.end if recovered else files.first
        self.size = recovered.size if recovered else 0
        self.oldest_time = recovered.oldest_time if recovered else 0
        self.newest_time = recovered.newest_time if recovered else 0
        self._summary = recovered or SegmentSummary(files.first, files.first, 0, 0, 0, 0, 0)
        # The first message of the last append, and its position.
        self._last_append = self.end, self.size
        self._is_torn = False

    def append(self, payloads: Sequence[bytes], ingest_time: int) -> WrittenRun:
        if self._is_torn:
            self.repair()
        data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
        entries = pack_entries(payloads, self.size, ingest_time)
        written = WrittenRun(self.size, self.end - self.first, data, entries)
        files = self.files
        files.is_used = True
        if files.data < 0:
            files.ensure_open()
        try:
            files.disk.write(files.data, data, written.position)
            files.disk.write(files.index, entries, written.number * ENTRY.size)
        except OSError:
            self._is_torn = True
            self._truncate()
            raise
        summary = self._summary
        self._last_append = self.end, self.size
        if ingest_time > self.newest_time or self.end == self.first:
            self.newest_time = ingest_time
        if ingest_time < self.oldest_time or self.end == self.first:
            self.oldest_time = ingest_time
        self.size += len(data)
        self.end += len(payloads)
        self._summary = SegmentSummary(
            self.first,
            self.end,
            self.size,
            self.oldest_time,
            self.newest_time,
            crc32(data, summary.data_crc),
            crc32(entries, summary.index_crc),
        )
        return written

    def repair(self) -> None:
        """Cut off what a failed append left, if the disk did not even let it be cut off then."""
        if self._is_torn:
            self._truncate()

    def _truncate(self) -> None:
        self.files.ensure_open()
        # The index first: without an entry nothing is a message.
        self.files.disk.truncate(self.files.index, (self.end - self.first) * ENTRY.size)
        self.files.disk.truncate(self.files.data, self.size)
        self._is_torn = False

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        return self.files.read(start, stop, max_bytes)

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        return self.files.read_stored(start, stop, max_bytes)

    def position_of(self, number: int) -> int:
        # Exports follow the end closely: these positions need no read.
        summary = self._summary
        if number == summary.end:
            return summary.size
        last, position = self._last_append
        return position if number == last else self.files.position_of(number)

    def time_of(self, number: int) -> int:
        return self.files.time_of(number)

    def summary(self) -> SegmentSummary:
        """All of it as of one moment; from any thread."""
        return self._summary

    def close(self) -> None:
        self.files.close()


class SealedSegment:
    """A segment that is never written again. Its files are opened when somebody reads."""

    def __init__(self, disk: Disk, directory: Path, summary: SegmentSummary) -> None:
        self._disk = disk
        self._directory = directory
        self._files: SegmentFiles | None = None
        self._summary = summary
        self.first = summary.first
        self.end = summary.end
        self.size = summary.size
        self.oldest_time = summary.oldest_time
        self.newest_time = summary.newest_time

    def summary(self) -> SegmentSummary:
        return self._summary

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        return self._open_files(start).read(start, min(stop, self.end), max_bytes)

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        return self._open_files(start).read_stored(start, min(stop, self.end), max_bytes)

    def position_of(self, number: int) -> int:
        return self._open_files(number).position_of(number)

    def time_of(self, number: int) -> int:
        return self._open_files(number).time_of(number)

    def _open_files(self, start: int) -> SegmentFiles:
        if self._files is None:
            self._files = SegmentFiles(self._disk, self._directory, self.first)
        if self._files.data >= 0:
            return self._files
        try:
            self._files.ensure_open()
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            raise LostError(start, f"{missing} is missing", self.end) from None
        except OSError as error:
            raise _read_error(start, error, self.end) from None
        return self._files

    def close(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None


class MemorySegment:
    """A segment that never touches the disk."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.size = 0
        self.oldest_time = 0
        self.newest_time = 0
        self._payloads: list[bytes] = []
        self._ingest_times: list[int] = []
        # Where each payload begins, and where the last one ends.
        self._positions = array("Q", (0,))

    @property
    def end(self) -> int:
        return self.first + len(self._payloads)

    def append(self, payloads: Sequence[bytes], ingest_time: int) -> None:
        if not self._payloads:
            self.oldest_time = self.newest_time = ingest_time
        self.oldest_time = min(self.oldest_time, ingest_time)
        self.newest_time = max(self.newest_time, ingest_time)
        self._payloads.extend(payloads)
        self._ingest_times.extend([ingest_time] * len(payloads))
        ends = accumulate(map(len, payloads), initial=self.size)
        next(ends)
        self._positions.extend(ends)
        self.size = self._positions[-1]

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        begin = start - self.first
        end = min(stop - self.first, begin + _MAX_ENTRIES_A_READ)
        payloads = self._payloads[begin:end]
        total, count = len(payloads[0]), 1
        while count < len(payloads) and total + len(payloads[count]) <= max_bytes:
            total += len(payloads[count])
            count += 1
        return MessageRun(start, self._ingest_times[begin : begin + count], payloads[:count])

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        """As the files of a segment would hold them."""
        run = self.read(start, stop, max_bytes)
        begin = start - self.first
        positions = self._positions[begin : begin + len(run.payloads) + 1]
        checksums = map(checksum, run.payloads, run.ingest_times)
        entries = b"".join(map(ENTRY.pack, positions[1:], checksums, run.ingest_times))
        return StoredRun(start, positions[0], entries, b"".join(run.payloads))

    def position_of(self, number: int) -> int:
        return self._positions[number - self.first]

    def time_of(self, number: int) -> int:
        return self._ingest_times[number - self.first]

    def summary(self) -> SegmentSummary:
        return SegmentSummary(
            self.first, self.end, self.size, self.oldest_time, self.newest_time, 0, 0
        )

    def close(self) -> None:
        self._payloads, self._ingest_times = [], []
        self._positions = array("Q", (0,))
