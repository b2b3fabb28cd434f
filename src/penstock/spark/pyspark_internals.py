"""Uses of PySpark's internals: private members, and a workaround for a race in Spark.

Each function states its reason. `tests/spark/test_pyspark_internals.py` checks the members against
the installed PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import SparkConf, SparkContext

# The pipeline does not use Spark SQL.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

# The variables that Spark adds to a source when a streaming query starts. It replaces these values.
_QUERY_VARIABLES = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}


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


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Registers a source whose streaming queries can start at the same time.

    All queries of a source share one map of environment variables. Spark adds variables to this map
    when a streaming query starts. If another query serializes the map at that moment, its tasks
    fail with `OptionalDataException`. So the variables are added before: replacing the value of an
    existing key is safe. `tests/spark/test_streaming.py` fails if Spark adds other variables.
    """
    # A session of Spark Connect has no context. Its server makes the map.
    context = getattr(spark, "sparkContext", None)
    environment = {} if context is None else context.environment
    added = {name: _QUERY_VARIABLES[name] for name in _QUERY_VARIABLES.keys() - environment.keys()}
    environment.update(added)
    try:
        spark.dataSource.register(source)
    finally:
        for name in added:
            del environment[name]
