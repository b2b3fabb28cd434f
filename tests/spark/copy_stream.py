"""A program of its own: copies a stream into Parquet files, until it is killed or all is there."""

from __future__ import annotations

import sys

import penstock.spark


def main(root: str, stream: str, output: str, checkpoint: str, *once: str) -> None:
    spark = penstock.spark.session("copy", master="local[2]")
    reader = spark.readStream.format("penstock").option("root", root).option("stream", stream)
    reader = reader.option("startingPosition", "earliest").option("maxMessagesPerTrigger", "100")
    writer = reader.load().writeStream.format("parquet").option("path", output)
    writer = writer.option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
