"""The sink of a lane: its tasks deliver slices, and the driver tells the broker how that went.

What a task has to say travels in its commit message: Spark commits with another object, in
another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.model.exporting import ExportReport, Lane, SliceHeader
from penstock.pipeline.lanes import LIMITS
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.planning import pieces_of
from penstock.spark.python import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Reports(WriterCommitMessage):
    reports: list[ExportReport]


class LaneWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: PipelineOptions) -> None:
        self._options = options

    def write(  # type: ignore[override] # for Arrow, as PySpark has it
        self, iterator: Iterator[pa.RecordBatch]
    ) -> Reports:
        from penstock.pipeline.courier import Courier
        from penstock.pipeline.rows import slices_in
        from penstock.spark.reading import PieceReader

        settle_worker()
        limits = LIMITS[Lane(self._options.lane)]
        courier = Courier(limits, self._options.threads, self._options.settings)
        with PieceReader(self._options.place(), via="auto", fails_on_loss=False) as reader:

            def read_large(header: SliceHeader, number: int) -> bytes | None:
                for piece in pieces_of(header, number, number + 1):
                    for batch in reader.read(piece):
                        payload: bytes = batch.column(3)[0].as_py()
                        return payload
                return None

            for header, messages in slices_in(iterator, read_large):
                courier.send(header, messages)
        return Reports(courier.finish())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        reports = [
            report
            for message in messages
            if isinstance(message, Reports)
            for report in message.reports
        ]
        if reports:
            with self._options.place().connect(patient=True) as client:
                client.commit_exports(reports)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What arrived before something broke has arrived all the same."""
        self.commit(messages, batchId)
