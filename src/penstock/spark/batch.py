"""spark.read: the messages of streams, or a range of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.model.storage import StreamPosition
from penstock.spark.locating import Locator
from penstock.spark.options import BatchReadOptions
from penstock.spark.piece_reader import read_task
from penstock.spark.place import Place
from penstock.spark.planning import Piece, ReadTask, plan_tasks
from penstock.spark.selection import (
    Positions,
    parse_streams,
    require_found,
    require_one_bound,
    require_order,
)
from penstock.spark.times import TimeRange


class PenstockReader(DataSourceReader):
    """Plans a batch query on the driver and reads in tasks.

    There is no pushFilters: Spark reuses the plan of the last query that pushed filters for later
    queries of the same load(), which then miss rows.
    """

    def __init__(self, options: BatchReadOptions) -> None:
        self._options = options
        self._streams = parse_streams(options.stream)
        self._starting = Positions.parse("startingPosition", options.starting_position, "earliest")
        self._ending = Positions.parse("endingPosition", options.ending_position, "latest")
        require_one_bound("starting", options.starting_position, options.starting_timestamp)
        require_one_bound("ending", options.ending_position, options.ending_timestamp)
        self._times = TimeRange.parse(options.starting_timestamp, options.ending_timestamp)

    def partitions(self) -> Sequence[InputPartition]:
        place = Place.find(self._options)
        with place.connect() as client:
            streams = client.watch_streams(self._streams)
            require_found(self._streams, streams)
            self._starting.require_known(streams)
            self._ending.require_known(streams)
            require_order(self._starting, self._ending, streams)
            locator = Locator(client, fails_on_loss=self._options.fail_on_data_loss)
            pieces = [piece for stream in streams for piece in self._plan(locator, stream)]
        return plan_tasks(place, pieces, self._options.min_partitions)

    def _plan(self, locator: Locator, stream: StreamPosition) -> list[Piece]:
        # Messages that were evicted before the query are not requested, so they are not a loss.
        first = max(self._starting.resolve(stream), stream.oldest_sequence_number)
        end = min(self._ending.resolve(stream), stream.end_sequence_number)
        return locator.plan(stream, first, end, self._times)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ReadTask):  # Spark adds an empty partition if there is none
            options = self._options
            yield from read_task(
                partition, via=options.via, fails_on_loss=options.fail_on_data_loss
            )
