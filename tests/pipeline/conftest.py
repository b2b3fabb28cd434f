"""A sandboxed cloud in this process, for what is delivered for real."""

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
    """One in which nothing is wrong yet."""
    _running_cloud.reset_calls()
    yield _running_cloud
    _running_cloud.clear_faults()
