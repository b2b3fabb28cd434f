"""What a task does: its pieces, by the shortest way that there is, checked, as Arrow batches.

On the broker's machine that is its files. Elsewhere, for memory streams, and for files that are
gone or broken, it is the broker itself.
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

# What is gathered over the wire before it is checked and handed on.
_GATHERED_BYTES = 32 * 1024 * 1024
_ANSWER_BYTES = 1048576

_UNREADABLE = (MessageStoreReadErrorException, ResourceNotFoundException)
_NOT_WRITTEN = "what is stored is not what was written"


def read_task(task: ReadTask, *, via: Via, fails_on_loss: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the order of its pieces."""
    freeze_gc()
    with PieceReader(task.place, via=via, fails_on_loss=fails_on_loss) as reader:
        for piece in task.pieces:
            yield from reader.read(piece)


class PieceReader:
    """Reads the pieces of one task; connects only if one of them needs it."""

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
        for run in self._runs(piece):
            yield from run.batches(piece.stream)

    def find_first(self, piece: Piece) -> int | None:
        """The lowest number of a message of the piece's times; None if it holds none."""
        return next((run.first for run in self._runs(piece) if len(run.entries)), None)

    def _runs(self, piece: Piece) -> Iterator[StoredMessages]:
        """The intact messages of the piece's times."""
        for stored in self._find(piece):
            for part in self._check(piece, stored):
                yield from part.between(piece.times)

    def _find(self, piece: Piece) -> Iterator[StoredMessages]:
        if self._via != "wire":
            mapped = map_piece(piece)
            if mapped is not None:
                yield mapped
                return
            # Where they were and are no more, the broker tells what became of them.
            if self._via == "files" and not has_files(piece):
                raise FileNotFoundError(
                    f"stream {piece.stream!r} has no files on this machine, and option via is files"
                )
        yield from self._fetch(piece)

    def _fetch(self, piece: Piece) -> Iterator[StoredMessages]:
        """A piece over the wire, in parts that fit the memory."""
        if self._client is None:
            self._client = self._place.connect(wait=True)
        number = piece.first
        while number < piece.end:
            try:
                stored = _gather(self._client, piece, number)
            except _UNREADABLE as error:
                self._report_damage(piece, number, piece.end, error.message)
                return
            if stored.first > number:
                lost = min(stored.first, piece.end)
                report_loss(piece.stream, describe_removed(number, lost), fails=self._fails)
            if not len(stored.entries):
                # Of those that are left it has none: it was set back to an earlier state.
                self._report_damage(
                    piece, max(number, stored.first), piece.end, "the stream ends before"
                )
                return
            number = stored.end
            yield stored

    def _check(self, piece: Piece, stored: StoredMessages) -> list[StoredMessages]:
        """All of it, or what lies between damaged messages."""
        if stored.is_intact(piece.segment):
            return [stored]
        parts = stored.intact_parts()
        number = stored.first
        for part in parts:
            self._report_damage(piece, number, part.first, _NOT_WRITTEN)
            number = part.end
        self._report_damage(piece, number, stored.end, _NOT_WRITTEN)
        return parts

    def _report_damage(self, piece: Piece, first: int, end: int, reason: str) -> None:
        if first < end:
            report_loss(piece.stream, describe_damaged(first, end, reason), fails=self._fails)


def _gather(client: InternalClient, piece: Piece, number: int) -> StoredMessages:
    """Messages from `number` on, or from where they begin by now, up to the end of the piece."""
    runs = [_read(client, piece, number)]
    first = runs[0].first_sequence_number
    size = len(runs[0].payloads)
    number = first + len(runs[0].entries) // ENTRY.size
    while number < piece.end and size < _GATHERED_BYTES and runs[-1].entries:
        try:
            run = _read(client, piece, number)
        except _UNREADABLE:
            break  # what was read before it is good; the error is met again
        if run.first_sequence_number != number or run.position != runs[0].position + size:
            break  # removed meanwhile, or an end before it is wrong: what is left is met again
        runs.append(run)
        size += len(run.payloads)
        number += len(run.entries) // ENTRY.size
    entries = np.frombuffer(b"".join(run.entries for run in runs), ENTRY_TYPE)
    payloads = runs[0].payloads if len(runs) == 1 else b"".join(run.payloads for run in runs)
    return StoredMessages(first, entries, pa.py_buffer(payloads), runs[0].position)


def _read(client: InternalClient, piece: Piece, number: int) -> StoredRun:
    return client.read_stored(piece.stream, piece.stream_id, number, piece.end, _ANSWER_BYTES)
