"""Segments of a stream: the active one, sealed ones, and segments in memory.

The broker's thread appends to and reads segments. It owns the pool of open files. Other threads may
call only `SegmentFiles.sync` and `close`, which share a lock with the pool's eviction: a file is
never closed during a sync.
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

# Max index entries per read, to bound the cost of a request for a billion messages.
_MAX_ENTRIES_A_READ = 16_384


class DamagedError(Exception):
    """A message cannot be read: its bytes are missing or damaged.

    Reads can continue at `next_number`.
    """

    def __init__(self, sequence_number: int, reason: str, next_number: int | None = None) -> None:
        super().__init__(f"message {sequence_number} is damaged: {reason}")
        self.reason = reason
        self.sequence_number = sequence_number
        self.next_number = next_number or sequence_number + 1


class LostError(DamagedError):
    """The files of the messages are missing."""


def _read_error(number: int, error: OSError, next_number: int | None = None) -> Exception:
    """The error to raise for a failed read of a message."""
    if lacks_descriptors(error):
        return error
    return DamagedError(number, f"the disk reports {error}", next_number)


class WrittenRun(msgspec.Struct, frozen=True, gc=False):
    """The bytes that an append wrote, and their positions, for a replay of the journal."""

    position: int
    number: int
    data: bytes
    entries: bytes


_NOT_OPEN = -1


class SegmentFiles:
    """The two files of a segment. The pool of the disk may close them after each use.

    The owner of the pool calls `ensure_open` before each use of a descriptor.
    """

    def __init__(self, disk: Disk, directory: Path, first: int) -> None:
        self.disk = disk
        self.directory = directory
        self.first = first
        # The index is opened before the data and closed after it: both are open if the data is.
        self.data = _NOT_OPEN
        self.index = _NOT_OPEN
        self.is_used = True
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_directory_synced = False
        # The error of a failed eviction, which the next sync raises.
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
        """Syncs everything written before this call. Called from any thread."""
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
            # The files were evicted. Opened outside the pool, because this thread cannot evict.
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
        """Closes the files until the next use, unless another thread syncs them."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._close_both()
        except OSError as error:
            # Network file systems report failed writes on close.
            self._failed_close = error
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """Closes the files permanently. Called from any thread."""
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
        """Messages [start, stop) that fit `max_bytes`, but at least one.

        Every payload is checked. Returns the messages before a damaged one; raises DamagedError if
        the first one is damaged.
        """
        try:
            self.is_used = True
            if self.data < 0:
                self.ensure_open()
            return self._read(start, stop, max_bytes)
        except OSError as error:
            raise _read_error(start, error) from None

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        """Like `read`, but returns the stored bytes unchecked."""
        try:
            self.is_used = True
            if self.data < 0:
                self.ensure_open()
            return self._read_stored(start, stop, max_bytes)
        except OSError as error:
            raise _read_error(start, error) from None

    def position_of(self, number: int) -> int:
        """The start position of a payload, which is the end of the previous one."""
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
        """The ingest time of a message, without a check of its payload."""
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
        """The number of the first `count` messages that end within the data file."""
        numbers = range(self.first + 1, self.first + count + 1)
        try:
            return bisect_right(numbers, self.disk.size(self.data), key=self.position_of)
        except DamagedError:
            return 0

    def _read_index(self, start: int, stop: int) -> tuple[bytes, int, int]:
        """Packed entries, the number of entries before `start`, and the position of its payload."""
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
        # Stops at an invalid end position, but reads at least one message.
        count = _count_valid(entries, position, limit) or 1
        entries = packed[before * ENTRY.size : (before + count) * ENTRY.size]
        if len(entries) < ENTRY.size:
            raise DamagedError(start, "its index entry is missing")
        end = ENTRY.unpack_from(entries, len(entries) - ENTRY.size)[0]
        return StoredRun(start, position, entries, self._read_data(position, end, max_bytes))

    def _read_data(self, position: int, end: int, max_bytes: int) -> bytes:
        size = max(end - position, 0)
        if size > max_bytes:
            # A damaged entry may have a size larger than the memory.
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
        # A wrong end position gives a wrong payload, whose checksum does not match.
        stops = [end - position for end in ends]
        payloads = list(map(data.__getitem__, map(slice, [0, *stops[:-1]], stops)))
        intact = count_intact(payloads, ingest_times, checksums)
        if intact == 0 and len(payloads) > 1:
            # The end position of a later message may be wrong, so that too few bytes were read.
            return self._read(start, start + 1, max_bytes)
        if intact == 0:
            raise DamagedError(start, "its checksum does not match")
        return MessageRun(start, list(ingest_times[:intact]), payloads[:intact])


def _unpack_fitting(packed: bytes, skipped: int, limit: int) -> list[tuple[int, int, int]]:
    """The entries after the skipped ones, up to and including the first that ends beyond the limit.

    Unpacking dominates reads of small messages, so no other entries are unpacked.
    """
    stop = min(skipped + _count_fitting(packed, skipped, limit) + 1, len(packed) // ENTRY.size)
    return list(ENTRY.iter_unpack(packed[skipped * ENTRY.size : stop * ENTRY.size]))


def _count_fitting(packed: bytes, skipped: int, limit: int) -> int:
    """The number of entries after the skipped ones that end within the limit."""
    return bisect_right(
        range(skipped, len(packed) // ENTRY.size),
        limit,
        key=lambda place: ENTRY.unpack_from(packed, place * ENTRY.size)[0],
    )


def _count_valid(entries: bytes, position: int, limit: int) -> int:
    """The number of leading entries with ascending ends within the limit."""
    # Reads all ends at once: a loop would halve the throughput for small messages.
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
    """The first entries whose payloads fit `max_bytes` and whose ends are ascending."""
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

    An append is in both files or in neither: after a failed write, the files are truncated before
    the next append.
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
        """Truncates the files if the truncation after a failed append also failed."""
        if self._is_torn:
            self._truncate()

    def _truncate(self) -> None:
        self.files.ensure_open()
        # The index first: bytes without an entry are not a message.
        self.files.disk.truncate(self.files.index, (self.end - self.first) * ENTRY.size)
        self.files.disk.truncate(self.files.data, self.size)
        self._is_torn = False

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        return self.files.read(start, stop, max_bytes)

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        return self.files.read_stored(start, stop, max_bytes)

    def position_of(self, number: int) -> int:
        # Exports usually read near the end. There, positions are known without a read.
        summary = self._summary
        if number == summary.end:
            return summary.size
        last, position = self._last_append
        return position if number == last else self.files.position_of(number)

    def time_of(self, number: int) -> int:
        return self.files.time_of(number)

    def summary(self) -> SegmentSummary:
        """A consistent summary. Called from any thread."""
        return self._summary

    def close(self) -> None:
        self.files.close()


class SealedSegment:
    """A segment that is never written again. A read opens its files."""

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
    """A segment in memory."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.size = 0
        self.oldest_time = 0
        self.newest_time = 0
        self._payloads: list[bytes] = []
        self._ingest_times: list[int] = []
        # The start of each payload, and the end of the last one.
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
        """Messages in the format of segment files."""
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
