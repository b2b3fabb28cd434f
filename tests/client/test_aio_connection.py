"""One connection in an event loop, against scripted servers."""

from __future__ import annotations

import asyncio
import functools
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec

import cbor2
import pytest
import uvloop

from penstock.client import aio_connection, calls
from penstock.client.aio_connection import AsyncConnection, AsyncSentCall, open_connection
from penstock.client.endpoint import Endpoint
from penstock.client.failures import NotSentError
from penstock.errors import (
    ConnectFailedException,
    ConnectionLostException,
    RequestTimeoutException,
    ResponseStatusCode,
    UnansweredException,
)
from penstock.wire.codec import encode_response
from penstock.wire.frames import HEADER
from penstock.wire.operations import RESPONSE_TO, Operation
from tests.support import MEBIBYTE, TIMEOUT_S

P = ParamSpec("P")
Json = dict[str, Any]


class AsyncPeer:
    """The server's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def receive(self) -> tuple[int, Json]:
        length, operation = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        return operation, cbor2.loads(await self.reader.readexactly(length - 1))

    async def accept_handshake(self, **fields: Any) -> Json:
        assert await self.reader.readexactly(1) == b"\x01"
        operation, request = await self.receive()
        assert operation == Operation.Connect
        self.writer.write(
            b"\x01" + encode_response(Operation.ConnectResponse, request["requestId"], **fields)
        )
        return request

    def answer(self, request: tuple[int, Json], **fields: Any) -> None:
        operation, body = request
        self.writer.write(encode_response(RESPONSE_TO[operation], body["requestId"], **fields))

    async def answer_next(self, **fields: Any) -> Json:
        request = await self.receive()
        self.answer(request, **fields)
        return request[1]

    async def wait_for_close(self) -> None:
        """Reads until the client closes or resets the connection."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass


Script = Callable[[AsyncPeer], Awaitable[None]]


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Endpoint]:
    """Runs the script for each connection, and raises its errors at the end."""
    connections: list[asyncio.Task[None]] = []

    async def serve_peer(peer: AsyncPeer) -> None:
        try:
            await script(peer)
        finally:
            peer.writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.create_task(serve_peer(AsyncPeer(reader, writer))))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield Endpoint(*server.sockets[0].getsockname())
    server.close()
    await asyncio.wait_for(asyncio.gather(*connections), TIMEOUT_S)


def in_event_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test in an event loop, and fails on errors that the loop reports."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_in(asyncio.new_event_loop, test(*args, **kwargs))

    return run


def run_in(
    new_loop: Callable[[], asyncio.AbstractEventLoop], test: Coroutine[Any, Any, None]
) -> None:
    unhandled: list[Json] = []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        runner.run(asyncio.wait_for(test, 2 * TIMEOUT_S))
    assert not unhandled


LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


async def connect(endpoint: Endpoint, token: str = "") -> AsyncConnection:
    connection = await open_connection(endpoint)
    await connection.shake_hands(token, TIMEOUT_S)
    return connection


async def send(
    connection: AsyncConnection, call: calls.ClientCall[Any] | None = None
) -> AsyncSentCall[Any]:
    (pending,) = await connection.send((call or calls.list_streams(),), TIMEOUT_S)
    return pending


APPEND = calls.append_message("s", b"x")


# The handshake


@in_event_loop
async def test_handshake_sends_the_token_and_returns_server_info() -> None:
    seen: list[Json] = []

    async def script(peer: AsyncPeer) -> None:
        seen.append(await peer.accept_handshake(serverVersion="7", penstockExtensions=1))

    async with serving(script) as endpoint:
        connection = await connect(endpoint, "secret")
        assert connection.server.version == "7"
        assert connection.server.has_extensions
        await connection.close()
    assert seen[0]["authToken"] == "secret"


@in_event_loop
async def test_nothing_is_sent_before_the_handshake() -> None:
    async with serving(AsyncPeer.wait_for_close) as endpoint:
        connection = await open_connection(endpoint)
        assert not connection.is_usable
        with pytest.raises(NotSentError):
            await send(connection)
        await connection.close()


@in_event_loop
async def test_refused_handshake_ends_the_connection() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake(
            status=ResponseStatusCode.Unauthorized, error_message="who are you?"
        )
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        with pytest.raises(ConnectFailedException, match="who are you") as caught:
            await connect(endpoint)
    assert caught.value.status is ResponseStatusCode.Unauthorized


@in_event_loop
async def test_server_with_another_protocol_is_rejected() -> None:
    async def script(peer: AsyncPeer) -> None:
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        with pytest.raises(ConnectFailedException, match="answered with byte 72"):
            await connect(endpoint)


@in_event_loop
async def test_server_that_closes_during_the_handshake_is_reported() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.reader.readexactly(1)

    async with serving(script) as endpoint:
        with pytest.raises(ConnectFailedException, match="instead of answering the handshake"):
            await connect(endpoint)


@in_event_loop
async def test_malformed_frame_in_the_handshake_is_reported() -> None:
    async def script(peer: AsyncPeer) -> None:
        peer.writer.write(b"\x01" + HEADER.pack(-5, 6))
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        with pytest.raises(ConnectionError, match="a frame of -5 bytes"):
            await connect(endpoint)


@in_event_loop
async def test_handshake_times_out() -> None:
    async with serving(AsyncPeer.wait_for_close) as endpoint:
        connection = await open_connection(endpoint)
        with pytest.raises(TimeoutError):
            await connection.shake_hands("", 0.02)
        assert not connection.is_usable


# Answers


@in_event_loop
async def test_answers_may_arrive_in_any_order() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        requests = [await peer.receive() for _ in range(20)]
        for request in reversed(requests):
            peer.answer(request, sequenceNumber=int(request[1]["payload"]))
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        sent = [await send(connection, calls.append_message("s", b"%d" % n)) for n in range(20)]
        assert [await pending.result() for pending in sent] == list(range(20))
        await connection.close()


@in_event_loop
async def test_requests_of_one_group_are_sent_in_order() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        for number in range(500):
            request = await peer.receive()
            assert request[1]["payload"] == b"%d" % number
            peer.answer(request, sequenceNumber=number)
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        group = [calls.append_message("s", b"%d" % number) for number in range(500)]
        sent = await connection.send(group, TIMEOUT_S)
        assert [await pending.result() for pending in sent] == list(range(500))
        await connection.close()


@in_event_loop
async def test_unexpected_answers_are_ignored() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        peer.writer.write(encode_response(Operation.ListStreamsResponse, "another"))
        request = await peer.receive()
        peer.answer(request, streams=["s"])
        # A duplicate, and a frame that is not an answer.
        peer.answer(request, streams=["t"])
        peer.writer.write(b"\0\0\0\x02\x0c\xff")
        await peer.answer_next(streams=["u"])
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        assert await (await send(connection)).result() == ["s"]
        assert await (await send(connection)).result() == ["u"]
        await connection.close()


@in_event_loop
async def test_late_answer_to_a_canceled_call_is_ignored() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        canceled = await peer.receive()
        second = await peer.receive()
        peer.answer(canceled, streams=["late"])
        peer.answer(second, streams=["in time"])
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        waiting = asyncio.create_task((await send(connection)).result())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await (await send(connection)).result() == ["in time"]
        assert not connection._pending
        await connection.close()


@in_event_loop
async def test_timed_out_call_says_that_it_may_have_been_executed() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        late = await peer.receive()
        second = await peer.receive()
        peer.answer(late, sequenceNumber=1)
        peer.answer(second, sequenceNumber=2)
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        (pending,) = await connection.send((APPEND,), 0.02)
        with pytest.raises(RequestTimeoutException, match="may have executed it") as caught:
            await pending.result()
        assert isinstance(caught.value, UnansweredException)
        assert isinstance(caught.value, TimeoutError)
        # The connection is still usable.
        assert await (await send(connection, APPEND)).result() == 2
        await connection.close()


@in_event_loop
async def test_canceled_call_without_an_answer_is_removed_after_its_timeout() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        (pending,) = await connection.send((APPEND,), 0.02)
        waiting = asyncio.create_task(pending.result())
        await asyncio.sleep(0)
        waiting.cancel()
        while connection._pending:
            await asyncio.sleep(0.001)
        await connection.close()


# Closing


@in_event_loop
async def test_lost_connection_fails_all_calls_in_flight() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        await peer.receive()
        await peer.receive()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        first, second = await send(connection, APPEND), await send(connection)
        for pending, name in ((first, "AppendMessage"), (second, "ListStreams")):
            with pytest.raises(ConnectionLostException, match=f"before {name} was answered"):
                await pending.result()
        assert not connection.is_usable
        with pytest.raises(NotSentError):
            await send(connection)


@in_event_loop
async def test_malformed_frame_ends_the_connection() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        await peer.receive()
        peer.writer.write(HEADER.pack(1 << 30 | 1, 9))
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        with pytest.raises(ConnectionLostException):
            await (await send(connection)).result()
        assert not connection.is_usable


@in_event_loop
async def test_unwritten_request_fails_as_not_sent() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        sent = await send(connection, APPEND)
        await asyncio.sleep(0)
        unsent = await send(connection, APPEND)
        # In the same turn of the loop, before the write.
        connection._transport.abort()
        with pytest.raises(ConnectionLostException):
            await sent.result()
        with pytest.raises(NotSentError, match="before AppendMessage was sent"):
            await unsent.result()


@LOOPS
def test_close_by_the_server_is_detected_before_the_event_loop_sees_it(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await open_connection(Endpoint(*listener.getsockname()))
            accepted, _ = listener.accept()
            accepted.sendall(b"\x01" + encode_response(Operation.ConnectResponse, "connect"))
            await connection.shake_hands("", TIMEOUT_S)
            assert connection.is_usable
            accepted.close()
            select.select([connection._transport.get_extra_info("socket")], [], [], TIMEOUT_S)
            # The event loop has not run since, so that it cannot have seen the close.
            with pytest.raises(NotSentError):
                await send(connection, APPEND)

    run_in(new_loop, scenario())


@in_event_loop
async def test_close_fails_all_pending_calls() -> None:
    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        sent = [await send(connection) for _ in range(5)]
        await asyncio.sleep(0)
        unsent = await send(connection)
        await connection.close()
        await connection.close()
        for pending in sent:
            with pytest.raises(ConnectionLostException):
                await pending.result()
        with pytest.raises(NotSentError):
            await unsent.result()


# A server that does not read


class SlowServer:
    """Reads nothing until `may_read` is set, then answers all requests in order."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.payloads: list[bytes] = []

    async def __call__(self, peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        await self.may_read.wait()
        try:
            while True:
                request = await peer.receive()
                self.payloads.append(request[1]["payload"][:8])
                peer.answer(request, sequenceNumber=len(self.payloads))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


def unsent_bytes(connection: AsyncConnection) -> int:
    return connection._transport.get_write_buffer_size() + connection._outgoing_bytes


async def wait_until_blocked(connection: AsyncConnection) -> None:
    while connection._has_room.is_set():
        await asyncio.sleep(0.001)


@LOOPS
def test_senders_wait_while_a_slow_server_does_not_read(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    count, size = 400, 65_536
    max_unsent = 0

    async def scenario() -> None:
        server = SlowServer()
        async with serving(server) as endpoint:
            connection = await connect(endpoint)

            async def append(number: int) -> int:
                nonlocal max_unsent
                payload = (b"%08d" % number).ljust(size, b".")
                pending = await send(connection, calls.append_message("s", payload))
                max_unsent = max(max_unsent, unsent_bytes(connection))
                return int(await pending.result())

            appends = [asyncio.create_task(append(number)) for number in range(count)]
            await wait_until_blocked(connection)
            server.may_read.set()
            numbers = await asyncio.gather(*appends)
            await connection.close()
        # In the order of the calls.
        assert server.payloads == [b"%08d" % number for number in range(count)]
        assert numbers == list(range(1, count + 1))

    run_in(new_loop, scenario())
    assert size < max_unsent < 3 * MEBIBYTE


@in_event_loop
async def test_request_without_room_before_its_timeout_is_not_sent() -> None:
    server = SlowServer()
    async with serving(server) as endpoint:
        connection = await connect(endpoint)
        large = await send(connection, calls.append_message("s", bytes(16 * MEBIBYTE)))
        await wait_until_blocked(connection)
        with pytest.raises(NotSentError, match="did not accept the request in time"):
            await connection.send((APPEND,), 0.02)
        # A canceled request is not sent either, and does not block the requests behind it.
        waiting = [asyncio.create_task(send(connection, APPEND)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        server.may_read.set()
        assert await large.result() == 1
        assert [await (await pending).result() for pending in waiting[1:]] == [2, 3]
        await connection.close()
    assert [len(payload) for payload in server.payloads] == [8, 1, 1]


@in_event_loop
async def test_close_fails_requests_that_wait_for_room() -> None:
    server = SlowServer()
    async with serving(server) as endpoint:
        connection = await connect(endpoint)
        large = await send(connection, calls.append_message("s", bytes(16 * MEBIBYTE)))
        await wait_until_blocked(connection)
        waiting = [asyncio.create_task(send(connection, APPEND)) for _ in range(3)]
        await asyncio.sleep(0)
        # A close does not wait for a server that does not read.
        await connection.close()
        for pending in waiting:
            with pytest.raises(NotSentError):
                await pending
        with pytest.raises(ConnectionLostException):
            await large.result()
        server.may_read.set()


@in_event_loop
async def test_bytes_of_one_turn_of_the_loop_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio_connection, "_MAX_TURN_BYTES", 1000)
    server = SlowServer()
    server.may_read.set()
    async with serving(server) as endpoint:
        connection = await connect(endpoint)
        max_unsent = 0

        async def append(number: int) -> int:
            nonlocal max_unsent
            pending = await send(connection, calls.append_message("s", b"%08d" % number))
            max_unsent = max(max_unsent, connection._outgoing_bytes)
            return int(await pending.result())

        numbers = await asyncio.gather(*(append(number) for number in range(300)))
        await connection.close()
    assert numbers == list(range(1, 301))
    assert 1000 < max_unsent < 1200


# Other transports


@LOOPS
def test_unix_socket_connects(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    path = str(tmp_path / "server.sock")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = AsyncPeer(reader, writer)
        await peer.accept_handshake()
        await peer.answer_next(streams=["s"])
        await peer.wait_for_close()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_unix_server(serve, path)
        connection = await connect(Endpoint("", 0, path))
        assert await (await send(connection)).result() == ["s"]
        await connection.close()
        server.close()

    run_in(new_loop, scenario())


@in_event_loop
async def test_connect_without_a_server_raises_the_system_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await open_connection(Endpoint("127.0.0.1", port))
    with pytest.raises(FileNotFoundError):
        await open_connection(Endpoint("", 0, str(tmp_path / "missing.sock")))
