"""The measured Spark session, with Penstock's default settings.

Spark is imported when a session starts: its many objects would slow down earlier benchmarks in the
same process.
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
    """Starts a session in a new Java process, and stops both at the end of the block."""
    from pyspark import SparkContext

    import penstock.spark

    # Only the directories differ from the default settings.
    directories = {
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    spark = penstock.spark.session("benchmarks", master="local[*]", config=directories)
    gateway = SparkContext._gateway  # noqa: SLF001 - stopping a session does not stop Java
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
            # Java exits when its standard input is closed, even if it is busy.
            java.stdin.close()
            java.wait(_TIMEOUT_SECONDS)


def describe(spark: SparkSession) -> str:
    java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr] # noqa: SLF001
    return f"Spark {spark.version} on Java {java}, {spark.sparkContext.master}"
