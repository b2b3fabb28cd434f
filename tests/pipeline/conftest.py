"""A sandbox of the cloud, and a broker, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sandbox.local_sandbox import Sandbox
from tests.pipeline.slices import RecordingClient
from tests.support import TIMEOUT_S, LocalBroker


@pytest.fixture(scope="module")
def _running_cloud() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running


@pytest.fixture
def cloud(_running_cloud: Sandbox) -> Iterator[Sandbox]:
    """The sandbox, without faults and recorded calls."""
    _running_cloud.reset_calls()
    yield _running_cloud
    _running_cloud.clear_faults()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "root") as running_broker:
        yield running_broker


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[RecordingClient]:
    with RecordingClient(root=broker.root, reconnect_timeout=TIMEOUT_S) as connected:
        yield connected
