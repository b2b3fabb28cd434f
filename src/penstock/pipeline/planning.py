"""The source of a lane: it asks the broker what is due, and reads that.

What Spark keeps as an offset is a counter of plans, and nothing depends on it: a plan that Spark
repeats after a crash is empty, and the next one begins where the broker says that exports stand.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.client.blocking import StreamManagerClient
from penstock.model.exporting import ExportPlan, Lane, SliceHeader
from penstock.model.storage import Location
from penstock.pipeline.lanes import LIMITS
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.signals import Signals
from penstock.spark.place import Place
from penstock.spark.planning import Piece, plan_pieces
from penstock.spark.python import end_source_process, settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

# How long a lane with nothing to do waits at the broker before it asks again: it is told at once
# when there is something, so that this is only how often an idle lane costs anything.
_WAIT_MILLIS = 2000
# Spark ends its Python workers when they had nothing to do for a minute, and new ones need seconds
# before they do something: a lane that idles for so long gives them a task without slices.
_IDLE_SECONDS = 40.0
# As much as one batch hands out.
_PLAN_BYTES = 64 * 1024 * 1024


class PlannedSlice(NamedTuple):
    header: SliceHeader
    pieces: list[Piece]

    @property
    def cost(self) -> int:
        return sum(piece.cost for piece in self.pieces)


class DeliveryTask(InputPartition):
    """What one task reads and delivers, the most urgent first."""

    def __init__(self, place: Place, slices: Sequence[PlannedSlice]) -> None:
        self.place = place
        self.slices = list(slices)


class LaneReader(DataSourceStreamReader):
    """Spark has one of these in a process of its own as long as the lane runs."""

    def __init__(self, options: PipelineOptions) -> None:
        self._options = options
        self._lane = Lane(options.lane)
        self._client: StreamManagerClient | None = None
        self._plans: dict[int, list[PlannedSlice]] = {}
        self._last_batch = -math.inf

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return {"plan": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802, ARG002
        signals = Signals(Path(self._options.signals))
        if signals.is_stopping():
            signals.note_stopped(self._lane)
            return start
        keeps_warm = self._lane is Lane.steady and self._has_idled()
        plan = self._connected().plan_exports(
            self._options.pipeline,
            self._lane,
            max_bytes=_PLAN_BYTES,
            lease_millis=LIMITS[self._lane].lease_millis,
            wait_millis=0 if keeps_warm else _WAIT_MILLIS,
            about=self._options.about,
        )
        signals.want(plan.lanes)
        if not plan.slices and not keeps_warm:
            return start
        number = int(start["plan"]) + 1
        self._plans = {number: _slices_of(plan)}
        self._last_batch = time.monotonic()
        return {"plan": number}

    def _has_idled(self) -> bool:
        return time.monotonic() - self._last_batch > _IDLE_SECONDS

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002
        slices = self._plans.pop(int(end["plan"]), None)
        if slices is None:
            return []
        tasks = (os.cpu_count() or 1) if LIMITS[self._lane].is_parallel else 1
        place = self._options.place()
        shares = share_out(slices, tasks)
        return [DeliveryTask(place, share) for share in shares if share or not slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.pipeline.rows import header_batch, message_batch
        from penstock.spark.reading import PieceReader

        assert isinstance(partition, DeliveryTask)
        settle_worker()
        with PieceReader(partition.place, via="auto", fails_on_loss=False) as reader:
            for planned in partition.slices:
                yield header_batch(planned.header)
                for piece in planned.pieces:
                    for batch in reader.read(piece):
                        yield message_batch(batch)

    def commit(self, end: dict[str, Any]) -> None:
        """The broker knows what has left."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        end_source_process()

    def _connected(self) -> StreamManagerClient:
        if self._client is None:
            self._client = self._options.place().connect(patient=True)
        return self._client


def _slices_of(plan: ExportPlan) -> list[PlannedSlice]:
    headers = [SliceHeader(found, plan.root, plan.instance) for found in plan.slices]
    return [
        PlannedSlice(header, pieces_of(header, header.slice.first, header.slice.end))
        for header in headers
    ]


def pieces_of(header: SliceHeader, first: int, end: int) -> list[Piece]:
    """Where the messages [first, end) of a slice are."""
    found = header.slice
    location = Location(
        root=header.root,
        instance=header.instance,
        has_files=found.has_files,
        oldest_sequence_number=found.first,
        end_sequence_number=found.end,
        limit_sequence_number=found.end,
        segments=found.segments,
    )
    return plan_pieces(found.stream, found.stream_id, location, first, end)


def share_out(slices: Sequence[PlannedSlice], tasks: int) -> list[list[PlannedSlice]]:
    """Slices for tasks of about equal cost; in each of them the most urgent stay first."""
    shares: list[list[PlannedSlice]] = [[] for _ in range(tasks)]
    costs = [0] * len(shares)
    for planned in slices:
        lightest = costs.index(min(costs))
        shares[lightest].append(planned)
        costs[lightest] += planned.cost
    return shares
