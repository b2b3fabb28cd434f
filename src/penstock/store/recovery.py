"""A log as the disk and the catalog have it, after whatever happened to them.

Of a segment that was not sealed, only entries behind the checkpoint are verified; before it
everything was synced. A broken entry with intact ones behind it is damage and stays, so that the
rest can be served; broken entries at the end were being written when the power went, and go.
Where a whole segment is gone, a lost one stands in its place and reads as damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.model.storage import SegmentSummary
from penstock.store.log import DEFINITION_FILE, FileLog, Home
from penstock.store.record import (
    ENTRY,
    checksum,
    crc32,
    data_path,
    first_of_name,
    index_path,
)
from penstock.store.retention import Limits
from penstock.store.segment import ActiveSegment, SealedSegment, SegmentFiles

logger = logging.getLogger(__name__)

_ENTRIES_A_READ = 4096


class Recovered(NamedTuple):
    summary: SegmentSummary
    damaged: list[int]
    torn_messages: int


def recover_segment(files: SegmentFiles, checkpoint: SegmentSummary | None) -> Recovered:
    """Verifies and cuts the two files; what they hold then is in the summary."""
    disk = files.disk
    index_size, data_size = disk.size(files.index), disk.size(files.data)
    count = index_size // ENTRY.size
    verified = SegmentSummary(files.first, files.first, 0, 0, 0, 0, 0)
    if (
        checkpoint is not None
        and checkpoint.first == files.first
        and checkpoint.end - checkpoint.first <= count
        and checkpoint.size <= data_size
    ):
        verified = checkpoint
    intact, bad = _verify(files, verified, count)
    kept = intact.end - files.first
    if index_size != kept * ENTRY.size:
        disk.truncate(files.index, kept * ENTRY.size)
    if data_size != intact.size:
        disk.truncate(files.data, intact.size)
    damaged = [number for number in bad if number < intact.end]
    data_crc = _continue_crc(files, files.data, verified.data_crc, verified.size, intact.size)
    summary = msgspec.structs.replace(
        intact,
        # What is damaged was not written: the checksum of all must not say that it was, now or
        # after whatever is appended.
        data_crc=data_crc ^ bool(damaged),
        index_crc=_continue_crc(
            files,
            files.index,
            verified.index_crc,
            (verified.end - files.first) * ENTRY.size,
            kept * ENTRY.size,
        ),
    )
    return Recovered(summary, damaged, count - kept)


def _verify(
    files: SegmentFiles, verified: SegmentSummary, count: int
) -> tuple[SegmentSummary, list[int]]:
    """How far the segment is intact, behind what is verified, and which messages are not."""
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
            # Also if this entry is bad: it may be the payload that is, and not the end.
            begin = end
        done += len(entries) // ENTRY.size
    return intact, bad


def _continue_crc(files: SegmentFiles, descriptor: int, crc: int, start: int, stop: int) -> int:
    while start < stop:
        data = files.disk.read(descriptor, min(1 << 20, stop - start), start)
        crc = crc32(data, crc)
        start += len(data)
    return crc


def open_file_log(home: Home, limits: Limits, *, oldest: int, lowest_end: int) -> FileLog:
    """The log as the disk and the catalog have it, after whatever happened to them.

    `oldest` and `lowest_end` are what the catalog knows: below the one everything was removed on
    purpose, and no number below the other may be handed out again.
    """
    home.disk.make_directory(home.directory)
    found, halves = _list_segments(home, oldest)
    sealed = [
        SealedSegment(home.disk, home.directory, summary)
        for summary in home.catalog.segments(home.stream_id)
    ]
    _report_missing(home.directory, sealed)
    known = {segment.first for segment in sealed}
    newest_half = _set_halves_aside(halves, known)
    checkpoint = home.catalog.checkpoint(home.stream_id)
    active: ActiveSegment | None = None
    for first in found:
        if first not in known:
            if active is not None:
                sealed += _seal_now(home, active)
            active = _recover(home, first, checkpoint)
    is_lost = active is None or newest_half > active.first
    sealed.sort(key=attrgetter("first"))
    if active is not None and sealed and sealed[-1].first > active.first:
        # Sealed behind an unsealed one: that one only lost its place in the catalog.
        sealed += _seal_now(home, active)
        active = None
    end = max([oldest, *(segment.end for segment in sealed), active.end if active else 0])
    if is_lost:
        # The segment that was written to is gone. Each message takes a byte at least, so that it
        # cannot have held more of them than bytes: no number of it is used again.
        begun = checkpoint.first if checkpoint is not None else end
        end = max(end, begun, newest_half) + limits.segment_size
    end = max(end, lowest_end)
    if active is not None and active.end < end:
        sealed += _seal_now(home, active)
        active = None
    if active is None:
        active = ActiveSegment(SegmentFiles.create(home.disk, home.directory, end))
    sealed.sort(key=attrgetter("first"))
    return FileLog(home, limits, _fill_gaps(home, sealed, oldest, active.first), active, checkpoint)


def _list_segments(home: Home, oldest: int) -> tuple[list[int], list[Path]]:
    """First numbers of the segments that are there, and files whose other half is gone.

    Leftovers go: of segments that were removed, and of one that was just about to begin.
    """
    files: dict[int, list[Path]] = {}
    for path in home.directory.iterdir():
        first = first_of_name(path.name)
        if first is not None:
            files.setdefault(first, []).append(path)
        elif path.name == f"{DEFINITION_FILE}.new":
            home.disk.remove(path)
        elif path.name != DEFINITION_FILE:
            logger.warning("%s is not a file of Penstock's and is left alone", path)
    whole, halves = [], []
    for first, paths in sorted(files.items()):
        if first < oldest or (len(paths) == 1 and paths[0].stat().st_size == 0):
            for path in paths:
                home.disk.remove(path)
        elif len(paths) == 2:
            whole.append(first)
        else:
            halves += paths
    return whole, halves


def _set_halves_aside(halves: Sequence[Path], known: Container[int]) -> int:
    """Renames files that are no segment any more; the first number of the newest, or -1.

    Those of sealed segments stay: the catalog knows what they were, and reading them says so.
    """
    newest = -1
    for path in halves:
        first = first_of_name(path.name)
        if first is not None and first not in known:
            newest = max(newest, first)
            logger.error("%s has lost its other half, and its messages; it is set aside", path)
            path.rename(path.with_name(path.name + ".lost"))
    return newest


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


def _recover(home: Home, first: int, checkpoint: SegmentSummary | None) -> ActiveSegment:
    files = SegmentFiles.open(home.disk, home.directory, first)
    recovered = recover_segment(files, checkpoint)
    if recovered.torn_messages:
        logger.warning(
            "%s: cut %d torn entries off its end",
            index_path(home.directory, first),
            recovered.torn_messages,
        )
    for sequence_number in recovered.damaged:
        logger.error("%s: message %d is damaged", data_path(home.directory, first), sequence_number)
    return ActiveSegment(files, recovered.summary)


def _seal_now(home: Home, active: ActiveSegment) -> list[SealedSegment]:
    """The sealed segment that an unsealed one becomes; none if it is empty."""
    if active.first == active.end:
        active.files.remove()
        return []
    active.files.sync()
    home.catalog.add_segments(home.stream_id, [active.summary()])
    active.close()
    return [SealedSegment(home.disk, home.directory, active.summary())]


def _fill_gaps(
    home: Home, sealed: Sequence[SealedSegment], oldest: int, end: int
) -> list[SealedSegment]:
    """Segments without gaps: a lost one stands where files are missing, and reads as damaged."""
    filled: list[SealedSegment] = []
    for segment in sealed:
        filled += _lost(home, oldest, segment.first)
        filled.append(segment)
        oldest = segment.end
    return filled + _lost(home, oldest, end)


def _lost(home: Home, first: int, end: int) -> list[SealedSegment]:
    if first >= end:
        return []
    logger.error("%s: messages %d to %d are lost", home.directory, first, end - 1)
    summary = SegmentSummary(first, end, 0, 0, 0, 0, 0)
    return [SealedSegment(home.disk, home.directory, summary)]
