"""Limits of handshakes, in the event loops of uvloop and asyncio."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any, cast

import pytest
import uvloop

from penstock.broker import listener
from penstock.broker.listener import listen
from penstock.broker.tls import TlsListener
from tests.client.servers import Certificates, make_certificates
from tests.support import TIMEOUT_S, Json

# The number of handshakes above the limit.
SPARE = 16
MAX_CONNECTIONS = 2


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


class Echo(asyncio.Protocol):
    def __init__(self, connections: set[object]) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)


class TlsFixture:
    """A listener with its connections, and clients."""

    def __init__(
        self,
        certificates: Certificates,
        sockets: list[socket.socket],
        handshake_seconds: float = 10 * TIMEOUT_S,
    ) -> None:
        self._client_context = certificates.client_context()
        self._address = sockets[0].getsockname()
        self.connections: set[object] = set()
        self.refused: list[str] = []
        self.shortages: list[OSError] = []
        self.listener = TlsListener(
            sockets,
            certificates.server_context(),
            lambda: Echo(self.connections),
            connections=self.connections,
            max_connections=MAX_CONNECTIONS,
            handshake_seconds=handshake_seconds,
            on_refusal=self.refused.append,
            on_shortage=self.shortages.append,
        )
        self._clients = AsyncExitStack()

    def reach(self) -> socket.socket:
        """A connection that sends nothing."""
        silent = self._clients.enter_context(closing(socket.create_connection(self._address)))
        silent.setblocking(False)
        return silent

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection(*self._address, ssl=self._client_context)
        self._clients.callback(writer.close)
        return Client(reader, writer)

    async def close(self) -> None:
        await self.listener.close()
        await self._clients.aclose()
        await until(lambda: not any(isinstance(each, Echo) for each in self.connections))


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def is_echoed(self) -> bool:
        self._writer.write(b"echo")
        return await self._reader.readexactly(4) == b"echo"


@asynccontextmanager
async def opened(certificates: Certificates, **options: Any) -> AsyncIterator[TlsFixture]:
    fixture = TlsFixture(certificates, await listen("127.0.0.1", 0), **options)
    try:
        yield fixture
    finally:
        await fixture.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def is_ended(connection: socket.socket) -> bool:
    """Waits for the end of a connection without data."""
    try:
        return await asyncio.get_running_loop().sock_recv(connection, 1) == b""
    except ConnectionResetError:
        return True


def is_open(connection: socket.socket) -> bool:
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    return False


def in_both_loops(
    test: Callable[[Certificates], Coroutine[Any, Any, None]],
) -> Callable[[Callable[[], asyncio.AbstractEventLoop], Certificates], None]:
    """Runs a test in both event loops, and checks that they report no errors."""

    @pytest.mark.parametrize(
        "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], certificates: Certificates) -> None:
        complaints: list[Json] = []
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
            runner.run(asyncio.wait_for(test(certificates), TIMEOUT_S))
        assert not complaints

    return run


@in_both_loops
async def test_protocol_is_connected_after_the_handshake(
    certificates: Certificates,
) -> None:
    async with opened(certificates) as fixture:
        client = await fixture.connect()
        assert await client.is_echoed()
        (echo,) = fixture.connections
        assert isinstance(echo, Echo)
        assert echo.transport.get_extra_info("sslcontext") is not None
        # Small answers are sent at once.
        plain = echo.transport.get_extra_info("socket")
        assert plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@in_both_loops
async def test_oldest_handshakes_are_ended_above_the_limit(certificates: Certificates) -> None:
    async with opened(certificates) as fixture:
        established = await fixture.connect()
        silent = [fixture.reach() for _ in range(MAX_CONNECTIONS + SPARE + 2)]
        peers = ["{}:{}".format(*each.getsockname()) for each in silent]

        # One client is connected. All handshakes but one fit beside it.
        assert [await is_ended(each) for each in silent[:3]] == [True] * 3
        assert fixture.refused == peers[:3]
        assert await established.is_echoed()

        newcomer = await fixture.connect()
        assert await newcomer.is_echoed()
        assert await is_ended(silent[3])
        assert fixture.refused == peers[:4]
        assert all(map(is_open, silent[4:]))


@in_both_loops
async def test_handshakes_are_refused_when_all_connections_are_in_use(
    certificates: Certificates,
) -> None:
    async with opened(certificates) as fixture:
        fixture.connections.update(range(MAX_CONNECTIONS + SPARE))

        with pytest.raises(OSError):  # noqa: PT011 - closed or reset
            await fixture.connect()
        assert await is_ended(fixture.reach())

        fixture.connections.remove(0)
        assert await (await fixture.connect()).is_echoed()


@in_both_loops
async def test_handshakes_are_ended_for_connections_of_other_listeners(
    certificates: Certificates,
) -> None:
    async with opened(certificates) as fixture:
        first, second = fixture.reach(), fixture.reach()
        client = await fixture.connect()
        fixture.connections.update(range(MAX_CONNECTIONS + SPARE - 2))

        fixture.listener.make_room()

        assert await is_ended(first)
        assert is_open(second)
        assert await client.is_echoed()


@in_both_loops
async def test_missing_handshake_times_out(
    certificates: Certificates,
) -> None:
    async with opened(certificates, handshake_seconds=0.05) as fixture:
        assert await is_ended(fixture.reach())
        assert not fixture.refused


@in_both_loops
async def test_invalid_handshake_is_closed(certificates: Certificates) -> None:
    async with opened(certificates) as fixture:
        plain = fixture.reach()
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: not is_open(plain))

        assert await (await fixture.connect()).is_echoed()


@in_both_loops
async def test_close_ends_handshakes_but_not_connections(
    certificates: Certificates,
) -> None:
    async with opened(certificates) as fixture:
        silent = fixture.reach()
        client = await fixture.connect()
        late = fixture.reach()

        await fixture.listener.close()

        assert await is_ended(silent)
        assert await is_ended(late)
        assert await client.is_echoed()
        with pytest.raises(ConnectionRefusedError):
            fixture.reach()


class ExhaustedSocket(socket.socket):
    """Fails at first, as if there were no descriptors left."""

    is_exhausted = True

    def accept(self) -> tuple[socket.socket, Any]:
        if self.is_exhausted:
            self.is_exhausted = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("no_pause")
@in_both_loops
async def test_accepting_continues_after_a_shortage_of_descriptors(
    certificates: Certificates,
) -> None:
    (plain,) = await listen("127.0.0.1", 0)
    exhausted = ExhaustedSocket(fileno=plain.detach())
    fixture = TlsFixture(certificates, [exhausted])

    assert await (await fixture.connect()).is_echoed()

    assert not exhausted.is_exhausted
    assert [error.errno for error in fixture.shortages] == [errno.EMFILE]
    await fixture.close()


def test_address_in_use_is_an_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
    ):
        asyncio.run(listen("127.0.0.1", taken.getsockname()[1]))
