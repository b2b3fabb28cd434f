"""Slices as rows: how they travel through Spark, from the task that reads to the one that delivers.

A slice is a row that says what it is, as JSON in place of a payload and with no number, and behind
it a row for each of its messages. All rows of a slice are in one partition, in their order.

Large payloads stay where they are, and the task that delivers them reads them itself: on the way
through Java they would take several times their size of its memory, and a message may have a
gigabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.exporting import SliceHeader
from penstock.pipeline.destinations.destination import Messages

_COLUMNS: dict[str, pa.DataType] = {
    "sequence_number": pa.int64(),
    "ingest_micros": pa.int64(),
    "payload": pa.binary(),
}
# As Spark makes it of the schema of the source.
_ARROW_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _COLUMNS.items()])
# A message has one byte at least: without any it is one that stayed where it is.
_LARGE_BYTES = 4 * 1024 * 1024
# The number of a row that begins a slice.
_HEADER = -1


# The payload of a message by its number; None if the stream no longer has it.
ReadLarge: TypeAlias = Callable[[SliceHeader, int], bytes | None]


def header_batch(header: SliceHeader) -> pa.RecordBatch:
    row = {"sequence_number": _HEADER, "ingest_micros": 0, "payload": msgspec.json.encode(header)}
    return pa.RecordBatch.from_pylist([row], schema=_ARROW_SCHEMA)


def message_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Messages as a stream's DataFrame has them, as rows of a slice."""
    numbers, times = batch.column(1), batch.column(2)
    payloads: Any = batch.column(3)
    are_large = pc.binary_length(payloads).to_numpy() > _LARGE_BYTES
    if are_large.any():
        payloads = pc.if_else(pa.array(are_large), b"", payloads)
    return pa.RecordBatch.from_arrays(
        [numbers, times.view(pa.int64()), payloads], schema=_ARROW_SCHEMA
    )


def slices_in(
    batches: Iterable[pa.RecordBatch], read_large: ReadLarge
) -> Iterator[tuple[SliceHeader, Messages]]:
    """The slices of a partition, each as soon as all of it is there."""
    header: SliceHeader | None = None
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        start = 0
        for place in np.flatnonzero(_numbers(batch) == _HEADER).tolist():
            parts.append(batch.slice(start, place - start))
            if header is not None:
                yield header, _messages(header, parts, read_large)
            header = msgspec.json.decode(batch.column(2)[place].as_py(), type=SliceHeader)
            parts = []
            start = place + 1
        parts.append(batch.slice(start))
    if header is not None:
        yield header, _messages(header, parts, read_large)


def _numbers(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    return batch.column(0).to_numpy()


def _messages(header: SliceHeader, parts: list[pa.RecordBatch], read_large: ReadLarge) -> Messages:
    found = header.slice
    numbers: list[int] = []
    times: list[int] = []
    payloads: list[Any] = []
    for part in parts:
        numbers += _numbers(part).tolist()
        times += (part.column(1).to_numpy() // 1000).tolist()
        payloads += part.column(2).to_pylist()
    messages = Messages(found.stream, found.first, numbers, times, payloads)
    if found.arrived:
        arrived = frozenset(found.arrived)
        messages = messages.pick([n for n, number in enumerate(numbers) if number not in arrived])
    if b"" not in messages.payloads:
        return messages
    whole = [
        payload or read_large(header, number)
        for number, payload in zip(messages.numbers, messages.payloads, strict=True)
    ]
    there = [place for place, payload in enumerate(whole) if payload]
    return messages._replace(payloads=[payload or b"" for payload in whole]).pick(there)
