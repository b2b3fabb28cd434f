"""Fixtures of the tests of `append`, `read` and `tail`; other modules have their own brokers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.client.servers import Relay
from tests.support import BrokerProcess

from .messaging import BareTerminal, Server, Started, make_stream


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One for all tests; who kills it starts it again."""
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
    """Starts commands, and ends those that a failed test leaves behind."""
    started: list[Started] = []
    # Whoever runs the tests in the background has made all that they start deaf to Ctrl-C.
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
