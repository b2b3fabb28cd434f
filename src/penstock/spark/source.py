"""The data source of Spark for format("penstock")."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import SettingError
from penstock.spark.options import (
    BatchReadOptions,
    ChannelReadOptions,
    StreamReadOptions,
    WriteOptions,
    check_option_names,
    is_channel_query,
    parse_options,
)
from penstock.spark.python import freeze_gc

# Spark skips null checks for columns that are not nullable.
SCHEMA = StructType(
    [
        StructField("stream", StringType(), nullable=False),
        StructField("sequence_number", LongType(), nullable=False),
        StructField("ingest_time", TimestampType(), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
    ]
)
# In a channel each message has a unique id.
CHANNEL_SCHEMA = StructType(
    [StructField("message_id", StringType(), nullable=False), *SCHEMA.fields]
)


class PenstockDataSource(DataSource):
    """The streams of a broker, or a channel.

    Spark creates an instance in a separate process for each step of a query.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_option_names(options)
        freeze_gc()

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return CHANNEL_SCHEMA if is_channel_query(self.options) else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_schema(schema)
        if is_channel_query(self.options):
            from penstock.spark.channels import ChannelReader

            return ChannelReader(parse_options(self.options, ChannelReadOptions))
        from penstock.spark.batch import PenstockReader

        return PenstockReader(parse_options(self.options, BatchReadOptions))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        from penstock.spark.streaming import PenstockStreamReader

        self._check_schema(schema)
        if is_channel_query(self.options):
            raise SettingError(
                "option channel is for spark.read, not for spark.readStream: read the stream that "
                "fills the channel, with option stream"
            )
        return PenstockStreamReader(parse_options(self.options, StreamReadOptions))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.writing import PenstockWriter

        return PenstockWriter(parse_options(self.options, WriteOptions), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from penstock.spark.writing import PenstockStreamWriter

        return PenstockStreamWriter(parse_options(self.options, WriteOptions), schema, overwrite)

    def _check_schema(self, schema: StructType) -> None:
        expected = self.schema()
        if schema != expected:
            raise SettingError(
                f"the schema is {schema.simpleString()}: expected none, as the columns are always "
                f"{expected.simpleString()}; remove .schema(…), and parse payloads with from_json"
            )
