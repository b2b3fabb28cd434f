"""Slices as rows: how they travel through Spark, from the task that reads to the one that delivers.

A slice is a row that says what it is, as JSON in place of a payload and with no number, and behind
it a row for each of its messages. All rows of a slice are in one partition, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from penstock.model.exporting import ExportSlice
from penstock.pipeline.destinations.destination import Messages

SCHEMA = StructType(
    [
        StructField("sequence_number", LongType(), nullable=False),
        StructField("ingest_micros", LongType(), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
    ]
)
_COLUMNS: dict[str, pa.DataType] = {
    "sequence_number": pa.int64(),
    "ingest_micros": pa.int64(),
    "payload": pa.binary(),
}
_ARROW_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _COLUMNS.items()])
# The number of a row that begins a slice.
_HEADER = -1


class SliceHeader(msgspec.Struct, frozen=True):
    """What the task that delivers a slice is told of it."""

    slice: ExportSlice
    # Of the broker.
    root: str
    instance: str


def header_batch(header: SliceHeader) -> pa.RecordBatch:
    row = {"sequence_number": _HEADER, "ingest_micros": 0, "payload": msgspec.json.encode(header)}
    return pa.RecordBatch.from_pylist([row], schema=_ARROW_SCHEMA)


def message_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Messages as a stream's DataFrame has them, as rows of a slice."""
    numbers, times, payloads = (batch.column(place) for place in (1, 2, 3))
    return pa.RecordBatch.from_arrays(
        [numbers, times.view(pa.int64()), payloads], schema=_ARROW_SCHEMA
    )


def slices_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[SliceHeader, Messages]]:
    """The slices of a partition, each as soon as all of it is there."""
    header: SliceHeader | None = None
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        start = 0
        for place in np.flatnonzero(_numbers(batch) == _HEADER).tolist():
            parts.append(batch.slice(start, place - start))
            if header is not None:
                yield header, _messages(header, parts)
            header = msgspec.json.decode(batch.column(2)[place].as_py(), type=SliceHeader)
            parts = []
            start = place + 1
        parts.append(batch.slice(start))
    if header is not None:
        yield header, _messages(header, parts)


def _numbers(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    return batch.column(0).to_numpy()


def _messages(header: SliceHeader, parts: list[pa.RecordBatch]) -> Messages:
    found = header.slice
    numbers: list[int] = []
    times: list[int] = []
    payloads: list[Any] = []
    for part in parts:
        numbers += _numbers(part).tolist()
        times += (part.column(1).to_numpy() // 1000).tolist()
        payloads += part.column(2).to_pylist()
    messages = Messages(found.stream, found.first, numbers, times, payloads)
    if not found.arrived:
        return messages
    arrived = frozenset(found.arrived)
    return messages.pick([place for place, number in enumerate(numbers) if number not in arrived])
