"""One Spark and one broker for all tests of the package, as each takes seconds to start.

Each test has its own Spark session and its own streams.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import penstock.spark
from penstock import MessageStreamDefinition, StrategyOnFull
from penstock.client.internal import InternalClient
from tests.support import QUICK_JAVA, BrokerProcess

_numbers = count()


@pytest.fixture(scope="package")
def shared_session() -> Iterator[SparkSession]:
    config = {
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "2",
    }
    # Restores the variables that the session sets.
    with patch.dict(os.environ):
        session = penstock.spark.session("tests", master="local[2]", config=config)
        yield session
        session.stop()


@pytest.fixture
def spark(shared_session: SparkSession) -> Iterator[SparkSession]:
    """A new session in the shared Spark, without settings, views and queries of other tests."""
    session = shared_session.newSession()
    penstock.spark.register(session)
    yield session
    for query in session.streams.active:
        query.stop()
    session.catalog.clearCache()


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("spark") / "root") as process:
        yield process


@pytest.fixture(scope="package")
def client(broker: BrokerProcess) -> Iterator[InternalClient]:
    with InternalClient(root=broker.root) as stream_manager_client:
        yield stream_manager_client


@pytest.fixture
def unique_name() -> str:
    """A name that no other test uses for a stream."""
    return f"unique-{next(_numbers)}"


@pytest.fixture
def create(client: InternalClient) -> Callable[..., str]:
    """Creates a stream with a unique name, and returns the name."""

    def create_stream(prefix: str = "stream", **fields: Any) -> str:
        fields.setdefault("strategy_on_full", StrategyOnFull.OverwriteOldestData)
        name = f"{prefix}-{next(_numbers)}"
        client.create_message_stream(MessageStreamDefinition(name=name, **fields))
        return name

    return create_stream


@pytest.fixture
def read(spark: SparkSession, broker: BrokerProcess) -> Callable[..., DataFrame]:
    """Returns a DataFrame of streams of the broker."""

    def read_streams(stream: str, **options: Any) -> DataFrame:
        reader: DataFrameReader = spark.read.format("penstock").option("root", str(broker.root))
        return reader.option("stream", stream).options(**options).load()

    return read_streams


@pytest.fixture
def read_stream(spark: SparkSession, broker: BrokerProcess) -> Callable[..., DataFrame]:
    """Returns a streaming DataFrame of streams of the broker."""

    def read_streams(stream: str, **options: Any) -> DataFrame:
        reader: DataStreamReader = spark.readStream.format("penstock")
        reader = reader.option("root", str(broker.root)).option("stream", stream)
        return reader.options(**options).load()

    return read_streams
