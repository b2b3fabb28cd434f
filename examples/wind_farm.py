"""Averages and alerts for a wind farm: reads streams, writes Parquet files and another stream.

Each turbine appends its readings to its own stream, like the demo devices of `make run`:

    {"time": 1767225600.125, "windSpeed": 8.31, "rotorSpeed": 11.63, "powerKw": 1090.4}

Two queries read them. One writes an average for each turbine and 10 seconds to Parquet files. The
other appends an alert to the stream `alerts` for each reading with strong wind.
"""

from __future__ import annotations

import argparse
import signal
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock.spark

READING = "time double, windSpeed double, rotorSpeed double, powerKw double"
WINDOW = "10 seconds"
LATENESS = "30 seconds"  # how long a window stays open after its end
STRONG_WIND = 11.0  # meters per second


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
    """Returns a row for each message that is a reading."""
    reading = F.from_json(F.col("payload").cast("string"), READING).alias("reading")
    return (
        messages.select(F.col("stream").alias("turbine"), "sequence_number", reading)
        .select("turbine", "sequence_number", "reading.*")
        .withColumn("time", F.timestamp_seconds("time"))
        .where("time IS NOT NULL")
    )


def average(readings: DataFrame) -> DataFrame:
    """Returns a row for each turbine and window, after the window is closed."""
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
    """Returns a row for each reading with strong wind.

    After a failure an alert may be stored twice. Turbine and sequence number identify it.
    """
    return readings.where(F.col("windSpeed") > STRONG_WIND).select(
        F.lit("strong wind").alias("alert"), "turbine", "sequence_number", "time", "windSpeed"
    )


def start(
    writer: DataStreamWriter, name: str, interval: str, args: argparse.Namespace
) -> StreamingQuery:
    """Starts a query that continues from its checkpoint."""
    writer = writer.queryName(name).option("checkpointLocation", f"{args.checkpoints}/{name}")
    if args.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=interval).start()


def run(queries: list[StreamingQuery]) -> None:
    """Waits until the queries end. Ctrl-C stops them between two batches."""
    signals: list[int] = []

    def stop(number: int, _: object) -> None:
        signals.append(number)
        signal.signal(number, signal.SIG_DFL)  # a second Ctrl-C ends the program at once

    # Replaces Spark's handler, which interrupts the running batch.
    signal.signal(signal.SIGINT, stop)
    while any(query.isActive for query in queries) and not signals:
        if any(query.exception() for query in queries):
            break
        time.sleep(0.2)
    for query in queries:
        while query.status["isTriggerActive"] and not query.exception():
            time.sleep(0.05)
        query.stop()
        query.awaitTermination()  # raises the query's error


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Averages and alerts for a wind farm.")
    parser.add_argument("--root", help="directory of the broker (default: as for all clients)")
    parser.add_argument("--stream", default="turbine-*", help="names or patterns (%(default)s)")
    parser.add_argument("--output", default="wind-farm/averages", help="%(default)s")
    parser.add_argument("--checkpoints", default="wind-farm/checkpoints", help="%(default)s")
    parser.add_argument("--once", action="store_true", help="read the stored messages and exit")
    return parser.parse_args()


if __name__ == "__main__":
    main()
