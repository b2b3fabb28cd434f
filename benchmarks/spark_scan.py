"""Spark scans, aggregations and writes of a stream, compared with the same rows in Parquet."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.clients import STREAM, PenstockPy, WrongAnswerError
from benchmarks.report import Comparison, Target, Unit
from benchmarks.servers import Penstock, running
from benchmarks.spark_session import describe, started
from benchmarks.systems import MESSAGE_BYTES, make_payloads
from benchmarks.timing import Figure, Scale, Workload, measure_rates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

FILES = "Penstock, mapped files"
WIRE = "Penstock, over the wire"
PARQUET = "Parquet"
WRITE = "Penstock, a stream"

# Relative to the rate of a Parquet scan of the same rows.
MIN_RATIOS = {FILES: 1.0, WIRE: 0.5}

# Java compiles frequently executed code, in several stages.
_WARM_UPS = 5
_WARM_UPS_OF_WRITES = 2

_MESSAGES_PER_BATCH = 100_000
_COPY = "copy"
_COPY_BYTES = 1 << 34

# Reads every column of every row, and has a known result.
_SUMMARY = (
    "sum(length(payload)) AS bytes",
    "max(sequence_number) AS newest",
    "min(ingest_time) AS since",
    "count(stream) AS messages",
)


@dataclass(frozen=True)
class Rows:
    """The same rows in a stream and in Parquet files."""

    spark: SparkSession
    client: PenstockPy
    root: Path
    parquet: Path
    count: int

    def open_stream(self, via: str) -> DataFrame:
        reader = self.spark.read.format("penstock").option("root", str(self.root))
        return reader.option("stream", STREAM).option("via", via).load()

    def open_parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.parquet))

    def readers(self) -> Mapping[str, Callable[[], DataFrame]]:
        """Returns functions that open the rows. Every run calls one, and so includes planning."""
        return {
            FILES: partial(self.open_stream, "files"),
            WIRE: partial(self.open_stream, "wire"),
            PARQUET: self.open_parquet,
        }


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    broker = Penstock(directory / "penstock")
    with running(broker), started(directory) as spark:
        client = PenstockPy(broker.root)
        try:
            rows = Rows(spark, client, broker.root, directory / "parquet", scale.scanned)
            _fill(rows)
            yield _compare_scans(rows, scale.short_repetitions)
            yield _compare_aggregations(rows, scale.short_repetitions)
            yield _compare_writes(rows, directory / "copy", scale.repetitions)
        finally:
            client.close()


def _fill(rows: Rows) -> None:
    rows.client.create_stream()
    for start in range(0, rows.count, _MESSAGES_PER_BATCH):
        rows.client.append_many(make_payloads(min(_MESSAGES_PER_BATCH, rows.count - start)))
    rows.open_stream("auto").write.parquet(str(rows.parquet))


def _compare_scans(rows: Rows, repetitions: int) -> Comparison:
    def scan(open_rows: Callable[[], DataFrame]) -> None:
        open_rows().write.format("noop").mode("overwrite").save()

    workloads = [Workload(name, partial(scan, reader)) for name, reader in rows.readers().items()]
    figures = measure_rates(workloads, rows.count, repetitions, _WARM_UPS)
    return Comparison(
        "spark-scan",
        f"Spark reads {rows.count:,} messages of {MESSAGE_BYTES} bytes, all columns",
        Unit.RATE,
        figures,
        _targets(figures),
        (describe(rows.spark),),
    )


def _targets(figures: Mapping[str, Figure]) -> dict[str, Target]:
    peer = figures[PARQUET].median
    return {
        name: Target(wanted, figures[name].median / peer) for name, wanted in MIN_RATIOS.items()
    }


def _compare_aggregations(rows: Rows, repetitions: int) -> Comparison:
    expected = _summarize(rows.open_parquet)
    if (expected["messages"], expected["bytes"]) != (rows.count, rows.count * MESSAGE_BYTES):
        raise WrongAnswerError(f"unexpected result from Parquet: {expected}")

    def aggregate(open_rows: Callable[[], DataFrame]) -> None:
        got = _summarize(open_rows)
        if got != expected:
            raise WrongAnswerError(f"{got} instead of {expected}")

    workloads = [
        Workload(name, partial(aggregate, reader)) for name, reader in rows.readers().items()
    ]
    return Comparison.of_rates(
        "spark-aggregation",
        f"Spark aggregates {rows.count:,} messages of {MESSAGE_BYTES} bytes over all columns",
        measure_rates(workloads, rows.count, repetitions, _WARM_UPS),
        {},
    )


def _summarize(open_rows: Callable[[], DataFrame]) -> Row:
    (row,) = open_rows().selectExpr(*_SUMMARY).collect()
    return row


def _compare_writes(rows: Rows, copy: Path, repetitions: int) -> Comparison:
    """Compares writes from a cached DataFrame, so that reading costs little and the same."""
    cached = rows.open_parquet().cache()
    if cached.count() != rows.count:
        raise WrongAnswerError(f"{cached.count()} of {rows.count} rows")
    client = rows.client.client

    def delete_stream() -> None:
        if _COPY in client.list_streams():
            client.delete_message_stream(_COPY)

    def write_stream() -> None:
        writer = cached.write.format("penstock").option("root", str(rows.root))
        writer = writer.option("stream", _COPY).option("createStream", True)
        writer.option("maxSize", _COPY_BYTES).mode("append").save()

    workloads = [
        Workload(WRITE, write_stream, delete_stream),
        Workload(
            PARQUET,
            lambda: cached.write.parquet(str(copy)),
            lambda: shutil.rmtree(copy, ignore_errors=True),
        ),
    ]
    figures = measure_rates(workloads, rows.count, repetitions, _WARM_UPS_OF_WRITES)
    cached.unpersist()
    written = client.describe_message_stream(_COPY).storage_status
    if written.newest_sequence_number != rows.count - 1:
        raise WrongAnswerError(f"{written} after {rows.count} rows were written")
    return Comparison.of_rates(
        "spark-write",
        f"Spark writes {rows.count:,} messages of {MESSAGE_BYTES} bytes",
        figures,
        {},
    )
