"""Program that archives Spark's loaded classes for the tests.

A Java with this archive (`QUICK_JAVA`) starts Spark in half the time. A Java with another version
or other classes ignores it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import penstock.spark
from penstock import MessageStreamDefinition, StrategyOnFull, StreamManagerClient
from penstock.spark.pyspark_internals import end_java
from tests.support import JAVA_CLASSES, BrokerProcess


def main() -> None:
    unfinished = JAVA_CLASSES.with_suffix(".unfinished")
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f'-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit="{unfinished}" -Xlog:disable'
    )
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with BrokerProcess(place / "root") as broker:
            spark = penstock.spark.session("classes", master="local[2]")
            use_spark(spark, broker, place)
            spark.stop()
    end_java()
    unfinished.rename(JAVA_CLASSES)


def use_spark(spark: SparkSession, broker: BrokerProcess, place: Path) -> None:
    """Does some of everything that the tests do, as only loaded classes are archived."""
    root = str(broker.root)
    with StreamManagerClient(root=broker.root) as client:
        for name in ("readings", "copy"):
            client.create_message_stream(
                MessageStreamDefinition(
                    name=name, strategy_on_full=StrategyOnFull.OverwriteOldestData
                )
            )
        client.append_messages("readings", [b'{"wind": %d}' % number for number in range(10)])

    messages = spark.read.format("penstock").options(root=root, stream="readings").load()
    winds = messages.withColumn("wind", F.from_json(F.col("payload").cast("string"), "wind double"))
    winds.where("sequence_number > 2").groupBy("wind").count().collect()
    messages.write.parquet(str(place / "parquet"))
    spark.read.parquet(str(place / "parquet")).count()
    messages.rdd.map(len).collect()

    stream = spark.readStream.format("penstock").options(
        root=root, stream="readings", startingPosition="earliest"
    )
    counts = (
        stream.load()
        .withWatermark("ingest_time", "30 seconds")
        .groupBy(F.window("ingest_time", "10 seconds"), "stream")
        .count()
    )
    writers = (
        counts.writeStream.format("parquet").option("path", str(place / "counts")),
        stream.load().writeStream.format("penstock").options(root=root, stream="copy"),
        stream.load().writeStream.foreachBatch(collect),
    )
    for number, writer in enumerate(writers):
        checkpoint = str(place / f"checkpoint-{number}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()


def collect(batch: DataFrame, _: int) -> None:
    batch.collect()


if __name__ == "__main__":
    main()
