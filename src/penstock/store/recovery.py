"""What a segment really holds after a crash: verified entry by entry, cut where it is torn.

Only entries behind the checkpoint are looked at; before it everything was synced. A broken entry
with intact ones behind it is damage and stays, so that the rest can be served; broken entries at
the end were being written when the power went, and go.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.store.record import ENTRY, checksum, crc32
from penstock.store.segment import SegmentFiles, SegmentSummary

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
    if checkpoint is not None and checkpoint.first == files.first:
        is_whole = checkpoint.end - checkpoint.first <= count and checkpoint.size <= data_size
        if is_whole:
            verified = checkpoint
    position = verified.size
    intact = verified
    damaged: list[int] = []
    pending_damage: list[int] = []
    done = verified.end - files.first
    while done < count:
        entries = disk.read(
            files.index, min(_ENTRIES_A_READ, count - done) * ENTRY.size, done * ENTRY.size
        )
        for number in range(len(entries) // ENTRY.size):
            packed = entries[number * ENTRY.size : (number + 1) * ENTRY.size]
            end, stored_checksum, ingest_time = ENTRY.unpack(packed)
            sequence_number = files.first + done + number
            is_plausible = position < end <= data_size
            payload = disk.read(files.data, end - position, position) if is_plausible else b""
            if payload and checksum(payload, ingest_time) == stored_checksum:
                damaged += pending_damage
                pending_damage = []
                intact = SegmentSummary(
                    files.first,
                    sequence_number + 1,
                    end,
                    min(intact.oldest_time or ingest_time, ingest_time),
                    max(intact.newest_time, ingest_time),
                    0,
                    0,
                )
            else:
                pending_damage.append(sequence_number)
            if is_plausible:
                position = end
        done += len(entries) // ENTRY.size
    kept = intact.end - files.first
    if index_size != kept * ENTRY.size:
        disk.truncate(files.index, kept * ENTRY.size)
    if data_size != intact.size:
        disk.truncate(files.data, intact.size)
    summary = intact._replace(
        data_crc=_continue_crc(files, files.data, verified.data_crc, verified.size, intact.size),
        index_crc=_continue_crc(
            files,
            files.index,
            verified.index_crc,
            (verified.end - files.first) * ENTRY.size,
            kept * ENTRY.size,
        ),
    )
    return Recovered(summary, damaged, count - kept)


def _continue_crc(files: SegmentFiles, descriptor: int, crc: int, start: int, stop: int) -> int:
    while start < stop:
        data = files.disk.read(descriptor, min(1 << 20, stop - start), start)
        crc = crc32(data, crc)
        start += len(data)
    return crc
