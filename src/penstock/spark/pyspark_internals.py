"""The private members of PySpark that the Spark connector uses.

Each function states why no public function serves. `tests/spark/test_pyspark_internals.py` checks
the members against the installed PySpark.
"""

from __future__ import annotations

from pyspark import SparkConf, SparkContext


def start_java(conf: SparkConf | None = None) -> None:
    """Starts Java with these settings, unless this process already has one.

    No public function starts Java with settings but without a context, and the settings of a
    context depend on the master, which only Java finds in Spark's files and variables.
    """
    SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001


def end_java() -> None:
    """Ends Java, and waits for its end.

    `SparkContext.stop` leaves Java running, for a later context.
    """
    gateway = SparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    gateway.shutdown()
    # Java ends at the end of its standard input.
    gateway.proc.stdin.close()
    gateway.proc.wait()


def silence_accumulator_server(spark: SparkContext) -> None:
    """Stops the accumulator server from printing a traceback when Java has ended.

    No setting controls the output of this server.
    """
    server = spark._accumulatorServer  # noqa: SLF001
    server.handle_error = _ignore  # type: ignore[assignment,method-assign]


def _ignore(*_: object) -> None:
    pass
