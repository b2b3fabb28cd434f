"""The private members of PySpark that the adapter relies on.

The tests fail if the installed PySpark has changed a member, and name it.
"""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql.datasource import DataSource

from penstock.spark.java import find_java, java_home_for_spark
from penstock.spark.pyspark_internals import register_source
from tests.support import QUICK_JAVA, TIMEOUT_S, clean_environment, run_program

# Sends nothing to the accumulator server and closes the connection, which is an error for the
# server. `recv` returns after the server has handled the error.
PROGRAM = """
import socket
from pyspark import SparkConf, SparkContext
from penstock.spark.pyspark_internals import end_java, silence_accumulator_server, start_java

def cause_error(server):
    with socket.socket(server.address_family) as connection:
        connection.connect(server.server_address)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)

settings = {"spark.master": "local[1]", "spark.app.name": "internals", "spark.ui.enabled": "false"}
start_java(SparkConf().setAll(list(settings.items())))
process = SparkContext._gateway.proc
print({name: SparkConf().get(name) for name in settings} == settings, "settings reach Java")
start_java()
print(SparkContext._gateway.proc is process, "Java is started once")

spark = SparkContext.getOrCreate(SparkConf())
cause_error(spark._accumulatorServer)
silence_accumulator_server(spark)
cause_error(spark._accumulatorServer)

spark.stop()
print(process.poll() is None, "Java outlives a context")
end_java()
print(process.poll() == 0, "Java ends")
"""


@pytest.mark.parametrize("name", ["_ensure_initialized", "_gateway"])
def test_spark_context_has_member(name: str) -> None:
    assert name in vars(SparkContext), f"PySpark {pyspark.__version__} has no SparkContext.{name}"


def test_java_is_started_with_an_optional_conf() -> None:
    parameters = inspect.signature(SparkContext._ensure_initialized).parameters

    assert "conf" in parameters
    assert all(each.default is None for each in parameters.values())


@pytest.mark.full
def test_adapter_starts_silences_and_ends_java(tmp_path: Path) -> None:
    home = java_home_for_spark(find_java(os.environ).home, {"XDG_CACHE_HOME": str(tmp_path)})
    finished = run_program(
        sys.executable,
        "-c",
        PROGRAM,
        cwd=tmp_path,
        env=clean_environment(JAVA_HOME=str(home), SPARK_SUBMIT_OPTS=QUICK_JAVA),
        seconds=TIMEOUT_S,
    )

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [
        "True settings reach Java",
        "True Java is started once",
        "True Java outlives a context",
        "True Java ends",
    ]
    # Only the error before the server was silenced.
    assert finished.stderr.count("Exception occurred during processing") == 1


class _ConnectSession:
    """The members of a Spark Connect session that a registration uses. It has no sparkContext."""

    def __init__(self) -> None:
        self.registered: list[type[DataSource]] = []

    @property
    def dataSource(self) -> _ConnectSession:  # noqa: N802 - Spark's
        return self

    def register(self, source: type[DataSource]) -> None:
        self.registered.append(source)


def test_source_is_registered_in_a_session_without_a_context() -> None:
    session = _ConnectSession()

    register_source(session, DataSource)  # type: ignore[arg-type] # a session of Spark Connect

    assert session.registered == [DataSource]
