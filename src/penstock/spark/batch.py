"""spark.read: all that the streams of a query have, or a part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.model.storage import StreamPosition
from penstock.spark.filters import Bounds, push_filters
from penstock.spark.locating import Locator
from penstock.spark.options import BatchReadOptions
from penstock.spark.place import Place
from penstock.spark.planning import Piece, Task, plan_tasks
from penstock.spark.reading import read_task
from penstock.spark.selection import Positions, parse_streams, require_found


class PenstockReader(DataSourceReader):
    """Plans on the driver, and reads where Spark takes it to."""

    def __init__(self, options: BatchReadOptions) -> None:
        self._options = options
        self._streams = parse_streams(options.stream)
        self._starting = Positions.parse("startingPosition", options.starting_position, "earliest")
        self._ending = Positions.parse("endingPosition", options.ending_position, "latest")
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        self._bounds, remaining = push_filters(filters)
        return remaining

    def partitions(self) -> Sequence[InputPartition]:
        place = Place.find(self._options)
        with place.connect() as client:
            streams = client.watch_streams(self._streams)
            require_found(self._streams, streams)
            self._starting.require_known(streams)
            self._ending.require_known(streams)
            locator = Locator(client, fails_on_loss=self._options.fail_on_data_loss)
            pieces = [piece for stream in streams for piece in self._plan(locator, stream)]
        return plan_tasks(place, pieces, self._options.min_partitions)

    def _plan(self, locator: Locator, stream: StreamPosition) -> list[Piece]:
        bounds = self._bounds
        if bounds.streams is not None and stream.name not in bounds.streams:
            return []
        # As for any reader of a stream: what is gone by now was not asked for.
        first = max(self._starting.resolve(stream), stream.oldest_sequence_number, bounds.first)
        end = min(self._ending.resolve(stream), stream.end_sequence_number, bounds.end)
        return locator.plan(stream, first, end, bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Task):  # Spark makes up one of its own where there is none
            options = self._options
            yield from read_task(
                partition, via=options.via, fails_on_loss=options.fail_on_data_loss
            )
