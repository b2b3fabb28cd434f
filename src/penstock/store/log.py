"""A log: the messages of one stream, as segments in the order of their numbers.

Invariants: numbers are handed out once and in order; segments join without gaps, so that the
end of one is the first of the next; only whole segments go, oldest first. One thread appends,
reads and trims; `sync` and `work` may run in another.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from penstock.model.message import MessageRun
from penstock.store.catalog import Catalog
from penstock.store.files import Disk
from penstock.store.record import data_path, first_of_name, index_path
from penstock.store.recovery import recover_segment
from penstock.store.retention import Limits, count_expired, plan_room
from penstock.store.segment import (
    ActiveSegment,
    MemorySegment,
    SealedSegment,
    SegmentFiles,
    SegmentSummary,
)

logger = logging.getLogger(__name__)

# Beside the segments: a copy of the definition, for the day on which the catalog is lost.
DEFINITION_FILE = "stream.json"

# So many numbers of a memory stream are reserved with one write to the catalog.
_RESERVED_AT_ONCE = 1 << 20
# A checkpoint costs a transaction: it is worth one when recovery would have this much to verify.
_CHECKPOINT_BYTES = 4 * 1024 * 1024


class StreamFullError(Exception):
    """No room, and nothing that may go."""


class MessageTooLargeError(Exception):
    """Larger than the whole stream may become."""


class Segment(Protocol):
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def newest_time(self) -> int: ...
    @property
    def oldest_time(self) -> int: ...
    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun: ...
    def close(self) -> None: ...


class WritableSegment(Segment, Protocol):
    def append(self, payloads: Sequence[bytes], ingest_time: int) -> None: ...


class Log:
    """What file and memory logs have in common: numbering, retention, reading."""

    def __init__(self, limits: Limits, sealed: Sequence[Segment], active: WritableSegment) -> None:
        self.limits = limits
        self._sealed: list[Segment] = list(sealed)
        self._active = active
        self._total_bytes = sum(segment.size for segment in sealed) + active.size

    @property
    def oldest(self) -> int:
        return self._sealed[0].first if self._sealed else self._active.first

    @property
    def end(self) -> int:
        """The number that the next message gets."""
        return self._active.end

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    @property
    def segment_count(self) -> int:
        return len(self._sealed) + 1

    def segments(self) -> list[Segment]:
        return [*self._sealed, self._active]

    def append(
        self, payloads: Sequence[bytes], now: int, exported_end: Callable[[], int] = lambda: 0
    ) -> int:
        """Stores all of them or none, in one segment; answers the first one's number.

        Below `exported_end` a full log may drop messages even if it rejects new data.
        """
        needed = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        limits = self.limits
        if self._total_bytes + needed > limits.max_size:
            self._make_room(needed, exported_end())
        if self._active.size + needed > limits.segment_size and self._active.size:
            self._roll()
        first = self._active.end
        self._reserve(first + len(payloads))
        self._active.append(payloads, now)
        self._total_bytes += needed
        return first

    def fits_active(self, size: int) -> bool:
        """Whether appends of so many bytes in all go into the segment that is open now."""
        return (
            self._active.size + size <= self.limits.segment_size
            and self._total_bytes + size <= self.limits.max_size
        )

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        """Messages from `start` on, as far as one segment and `max_bytes` go, but one at least.

        `start` must be in [oldest, end).
        """
        if start >= self._active.first:
            return self._active.read(start, min(stop, self._active.end), max_bytes)
        index = bisect_right(self._sealed, start, key=attrgetter("first")) - 1
        segment = self._sealed[index]
        self._keep_open(segment)
        return segment.read(start, min(stop, segment.end), max_bytes)

    def trim(self, now: int) -> None:
        """Drop what outlived the stream's TTL."""
        expired = count_expired(self.segments(), self.limits, now)
        if expired:
            self._drop(expired)

    def apply(self, limits: Limits) -> None:
        """New limits; a new segment size is that of the segment begun next."""
        rolls = limits.segment_size != self.limits.segment_size and self._active.size
        self.limits = limits
        if rolls:
            self._roll()

    def _make_room(self, needed: int, exported_end: int) -> None:
        if needed > self.limits.max_size:
            raise MessageTooLargeError
        dropped = plan_room(self.segments(), self._total_bytes, needed, self.limits, exported_end)
        if dropped is None:
            raise StreamFullError
        self._drop(dropped)

    def _drop(self, count: int) -> None:
        if count > len(self._sealed):
            self._roll()
        dropped, self._sealed = self._sealed[:count], self._sealed[count:]
        self._total_bytes -= sum(segment.size for segment in dropped)
        for segment in dropped:
            segment.close()
        self._dropped(dropped)

    def _roll(self) -> None:
        """Close the active segment and begin another; if that fails nothing has changed."""
        raise NotImplementedError

    def _reserve(self, end: int) -> None:
        """Called before the numbers below `end` are handed out."""

    def _dropped(self, segments: Sequence[Segment]) -> None:
        """Called for segments that no longer belong to the log."""

    def _keep_open(self, segment: Segment) -> None:
        """Called before a sealed segment is read."""

    def sync(self) -> None:
        """Everything appended before this call is on the disk after it; from any thread."""

    def work(self) -> None:
        """Do what was put off, in the order in which it came up; from any thread."""

    def close(self) -> None:
        for segment in self.segments():
            segment.close()


class MemoryLog(Log):
    """Messages that live as long as the process; their numbers are never used again."""

    def __init__(self, limits: Limits, catalog: Catalog, stream_id: str, first: int) -> None:
        self._memory = MemorySegment(first)
        super().__init__(limits, [], self._memory)
        self._catalog = catalog
        self._stream_id = stream_id
        self._reserved = first

    def _roll(self) -> None:
        self._sealed.append(self._memory)
        self._active = self._memory = MemorySegment(self._memory.end)

    def _reserve(self, end: int) -> None:
        if end > self._reserved:
            self._catalog.reserve(self._stream_id, end + _RESERVED_AT_ONCE)
            self._reserved = end + _RESERVED_AT_ONCE

    def close(self) -> None:
        if self._reserved != self.end:
            # A clean stop: the reserve that was not used is given back.
            self._catalog.reserve(self._stream_id, self.end)
        super().close()


class FileLog(Log):
    """Messages in segment files below a directory of the stream's own."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        catalog: Catalog,
        stream_id: str,
        limits: Limits,
        sealed: Sequence[SealedSegment],
        active: ActiveSegment,
        request_work: Callable[[], None],
        checkpoint: SegmentSummary | None = None,
    ) -> None:
        super().__init__(limits, sealed, active)
        self._disk = disk
        self._directory = directory
        self._catalog = catalog
        self._stream_id = stream_id
        self._file = active
        self._request_work = request_work
        self._open: SealedSegment | None = None
        # Segments that hold bytes which may not be on the disk; the newest is the active one.
        self._unsynced: list[SegmentFiles] = [active.files]
        self._synced_end = -1
        self._put_off: deque[Callable[[], None]] = deque()
        self._working = threading.Lock()
        self._checkpointed = checkpoint

    @property
    def has_unsynced(self) -> bool:
        return self._synced_end != self.end or len(self._unsynced) > 1

    @property
    def has_work(self) -> bool:
        return bool(self._put_off)

    def _roll(self) -> None:
        rolled = self._file
        files = SegmentFiles.create(self._disk, self._directory, rolled.end)
        self._active = self._file = ActiveSegment(files)
        self._unsynced.append(files)
        summary = rolled.summary()
        self._sealed.append(SealedSegment(self._disk, self._directory, summary))
        self._put_off_work(lambda: self._seal(rolled.files, summary))

    def _seal(self, files: SegmentFiles, summary: SegmentSummary) -> None:
        files.sync()
        # The segment that follows must be listed before this one is known to have ended.
        self._disk.sync_directory(self._directory)
        self._catalog.add_segment(self._stream_id, summary)
        self._unsynced.remove(files)
        files.close()

    def _dropped(self, segments: Sequence[Segment]) -> None:
        oldest = self.oldest
        firsts = [segment.first for segment in segments]
        if self._open in segments:
            self._open = None
        self._put_off_work(lambda: self._remove(firsts, oldest))

    def _remove(self, firsts: list[int], oldest: int) -> None:
        # In the catalog first: a file that is gone while the catalog lists it counts as damage.
        self._catalog.remove_segments(self._stream_id, oldest)
        for first in firsts:
            self._disk.remove(data_path(self._directory, first))
            self._disk.remove(index_path(self._directory, first))

    def _put_off_work(self, job: Callable[[], None]) -> None:
        self._put_off.append(job)
        self._request_work()

    def work(self) -> None:
        with self._working:
            while self._put_off:
                self._put_off[0]()
                self._put_off.popleft()

    def _keep_open(self, segment: Segment) -> None:
        # One sealed segment stays open for the reader that goes through it: a stream of a
        # thousand segments does not need a thousand descriptors.
        if self._open is not segment:
            if self._open is not None:
                self._open.close()
            assert isinstance(segment, SealedSegment)
            self._open = segment

    def sync(self) -> None:
        end = self.end
        for files in tuple(self._unsynced):
            files.sync()
        self._synced_end = end

    def checkpoint(self) -> None:
        """Sync, and remember how much of the active segment need not be verified again."""
        summary = self._file.summary()
        self.sync()
        last = self._checkpointed
        known = last.size if last is not None and last.first == summary.first else 0
        if summary.size - known >= _CHECKPOINT_BYTES:
            self._catalog.set_checkpoint(self._stream_id, summary)
            self._checkpointed = summary

    def close(self) -> None:
        self.work()
        self.sync()
        self._catalog.set_checkpoint(self._stream_id, self._file.summary())
        super().close()

    def abandon(self) -> None:
        """Close the files of a stream that was deleted, without finishing anything."""
        with self._working:
            self._put_off.clear()
        for files in self._unsynced:
            files.close()
        super().close()


def create_file_log(
    disk: Disk,
    directory: Path,
    catalog: Catalog,
    stream_id: str,
    limits: Limits,
    request_work: Callable[[], None],
    first: int = 0,
) -> FileLog:
    disk.make_directory(directory)
    active = ActiveSegment(SegmentFiles.create(disk, directory, first))
    return FileLog(disk, directory, catalog, stream_id, limits, [], active, request_work)


def open_file_log(
    disk: Disk,
    directory: Path,
    catalog: Catalog,
    stream_id: str,
    limits: Limits,
    request_work: Callable[[], None],
    *,
    oldest: int,
    lowest_end: int,
) -> FileLog:
    """The log as the disk and the catalog have it, after whatever happened to them.

    `oldest` and `lowest_end` are what the catalog knows: below the one everything was removed on
    purpose, and no number below the other may be handed out again.
    """
    disk.make_directory(directory)
    found = _list_segments(disk, directory, oldest)
    sealed = [SealedSegment(disk, directory, summary) for summary in catalog.segments(stream_id)]
    _report_missing(directory, sealed)
    known = {segment.first for segment in sealed}
    unsealed = [first for first in found if first not in known]
    checkpoint = catalog.checkpoint(stream_id)
    active: ActiveSegment | None = None
    for first in unsealed:
        if active is not None:
            sealed += _seal_now(disk, directory, catalog, stream_id, active)
        active = _recover(disk, directory, first, checkpoint)
    sealed.sort(key=attrgetter("first"))
    if active is not None and sealed and sealed[-1].first > active.first:
        # Sealed behind an unsealed one: that one only lost its place in the catalog.
        sealed += _seal_now(disk, directory, catalog, stream_id, active)
        sealed.sort(key=attrgetter("first"))
        active = None
    end = max(sealed[-1].end if sealed else 0, active.end if active else 0)
    if active is None and (sealed or lowest_end > oldest):
        # The segment that was written to is gone. Each message takes a byte at least, so that it
        # cannot have held more of them than bytes: no number of it is used again.
        end += limits.segment_size
    end = max(end, lowest_end, oldest)
    if active is not None and active.end < end:
        sealed += _seal_now(disk, directory, catalog, stream_id, active)
        sealed.sort(key=attrgetter("first"))
        active = None
    if active is None:
        active = ActiveSegment(SegmentFiles.create(disk, directory, end))
    sealed = _fill_gaps(disk, directory, sealed, oldest, active.first)
    return FileLog(
        disk, directory, catalog, stream_id, limits, sealed, active, request_work, checkpoint
    )


def _list_segments(disk: Disk, directory: Path, oldest: int) -> list[int]:
    """First numbers of the segments that have both files; leftovers of removed ones are removed."""
    names: dict[int, set[str]] = {}
    for path in directory.iterdir():
        first = first_of_name(path.name)
        if first is None:
            if path.name != DEFINITION_FILE:
                logger.warning("%s is not a file of Penstock's and is left alone", path)
            continue
        names.setdefault(first, set()).add(path.suffix)
    found = []
    for first, suffixes in sorted(names.items()):
        if first < oldest:
            disk.remove(data_path(directory, first))
            disk.remove(index_path(directory, first))
        elif len(suffixes) == 2:
            found.append(first)
    return found


def _report_missing(directory: Path, sealed: Sequence[SealedSegment]) -> None:
    for segment in sealed:
        for path, size in (
            (data_path(directory, segment.first), segment.size),
            (index_path(directory, segment.first), None),
        ):
            try:
                found = path.stat().st_size
            except FileNotFoundError:
                logger.error(
                    "%s is missing: messages %d to %d cannot be read",
                    path,
                    segment.first,
                    segment.end - 1,
                )
                continue
            if size is not None and found < size:
                logger.error(
                    "%s is cut off: %d of %d bytes are there, the messages behind them are lost",
                    path,
                    found,
                    size,
                )


def _recover(
    disk: Disk, directory: Path, first: int, checkpoint: SegmentSummary | None
) -> ActiveSegment:
    files = SegmentFiles.open(disk, directory, first)
    recovered = recover_segment(files, checkpoint)
    if recovered.torn_messages:
        logger.warning(
            "%s: cut %d torn entries off its end",
            index_path(directory, first),
            recovered.torn_messages,
        )
    for sequence_number in recovered.damaged:
        logger.error("%s: message %d is damaged", data_path(directory, first), sequence_number)
    return ActiveSegment(files, recovered.summary)


def _seal_now(
    disk: Disk, directory: Path, catalog: Catalog, stream_id: str, active: ActiveSegment
) -> list[SealedSegment]:
    if active.first == active.end:
        active.files.remove()
        return []
    active.files.sync()
    catalog.add_segment(stream_id, active.summary())
    active.close()
    return [SealedSegment(disk, directory, active.summary())]


def _fill_gaps(
    disk: Disk, directory: Path, sealed: Sequence[SealedSegment], oldest: int, end: int
) -> list[SealedSegment]:
    """Segments without gaps: a lost one stands where files are missing, and reads as damaged."""
    filled: list[SealedSegment] = []
    for segment in sealed:
        _add_lost(disk, directory, filled, oldest, segment.first)
        oldest = segment.end
        filled.append(segment)
    _add_lost(disk, directory, filled, oldest, end)
    return filled


def _add_lost(
    disk: Disk, directory: Path, filled: list[SealedSegment], first: int, end: int
) -> None:
    if first < end:
        logger.error("%s: messages %d to %d are lost", directory, first, end - 1)
        filled.append(SealedSegment(disk, directory, SegmentSummary(first, end, 0, 0, 0, 0, 0)))
