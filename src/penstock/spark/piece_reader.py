"""Reading of a task's pieces as Arrow batches, with their checksums verified.

On the broker's machine a task maps the files. On other machines, for memory streams, and for
missing or truncated files, it reads from the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from penstock.client.internal import InternalClient
from penstock.errors import MessageStoreReadErrorException, ResourceNotFoundException
from penstock.model.storage import StoredRun
from penstock.spark.losses import describe_damaged, describe_removed, report_loss
from penstock.spark.mapped import has_files, map_piece
from penstock.spark.options import Via
from penstock.spark.place import Place
from penstock.spark.planning import Piece, ReadTask
from penstock.spark.python import freeze_gc
from penstock.spark.stored import ENTRY_TYPE, StoredMessages
from penstock.store.record import ENTRY

# The limit for messages that are read over the wire before they are checked and yielded.
_MAX_BUFFERED_BYTES = 32 * 1024 * 1024
_MAX_RESPONSE_BYTES = 1048576

_UNREADABLE = (MessageStoreReadErrorException, ResourceNotFoundException)
_CHECKSUM_MISMATCH = "checksum mismatch"


def read_task(task: ReadTask, *, via: Via, fails_on_loss: bool) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task, in the order of its pieces."""
    freeze_gc()
    with PieceReader(task.place, via=via, fails_on_loss=fails_on_loss) as reader:
        for piece in task.pieces:
            yield from reader.read(piece)


class PieceReader:
    """Reads the pieces of one task; connects to the broker only if a piece has no usable files."""

    def __init__(self, place: Place, *, via: Via, fails_on_loss: bool) -> None:
        self._place = place
        self._via = via
        self._fails = fails_on_loss
        self._client: InternalClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a piece."""
        for run in self._runs(piece):
            yield from run.batches(piece.stream)

    def find_first(self, piece: Piece) -> int | None:
        """Returns the first sequence number in the piece's times; None if there is none."""
        return next((run.first for run in self._runs(piece) if len(run.entries)), None)

    def _runs(self, piece: Piece) -> Iterator[StoredMessages]:
        """Yields the intact messages of the piece's times."""
        for stored in self._load(piece):
            for part in self._check(piece, stored):
                yield from part.between(piece.times)

    def _load(self, piece: Piece) -> Iterator[StoredMessages]:
        if self._via != "wire":
            mapped = map_piece(piece)
            if mapped is not None:
                yield mapped
                return
            # If files of this machine were removed or truncated, the broker reports the reason.
            if self._via == "files" and not has_files(piece):
                raise FileNotFoundError(
                    f"option via is files, but stream {piece.stream!r} has no files on this machine"
                )
        yield from self._fetch(piece)

    def _fetch(self, piece: Piece) -> Iterator[StoredMessages]:
        """Reads a piece over the wire, in parts of a limited size."""
        if self._client is None:
            self._client = self._place.connect(wait=True)
        number = piece.first
        while number < piece.end:
            try:
                stored = _fetch_part(self._client, piece, number)
            except _UNREADABLE as error:
                self._report_damage(piece, number, piece.end, error.message)
                return
            if stored.first > number:
                lost = min(stored.first, piece.end)
                report_loss(piece.stream, describe_removed(number, lost), fails=self._fails)
            if not len(stored.entries):
                # An earlier state of the stream was restored.
                first = max(number, stored.first)
                self._report_damage(piece, first, piece.end, "the stream ends before")
                return
            number = stored.end
            yield stored

    def _check(self, piece: Piece, stored: StoredMessages) -> list[StoredMessages]:
        """Returns the runs of intact messages, and reports damaged messages."""
        if stored.is_intact(piece.segment):
            return [stored]
        parts = stored.intact_parts()
        number = stored.first
        for part in parts:
            self._report_damage(piece, number, part.first, _CHECKSUM_MISMATCH)
            number = part.end
        self._report_damage(piece, number, stored.end, _CHECKSUM_MISMATCH)
        return parts

    def _report_damage(self, piece: Piece, first: int, end: int, reason: str) -> None:
        if first < end:
            report_loss(piece.stream, describe_damaged(first, end, reason), fails=self._fails)


def _fetch_part(client: InternalClient, piece: Piece, number: int) -> StoredMessages:
    """Reads messages of a piece, from `number` or the oldest message on, up to the buffer limit."""
    runs = [_read(client, piece, number)]
    first = runs[0].first_sequence_number
    size = len(runs[0].payloads)
    number = first + len(runs[0].entries) // ENTRY.size
    while number < piece.end and size < _MAX_BUFFERED_BYTES and runs[-1].entries:
        try:
            run = _read(client, piece, number)
        except _UNREADABLE:
            break  # the next call raises the error again
        if run.first_sequence_number != number or run.position != runs[0].position + size:
            break  # messages were removed, or an end position is damaged; the next call reads on
        runs.append(run)
        size += len(run.payloads)
        number += len(run.entries) // ENTRY.size
    entries = np.frombuffer(b"".join(run.entries for run in runs), ENTRY_TYPE)
    payloads = runs[0].payloads if len(runs) == 1 else b"".join(run.payloads for run in runs)
    return StoredMessages(first, entries, pa.py_buffer(payloads), runs[0].position)


def _read(client: InternalClient, piece: Piece, number: int) -> StoredRun:
    return client.read_stored(piece.stream, piece.stream_id, number, piece.end, _MAX_RESPONSE_BYTES)
