"""Spark under measurement: one session with the settings that every user gets.

Spark is imported where a session is started: it fills a process with objects, and what is
measured before in the same process would be slower for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT_SECONDS = 60.0


@contextmanager
def started(directory: Path) -> Iterator[SparkSession]:
    """A session in a Java of its own, which is gone with it."""
    from pyspark import SparkContext

    import penstock.spark

    # Only where it leaves its files is said.
    places = {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    spark = penstock.spark.session("benchmarks", master="local[*]", config=places)
    gateway = SparkContext._gateway  # noqa: SLF001 - a session has no end that ends Java too
    assert gateway is not None
    java = gateway.proc
    try:
        yield spark
    finally:
        try:
            spark.stop()
            gateway.shutdown()
        finally:
            SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
            # It ends with its input, also where it was asked in the middle of something.
            java.stdin.close()
            java.wait(_TIMEOUT_SECONDS)


def describe(spark: SparkSession) -> str:
    java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr] # noqa: SLF001
    return f"Spark {spark.version} on Java {java}, {spark.sparkContext.master}"
