"""A broker, a pipeline on Spark and a sandboxed cloud, started once for the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import boto3
import pytest
from botocore.config import Config
from mypy_boto3_kinesis.client import KinesisClient

from penstock import (
    ExportDefinition,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.sandbox.local_sandbox import Sandbox
from tests.exports.programs import PipelineProcess
from tests.support import BrokerProcess

_numbers = count()


@pytest.fixture(scope="package")
def cloud() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def _running_without_faults(
    cloud: Sandbox, broker: BrokerProcess, pipeline: PipelineProcess
) -> Iterator[None]:
    broker.ensure_running()
    pipeline.ensure_running()
    yield
    cloud.clear_faults()


@pytest.fixture(scope="package")
def kinesis(cloud: Sandbox) -> KinesisClient:
    session = boto3.Session("key", "secret", region_name="us-east-1")
    return session.client("kinesis", endpoint_url=cloud.url, config=Config())


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    root = tmp_path_factory.mktemp("exports") / "root"
    with BrokerProcess(root, PENSTOCK_DEAD_LETTER_STREAM="dead-letters") as process:
        yield process


@pytest.fixture(scope="package")
def pipeline(broker: BrokerProcess, cloud: Sandbox) -> Iterator[PipelineProcess]:
    address = f"127.0.0.1:{broker.port}"
    with PipelineProcess(broker.root, "--broker", address, **cloud.variables) as process:
        yield process


@pytest.fixture(scope="package")
def client(broker: BrokerProcess, pipeline: PipelineProcess) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(root=broker.root) as stream_manager_client:
        yield stream_manager_client


@pytest.fixture
def create(client: StreamManagerClient) -> Callable[..., str]:
    """Creates a stream with a unique name and these exports, and returns the name."""

    def create_stream(**exports: Any) -> str:
        name = f"stream-{next(_numbers)}"
        client.create_message_stream(
            MessageStreamDefinition(
                name=name,
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                export_definition=ExportDefinition(**exports),
            )
        )
        return name

    return create_stream


@pytest.fixture
def shard(kinesis: KinesisClient) -> Callable[[], str]:
    """Creates a Kinesis stream with one shard, and returns its name."""

    def create_stream() -> str:
        name = f"kinesis-{next(_numbers)}"
        kinesis.create_stream(StreamName=name, ShardCount=1)
        return name

    return create_stream
