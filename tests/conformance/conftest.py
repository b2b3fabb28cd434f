"""Fixtures: one broker for the session, one process for each SDK, a new client for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import EllipsisType

import pytest

from tests.support import BrokerProcess

from .harness import (
    ALL_SDKS,
    AVAILABLE_SDKS,
    JAVA,
    JAVA_SDK_VARIABLE,
    Client,
    Driver,
    Sdk,
    as_params,
)

Connect = Callable[..., Client]


def pytest_runtest_setup(item: pytest.Function) -> None:
    # Not in the `sdk` fixture: pytest would report each skipped test in a line of its own.
    callspec = getattr(item, "callspec", None)
    if callspec and callspec.params.get("sdk") is JAVA and JAVA not in AVAILABLE_SDKS:
        pytest.skip(f"{JAVA_SDK_VARIABLE} is not set to the classpath of the Java SDK")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("conformance") / "root") as broker:
        yield broker


@pytest.fixture(params=as_params(ALL_SDKS))
def sdk(request: pytest.FixtureRequest) -> Sdk:
    sdk: Sdk = request.param
    return sdk


@pytest.fixture(scope="session")
def driver_of() -> Iterator[Callable[[Sdk], Driver]]:
    drivers: dict[Sdk, Driver] = {}

    def driver_of(sdk: Sdk) -> Driver:
        if sdk not in drivers or not drivers[sdk].is_alive():
            drivers[sdk] = Driver(sdk)
        return drivers[sdk]

    yield driver_of
    for driver in drivers.values():
        driver.stop()


@pytest.fixture
def connect(
    request: pytest.FixtureRequest, driver_of: Callable[[Sdk], Driver]
) -> Iterator[Connect]:
    """Creates clients of any SDK, and closes them after the test.

    The default broker is that of the session; the default token is the broker's.
    """
    clients: list[Client] = []

    def connect(
        sdk: Sdk, to: BrokerProcess | None = None, token: str | EllipsisType | None = ...
    ) -> Client:
        broker: BrokerProcess = to or request.getfixturevalue("broker")
        client = Client(driver_of(sdk), broker.port, broker.token if token is ... else token)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Connect, sdk: Sdk) -> Client:
    return connect(sdk)
