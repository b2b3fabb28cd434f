"""The sink of a lane: its tasks deliver slices, and the driver tells the broker how that went.

What a task has to say travels in its commit message: Spark commits with another object, in
another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.broker.logs import set_up_worker_logs
from penstock.model.exporting import ExportReport, Lane, SliceHeader
from penstock.pipeline.lanes import LIMITS
from penstock.pipeline.messenger import Messenger
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.planning import pieces_of
from penstock.pipeline.settlements import UploadedFile
from penstock.spark.python import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Reports(WriterCommitMessage):
    reports: list[ExportReport]
    # By lease: files that were uploaded.
    uploaded: dict[str, list[UploadedFile]]


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
        set_up_worker_logs()
        limits = LIMITS[Lane(self._options.lane)]
        place = self._options.place()
        with (
            PieceReader(place, via="auto", fails_on_loss=False) as reader,
            Messenger(place) as messenger,
        ):
            courier = Courier(
                limits,
                self._options.threads,
                self._options.settings,
                messenger.tell,
                messenger.find_root,
            )

            def read_large(header: SliceHeader, number: int) -> bytes | None:
                for piece in pieces_of(header, number, number + 1):
                    for batch in reader.read(piece):
                        payload: bytes = batch.column(3)[0].as_py()
                        return payload
                return None

            for header, messages in slices_in(iterator, read_large):
                courier.send(header, messages)
            return Reports(courier.finish(), courier.uploaded)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        told = [message for message in messages if isinstance(message, Reports)]
        reports = [report for message in told for report in message.reports]
        if not reports:
            return
        with self._options.place().connect(patient=True) as client:
            accepted = client.commit_exports(reports).accepted
        settings = self._options.settings
        if settings.s3_delete_uploaded_files:
            from penstock.pipeline.uploads.disposal import delete_files

            # Not before the broker knows: a task that is repeated needs its file.
            for message in told:
                for lease in accepted & message.uploaded.keys():
                    delete_files(message.uploaded[lease], settings.read_only_directories)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What arrived before something broke has arrived all the same."""
        self.commit(messages, batchId)
