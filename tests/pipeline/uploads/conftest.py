"""Two S3 servers: SeaweedFS, which validates calls as S3 does, and the sandbox, with faults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from mypy_boto3_s3.client import S3Client

from penstock.pipeline.destinations import aws
from penstock.sandbox.local_sandbox import Sandbox
from tests.object_store import ObjectStore
from tests.pipeline.uploads.workbench import Workbench


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("object-store")) as store:
        yield store


@pytest.fixture(scope="session")
def store_client(object_store: ObjectStore) -> S3Client:
    return object_store.client()


@pytest.fixture(scope="module")
def sandbox_client(_running_cloud: Sandbox) -> S3Client:
    session = boto3.Session("key", "secret", region_name="us-east-1")
    return session.client("s3", endpoint_url=_running_cloud.url)


@pytest.fixture
def in_store(
    object_store: ObjectStore,
    store_client: S3Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Workbench:
    use_variables(object_store.variables, monkeypatch)
    return Workbench(store_client, tmp_path)


@pytest.fixture
def in_sandbox(
    cloud: Sandbox, sandbox_client: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Workbench:
    use_variables(cloud.variables, monkeypatch)
    return Workbench(sandbox_client, tmp_path)


@pytest.fixture(params=["in_store", "in_sandbox"])
def bench(request: pytest.FixtureRequest) -> Workbench:
    """A workbench with either server."""
    found: Workbench = request.getfixturevalue(request.param)
    return found


_clients: dict[frozenset[tuple[str, str]], dict[tuple[str, float], Any]] = {}


def use_variables(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # Creating a client takes longer than most of the tests, so each environment keeps its clients.
    environment = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
    monkeypatch.setattr(aws, "_clients", _clients.setdefault(environment, {}))
