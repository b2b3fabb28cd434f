"""What Spark knows as format("penstock-exports"): the source and the sink of a lane.

Spark has a process for each step of a query. So that those which only plan stay small, what reads
and delivers is imported where that is done.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamReader
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from penstock.broker.logs import set_up_worker_logs
from penstock.pipeline.options import PipelineOptions
from penstock.spark.python import settle_worker

FORMAT = "penstock-exports"
# See `penstock.pipeline.rows`.
SCHEMA = StructType(
    [
        StructField("sequence_number", LongType(), nullable=False),
        StructField("ingest_micros", LongType(), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
    ]
)


class ExportsDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        from penstock.pipeline.planning import LaneReader

        settle_worker()
        set_up_worker_logs()
        return LaneReader(PipelineOptions.from_spark(self.options))

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamArrowWriter:
        from penstock.pipeline.sink import LaneWriter

        settle_worker()
        set_up_worker_logs()
        return LaneWriter(PipelineOptions.from_spark(self.options))
