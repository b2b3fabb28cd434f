"""The sink of a lane: its tasks deliver slices, and the driver tells the broker how that went.

What a task has to say travels in its commit message: Spark commits with another object, in
another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.model.exporting import ExportReport, Lane
from penstock.pipeline.courier import Courier
from penstock.pipeline.lanes import LIMITS
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.rows import slices_in
from penstock.spark.python import settle_worker


@dataclass(frozen=True)
class Reports(WriterCommitMessage):
    reports: list[ExportReport]


class LaneWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: PipelineOptions) -> None:
        self._options = options

    def write(  # type: ignore[override] # for Arrow, as PySpark has it
        self, iterator: Iterator[pa.RecordBatch]
    ) -> Reports:
        settle_worker()
        limits = LIMITS[Lane(self._options.lane)]
        courier = Courier(limits, self._options.threads, self._options.settings)
        for header, messages in slices_in(iterator):
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
