"""A sandbox in this process, and AWS clients that use its URL."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from botocore.config import Config
from mypy_boto3_iotsitewise.client import IoTSiteWiseClient
from mypy_boto3_kinesis.client import KinesisClient
from mypy_boto3_s3.client import S3Client

from penstock.sandbox.local_sandbox import Sandbox

# No retries: a test makes further attempts itself.
CONFIG = Config(retries={"total_max_attempts": 1}, inject_host_prefix=False)


@pytest.fixture(scope="session")
def running_sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(running_sandbox: Sandbox) -> Iterator[Sandbox]:
    """A sandbox without faults and logged calls. It keeps the names of earlier tests."""
    running_sandbox.reset_calls()
    yield running_sandbox
    running_sandbox.clear_faults()


@pytest.fixture(scope="session")
def session() -> boto3.Session:
    return boto3.Session("key", "secret", region_name="us-east-1")


@pytest.fixture(scope="session")
def kinesis(running_sandbox: Sandbox, session: boto3.Session) -> KinesisClient:
    return session.client("kinesis", endpoint_url=running_sandbox.url, config=CONFIG)


@pytest.fixture(scope="session")
def s3(running_sandbox: Sandbox, session: boto3.Session) -> S3Client:
    return session.client("s3", endpoint_url=running_sandbox.url, config=CONFIG)


@pytest.fixture(scope="session")
def sitewise(running_sandbox: Sandbox, session: boto3.Session) -> IoTSiteWiseClient:
    return session.client("iotsitewise", endpoint_url=running_sandbox.url, config=CONFIG)


@pytest.fixture
def stream(sandbox: Sandbox, kinesis: KinesisClient, request: pytest.FixtureRequest) -> str:
    """A Kinesis stream with one shard, for one test."""
    name = str(request.node.name).replace("[", ".").replace("]", "")[-128:]
    kinesis.create_stream(StreamName=name, ShardCount=1)
    sandbox.reset_calls()
    return name
