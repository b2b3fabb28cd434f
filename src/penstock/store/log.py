"""A log: the messages of one stream, as segments in the order of their numbers.

Invariants: numbers are handed out once and in order; segments join without gaps, so that the
end of one is the first of the next; only whole segments go, oldest first. One thread appends,
reads and trims; `sync` and `work` may run in another.
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

# Beside the segments: a copy of the definition, for the day on which the catalog is lost.
DEFINITION_FILE = "stream.json"

# So many numbers of a memory stream are reserved with one write to the catalog.
RESERVED_AT_ONCE = 1 << 20
_CHECKED_BYTES = 1 << 20
# Segments of one stream that may wait to be sealed or removed.
_MAX_PENDING_JOBS = 128


class StreamFullError(Exception):
    """No room, and nothing that may go."""


class MessageTooLargeError(Exception):
    """Larger than the whole stream may become."""


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
    """What file and memory logs have in common: numbering, retention, reading."""

    def __init__(
        self,
        limits: Limits,
        sealed: Sequence[Segment],
        active: WritableSegment,
        damage: KnownDamage,
    ) -> None:
        self.limits = limits
        self.damage = damage
        # Called when messages are about to be dropped, while they can still be read: with the
        # number that will be the oldest, and whether they have outlived the TTL.
        self.before_drop: Callable[[int, bool], None] = lambda *_: None
        self._sealed: list[Segment] = list(sealed)
        self._active = active
        self._total_bytes = sum(segment.size for segment in sealed) + active.size
        # Of the disk; a log in memory has no end of it.
        self._budget: SpaceBudget = SpaceBudget()
        self._is_retrying = False
        # Since it was opened.
        self.appended_bytes = 0
        # Whether `work` may have something to do. An attribute: thousands of logs are checked.
        self.has_work = True

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
    def oldest_time(self) -> int | None:
        """Of the oldest segment; None if there is no message."""
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
        """Stores all of them or none, in one segment; answers the first one's number.

        Below `exported_end` a full log may drop messages even if it rejects new data. Unless
        `keeps_min_free`, it also takes the space that the disk must keep free for the broker.
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
        """How many of these go into the active segment together; the first goes somewhere."""
        room = min(
            self.limits.segment_size - self._active.size,
            self.limits.max_size - self._total_bytes,
        )
        if sum(map(len, payloads)) <= room:
            return len(payloads)
        return max(bisect_right(list(accumulate(map(len, payloads))), room), 1)

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        """Messages from `start` on, as far as one segment and `max_bytes` go, but one at least.

        `start` must be in [oldest, end).
        """
        try:
            segment = self._segment_of(start)
            return segment.read(start, min(stop, segment.end), max_bytes)
        except DamagedError as error:
            self.damage.add(error.sequence_number, error.next_number, error.reason)
            raise

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        """The same, as it is stored and unchecked."""
        try:
            segment = self._segment_of(start)
            return segment.read_stored(start, min(stop, segment.end), max_bytes)
        except DamagedError as error:
            self.damage.add(error.sequence_number, error.next_number, error.reason)
            raise

    def find_damage(self, start: int, stop: int) -> None:
        """Reads [start, stop) as far as it is there, so that damage in it is known."""
        start, stop = max(start, self.oldest), min(stop, self.end)
        while start < stop:
            try:
                start += len(self.read(start, stop, _CHECKED_BYTES).payloads)
            except DamagedError as error:
                start = error.next_number
            except OSError:
                # No file could be opened, which is no damage.
                return

    def _segment_of(self, number: int) -> Segment:
        """The segment that has this message, which is about to be read."""
        if number >= self._active.first:
            return self._active
        return self._sealed[bisect_right(self._sealed, number, key=attrgetter("first")) - 1]

    def _segments_from(self, number: int) -> list[Segment]:
        if number >= self._active.first:
            return [self._active]
        place = bisect_right(self._sealed, number, key=attrgetter("first")) - 1
        return [*self._sealed[max(place, 0) :], self._active]

    def summaries(self, start: int, stop: int) -> list[SegmentSummary]:
        """What is known of the segments that hold messages of [start, stop)."""
        return [
            segment.summary()
            for segment in self._segments_from(start)
            if max(start, segment.first) < min(stop, segment.end)
        ]

    def find_end(self, start: int, stop: int, max_bytes: int) -> int:
        """The number up to which the messages of [start, stop) fit `max_bytes`; one at least.

        [start, stop) must not be empty, and be in [oldest, end). Where an index cannot be read,
        all that it is about counts as fitting: nobody would ever get past it otherwise.
        """
        room = max_bytes
        for segment in self._segments_from(start):
            first, end = max(start, segment.first), min(stop, segment.end)
            try:
                if first > segment.first:
                    room += self._segment_of(first).position_of(first)
                # All messages to the end of the segment fit: no further read of the index.
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
        """When a message was appended; 0 if nobody knows any more. It must be in [oldest, end)."""
        try:
            return self._segment_of(number).time_of(number)
        except (DamagedError, OSError):
            return 0

    def size_of(self, start: int, stop: int) -> int:
        """About how many bytes the messages of [start, stop) have; all must be in [oldest, end)."""
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
                # A damaged index may say anything.
                total += min(max(position_of(end) - position_of(first), 0), segment.size)
            except (DamagedError, OSError):
                total += segment.size
        return total

    def trim(self, now: int) -> None:
        """Drop what outlived the stream's TTL.

        And what was dropped before a crash and is back, because there was no time to remove it.
        """
        expired = count_expired(chain(self._sealed, (self._active,)), self.limits, now)
        sealed = min(expired, len(self._sealed))
        if sealed:
            self._drop(sealed, are_expired=True)
        if expired > sealed:
            # The active segment last: to drop it needs another one, and so the disk.
            self._drop(1, are_expired=True)
        if self._total_bytes <= self.limits.max_size:
            return
        excess = plan_room(self._sealed, self._total_bytes, 0, self.limits, exported_end=0)
        if excess:
            self._drop(excess, are_expired=False)

    def begin_segment(self) -> None:
        """Begin another segment, unless the active one is empty."""
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
        """Close the active segment and begin another; if that cannot be made nothing changes."""

    def _require_space(self, payloads: Sequence[bytes], size: int) -> None:
        """Called when an append exceeds the budget of the disk; NoSpaceError refuses it."""

    def _append_to_full_disk(
        self,
        error: OSError,
        payloads: Sequence[bytes],  # noqa: ARG002 - of logs in files
        now: int,  # noqa: ARG002
        exported_end: Callable[[], int],  # noqa: ARG002
    ) -> int:
        """Called when a write found no space: makes some and repeats the append, or raises."""
        raise error

    def _reserve(self, end: int) -> None:
        """Called before the numbers below `end` are handed out."""

    def _after_append(self, written: WrittenRun | None) -> None:
        """Called with what an append wrote."""

    def _after_drop(self, segments: Sequence[Segment]) -> None:
        """Called for segments that no longer belong to the log."""

    def sync(self) -> None:
        """Everything appended before this call is in its segment's files on the disk after it;
        from any thread."""

    def flush(self) -> None:
        """Everything appended before this call survives a power cut after it; from any thread,
        but one at a time."""

    def flush_is_short(self) -> bool:
        """Whether `flush` would be a small write that waits for nobody."""
        return True

    def work(self) -> None:
        """Do what was put off, in the order in which it came up; from any thread."""

    def close(self) -> None:
        for segment in self.segments():
            segment.close()


class MemoryLog(Log):
    """Messages that live as long as the process; their numbers are never used again.

    Numbers are reserved ahead: by `work`, in the background, while half of a reserve is left. Only
    appends that outrun it wait for the catalog.
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
        """The catalog has reserved the numbers below `reserved`."""
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
            # Once for each reserve.
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
            # A clean stop: the reserve that was not used is given back.
            self._catalog.reserve(self._stream_id, self.end)
        super().close()


class _Sealing(NamedTuple):
    files: SegmentFiles
    summary: SegmentSummary


class _Removal(NamedTuple):
    firsts: list[int]
    oldest: int


def _leading_sealings(jobs: Sequence[_Sealing | _Removal]) -> list[_Sealing]:
    """Those that can be done together: a removal must come after what was put off before it."""
    sealings = []
    for job in jobs:
        if isinstance(job, _Removal):
            break
        sealings.append(job)
    return sealings


class LogContext(NamedTuple):
    """Where a file log lives, and what works for it."""

    disk: Disk
    directory: Path
    catalog: Catalog
    stream_id: str
    journal: Journal
    space: Space
    request_work: Callable[[], None]
    damage: KnownDamage


class FileLog(Log):
    """Messages in segment files below a directory of the stream's own."""

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
        # Segments that hold bytes which may not be on the disk; the newest is the active one.
        self._unsynced: list[SegmentFiles] = [active.files]
        was_synced = checkpoint is not None and checkpoint == active.summary()
        self._synced_end = active.end if was_synced else -1
        # What a killed process wrote is in the files, but the journal of this one has none of it.
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
        """Takes the space of segments that were dropped, and of the oldest one if it may go."""
        if not self._context.space.note_full(sum(map(len, payloads))):
            raise error
        self._is_retrying = True
        try:
            while True:
                self.work()
                try:
                    return self.append(payloads, now, exported_end, keeps_min_free=False)
                except OSError as again:
                    if not is_no_space(again):
                        raise
                    if not self._sealed or not self._overwrites_at_max(payloads):
                        raise self._context.space.refuse(len(payloads)) from None
                self._drop(1, are_expired=False)
        finally:
            self._is_retrying = False

    def _overwrites_at_max(self, payloads: Sequence[bytes]) -> bool:
        """Whether an append may take the space of the oldest segment, also before it has to.

        It is near its maximum size: a segment below, or a quarter of it, since a segment that is
        dropped need not give as much space as the next one takes.
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
            # Segments fill faster than they can be sealed: appends wait for the disk after all.
            self.work()

    def work(self) -> None:
        with self._working:
            # First: what is put off meanwhile sets it again.
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
        # The segment that follows must be listed before this one is known to have ended.
        self._context.disk.sync_directory(self._context.directory)
        self._context.catalog.add_segments(
            self.stream_id, [sealing.summary for sealing in sealings]
        )
        for sealing in sealings:
            self._unsynced.remove(sealing.files)
            sealing.files.close()

    def _remove(self, removal: _Removal) -> None:
        # In the catalog first: a file that is gone while the catalog lists it counts as damage.
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
        """Sync; how much of the active segment is on the disk then, if the catalog has to know."""
        summary = self._file.summary()
        self.sync()
        return summary if summary != self._checkpointed else None

    def checkpointed(self, summary: SegmentSummary) -> None:
        """The catalog has a checkpoint: recovery need not verify what it covers."""
        self._checkpointed = summary

    def finish(self) -> SegmentSummary | None:
        """Leave nothing to do; a checkpoint, if the catalog does not have it yet."""
        self._file.repair()
        self.work()
        if self.has_unsynced:
            self.sync()
        summary = self._file.summary()
        return summary if summary != self._checkpointed else None

    def abandon(self) -> None:
        """Close the files of a stream that was deleted, without finishing anything."""
        with self._working:
            self._pending_jobs.clear()
        for files in self._unsynced:
            files.close()
        super().close()


def create_file_log(context: LogContext, limits: Limits) -> FileLog:
    """An empty log. The caller syncs its directory, and the one above, before it is used."""
    context.disk.make_directory(context.directory)
    active = ActiveSegment(SegmentFiles.create(context.disk, context.directory, 0))
    return FileLog(context, limits, [], active)
