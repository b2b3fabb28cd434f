"""Streaming queries that record their batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock import StreamManagerClient
from tests.spark.rows import Row, rows_of
from tests.support import TIMEOUT_S, wait_until

# The start of a query is slow on a busy machine.
START_SECONDS = TIMEOUT_S


class Batches:
    """Records the batches of a query."""

    def __init__(self) -> None:
        self.batches: list[list[Row]] = []
        # While it is cleared, the query waits after a batch.
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def take(self, frame: DataFrame, _: int) -> None:
        rows = rows_of(frame)
        self.batches.append(rows)
        self.may_go_on.wait(START_SECONDS)

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    @property
    def numbers(self) -> list[int]:
        return [row.sequence_number for row in self.rows]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.rows) >= count, f"{count} rows, not {self.rows}", START_SECONDS)


def start(frame: DataFrame, checkpoint: Path, batches: Batches, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(batches.take).start()


@contextmanager
def running(
    frame: DataFrame, checkpoint: Path, batches: Batches, **trigger: Any
) -> Iterator[StreamingQuery]:
    """Runs a query during the block, and checks that it does not fail."""
    query = start(frame, checkpoint, batches, **trigger)
    try:
        yield query
        assert query.exception() is None
    finally:
        batches.may_go_on.set()
        query.stop()


def wait_for_failure(query: StreamingQuery) -> str:
    """Waits until a query fails, and returns its error."""
    wait_until(lambda: not query.isActive, "the query fails", START_SECONDS)
    return str(query.exception())


def wait_until_watched(client: StreamManagerClient, stream: str) -> None:
    """Waits until a query has read all messages of the stream and waits for more."""

    def is_watched() -> bool:
        streams = client.statistics().streams
        return any(s.name == stream and s.waiting_reads for s in streams)

    wait_until(is_watched, "a query waits for the stream", START_SECONDS)
