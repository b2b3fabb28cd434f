"""A broker in this process for all tests of a module, and connections for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.raw_connection import RawConnection
from tests.support import LocalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("broker") / "root") as broker:
        yield broker


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[RawConnection]:
    with broker.connect() as connection:
        yield connection


@pytest.fixture
def other(broker: LocalBroker) -> Iterator[RawConnection]:
    with broker.connect() as connection:
        yield connection
