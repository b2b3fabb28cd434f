"""What Spark knows as format("penstock-exports"): the source and the sink of a lane."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.rows import SCHEMA
from penstock.spark.python import settle_worker

FORMAT = "penstock-exports"


class ExportsDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        from penstock.pipeline.planning import LaneReader

        settle_worker()
        return LaneReader(PipelineOptions.from_spark(self.options))

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamArrowWriter:
        from penstock.pipeline.sink import LaneWriter

        settle_worker()
        return LaneWriter(PipelineOptions.from_spark(self.options))
