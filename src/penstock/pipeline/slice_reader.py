"""Reads the messages of a slice: from files on the broker's machine, over the wire elsewhere."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from penstock.client.internal import InternalClient
from penstock.errors import MessageStoreReadErrorException, ResourceNotFoundException
from penstock.model.exporting import MessageSlice
from penstock.model.storage import SegmentSummary, StoredRun
from penstock.pipeline.destinations.destination import Messages
from penstock.store.record import ENTRY, checksum, count_intact, data_path, index_path

_MAX_ANSWER_BYTES = 1024 * 1024


def read_slice(found: MessageSlice, root: str | None, client: InternalClient) -> Messages:
    """Reads all intact messages that have not arrived. `root` is None on other machines."""
    columns = _Columns(frozenset(found.arrived))
    for segment in found.segments:
        first, end = max(found.first, segment.first), min(found.end, segment.end)
        if first >= end:
            continue
        run = None
        if root is not None and found.has_files:
            run = _read_files(Path(root, "streams", found.stream_id), segment, first, end)
        # If files were removed, truncated or damaged, the broker has the intact messages.
        if run is None or not columns.add(run):
            _fetch(found, first, end, client, columns)
    return Messages(
        found.stream, found.first, columns.numbers, columns.ingest_times, columns.payloads
    )


def _read_files(directory: Path, segment: SegmentSummary, first: int, end: int) -> StoredRun | None:
    """Messages [first, end) of a segment; None if its files were removed or truncated."""
    # The previous index entry has the position of the first payload.
    start = max(first - 1, segment.first)
    place = (start - segment.first) * ENTRY.size
    position = 0
    try:
        entries = _read(index_path(directory, segment.first), place, (end - start) * ENTRY.size)
        if start < first:
            position = ENTRY.unpack_from(entries)[0]
            entries = entries[ENTRY.size :]
        stop = ENTRY.unpack_from(entries, len(entries) - ENTRY.size)[0]
        payloads = _read(data_path(directory, segment.first), position, stop - position)
    except (OSError, ValueError):
        return None
    return StoredRun(first, position, entries, payloads)


def _read(path: Path, position: int, size: int) -> bytes:
    """Reads exactly these bytes; ValueError if the file does not have them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Checked before memory is allocated: a damaged index may have any position.
        if 0 <= size <= os.fstat(descriptor).st_size - position:
            data = os.pread(descriptor, size, position)
            if len(data) == size:
                return data
    finally:
        os.close(descriptor)
    raise ValueError(f"{path} does not have {size} bytes at {position}")


def _fetch(
    found: MessageSlice, first: int, end: int, client: InternalClient, columns: _Columns
) -> None:
    """Reads over the wire; the broker may have dropped messages at the end."""
    span = end - first
    while first < end:
        stop = min(first + span, end)
        try:
            run = client.read_stored(found.stream, found.stream_id, first, stop, _MAX_ANSWER_BYTES)
        except ResourceNotFoundException:
            return
        except MessageStoreReadErrorException:
            # Some bytes cannot be read. Smaller reads find the messages that are not affected.
            if span == 1:
                first += 1
            span = max(span // 2, 1)
            continue
        if not run.entries:
            return
        columns.add(run)
        first = run.first_sequence_number + len(run.entries) // ENTRY.size
        span *= 2


class _Columns:
    """The columns of `Messages`, while they are read."""

    def __init__(self, excluded: frozenset[int]) -> None:
        self._excluded = excluded
        self.numbers: list[int] = []
        self.ingest_times: list[int] = []
        self.payloads: list[bytes] = []

    def add(self, run: StoredRun) -> bool:
        """Adds the intact messages of a run; if its index is damaged, adds none, returns False."""
        ends, checksums, times = zip(*ENTRY.iter_unpack(run.entries), strict=True)
        base = run.position
        bounds = [base, *ends]
        if bounds != sorted(bounds):
            return False
        numbers = range(run.first_sequence_number, run.first_sequence_number + len(ends))
        payloads = [run.payloads[start - base : stop - base] for start, stop in pairwise(bounds)]
        if not self._excluded and count_intact(payloads, times, checksums) == len(payloads):
            self.numbers += numbers
            self.ingest_times += times
            self.payloads += payloads
            return True
        for number, time, payload, found in zip(numbers, times, payloads, checksums, strict=True):
            if number not in self._excluded and payload and checksum(payload, time) == found:
                self.numbers.append(number)
                self.ingest_times.append(time)
                self.payloads.append(payload)
        return True
