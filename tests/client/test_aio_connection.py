"""One connection in an event loop, against servers that follow a script."""

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


class Visitor:
    """The server's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def take(self) -> tuple[int, Json]:
        length, operation = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        return operation, cbor2.loads(await self.reader.readexactly(length - 1))

    async def welcome(self, **fields: Any) -> Json:
        assert await self.reader.readexactly(1) == b"\x01"
        operation, request = await self.take()
        assert operation == Operation.Connect
        self.writer.write(
            b"\x01" + encode_response(Operation.ConnectResponse, request["requestId"], **fields)
        )
        return request

    def answer(self, request: tuple[int, Json], **fields: Any) -> None:
        operation, body = request
        self.writer.write(encode_response(RESPONSE_TO[operation], body["requestId"], **fields))

    async def answer_next(self, **fields: Any) -> Json:
        request = await self.take()
        self.answer(request, **fields)
        return request[1]

    async def wait_for_end(self) -> None:
        """Until the client has gone, in whatever way."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Visitor], Awaitable[None]]


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Endpoint]:
    """Follows the script with each connection; what goes wrong in it is raised."""
    visits: list[asyncio.Task[None]] = []

    async def visit(visitor: Visitor) -> None:
        try:
            await script(visitor)
        finally:
            visitor.writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(asyncio.create_task(visit(Visitor(reader, writer))))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield Endpoint(*server.sockets[0].getsockname())
    server.close()
    await asyncio.wait_for(asyncio.gather(*visits), TIMEOUT_S)


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test in an event loop that may not have anything to complain about."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_in(asyncio.new_event_loop, test(*args, **kwargs))

    return run


def run_in(
    new_loop: Callable[[], asyncio.AbstractEventLoop], test: Coroutine[Any, Any, None]
) -> None:
    complaints: list[Json] = []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
        runner.run(asyncio.wait_for(test, 2 * TIMEOUT_S))
    assert not complaints


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


@in_a_loop
async def test_the_handshake_says_who_is_there() -> None:
    seen: list[Json] = []

    async def script(visitor: Visitor) -> None:
        seen.append(await visitor.welcome(serverVersion="7", penstockExtensions=1))

    async with serving(script) as endpoint:
        connection = await connect(endpoint, "secret")
        assert connection.server.version == "7"
        assert connection.server.has_extensions
        await connection.close()
    assert seen[0]["authToken"] == "secret"


@in_a_loop
async def test_nothing_may_be_sent_before_it() -> None:
    async with serving(Visitor.wait_for_end) as endpoint:
        connection = await open_connection(endpoint)
        assert not connection.is_usable
        with pytest.raises(NotSentError):
            await send(connection)
        await connection.close()


@in_a_loop
async def test_a_refusal_ends_the_connection() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome(status=ResponseStatusCode.Unauthorized, error_message="who are you?")
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        with pytest.raises(ConnectFailedException, match="who are you") as caught:
            await connect(endpoint)
    assert caught.value.status is ResponseStatusCode.Unauthorized


@in_a_loop
async def test_another_protocol_is_recognized() -> None:
    async def script(visitor: Visitor) -> None:
        visitor.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        with pytest.raises(ConnectFailedException, match="answered with byte 72"):
            await connect(endpoint)


@in_a_loop
async def test_a_server_that_hangs_up_is_told_so() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.reader.readexactly(1)

    async with serving(script) as endpoint:
        with pytest.raises(ConnectFailedException, match="instead of answering the handshake"):
            await connect(endpoint)


@in_a_loop
async def test_bytes_that_make_no_sense_are_told_so() -> None:
    async def script(visitor: Visitor) -> None:
        visitor.writer.write(b"\x01" + HEADER.pack(-5, 6))
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        with pytest.raises(ConnectionError, match="a frame of -5 bytes"):
            await connect(endpoint)


@in_a_loop
async def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    async with serving(Visitor.wait_for_end) as endpoint:
        connection = await open_connection(endpoint)
        with pytest.raises(TimeoutError):
            await connection.shake_hands("", 0.02)
        assert not connection.is_usable


# Answers


@in_a_loop
async def test_answers_find_their_requests_in_any_order() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        requests = [await visitor.take() for _ in range(20)]
        for request in reversed(requests):
            visitor.answer(request, sequenceNumber=int(request[1]["payload"]))
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        sent = [await send(connection, calls.append_message("s", b"%d" % n)) for n in range(20)]
        assert [await pending.result() for pending in sent] == list(range(20))
        await connection.close()


@in_a_loop
async def test_requests_that_are_sent_together_leave_in_order() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        for number in range(500):
            request = await visitor.take()
            assert request[1]["payload"] == b"%d" % number
            visitor.answer(request, sequenceNumber=number)
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        group = [calls.append_message("s", b"%d" % number) for number in range(500)]
        sent = await connection.send(group, TIMEOUT_S)
        assert [await pending.result() for pending in sent] == list(range(500))
        await connection.close()


@in_a_loop
async def test_answers_that_nobody_waits_for_are_passed_over() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        visitor.writer.write(encode_response(Operation.ListStreamsResponse, "another"))
        request = await visitor.take()
        visitor.answer(request, streams=["s"])
        # Twice the same, and something that is no answer at all.
        visitor.answer(request, streams=["t"])
        visitor.writer.write(b"\0\0\0\x02\x0c\xff")
        await visitor.answer_next(streams=["u"])
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        assert await (await send(connection)).result() == ["s"]
        assert await (await send(connection)).result() == ["u"]
        await connection.close()


@in_a_loop
async def test_the_late_answer_to_a_call_that_was_cancelled_is_passed_over() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        cancelled = await visitor.take()
        second = await visitor.take()
        visitor.answer(cancelled, streams=["late"])
        visitor.answer(second, streams=["in time"])
        await visitor.wait_for_end()

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


@in_a_loop
async def test_a_call_that_is_not_answered_in_time_says_what_may_have_happened() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        late = await visitor.take()
        second = await visitor.take()
        visitor.answer(late, sequenceNumber=1)
        visitor.answer(second, sequenceNumber=2)
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        (pending,) = await connection.send((APPEND,), 0.02)
        with pytest.raises(RequestTimeoutException, match="may have been carried out") as caught:
            await pending.result()
        assert isinstance(caught.value, UnansweredException)
        assert isinstance(caught.value, TimeoutError)
        # The connection is as good as before.
        assert await (await send(connection, APPEND)).result() == 2
        await connection.close()


@in_a_loop
async def test_a_cancelled_call_that_is_never_answered_is_forgotten() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        (pending,) = await connection.send((APPEND,), 0.02)
        waiting = asyncio.create_task(pending.result())
        await asyncio.sleep(0)
        waiting.cancel()
        while connection._pending:
            await asyncio.sleep(0.001)
        await connection.close()


# The end


@in_a_loop
async def test_a_lost_connection_says_what_may_have_happened() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        await visitor.take()
        await visitor.take()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        first, second = await send(connection, APPEND), await send(connection)
        for pending, name in ((first, "AppendMessage"), (second, "ListStreams")):
            with pytest.raises(ConnectionLostException, match=f"before {name} was answered"):
                await pending.result()
        assert not connection.is_usable
        with pytest.raises(NotSentError):
            await send(connection)


@in_a_loop
async def test_bytes_that_make_no_frames_end_it() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        await visitor.take()
        visitor.writer.write(HEADER.pack(1 << 30 | 1, 9))
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        with pytest.raises(ConnectionLostException):
            await (await send(connection)).result()
        assert not connection.is_usable


@in_a_loop
async def test_what_had_not_left_was_not_sent() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        await visitor.wait_for_end()

    async with serving(script) as endpoint:
        connection = await connect(endpoint)
        sent = await send(connection, APPEND)
        await asyncio.sleep(0)
        unsent = await send(connection, APPEND)
        # In the same turn, before it is written.
        connection._transport.abort()
        with pytest.raises(ConnectionLostException):
            await sent.result()
        with pytest.raises(NotSentError, match="before AppendMessage was sent"):
            await unsent.result()


@LOOPS
def test_a_server_that_went_while_the_loop_was_busy_is_noticed(
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
            # No turn of the loop was between: it cannot know yet.
            with pytest.raises(NotSentError):
                await send(connection, APPEND)

    run_in(new_loop, scenario())


@in_a_loop
async def test_closing_ends_all_calls() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.welcome()
        await visitor.wait_for_end()

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
    """Reads nothing until it is told to, then answers everything, in order."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.payloads: list[bytes] = []

    async def __call__(self, visitor: Visitor) -> None:
        await visitor.welcome()
        await self.may_read.wait()
        try:
            while True:
                request = await visitor.take()
                self.payloads.append(request[1]["payload"][:8])
                visitor.answer(request, sequenceNumber=len(self.payloads))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


def unsent_bytes(connection: AsyncConnection) -> int:
    return connection._transport.get_write_buffer_size() + connection._outgoing_bytes


async def wait_until_blocked(connection: AsyncConnection) -> None:
    while connection._has_room.is_set():
        await asyncio.sleep(0.001)


@LOOPS
def test_what_a_slow_server_does_not_read_waits_with_those_who_send(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    count, size = 400, 65_536
    most = 0

    async def scenario() -> None:
        server = SlowServer()
        async with serving(server) as endpoint:
            connection = await connect(endpoint)

            async def append(number: int) -> int:
                nonlocal most
                payload = (b"%08d" % number).ljust(size, b".")
                pending = await send(connection, calls.append_message("s", payload))
                most = max(most, unsent_bytes(connection))
                return int(await pending.result())

            appends = [asyncio.create_task(append(number)) for number in range(count)]
            await wait_until_blocked(connection)
            server.may_read.set()
            numbers = await asyncio.gather(*appends)
            await connection.close()
        # In the order in which they were asked for.
        assert server.payloads == [b"%08d" % number for number in range(count)]
        assert numbers == list(range(1, count + 1))

    run_in(new_loop, scenario())
    assert size < most < 3 * MEBIBYTE


@in_a_loop
async def test_a_request_that_finds_no_room_in_time_was_not_sent() -> None:
    server = SlowServer()
    async with serving(server) as endpoint:
        connection = await connect(endpoint)
        large = await send(connection, calls.append_message("s", bytes(16 * MEBIBYTE)))
        await wait_until_blocked(connection)
        with pytest.raises(NotSentError, match="does not take the request in time"):
            await connection.send((APPEND,), 0.02)
        # Neither is one whose caller gives up; and nobody behind them waits for ever.
        waiting = [asyncio.create_task(send(connection, APPEND)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        server.may_read.set()
        assert await large.result() == 1
        assert [await (await pending).result() for pending in waiting[1:]] == [2, 3]
        await connection.close()
    assert [len(payload) for payload in server.payloads] == [8, 1, 1]


@in_a_loop
async def test_those_who_wait_for_room_are_told_that_there_is_none() -> None:
    server = SlowServer()
    async with serving(server) as endpoint:
        connection = await connect(endpoint)
        large = await send(connection, calls.append_message("s", bytes(16 * MEBIBYTE)))
        await wait_until_blocked(connection)
        waiting = [asyncio.create_task(send(connection, APPEND)) for _ in range(3)]
        await asyncio.sleep(0)
        # Also with a server that does not read, an end is soon.
        await connection.close()
        for pending in waiting:
            with pytest.raises(NotSentError):
                await pending
        with pytest.raises(ConnectionLostException):
            await large.result()
        server.may_read.set()


@in_a_loop
async def test_a_turn_of_the_loop_takes_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio_connection, "_MAX_TURN_BYTES", 1000)
    server = SlowServer()
    server.may_read.set()
    async with serving(server) as endpoint:
        connection = await connect(endpoint)
        most = 0

        async def append(number: int) -> int:
            nonlocal most
            pending = await send(connection, calls.append_message("s", b"%08d" % number))
            most = max(most, connection._outgoing_bytes)
            return int(await pending.result())

        numbers = await asyncio.gather(*(append(number) for number in range(300)))
        await connection.close()
    assert numbers == list(range(1, 301))
    assert 1000 < most < 1200


# Other ways


@LOOPS
def test_a_unix_socket_will_do(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    path = str(tmp_path / "server.sock")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitor = Visitor(reader, writer)
        await visitor.welcome()
        await visitor.answer_next(streams=["s"])
        await visitor.wait_for_end()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_unix_server(serve, path)
        connection = await connect(Endpoint("", 0, path))
        assert await (await send(connection)).result() == ["s"]
        await connection.close()
        server.close()

    run_in(new_loop, scenario())


@in_a_loop
async def test_nobody_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await open_connection(Endpoint("127.0.0.1", port))
    with pytest.raises(FileNotFoundError):
        await open_connection(Endpoint("", 0, str(tmp_path / "missing.sock")))
