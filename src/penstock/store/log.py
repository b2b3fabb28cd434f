"""A log: the messages of one stream, as segments in the order of their sequence numbers.

Invariants: each number is assigned once and in order. Segments join without gaps: the end of one is
the first number of the next. Only whole segments are dropped, oldest first. One thread appends,
reads and trims; `sync` and `work` may run in another thread.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.model.message import MessageRun
from penstock.model.storage import SegmentSummary, StoredRun
from penstock.store.catalog import Catalog
from penstock.store.files import Disk
from penstock.store.journal import Journal
from penstock.store.known_damage import KnownDamage
from penstock.store.record import ENTRY, data_path, index_path
from penstock.store.retention import Limits, SegmentSpan, count_expired, plan_room
from penstock.store.segment import (
    ActiveSegment,
    DamagedError,
    MemorySegment,
    SealedSegment,
    SegmentFiles,
    WrittenRun,
)
from penstock.store.space import Space, SpaceBudget, is_no_space

logger = logging.getLogger(__name__)

# A copy of the definition beside the segments, in case the catalog is lost.
DEFINITION_FILE = "stream.json"

# The numbers of a memory stream that one write to the catalog reserves.
RESERVED_AT_ONCE = 1 << 20
_CHECKED_BYTES = 1 << 20
# Max sealings and removals of one stream that are pending for the background thread.
_MAX_PENDING_JOBS = 128


class StreamFullError(Exception):
    """The stream is full, and no segment may be dropped."""


class MessageTooLargeError(Exception):
    """The message is larger than the max size of the stream."""


class Segment(SegmentSpan, Protocol):
    @property
    def oldest_time(self) -> int: ...
    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun: ...
    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun: ...
    def position_of(self, number: int) -> int: ...
    def time_of(self, number: int) -> int: ...
    def summary(self) -> SegmentSummary: ...
    def close(self) -> None: ...


class WritableSegment(Segment, Protocol):
    def append(self, payloads: Sequence[bytes], ingest_time: int) -> WrittenRun | None: ...


class Log(ABC):
    """The common part of file and memory logs: numbering, retention, reading."""

    def __init__(
        self,
        limits: Limits,
        sealed: Sequence[Segment],
        active: WritableSegment,
        damage: KnownDamage,
    ) -> None:
        self.limits = limits
        self.damage = damage
        # Called before messages are dropped, while they can still be read. Arguments: the next
        # oldest number, and whether the messages have expired.
        self.before_drop: Callable[[int, bool], None] = lambda *_: None
        self._sealed: list[Segment] = list(sealed)
        self._active = active
        self._total_bytes = sum(segment.size for segment in sealed) + active.size
        # The disk space for appends; unlimited for a memory log.
        self._budget: SpaceBudget = SpaceBudget()
        self._is_retrying = False
        # Bytes since the log was opened.
        self.appended_bytes = 0
        # Whether `work` may have pending jobs. An attribute, because thousands of logs are checked.
        self.has_work = True

    @property
    def oldest(self) -> int:
        return self._sealed[0].first if self._sealed else self._active.first

    @property
    def end(self) -> int:
        """The number of the next message."""
        return self._active.end

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    @property
    def oldest_time(self) -> int | None:
        """The oldest time in the oldest segment; None if there is no message."""
        segments = (*self._sealed[:1], self._active)
        return next((each.oldest_time for each in segments if each.end > each.first), None)

    @property
    def newest_time(self) -> int | None:
        segments = (self._active, *self._sealed[-1:])
        return next((each.newest_time for each in segments if each.end > each.first), None)

    @property
    def segment_count(self) -> int:
        return len(self._sealed) + 1

    def segments(self) -> list[Segment]:
        return [*self._sealed, self._active]

    def append(
        self,
        payloads: Sequence[bytes],
        now: int,
        exported_end: Callable[[], int] = lambda: 0,
        *,
        keeps_min_free: bool = True,
    ) -> int:
        """Stores all payloads in one segment, or none; returns the number of the first.

        A full log that rejects new data may drop only messages below `exported_end`. Without
        `keeps_min_free`, the append may use the last `min_free_disk` bytes of the disk.
        """
        budget = self._budget
        needed = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        disk_bytes = needed + ENTRY.size * len(payloads)
        if budget.left < disk_bytes and keeps_min_free:
            self._require_space(payloads, disk_bytes)
        limits = self.limits
        try:
            if self._total_bytes + needed > limits.max_size:
                self._make_room(needed, exported_end())
            if self._active.size + needed > limits.segment_size and self._active.size:
                self._roll()
            first = self._active.end
            self._reserve(first + len(payloads))
            self._after_append(self._active.append(payloads, now))
        except OSError as error:
            if self._is_retrying or not is_no_space(error):
                raise
            return self._append_to_full_disk(error, payloads, now, exported_end)
        self._total_bytes += needed
        self.appended_bytes += needed
        budget.left -= disk_bytes
        return first

    def count_fitting(self, payloads: Sequence[bytes]) -> int:
        """The number of payloads that fit into the active segment together; at least 1."""
        room = min(
            self.limits.segment_size - self._active.size,
            self.limits.max_size - self._total_bytes,
        )
        if sum(map(len, payloads)) <= room:
            return len(payloads)
        return max(bisect_right(list(accumulate(map(len, payloads))), room), 1)

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        """Messages from `start` on, up to the end of one segment and `max_bytes`, but at least one.

        `start` must be in [oldest, end).
        """
        try:
            segment = self._segment_of(start)
            return segment.read(start, min(stop, segment.end), max_bytes)
        except DamagedError as error:
            self.damage.add(error.sequence_number, error.next_number, error.reason)
            raise

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        """Like `read`, but returns the stored bytes unchecked."""
        try:
            segment = self._segment_of(start)
            return segment.read_stored(start, min(stop, segment.end), max_bytes)
        except DamagedError as error:
            self.damage.add(error.sequence_number, error.next_number, error.reason)
            raise

    def find_damage(self, start: int, stop: int) -> None:
        """Reads the existing messages of [start, stop), which adds their damage to `damage`."""
        start, stop = max(start, self.oldest), min(stop, self.end)
        while start < stop:
            try:
                start += len(self.read(start, stop, _CHECKED_BYTES).payloads)
            except DamagedError as error:
                start = error.next_number
            except OSError:
                # A file could not be opened, which is not damage.
                return

    def _segment_of(self, number: int) -> Segment:
        """The segment that holds this message."""
        if number >= self._active.first:
            return self._active
        return self._sealed[bisect_right(self._sealed, number, key=attrgetter("first")) - 1]

    def _segments_from(self, number: int) -> list[Segment]:
        if number >= self._active.first:
            return [self._active]
        place = bisect_right(self._sealed, number, key=attrgetter("first")) - 1
        return [*self._sealed[max(place, 0) :], self._active]

    def summaries(self, start: int, stop: int) -> list[SegmentSummary]:
        """Summaries of the segments that hold messages of [start, stop)."""
        return [
            segment.summary()
            for segment in self._segments_from(start)
            if max(start, segment.first) < min(stop, segment.end)
        ]

    def find_end(self, start: int, stop: int, max_bytes: int) -> int:
        """The end of the messages of [start, stop) that fit `max_bytes`; at least one fits.

        [start, stop) must not be empty, and must be in [oldest, end). If an index cannot be read,
        all messages of its segment count as fitting. Otherwise readers could never pass it.
        """
        room = max_bytes
        for segment in self._segments_from(start):
            first, end = max(start, segment.first), min(stop, segment.end)
            try:
                if first > segment.first:
                    room += self._segment_of(first).position_of(first)
                # All messages up to the end of the segment fit, so the index need not be read.
                if segment.size <= room and end == stop == segment.end:
                    return end
                if end == stop or segment.size > room:
                    position_of = self._segment_of(first).position_of
                    fitting = bisect_right(range(first, end + 1), room, key=position_of) - 1
                    return max(first + fitting, start + 1)
            except (DamagedError, OSError):
                return end
            room -= segment.size
        return stop

    def time_of(self, number: int) -> int:
        """The ingest time of a message in [oldest, end); 0 if it cannot be read."""
        try:
            return self._segment_of(number).time_of(number)
        except (DamagedError, OSError):
            return 0

    def size_of(self, start: int, stop: int) -> int:
        """The approximate size of the messages of [start, stop), which must be in [oldest, end)."""
        total = 0
        for segment in self._segments_from(start):
            first, end = max(start, segment.first), min(stop, segment.end)
            if first >= end:
                break
            if (first, end) == (segment.first, segment.end):
                total += segment.size
                continue
            try:
                position_of = self._segment_of(first).position_of
                # A damaged index may contain any position.
                total += min(max(position_of(end) - position_of(first), 0), segment.size)
            except (DamagedError, OSError):
                total += segment.size
        return total

    def trim(self, now: int) -> None:
        """Drops expired messages.

        Also drops messages beyond the max size: a crash may have interrupted their removal.
        """
        expired = count_expired(chain(self._sealed, (self._active,)), self.limits, now)
        sealed = min(expired, len(self._sealed))
        if sealed:
            self._drop(sealed, are_expired=True)
        if expired > sealed:
            # The active segment last: dropping it creates a new segment, which may fail.
            self._drop(1, are_expired=True)
        if self._total_bytes <= self.limits.max_size:
            return
        excess = plan_room(self._sealed, self._total_bytes, 0, self.limits, exported_end=0)
        if excess:
            self._drop(excess, are_expired=False)

    def begin_segment(self) -> None:
        """Begins another segment, unless the active one is empty."""
        if self._active.size:
            self._roll()

    def _make_room(self, needed: int, exported_end: int) -> None:
        if needed > self.limits.max_size:
            raise MessageTooLargeError
        dropped = plan_room(self.segments(), self._total_bytes, needed, self.limits, exported_end)
        if dropped is None:
            raise StreamFullError
        self._drop(dropped, are_expired=False)

    def _drop(self, count: int, *, are_expired: bool) -> None:
        if count > len(self._sealed):
            self._roll()
        self.before_drop(self._sealed[count - 1].end, are_expired)
        dropped, self._sealed = self._sealed[:count], self._sealed[count:]
        self._total_bytes -= sum(segment.size for segment in dropped)
        self.damage.forget_below(self.oldest)
        for segment in dropped:
            segment.close()
        self._after_drop(dropped)

    @abstractmethod
    def _roll(self) -> None:
        """Closes the active segment and begins another. If this fails, nothing changes."""

    def _require_space(self, payloads: Sequence[bytes], size: int) -> None:
        """Called when an append exceeds the disk budget; raises NoSpaceError to refuse it."""

    def _append_to_full_disk(
        self,
        error: OSError,
        payloads: Sequence[bytes],  # noqa: ARG002 - for file logs
        now: int,  # noqa: ARG002
        exported_end: Callable[[], int],  # noqa: ARG002
    ) -> int:
        """Called when the disk is full: frees space and retries the append, or raises."""
        raise error

    def _reserve(self, end: int) -> None:
        """Called before the numbers below `end` are assigned."""

    def _after_append(self, written: WrittenRun | None) -> None:
        """Called with the data that an append wrote."""

    def _after_drop(self, segments: Sequence[Segment]) -> None:
        """Called with dropped segments."""

    def sync(self) -> None:
        """Syncs the segment files of everything appended before this call. Called from any
        thread."""

    def flush(self) -> None:
        """Makes everything appended before this call survive a power cut. Called from any thread,
        one at a time."""

    def flush_is_short(self) -> bool:
        """Whether `flush` would be a small write that waits for no other flush."""
        return True

    def work(self) -> None:
        """Runs the pending jobs in order. Called from any thread."""

    def close(self) -> None:
        for segment in self.segments():
            segment.close()


class MemoryLog(Log):
    """Messages that are lost when the process ends; their numbers are never reused.

    `work` reserves numbers in the background when half of the reserve is used. An append waits for
    the catalog only if it needs more numbers before that.
    """

    def __init__(
        self,
        limits: Limits,
        catalog: Catalog,
        stream_id: str,
        request_work: Callable[[], None],
        *,
        first: int = 0,
        reserved: int = 0,
    ) -> None:
        """The numbers below `reserved` are reserved in the catalog."""
        self._memory = MemorySegment(first)
        super().__init__(limits, [], self._memory, KnownDamage(stream_id))
        self._catalog = catalog
        self._stream_id = stream_id
        self._request_work = request_work
        self._reserving = threading.Lock()
        self._set_reserved(max(first, reserved))

    def _roll(self) -> None:
        self._sealed.append(self._memory)
        self._active = self._memory = MemorySegment(self._memory.end)

    def _set_reserved(self, reserved: int) -> None:
        self._reserved = reserved
        self._renew_at = reserved - RESERVED_AT_ONCE // 2

    def _reserve(self, end: int) -> None:
        if end > self._renew_at:
            self._request_work()
            # Requested once per reserve.
            self._renew_at = self._reserved
            if end > self._reserved:
                self._extend_reserve(end)

    def _extend_reserve(self, end: int) -> None:
        with self._reserving:
            if end + RESERVED_AT_ONCE // 2 > self._reserved:
                self._catalog.reserve(self._stream_id, end + RESERVED_AT_ONCE)
                self._set_reserved(end + RESERVED_AT_ONCE)

    def work(self) -> None:
        self._extend_reserve(self.end)

    def close(self) -> None:
        if self._reserved != self.end:
            # A clean stop releases the unused numbers.
            self._catalog.reserve(self._stream_id, self.end)
        super().close()


class _Sealing(NamedTuple):
    files: SegmentFiles
    summary: SegmentSummary


class _Removal(NamedTuple):
    firsts: list[int]
    oldest: int


def _leading_sealings(jobs: Sequence[_Sealing | _Removal]) -> list[_Sealing]:
    """The sealings before the first removal, which can run together."""
    sealings = []
    for job in jobs:
        if isinstance(job, _Removal):
            break
        sealings.append(job)
    return sealings


class LogContext(NamedTuple):
    """The directory of a file log, and the parts of the store that it uses."""

    disk: Disk
    directory: Path
    catalog: Catalog
    stream_id: str
    journal: Journal
    space: Space
    request_work: Callable[[], None]
    damage: KnownDamage


class FileLog(Log):
    """Messages in segment files, in one directory per stream."""

    def __init__(
        self,
        context: LogContext,
        limits: Limits,
        sealed: Sequence[SealedSegment],
        active: ActiveSegment,
        checkpoint: SegmentSummary | None = None,
    ) -> None:
        super().__init__(limits, sealed, active, context.damage)
        self._context = context
        self._budget = context.space
        self.stream_id = context.stream_id
        self._file = active
        # Whether appends are journaled, so that `flush` need not sync the segments.
        self.journals = False
        # Segments that may have unsynced bytes; the last is the active one.
        self._unsynced: list[SegmentFiles] = [active.files]
        was_synced = checkpoint is not None and checkpoint == active.summary()
        self._synced_end = active.end if was_synced else -1
        # The files may have appends of a killed process, which the new journal does not have.
        self.needs_sync = active.size > 0 and not was_synced
        self._pending_jobs: deque[_Sealing | _Removal] = deque()
        self.has_work = False
        self._working = threading.Lock()
        self._checkpointed = checkpoint

    @property
    def has_unsynced(self) -> bool:
        return self._synced_end != self.end or len(self._unsynced) > 1

    def _require_space(self, payloads: Sequence[bytes], size: int) -> None:
        space = self._context.space
        space.sample()
        if space.left < size and not self._overwrites_at_max(payloads):
            raise space.refuse(len(payloads), size)

    def _append_to_full_disk(
        self,
        error: OSError,
        payloads: Sequence[bytes],
        now: int,
        exported_end: Callable[[], int],
    ) -> int:
        """Removes files of dropped segments, then drops old segments if the stream overwrites."""
        if not self._context.space.note_full(sum(map(len, payloads))):
            raise error
        self._is_retrying = True
        try:
            while True:
                self.work()
                try:
                    return self.append(payloads, now, exported_end, keeps_min_free=False)
                except OSError as retry_error:
                    if not is_no_space(retry_error):
                        raise
                    if not self._sealed or not self._overwrites_at_max(payloads):
                        raise self._context.space.refuse(len(payloads)) from None
                self._drop(1, are_expired=False)
        finally:
            self._is_retrying = False

    def _overwrites_at_max(self, payloads: Sequence[bytes]) -> bool:
        """Whether an append may drop the oldest segment before the stream reaches its max size.

        It may if the stream overwrites and is near its max size: within a segment or a quarter of
        the max size, because a dropped segment may be smaller than the next one.
        """
        limits = self.limits
        margin = max(limits.segment_size, limits.max_size // 4)
        total = self._total_bytes + sum(map(len, payloads))
        return limits.overwrites and total > limits.max_size - margin

    def _roll(self) -> None:
        rolled = self._file
        rolled.repair()
        files = SegmentFiles.create(self._context.disk, self._context.directory, rolled.end)
        self._active = self._file = ActiveSegment(files)
        self._unsynced.append(files)
        summary = rolled.summary()
        self._sealed.append(SealedSegment(self._context.disk, self._context.directory, summary))
        self._defer(_Sealing(rolled.files, summary))

    def _after_drop(self, segments: Sequence[Segment]) -> None:
        self._defer(_Removal([segment.first for segment in segments], self.oldest))

    def _defer(self, job: _Sealing | _Removal) -> None:
        self._pending_jobs.append(job)
        self.has_work = True
        self._context.request_work()
        if len(self._pending_jobs) > _MAX_PENDING_JOBS:
            # Segments fill faster than they are sealed, so the append waits for the disk.
            self.work()

    def work(self) -> None:
        with self._working:
            # Cleared first, because a job that is added meanwhile sets it again.
            self.has_work = False
            try:
                self._run_pending()
            except BaseException:
                self.has_work = True
                raise

    def _run_pending(self) -> None:
        while self._pending_jobs:
            job = self._pending_jobs[0]
            if isinstance(job, _Removal):
                self._remove(job)
                self._pending_jobs.popleft()
            else:
                sealings = _leading_sealings(list(self._pending_jobs))
                self._seal(sealings)
                for _ in sealings:
                    self._pending_jobs.popleft()

    def _seal(self, sealings: Sequence[_Sealing]) -> None:
        for sealing in sealings:
            sealing.files.sync()
        # The next segment must be in the directory before the catalog lists this one as sealed.
        self._context.disk.sync_directory(self._context.directory)
        self._context.catalog.add_segments(
            self.stream_id, [sealing.summary for sealing in sealings]
        )
        for sealing in sealings:
            self._unsynced.remove(sealing.files)
            sealing.files.close()

    def _remove(self, removal: _Removal) -> None:
        # The catalog first: a missing file that the catalog lists counts as damage.
        self._context.catalog.remove_segments(self.stream_id, removal.oldest)
        for first in removal.firsts:
            self._context.disk.remove(data_path(self._context.directory, first))
            self._context.disk.remove(index_path(self._context.directory, first))

    def sync(self) -> None:
        end = self.end
        for files in tuple(self._unsynced):
            files.sync()
        self._synced_end = end

    def _after_append(self, written: WrittenRun | None) -> None:
        if self.journals and written is not None:
            self._context.journal.add(self, self._file.first, written)

    def flush(self) -> None:
        if self.journals:
            self._context.journal.commit()
            if not self.needs_sync:
                return
        self.needs_sync = False
        try:
            self.sync()
        except OSError:
            self.needs_sync = True
            raise

    def flush_is_short(self) -> bool:
        return self.journals and not self.needs_sync and self._context.journal.is_idle()

    def checkpoint(self) -> SegmentSummary | None:
        """Syncs; returns a new checkpoint of the active segment, or None if it has not changed."""
        summary = self._file.summary()
        self.sync()
        return summary if summary != self._checkpointed else None

    def checkpointed(self, summary: SegmentSummary) -> None:
        """Called when the catalog has stored a checkpoint."""
        self._checkpointed = summary

    def finish(self) -> SegmentSummary | None:
        """Runs pending jobs and syncs; returns a new checkpoint, or None if it has not changed."""
        self._file.repair()
        self.work()
        if self.has_unsynced:
            self.sync()
        summary = self._file.summary()
        return summary if summary != self._checkpointed else None

    def abandon(self) -> None:
        """Closes the files of a deleted stream, without running its pending jobs."""
        with self._working:
            self._pending_jobs.clear()
        for files in self._unsynced:
            files.close()
        super().close()


def create_file_log(context: LogContext, limits: Limits) -> FileLog:
    """Creates an empty log. The caller syncs its directory and the parent before using it."""
    context.disk.make_directory(context.directory)
    active = ActiveSegment(SegmentFiles.create(context.disk, context.directory, 0))
    return FileLog(context, limits, [], active)
