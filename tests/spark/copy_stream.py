"""Copies a stream into Parquet files; as a program of its own until it is killed."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock.spark


def copying(
    spark: SparkSession, root: str, stream: str, output: str, checkpoint: str
) -> DataStreamWriter:
    """A query that goes on where the last one with its checkpoint was."""
    reader = spark.readStream.format("penstock").option("root", root).option("stream", stream)
    reader = reader.option("startingPosition", "earliest").option("maxMessagesPerTrigger", "100")
    writer = reader.load().writeStream.format("parquet").option("path", output)
    return writer.option("checkpointLocation", checkpoint)


def main(*words: str) -> None:
    spark = penstock.spark.session("copy", master="local[2]")
    copying(spark, *words).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
