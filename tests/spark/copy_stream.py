"""Copies a stream into Parquet files. As a program, it runs until it is killed."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock.spark


def make_copy_query(
    spark: SparkSession, root: str, stream: str, output: str, checkpoint: str
) -> DataStreamWriter:
    """Returns a query that continues from its checkpoint."""
    reader = spark.readStream.format("penstock").option("root", root).option("stream", stream)
    reader = reader.option("startingPosition", "earliest").option("maxMessagesPerTrigger", "100")
    writer = reader.load().writeStream.format("parquet").option("path", output)
    return writer.option("checkpointLocation", checkpoint)


def main(*arguments: str) -> None:
    spark = penstock.spark.session("copy", master="local[2]")
    make_copy_query(spark, *arguments).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
