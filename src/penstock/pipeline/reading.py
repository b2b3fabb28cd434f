"""The messages of a slice: from the files on the broker's machine, over the wire elsewhere."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from penstock.client.blocking import StreamManagerClient
from penstock.errors import MessageStoreReadErrorException, ResourceNotFoundException
from penstock.model.exporting import MessageSlice
from penstock.model.storage import SegmentSummary, StoredRun
from penstock.pipeline.destinations.destination import Messages
from penstock.store.record import ENTRY, checksum, count_intact, data_path, index_path

_MAX_ANSWER_BYTES = 1024 * 1024
_NO_LONGER_THERE = (MessageStoreReadErrorException, ResourceNotFoundException)


def read_slice(found: MessageSlice, root: str | None, client: StreamManagerClient) -> Messages:
    """All intact messages of a slice that have not arrived. `root` is None on other machines."""
    messages = _Columns(frozenset(found.arrived))
    for segment in found.segments:
        first, end = max(found.first, segment.first), min(found.end, segment.end)
        if first >= end:
            continue
        run = None
        if root is not None and found.has_files:
            run = _read_files(Path(root, "streams", found.stream_id), segment, first, end)
        # The broker knows what is left of files that were removed, cut or damaged.
        if run is None or not messages.add(run):
            _fetch(found, first, end, client, messages)
    return Messages(
        found.stream, found.first, messages.numbers, messages.ingest_times, messages.payloads
    )


def _read_files(directory: Path, segment: SegmentSummary, first: int, end: int) -> StoredRun | None:
    """None if the files were removed or cut."""
    place = first - segment.first
    try:
        # The entry before the first one says where the first payload begins.
        skipped = max(place - 1, 0)
        entries = _read(
            index_path(directory, segment.first),
            skipped * ENTRY.size,
            (end - segment.first - skipped) * ENTRY.size,
        )
        position = ENTRY.unpack_from(entries)[0] if place else 0
        entries = entries[ENTRY.size if place else 0 :]
        stop = ENTRY.unpack_from(entries, len(entries) - ENTRY.size)[0]
        payloads = _read(data_path(directory, segment.first), position, stop - position)
    except (OSError, ValueError):
        return None
    return StoredRun(first, position, entries, payloads)


def _read(path: Path, position: int, size: int) -> bytes:
    """Exactly these bytes; ValueError if the file does not have them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if size < 0 or os.fstat(descriptor).st_size < position + size:
            raise ValueError(f"{path} has fewer than {position + size} bytes")
        parts = []
        while size > 0:
            part = os.pread(descriptor, size, position)
            if not part:
                raise ValueError(f"{path} was cut")
            parts.append(part)
            position += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def _fetch(
    found: MessageSlice, first: int, end: int, client: StreamManagerClient, messages: _Columns
) -> None:
    """Over the wire, as many messages as the broker still has."""
    while first < end:
        try:
            run = client.read_stored(found.stream, found.stream_id, first, end, _MAX_ANSWER_BYTES)
        except _NO_LONGER_THERE:
            return
        if not run.entries:
            return
        messages.add(run)
        first = run.first_sequence_number + len(run.entries) // ENTRY.size


class _Columns:
    """The columns of `Messages`, while they are read."""

    def __init__(self, left_out: frozenset[int]) -> None:
        self._left_out = left_out
        self.numbers: list[int] = []
        self.ingest_times: list[int] = []
        self.payloads: list[bytes] = []

    def add(self, run: StoredRun) -> bool:
        """The messages of a run, but for damaged ones and those that are left out.

        False if positions in the index are out of order: then nothing is added.
        """
        ends, checksums, times = zip(*ENTRY.iter_unpack(run.entries), strict=True)
        first, base = run.first_sequence_number, run.position
        bounds = [base, *ends]
        if bounds != sorted(bounds):
            return False
        numbers = range(first, first + len(ends))
        payloads = [run.payloads[start - base : stop - base] for start, stop in pairwise(bounds)]
        if not self._left_out and count_intact(payloads, times, checksums) == len(payloads):
            self.numbers += numbers
            self.ingest_times += times
            self.payloads += payloads
            return True
        for number, time, payload, found in zip(numbers, times, payloads, checksums, strict=True):
            if number not in self._left_out and payload and checksum(payload, time) == found:
                self.numbers.append(number)
                self.ingest_times.append(time)
                self.payloads.append(payload)
        return True
