"""The journal: one small sync for all appends that wait for the disk, across streams.

An append that waits for the disk is written to its segment and to the journal. The journal is
synced at once, the segment within a sync interval. After a crash, the records of the journal are
written to the same positions of the segments again, before the segments are read.

There are two journal files, so that one can be drained while the other is written. Both have their
full size from the start: a sync of a file that does not grow costs the disk one write.
A record, little-endian:

    magic         4 bytes
    checksum      uint32   CRC-32 of the following fields
    epoch         uint64   changes when the file is reused; another epoch ends the journal
    stream        16 bytes
    segment       uint64   its first sequence number
    position      uint32   of the payloads in the data file
    number        uint32   of the first index entry
    sizes         uint32   of the payloads, of the index entries
    payloads, index entries
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Protocol

from penstock.model.storage import SegmentSummary
from penstock.store.files import Disk
from penstock.store.record import ENTRY, crc32, data_path, index_path
from penstock.store.segment import SegmentFiles, WrittenRun

_MAGIC = b"PJ01"
_PREFIX = Struct("<4sI")
_HEADER = Struct("<Q16sQIIII")

_FILE_BYTES = 4 * 1024 * 1024
# Larger commits sync the segments instead, which avoids writing much data twice.
_MAX_COMMIT_BYTES = 64 * 1024


class JournaledLog(Protocol):
    """A log that journals. The journal sets `needs_sync` if it could not store an append."""

    stream_id: str
    needs_sync: bool


class JournalRecord(NamedTuple):
    stream_id: str
    segment: int
    written: WrittenRun


class _JournalFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = None
        self.position = 0
        self.epoch = 0


class Journal:
    """The two journal files.

    The event loop calls `add`, flushing threads call `commit`, and the background thread calls
    `drain` and `drained`.
    """

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._current = _JournalFile(root / "journal.0")
        self._spare: _JournalFile | None = _JournalFile(root / "journal.1")
        self._draining: _JournalFile | None = None
        self._pending: list[tuple[JournaledLog, int, WrittenRun]] = []
        self._committing = threading.Lock()

    def add(self, log: JournaledLog, segment: int, written: WrittenRun) -> None:
        self._pending.append((log, segment, written))

    def is_idle(self) -> bool:
        """Whether a commit would be a small write that waits for no other commit."""
        size = sum(len(written.data) for _, _, written in self._pending)
        return not self._committing.locked() and size <= _MAX_COMMIT_BYTES

    def commit(self) -> None:
        """Syncs everything added before this call, or sets `needs_sync` of the logs."""
        with self._committing:
            pending, self._pending = self._pending, []
            if not pending:
                return
            try:
                is_written = self._write(pending)
            except OSError:
                is_written = False
            if not is_written:
                for log, _, _ in pending:
                    log.needs_sync = True

    def _write(self, pending: list[tuple[JournaledLog, int, WrittenRun]]) -> bool:
        size = sum(len(written.data) + len(written.entries) for _, _, written in pending)
        if size > _MAX_COMMIT_BYTES:
            return False
        file = self._current
        if file.descriptor is None:
            file.descriptor = self._open(file.path)
        if file.position == 0:
            file.epoch = time.time_ns()
        records = b"".join(
            encode_record(file.epoch, JournalRecord(log.stream_id, segment, written))
            for log, segment, written in pending
        )
        if file.position + len(records) > _FILE_BYTES:
            return False
        self._disk.write(file.descriptor, records, file.position)
        self._disk.sync(file.descriptor)
        file.position += len(records)
        return True

    def _open(self, path: Path) -> int:
        if self._disk.free_bytes(self._root) < _FILE_BYTES:
            # Otherwise each commit would fill the disk briefly.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        descriptor = self._disk.create(path)
        try:
            self._disk.write(descriptor, bytes(_FILE_BYTES), 0)
            self._disk.sync(descriptor)
            self._disk.sync_directory(self._root)
        except OSError:
            self._disk.close(descriptor)
            self._disk.remove(path)
            raise
        return descriptor

    def drain(self) -> bool:
        """Switches to the spare file. The other file is reused once all logs are synced.

        Returns False if there is nothing to drain.
        """
        spare = self._spare
        if spare is not None and spare.descriptor is None and self._current.position:
            # Created here, so that no commit waits for it.
            try:
                spare.descriptor = self._open(spare.path)
            except OSError:
                return False
        with self._committing:
            if self._spare is None:
                return True  # the previous sync failed
            if self._current.position == 0:
                return False
            self._draining, self._current, self._spare = self._current, self._spare, None
            return True

    def drained(self) -> None:
        """Called when all logs were synced after `drain`."""
        with self._committing:
            assert self._draining is not None
            self._draining.position = 0
            self._spare, self._draining = self._draining, None

    def close(self) -> None:
        """Removes the files. All logs must be synced."""
        for file in (self._current, self._spare, self._draining):
            if file is not None and file.descriptor is not None:
                self._disk.close(file.descriptor)
                self._disk.remove(file.path)


def encode_record(epoch: int, record: JournalRecord) -> bytes:
    written = record.written
    body = b"".join(
        (
            _HEADER.pack(
                epoch,
                record.stream_id.encode(),
                record.segment,
                written.position,
                written.number,
                len(written.data),
                len(written.entries),
            ),
            written.data,
            written.entries,
        )
    )
    return _PREFIX.pack(_MAGIC, crc32(body)) + body


def decode_records(contents: bytes) -> Iterator[JournalRecord]:
    """The intact records of one epoch, up to the first damaged one."""
    return (record for record, _, _ in _decode(contents, 0))


def has_records_after_damage(contents: bytes) -> bool:
    """Whether intact records of the same epoch follow a damaged one."""
    records = deque(_decode(contents, 0), maxlen=1)
    if not records:
        return False
    _, epoch, stop = records[0]
    while (stop := contents.find(_MAGIC, stop + 1)) >= 0:
        found = next(_decode(contents, stop), None)
        if found is not None:
            return found[1] == epoch
    return False


def _decode(contents: bytes, position: int) -> Iterator[tuple[JournalRecord, int, int]]:
    """Records, each with its epoch and its end position."""
    expected_epoch = None
    while position + _PREFIX.size + _HEADER.size <= len(contents):
        magic, checksum = _PREFIX.unpack_from(contents, position)
        start = position + _PREFIX.size
        epoch, stream_id, segment, data_position, number, data_size, entries_size = (
            _HEADER.unpack_from(contents, start)
        )
        data_start = start + _HEADER.size
        stop = data_start + data_size + entries_size
        if (
            magic != _MAGIC
            or stop > len(contents)
            or crc32(contents[start:stop]) != checksum
            or (expected_epoch is not None and epoch != expected_epoch)
        ):
            return
        expected_epoch = epoch
        data = contents[data_start : data_start + data_size]
        entries = contents[data_start + data_size : stop]
        written = WrittenRun(data_position, number, data, entries)
        yield JournalRecord(stream_id.decode(), segment, written), epoch, stop
        position = stop


def journal_paths(root: Path) -> list[Path]:
    return [path for path in (root / "journal.0", root / "journal.1") if path.exists()]


def replay(
    disk: Disk,
    directory: Path,
    records: list[JournalRecord],
    checkpoint: SegmentSummary | None = None,
) -> list[range]:
    """Writes journal records to the segments of a stream again after a crash.

    Returns the messages below the checkpoint that neither the files nor the records have. They are
    found before the writes: a write beyond the end of a truncated file fills the gap with zeros.
    """
    # The records of the two journal files may be in the wrong order.
    firsts: dict[int, WrittenRun] = {}
    for record in records:
        known = firsts.setdefault(record.segment, record.written)
        if record.written.number < known.number:
            firsts[record.segment] = record.written
    segments: dict[int, SegmentFiles] = {}
    missing: list[range] = []
    try:
        for segment, written in firsts.items():
            files = segments[segment] = _open_or_create(disk, directory, segment)
            if checkpoint is not None and checkpoint.first == segment:
                missing += _find_missing(files, written, checkpoint)
            if disk.size(files.index) < written.number * ENTRY.size:
                # The previous entry has the start of the payload. Its own message stays damaged.
                entry = ENTRY.pack(written.position, 0, 0)
                disk.write(files.index, entry, (written.number - 1) * ENTRY.size)
        for record in records:
            files, written = segments[record.segment], record.written
            files.ensure_open()
            disk.write(files.data, written.data, written.position)
            disk.write(files.index, written.entries, written.number * ENTRY.size)
        for files in segments.values():
            files.sync()
    finally:
        for files in segments.values():
            files.close()
    return missing


def _find_missing(
    files: SegmentFiles, replayed: WrittenRun, checkpoint: SegmentSummary
) -> list[range]:
    """Messages between the end of a truncated segment and the first replayed message."""
    stored = files.count_stored(files.disk.size(files.index) // ENTRY.size)
    end = min(checkpoint.end - checkpoint.first, replayed.number)
    return [range(files.first + stored, files.first + end)] if stored < end else []


def _open_or_create(disk: Disk, directory: Path, first: int) -> SegmentFiles:
    for path in (data_path(directory, first), index_path(directory, first)):
        if not path.exists():
            disk.close(disk.create(path))
    return SegmentFiles.open(disk, directory, first)
