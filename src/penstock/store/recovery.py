"""Opens a log after a stop, a crash or damage, from the files and the catalog.

The catalog gives lower bounds: the rows of sealed segments, and the checkpoint of the active
segment. Numbers below them are never assigned again, and bytes below them are never truncated. If
the files are shorter than the checkpoint, the segment is sealed: missing messages read as damaged,
and the stream continues in a new segment.

Every entry after the checkpoint is verified. A broken entry with intact entries after it is damage
and stays. Broken entries at the end are appends that a crash interrupted: their numbers are
assigned again. If such a tail has bytes other than zero, they stay in the files, and the stream
continues in a new segment. Recovery truncates only zeros.

A missing segment is replaced by a lost segment, which reads as damaged.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Container, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.model.storage import SegmentSummary
from penstock.store.log import DEFINITION_FILE, FileLog, LogContext
from penstock.store.record import (
    ENTRY,
    checksum,
    crc32,
    data_path,
    first_of_name,
    index_path,
    segment_names,
)
from penstock.store.retention import Limits
from penstock.store.segment import ActiveSegment, SealedSegment, SegmentFiles

logger = logging.getLogger(__name__)

_ENTRIES_A_READ = 4096
_BYTES_A_READ = 1 << 20


class Recovered(NamedTuple):
    summary: SegmentSummary
    # Ranges of messages below `summary.end` that cannot be read.
    damaged: Sequence[range]
    # Bytes after the last message that stay in the data file and in the index.
    kept_bytes: tuple[int, int] = (0, 0)
    # Whether the files are shorter than the checkpoint.
    is_short: bool = False
    # Messages below this number may have been stored and lost.
    lowest_end: int = 0

    @property
    def is_appendable(self) -> bool:
        return not self.is_short and self.kept_bytes == (0, 0)


def recover_segment(files: SegmentFiles, checkpoint: SegmentSummary | None) -> Recovered:
    """Verifies the messages after the checkpoint, and truncates zeros at the end."""
    disk = files.disk
    index_size, data_size = disk.size(files.index), disk.size(files.data)
    count = index_size // ENTRY.size
    verified = SegmentSummary(files.first, files.first, 0, 0, 0, 0, 0)
    if checkpoint is not None and checkpoint.first == files.first:
        if count < checkpoint.end - checkpoint.first or data_size < checkpoint.size:
            return _recover_short(files, checkpoint, count, data_size)
        verified = checkpoint
    intact, bad = _verify(files, verified, count)
    index_end = (intact.end - files.first) * ENTRY.size
    kept_bytes = (
        _cut_zeros(files, files.data, intact.size, data_size),
        _cut_zeros(files, files.index, index_end, index_size),
    )
    damaged = _join(number for number in bad if number < intact.end)
    data_crc = _continue_crc(files, files.data, verified.data_crc, verified.size, intact.size)
    summary = msgspec.structs.replace(
        intact,
        # The checksum must not match damaged data, also after further appends.
        data_crc=data_crc ^ bool(damaged),
        index_crc=_continue_crc(
            files,
            files.index,
            verified.index_crc,
            (verified.end - files.first) * ENTRY.size,
            index_end,
        ),
    )
    return Recovered(summary, damaged, kept_bytes)


def _recover_short(
    files: SegmentFiles, checkpoint: SegmentSummary, count: int, data_size: int
) -> Recovered:
    """A segment that has lost messages below its checkpoint."""
    end = max(checkpoint.end, files.first + count)
    # Each missing entry had a payload of at least one byte.
    lowest_end = end
    if files.first + count < checkpoint.end:
        lowest_end += max(data_size - checkpoint.size, 0)
    readable = files.count_stored(count)
    summary = msgspec.structs.replace(checkpoint, end=end)
    damaged = [range(files.first + readable, end)]
    return Recovered(summary, damaged, is_short=True, lowest_end=lowest_end)


def _verify(
    files: SegmentFiles, verified: SegmentSummary, count: int
) -> tuple[SegmentSummary, list[int]]:
    """The summary up to the last intact message, and the numbers of damaged messages.

    Checks the messages after `verified`.
    """
    data = files.disk.map(files.data)
    intact, bad = verified, []
    begin = verified.size
    oldest_time, newest_time = verified.oldest_time, verified.newest_time
    done = verified.end - files.first
    while done < count:
        size = min(_ENTRIES_A_READ, count - done) * ENTRY.size
        entries = files.disk.read(files.index, size, done * ENTRY.size)
        for number, (end, stored_checksum, ingest_time) in enumerate(
            ENTRY.iter_unpack(entries), files.first + done
        ):
            payload = data[begin:end] if begin < end <= len(data) else b""
            if payload and checksum(payload, ingest_time) == stored_checksum:
                oldest_time = min(oldest_time or ingest_time, ingest_time)
                newest_time = max(newest_time, ingest_time)
                intact = SegmentSummary(
                    files.first, number + 1, end, oldest_time, newest_time, 0, 0
                )
            else:
                bad.append(number)
            # Also after a damaged message: its end position may be correct.
            begin = end
        done += len(entries) // ENTRY.size
    return intact, bad


def _cut_zeros(files: SegmentFiles, descriptor: int, start: int, stop: int) -> int:
    """Truncates a file to `start` if only zeros follow; returns the number of kept bytes."""
    position = start
    while position < stop:
        data = files.disk.read(descriptor, min(_BYTES_A_READ, stop - position), position)
        if data.strip(b"\0"):
            return stop - start
        position += len(data)
    if start < stop:
        files.disk.truncate(descriptor, start)
    return 0


def _continue_crc(files: SegmentFiles, descriptor: int, crc: int, start: int, stop: int) -> int:
    while start < stop:
        data = files.disk.read(descriptor, min(_BYTES_A_READ, stop - start), start)
        crc = crc32(data, crc)
        start += len(data)
    return crc


def _join(numbers: Iterable[int]) -> list[range]:
    """Joins ascending numbers to ranges."""
    ranges: list[range] = []
    for number in numbers:
        if ranges and ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
    return ranges


def open_file_log(
    context: LogContext, limits: Limits, *, name: str, oldest: int, lowest_end: int
) -> FileLog:
    """Opens the log of a stream, from its files and the catalog.

    `oldest` and `lowest_end` come from the catalog: all messages below `oldest` were removed, and
    no number below `lowest_end` may be assigned again.
    """
    return _LogOpener(context, limits, name, oldest, lowest_end).open()


class _LogOpener:
    """Opens one log."""

    def __init__(
        self, context: LogContext, limits: Limits, name: str, oldest: int, lowest_end: int
    ) -> None:
        self._context = context
        self._limits = limits
        self._name = name
        self._oldest = oldest
        self._end = max(oldest, lowest_end)
        self._sealed = [
            SealedSegment(context.disk, context.directory, summary)
            for summary in context.catalog.segments(context.stream_id)
        ]
        self._known = {segment.first for segment in self._sealed}
        checkpoint = context.catalog.checkpoint(context.stream_id)
        # A sync may store a checkpoint of a segment that has just been sealed.
        is_stale = checkpoint is not None and checkpoint.first in self._known
        self._checkpoint = None if is_stale else checkpoint
        # Segments that the catalog does not list; without files if one of them is missing.
        self._unlisted: list[tuple[SegmentFiles | None, SegmentSummary]] = []

    def open(self) -> FileLog:
        context = self._context
        context.disk.make_directory(context.directory)
        listing, self._oldest = _list_segments(context, self._name, self._sealed, self._oldest)
        _report_missing(context, self._name, self._sealed, listing.missing)
        newest_unpaired = self._handle_unpaired(listing.unpaired)
        active = self._recover_unsealed(listing.paired)
        ends = [segment.end for segment in self._sealed]
        ends += [summary.end for _, summary in self._unlisted]
        newest = max((summary.first for _, summary in self._unlisted), default=-1)
        if active is not None:
            if active.first < max(self._known, default=-1):
                # A newer segment is sealed, so the catalog has lost the row of this one.
                self._retire(active)
                active = None
            else:
                ends.append(active.end)
                newest = max(newest, active.first)
        if self._checkpoint is not None:
            ends.append(self._checkpoint.end)
        self._end = max([self._end, *ends])
        if newest_unpaired > newest or newest <= max(self._known, default=-1):
            # The active segment is missing. Each message has at least one byte, so the segment
            # size bounds the number of its messages. Their numbers are not reused.
            self._end = max(self._end, newest_unpaired) + self._limits.segment_size
        if active is not None and active.end < self._end:
            self._retire(active)
            active = None
        if active is None:
            active = ActiveSegment(SegmentFiles.create(context.disk, context.directory, self._end))
        self._seal_unlisted()
        self._sealed.sort(key=attrgetter("first"))
        filled = _fill_gaps(context, self._name, self._sealed, self._oldest, active.first)
        return FileLog(context, self._limits, filled, active, self._checkpoint)

    def _recover_unsealed(self, firsts: Sequence[int]) -> ActiveSegment | None:
        """Recovers all segments that the catalog does not list; returns the active one, if any."""
        active: ActiveSegment | None = None
        for first in firsts:
            if active is not None:
                self._retire(active)
                active = None
            files = SegmentFiles.open(self._context.disk, self._context.directory, first)
            recovered = recover_segment(files, self._checkpoint)
            self._report(files, recovered)
            if first == firsts[-1]:
                self._end = max(self._end, recovered.lowest_end)
            if recovered.is_appendable:
                active = ActiveSegment(files, recovered.summary)
            elif recovered.summary.end == first:
                # The segment has no message, and the new segment has the same name.
                files.close()
                for path in (data_path(files.directory, first), index_path(files.directory, first)):
                    _set_aside(path)
                self._end = max(self._end, first)
                if first == firsts[-1]:
                    return ActiveSegment(
                        SegmentFiles.create(self._context.disk, self._context.directory, first)
                    )
            else:
                self._unlisted.append((files, recovered.summary))
        return active

    def _report(self, files: SegmentFiles, recovered: Recovered) -> None:
        path = data_path(files.directory, files.first)
        reason = "checksum does not match"
        if recovered.is_short:
            reason = "the files are shorter than at the last sync, or a checksum does not match"
        for numbers in recovered.damaged:
            logger.error(
                "stream %r: messages %d to %d are damaged (%s)",
                self._name,
                numbers.start,
                numbers.stop - 1,
                path,
            )
            self._context.damage.add(numbers.start, numbers.stop, reason, is_logged=True)
        if recovered.kept_bytes != (0, 0):
            logger.warning(
                "stream %r: %s: %d bytes at the end of the data and %d of the index are not "
                "messages; they are kept, and message %d begins a new segment",
                self._name,
                path,
                *recovered.kept_bytes,
                recovered.summary.end,
            )

    def _handle_unpaired(self, unpaired: Sequence[Path]) -> int:
        """Handles data and index files without their counterpart.

        Files of sealed segments and of the segment with a checkpoint stay: the catalog has the
        numbers of their messages. Reads fail until the missing file is restored. Other files are
        renamed. Returns the first number of the newest renamed file, or -1.
        """
        newest = -1
        for path in unpaired:
            first = first_of_name(path.name)
            if first is None or first in self._known:
                continue
            if self._checkpoint is not None and self._checkpoint.first == first:
                self._keep_unpaired(path, self._checkpoint)
            else:
                newest = max(newest, first)
                logger.error(
                    "stream %r: %s is renamed: the other file of its segment is missing, and the "
                    "messages are lost",
                    self._name,
                    path,
                )
                _set_aside(path)
        return newest

    def _keep_unpaired(self, path: Path, checkpoint: SegmentSummary) -> None:
        first, end, size = checkpoint.first, checkpoint.end, path.stat().st_size
        if path == data_path(path.parent, first):
            self._end = max(self._end, end + max(size - checkpoint.size, 0))
        else:
            end = max(end, first + size // ENTRY.size)
        if first == end:
            _set_aside(path)
            return
        logger.error(
            "stream %r: messages %d to %d are damaged (only %s is left of their two files)",
            self._name,
            first,
            end - 1,
            path,
        )
        self._context.damage.add(first, end, "a file is missing", is_logged=True)
        self._unlisted.append((None, msgspec.structs.replace(checkpoint, end=end)))

    def _retire(self, active: ActiveSegment) -> None:
        """Marks a segment to be sealed, or removes it if it is empty."""
        if active.first == active.end:
            active.files.remove()
        else:
            self._unlisted.append((active.files, active.summary()))

    def _seal_unlisted(self) -> None:
        if not self._unlisted:
            return
        context = self._context
        for files, _ in self._unlisted:
            if files is not None:
                files.sync()
        # The next segment must be in the directory before the catalog lists these as sealed.
        context.disk.sync_directory(context.directory)
        context.catalog.add_segments(context.stream_id, [summary for _, summary in self._unlisted])
        for files, summary in self._unlisted:
            if files is not None:
                files.close()
            self._sealed.append(SealedSegment(context.disk, context.directory, summary))


class _Listing(NamedTuple):
    """The files of a stream's directory."""

    # First numbers of unlisted segments with both files, and files without a counterpart.
    paired: list[int]
    unpaired: list[Path]
    # Missing files of sealed segments.
    missing: list[str]


def _list_segments(
    context: LogContext, name: str, sealed: Sequence[SealedSegment], oldest: int
) -> tuple[_Listing, int]:
    """Lists the files of a stream, and returns the oldest number.

    Removes leftovers: files of removed segments, and of a segment whose creation was interrupted.
    Files below `oldest` are leftovers if the oldest segment begins at `oldest`. Otherwise `oldest`
    is not reliable, and the files are served.
    """
    names = set(os.listdir(context.directory))  # noqa: PTH208 - Paths take too long for thousands
    expected = {each for segment in sealed for each in segment_names(segment.first)}
    files: dict[int, list[Path]] = {}
    for each in sorted(names - expected):
        path = context.directory / each
        first = first_of_name(each)
        if first is not None:
            files.setdefault(first, []).append(path)
        elif each == f"{DEFINITION_FILE}.new":
            context.disk.remove(path)
        elif each != DEFINITION_FILE:
            logger.warning("%s is not a Penstock file and is ignored", path)
    lowest = min([*files, *(segment.first for segment in sealed[:1])], default=oldest)
    if lowest < oldest and not _is_first(oldest, sealed, files):
        logger.error(
            "stream %r: the catalog has no messages below %d, but there are files from message %d "
            "on: they are kept and served",
            name,
            oldest,
            lowest,
        )
        oldest = lowest
    paired, unpaired = [], []
    for first, paths in files.items():
        if first < oldest or (len(paths) == 1 and paths[0].stat().st_size == 0):
            for path in paths:
                context.disk.remove(path)
        elif len(paths) == 2:
            paired.append(first)
        else:
            unpaired += paths
    return _Listing(paired, unpaired, sorted(expected - names)), oldest


def _is_first(number: int, sealed: Sequence[SealedSegment], files: Container[int]) -> bool:
    """Whether the oldest segment begins at this number."""
    return sealed[0].first == number if sealed else number in files


def _set_aside(path: Path) -> None:
    """Renames a file that is not part of a segment, to an unused name."""
    number, target = 1, path.with_name(path.name + ".lost")
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.lost-{number}")
    path.rename(target)


def _report_missing(
    context: LogContext, name: str, sealed: Sequence[SealedSegment], missing: Iterable[str]
) -> None:
    ends = {segment.first: segment.end for segment in sealed}
    for each in missing:
        first = first_of_name(each)
        assert first is not None
        logger.error(
            "stream %r: %s is missing: messages %d to %d cannot be read",
            name,
            context.directory / each,
            first,
            ends[first] - 1,
        )
        context.damage.add(first, ends[first], f"{each} is missing", is_logged=True)


def report_shortened(context: LogContext, name: str, sealed: Iterable[SegmentSummary]) -> None:
    """Reports sealed segments with truncated files. Called from any thread.

    Opening a log does not check file sizes, because that takes too long.
    """
    for segment in sealed:
        sizes = (segment.size, (segment.end - segment.first) * ENTRY.size)
        for each, size in zip(segment_names(segment.first), sizes, strict=True):
            try:
                found = os.stat(f"{context.directory}/{each}").st_size  # noqa: PTH116 - as above
            except OSError:
                # Missing files have been reported already, or retention has just removed them.
                continue
            if found < size:
                logger.error(
                    "stream %r: %s is truncated: it has %d of %d bytes, and the messages after "
                    "them are damaged (of messages %d to %d)",
                    name,
                    context.directory / each,
                    found,
                    size,
                    segment.first,
                    segment.end - 1,
                )
                first = segment.first + _count_readable(context, segment)
                context.damage.add(first, segment.end, f"{each} is truncated", is_logged=True)


def _count_readable(context: LogContext, segment: SegmentSummary) -> int:
    """The number of messages of a truncated segment before the first missing one.

    It does not use the file pool, because only the owner of the pool may use its files.
    """
    disk = context.disk

    def end_of(number: int) -> int:
        entry = disk.read(index, ENTRY.size, number * ENTRY.size)
        end: int = ENTRY.unpack(entry)[0]
        return end

    try:
        data_size = data_path(context.directory, segment.first).stat().st_size
        index = disk.open(index_path(context.directory, segment.first))
    except OSError:
        return 0
    try:
        count = min(disk.size(index) // ENTRY.size, segment.end - segment.first)
        return bisect_right(range(count), data_size, key=end_of)
    except OSError:
        return 0
    finally:
        disk.close(index)


def _fill_gaps(
    context: LogContext, name: str, sealed: Sequence[SealedSegment], oldest: int, end: int
) -> list[SealedSegment]:
    """Fills gaps with lost segments, which read as damaged."""
    filled: list[SealedSegment] = []
    for segment in sealed:
        filled += _lost_segments(context, name, oldest, segment.first)
        filled.append(segment)
        oldest = segment.end
    return filled + _lost_segments(context, name, oldest, end)


def _lost_segments(context: LogContext, name: str, first: int, end: int) -> list[SealedSegment]:
    if first >= end:
        return []
    logger.error(
        "stream %r: messages %d to %d are lost (%s)", name, first, end - 1, context.directory
    )
    context.damage.add(first, end, "no segment holds this number", is_logged=True)
    summary = SegmentSummary(first, end, 0, 0, 0, 0, 0)
    return [SealedSegment(context.disk, context.directory, summary)]
