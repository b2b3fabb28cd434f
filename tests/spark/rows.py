"""Rows of a DataFrame and messages of a stream, in a common form."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame

from penstock import StreamManagerClient


class Row(NamedTuple):
    stream: str
    sequence_number: int
    ingest_time: int
    payload: bytes


def rows_of(frame: DataFrame) -> list[Row]:
    plain = frame.selectExpr(
        "stream", "sequence_number", "unix_millis(ingest_time) AS millis", "payload"
    )
    return [
        Row(row.stream, row.sequence_number, row.millis, bytes(row.payload))
        for row in plain.collect()
    ]


def numbers_of(frame: DataFrame) -> list[int]:
    return [row.sequence_number for row in frame.select("sequence_number").collect()]


def messages_of(client: StreamManagerClient, stream: str) -> list[Row]:
    """Returns the messages that the client reads from a stream."""
    return [
        Row(stream, message.sequence_number, message.ingest_time, message.payload)
        for message in client.read_all(stream)
    ]


def count_scanned(frame: DataFrame) -> int:
    """Returns the number of rows that the source produced for a collected frame."""
    node = frame._jdf.queryExecution().executedPlan()
    while node.nodeName() != "BatchScan penstock":
        node = node.children().head()
    return int(node.metrics().get("numOutputRows").get().value())
