"""Averages and alerts for a wind farm: streams in, Parquet files and another stream out.

Each turbine appends its readings to a stream of its own, as the demo devices of `make run` do:

    {"time": 1767225600.125, "windSpeed": 8.31, "rotorSpeed": 11.63, "powerKw": 1090.4}

Two queries read them. One writes an average for each turbine and ten seconds to Parquet files,
the other appends an alert to the stream `alerts` for every reading with strong wind.
"""

from __future__ import annotations

import argparse
import signal
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock.spark

READING = "time double, windSpeed double, rotorSpeed double, powerKw double"
WINDOW = "10 seconds"
LATENESS = "30 seconds"  # a window stays open for so long after its end
STRONG_WIND = 11.0  # metres a second


def main() -> None:
    args = parse_arguments()
    broker = {"root": args.root} if args.root else {}
    spark = penstock.spark.session("wind-farm")

    messages = (
        spark.readStream.format("penstock")
        .options(**broker, stream=args.stream, startingPosition="earliest")
        .load()
    )
    readings = parse(messages)
    to_parquet = average(readings).writeStream.format("parquet").option("path", args.output)
    to_alerts = (
        find_alerts(readings)
        .writeStream.format("penstock")
        .options(**broker, stream="alerts", payload="json", createStream="true")
    )
    run([start(to_parquet, "averages", WINDOW, args), start(to_alerts, "alerts", "1 second", args)])
    spark.stop()


def parse(messages: DataFrame) -> DataFrame:
    """A row for each message that is a reading."""
    reading = F.from_json(F.col("payload").cast("string"), READING).alias("reading")
    return (
        messages.select(F.col("stream").alias("turbine"), "sequence_number", reading)
        .select("turbine", "sequence_number", "reading.*")
        .withColumn("time", F.timestamp_seconds("time"))
        .where("time IS NOT NULL")
    )


def average(readings: DataFrame) -> DataFrame:
    """A row for each turbine and window, once readings for it would be too late."""
    return (
        readings.withWatermark("time", LATENESS)
        .groupBy(F.window("time", WINDOW), "turbine")
        .agg(
            F.count("*").alias("readings"),
            F.avg("windSpeed").alias("windSpeed"),
            F.avg("powerKw").alias("powerKw"),
        )
        .select("window.start", "window.end", "turbine", "readings", "windSpeed", "powerKw")
    )


def find_alerts(readings: DataFrame) -> DataFrame:
    """A row for each reading with strong wind.

    After a failure one may be stored twice: the turbine and the number of the reading tell.
    """
    return readings.where(F.col("windSpeed") > STRONG_WIND).select(
        F.lit("strong wind").alias("alert"), "turbine", "sequence_number", "time", "windSpeed"
    )


def start(
    writer: DataStreamWriter, name: str, interval: str, args: argparse.Namespace
) -> StreamingQuery:
    """A query that goes on where the last one with its checkpoint has stopped."""
    writer = writer.queryName(name).option("checkpointLocation", f"{args.checkpoints}/{name}")
    if args.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=interval).start()


def run(queries: list[StreamingQuery]) -> None:
    """Until they have ended, or Ctrl-C ends them between two batches."""
    signals: list[int] = []

    def stop(number: int, _: object) -> None:
        signals.append(number)
        signal.signal(number, signal.SIG_DFL)  # the next one ends all at once

    # In place of Spark's own, which breaks off what runs.
    signal.signal(signal.SIGINT, stop)
    while any(query.isActive for query in queries) and not signals:
        if any(query.exception() for query in queries):
            break
        time.sleep(0.2)
    for query in queries:
        while query.status["isTriggerActive"] and not query.exception():
            time.sleep(0.05)
        query.stop()
        query.awaitTermination()  # raises what it has failed with


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Averages and alerts for a wind farm.")
    parser.add_argument("--root", help="directory of the broker (default: found as by any client)")
    parser.add_argument("--stream", default="turbine-*", help="names or patterns (%(default)s)")
    parser.add_argument("--output", default="wind-farm/averages", help="%(default)s")
    parser.add_argument("--checkpoints", default="wind-farm/checkpoints", help="%(default)s")
    parser.add_argument("--once", action="store_true", help="read what is there, and end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
