"""A sandbox of the cloud in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.sandbox.server import Sandbox


@pytest.fixture(scope="module")
def _running_cloud() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running


@pytest.fixture
def cloud(_running_cloud: Sandbox) -> Iterator[Sandbox]:
    """Without faults."""
    _running_cloud.reset_calls()
    yield _running_cloud
    _running_cloud.clear_faults()
