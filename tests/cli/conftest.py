"""Fixtures for the tests of `append`, `read` and `tail`. Other modules have their own brokers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.client.servers import Relay
from tests.support import BrokerProcess

from .messaging import BareTerminal, Server, Started, make_stream


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for all tests. A test that kills it must start it again."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "root") as started:
        yield started


@pytest.fixture
def stream(broker: BrokerProcess) -> str:
    return make_stream(broker)


@pytest.fixture
def relay(broker: BrokerProcess) -> Iterator[Relay]:
    with Relay(broker) as opened:
        yield opened


@pytest.fixture
def plain_server(broker: BrokerProcess) -> Iterator[Relay]:
    """A server without extensions."""
    with Relay(broker, strip_extensions=True) as opened:
        yield opened


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Starts commands, and kills those that a failed test leaves running."""
    started: list[Started] = []
    # If the tests run in the background, the shell made their children ignore Ctrl-C.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def begin(server: Server, *words: str) -> Started:
        started.append(Started(server, *words))
        return started[-1]

    yield begin
    signal.signal(signal.SIGINT, handler)
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


@pytest.fixture
def terminal() -> Iterator[BareTerminal]:
    opened = BareTerminal()
    yield opened
    opened.close()
