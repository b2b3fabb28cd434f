"""The asyncio client against real brokers and scripted servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import cbor2
import pytest

from penstock import (
    AsyncStreamManagerClient,
    ClientException,
    ConnectFailedException,
    ConnectionLostException,
    InvalidRequestException,
    Message,
    MessageStreamDefinition,
    NotEnoughMessagesException,
    ReadMessagesOptions,
    RequestTimeoutException,
    ResourceNotFoundException,
    ResponseStatusCode,
    StrategyOnFull,
    StreamManagerException,
    UnauthorizedException,
    UnknownOperationException,
    ValidationException,
)
from penstock.broker.access import Role
from penstock.errors import RequestPayloadTooLargeException, SettingError
from penstock.model import ExportDefinition, HTTPConfig
from penstock.store.catalog import Catalog
from penstock.store.rows import TokenRow
from penstock.wire.frames import encode_frame
from tests.support import MEBIBYTE, TIMEOUT_S, BrokerProcess

from .test_aio_connection import (
    LOOPS,
    AsyncPeer,
    in_event_loop,
    run_in,
    serving,
    unsent_bytes,
    wait_until_blocked,
)
from .test_endpoint import CertificateChain

NewLoop = Callable[[], asyncio.AbstractEventLoop]

_names = count()


def definition(name: str | None = None, **fields: Any) -> MessageStreamDefinition:
    return MessageStreamDefinition(
        name or f"stream {next(_names)}",
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        **fields,
    )


async def new_stream(client: AsyncStreamManagerClient, messages: int = 0) -> str:
    """Creates a stream whose messages contain their sequence numbers."""
    described = definition()
    await client.create_message_stream(described)
    await client.append_messages(described.name, [b"%d" % number for number in range(messages)])
    return described.name


def client_of(broker: BrokerProcess, **options: Any) -> AsyncStreamManagerClient:
    # A restart takes longer than the default timeouts when the machine is busy.
    timeouts = {"connect_timeout": TIMEOUT_S, "reconnect_timeout": TIMEOUT_S}
    options = {"token": broker.token, **timeouts, **options}
    return AsyncStreamManagerClient("127.0.0.1", broker.port, **options)


def numbers_of(messages: list[Message]) -> list[int]:
    for message in messages:
        assert message.payload == b"%d" % message.sequence_number
    return [message.sequence_number for message in messages]


async def take(messages: AsyncIterator[Message], many: int) -> list[Message]:
    return [await anext(messages) for _ in range(many)]


async def wait_until_async(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("aio") / "root") as broker:
        yield broker


@pytest.fixture(scope="module")
def _killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("killable") / "root") as broker:
        yield broker


@pytest.fixture
def killable(_killable: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker that a test may kill; it is restarted after the test."""
    yield _killable
    if _killable.process is None:
        _killable.start()


@contextlib.contextmanager
def frozen(broker: BrokerProcess) -> Iterator[None]:
    """Stops the broker's process: it accepts only what fits the socket buffers."""
    assert broker.process is not None
    process = broker.process
    process.send_signal(signal.SIGSTOP)
    yield
    process.send_signal(signal.SIGCONT)


# Operations


@LOOPS
def test_every_operation(broker: BrokerProcess, new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with client_of(broker) as client:
            described = definition(max_size=64 * MEBIBYTE)
            await client.create_message_stream(described)
            assert described.name in await client.list_streams()
            assert await client.append_message(described.name, b"0") == 0
            assert await client.append_messages(described.name, [b"1", b"2"]) == range(1, 3)

            info = await client.describe_message_stream(described.name)
            assert info.definition.max_size == 64 * MEBIBYTE
            assert info.storage_status.newest_sequence_number == 2

            assert numbers_of(await client.read_messages(described.name)) == [0]
            options = ReadMessagesOptions(1, 1, 5, 100)
            assert numbers_of(await client.read_messages(described.name, options)) == [1, 2]

            described.max_size = 32 * MEBIBYTE
            await client.update_message_stream(described)
            info = await client.describe_message_stream(described.name)
            assert info.definition.max_size == 32 * MEBIBYTE

            statistics = await client.statistics()
            assert described.name in {stream.name for stream in statistics.streams}

            described.export_definition = ExportDefinition(
                http=[HTTPConfig("e", "http://127.0.0.1/")]
            )
            await client.update_message_stream(described)
            await client.rewind_export(described.name, "e", 2)
            info = await client.describe_message_stream(described.name)
            assert info.export_statuses[0].last_exported_sequence_number == 1

            await client.delete_message_stream(described.name)
            assert described.name not in await client.list_streams()

    run_in(new_loop, scenario())


@in_event_loop
async def test_client_stays_usable_after_server_errors(
    broker: BrokerProcess,
) -> None:
    async with client_of(broker) as client:
        name = await new_stream(client)
        with pytest.raises(InvalidRequestException, match="exists"):
            await client.create_message_stream(definition(name))
        with pytest.raises(ResourceNotFoundException):
            await client.append_message("no such stream", b"x")
        with pytest.raises(NotEnoughMessagesException):
            await client.read_messages(name)
        with pytest.raises(ResourceNotFoundException):
            async for _ in client.read_all("no such stream"):
                pass
        assert client.connected


@in_event_loop
async def test_invalid_arguments_are_rejected_before_sending(broker: BrokerProcess) -> None:
    async with client_of(broker, request_timeout=1) as client:
        with pytest.raises(ValidationException, match="stream_name is"):
            await client.append_message("a/b", b"x")
        with pytest.raises(ValidationException, match="data is str"):
            await client.append_message("s", "text")  # type: ignore[arg-type] # a mistake
        with pytest.raises(ValidationException, match="iterable of messages"):
            await client.append_messages("s", b"text")  # type: ignore[arg-type] # a mistake
        with pytest.raises(ValidationException, match="read_timeout_millis is 1001"):
            await client.read_messages("s", ReadMessagesOptions(read_timeout_millis=1001))
        with pytest.raises(ValidationException, match="end is -1"):
            await anext(client.read_all(await new_stream(client), 0, -1))


@LOOPS
def test_concurrent_appends_share_one_connection(broker: BrokerProcess, new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with client_of(broker) as other:
            name = await new_stream(other)
            before = (await other.statistics()).connections_accepted
            # It is not connected yet.
            client = client_of(broker)
            numbers = await asyncio.gather(
                *(client.append_message(name, b"%d" % number) for number in range(3000))
            )
            # In the order of the calls.
            assert numbers == list(range(3000))
            assert (await other.statistics()).connections_accepted == before + 1
            stored = [message async for message in client.read_all(name)]
            assert numbers_of(stored) == numbers
            await client.close()

    run_in(new_loop, scenario())


@in_event_loop
async def test_append_messages_uses_few_requests(broker: BrokerProcess) -> None:
    async with client_of(broker) as client:
        name = await new_stream(client)
        numbers = await client.append_messages(name, (b"%d" % number for number in range(40_000)))

        assert numbers == list(range(40_000))
        assert await client.append_messages(name, []) == []
        info = await client.describe_message_stream(name)
        assert info.storage_status.newest_sequence_number == 39_999


@in_event_loop
async def test_append_messages_splits_large_messages_into_requests(broker: BrokerProcess) -> None:
    async with client_of(broker) as client:
        name = await new_stream(client)
        messages = [bytes((number,)) * (3 * MEBIBYTE) for number in range(4)]

        assert list(await client.append_messages(name, messages)) == [0, 1, 2, 3]
        assert [message.payload async for message in client.read_all(name)] == messages


@in_event_loop
async def test_error_has_the_number_of_messages_stored_before_it(
    broker: BrokerProcess,
) -> None:
    async with client_of(broker) as client:
        name = await new_stream(client)
        messages = [b"x"] * 16_384 + [b"y"] * 10 + [b""]
        with pytest.raises(ValidationException, match="data is empty") as caught:
            await client.append_messages(name, messages)

        assert caught.value.appended == 16_384
        info = await client.describe_message_stream(name)
        assert info.storage_status.newest_sequence_number == 16_383


# Continuous reads


@in_event_loop
async def test_read_all_reads_any_slice(broker: BrokerProcess) -> None:
    async with client_of(broker) as client:
        name = await new_stream(client, 20_000)
        for (start, end), expected in {
            (0, None): range(20_000),
            (19_000, None): range(19_000, 20_000),
            (-5, None): range(19_995, 20_000),
            (0, 3): range(3),
            (5, 5): range(0),
            (30_000, None): range(0),
        }.items():
            found = [message async for message in client.read_all(name, start, end)]
            assert numbers_of(found) == list(expected)


@in_event_loop
async def test_evicted_messages_are_skipped(broker: BrokerProcess) -> None:
    async with client_of(broker) as client:
        described = definition(max_size=4096, stream_segment_size=1024)
        await client.create_message_stream(described)

        async def append(first: int, end: int) -> None:
            for start in range(first, end, 100):
                numbers = range(start, start + 100)
                await client.append_messages(described.name, [b"%d" % n for n in numbers])

        await append(0, 2000)
        info = await client.describe_message_stream(described.name)
        oldest = info.storage_status.oldest_sequence_number
        assert oldest > 0
        found = [message async for message in client.read_all(described.name)]
        assert numbers_of(found) == list(range(oldest, 2000))

        tail = client.tail(described.name, 0)
        found = await take(tail, 1)
        await append(2000, 4000)
        while found[-1].sequence_number < 3999:
            found += await take(tail, 1)
        # The messages of the first read, a gap, and the messages that are left.
        steps = [later - earlier for earlier, later in pairwise(numbers_of(found))]
        assert found[0].sequence_number == oldest
        assert sorted(steps)[:-1] == [1] * (len(steps) - 1)
        assert max(steps) > 1


@LOOPS
def test_tail_yields_new_messages(broker: BrokerProcess, new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with client_of(broker) as client:
            name = await new_stream(client, 10)
            last_two, all_of_it, new_ones = (
                client.tail(name, -2),
                client.tail(name, 0),
                client.tail(name),
            )
            assert numbers_of(await take(last_two, 2)) == [8, 9]
            assert numbers_of(await take(all_of_it, 10)) == list(range(10))
            waiting = [
                asyncio.create_task(take(tail, 3)) for tail in (last_two, all_of_it, new_ones)
            ]
            await wait_for_readers(client, name, 3)
            for number in (10, 11, 12):
                await client.append_message(name, b"%d" % number)
            for found in waiting:
                assert numbers_of(await found) == [10, 11, 12]

    run_in(new_loop, scenario())


async def wait_for_readers(client: AsyncStreamManagerClient, name: str, many: int = 1) -> None:
    """Waits until this many reads wait on the broker."""
    while True:
        statistics = await client.statistics()
        if {s.name: s.waiting_reads for s in statistics.streams}[name] == many:
            return
        await asyncio.sleep(0.002)


def connection_of(client: AsyncStreamManagerClient) -> Any:
    assert client._connection is not None
    return client._connection


@in_event_loop
async def test_client_stays_usable_after_a_canceled_tail(broker: BrokerProcess) -> None:
    async with client_of(broker) as client:
        name = await new_stream(client)
        tail = client.tail(name)
        waiting = asyncio.ensure_future(anext(tail))
        await wait_for_readers(client, name)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(StopAsyncIteration):
            await anext(tail)

        # The answer to the canceled read arrives now, before the others.
        assert await client.append_message(name, b"0") == 0
        assert numbers_of([message async for message in client.read_all(name)]) == [0]
        assert not connection_of(client)._pending


@in_event_loop
async def test_deleted_stream_ends_its_tail(broker: BrokerProcess) -> None:
    async with client_of(broker) as client:
        name = await new_stream(client)
        waiting = asyncio.ensure_future(anext(client.tail(name)))
        await wait_for_readers(client, name)
        await client.delete_message_stream(name)
        with pytest.raises(ResourceNotFoundException, match="deleted"):
            await waiting


# Canceled calls and timeouts


@in_event_loop
async def test_canceled_calls_do_not_affect_others(broker: BrokerProcess) -> None:
    async with client_of(broker) as client:
        name = await new_stream(client)
        long_poll = ReadMessagesOptions(read_timeout_millis=60_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.read_messages(name, long_poll), 0.05)

        appends = [asyncio.create_task(client.append_message(name, b"x")) for _ in range(100)]
        await asyncio.sleep(0)
        for append in appends[::2]:
            append.cancel()
        kept = await asyncio.gather(*appends, return_exceptions=True)

        numbers = [number for number in kept if isinstance(number, int)]
        assert len(numbers) == len(set(numbers)) >= 50
        # Canceled appends were already sent, so that the broker executed them.
        assert await client.append_message(name, b"x") == 100


@in_event_loop
async def test_requests_to_a_frozen_server_time_out(broker: BrokerProcess) -> None:
    async with client_of(broker, request_timeout=TIMEOUT_S) as client:
        name = await new_stream(client)
        client.request_timeout = 0.05
        with frozen(broker):
            with pytest.raises(RequestTimeoutException, match="AppendMessage timed out"):
                await client.append_message(name, b"x", retry=True)
            with pytest.raises(RequestTimeoutException, match="ListStreams timed out"):
                await client.list_streams()
        client.request_timeout = TIMEOUT_S
        # The broker executed the append later. It was not sent again.
        assert await client.append_message(name, b"x") == 1


@in_event_loop
async def test_connect_times_out_during_the_handshake() -> None:
    async with serving(AsyncPeer.wait_for_close) as endpoint:
        client = AsyncStreamManagerClient(
            "127.0.0.1", endpoint.port, request_timeout=0.05, reconnect_timeout=0
        )
        with pytest.raises(TimeoutError, match=f"answers on 127.0.0.1:{endpoint.port}: timed out"):
            await client.list_streams()
        await client.close()


@in_event_loop
async def test_concurrent_calls_share_one_connection_attempt() -> None:
    connections = 0

    async def script(peer: AsyncPeer) -> None:
        nonlocal connections
        connections += 1
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        client = AsyncStreamManagerClient(
            "127.0.0.1", endpoint.port, request_timeout=0.5, reconnect_timeout=0
        )
        outcomes = await asyncio.gather(
            *(client.list_streams() for _ in range(200)), return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} == {TimeoutError}
        await client.close()
    assert connections == 1


# Tokens and roles


@in_event_loop
async def test_wrong_token_is_not_retried(broker: BrokerProcess) -> None:
    for token, reason in (("wrong", "not known"), ("", "a token is required")):
        client = client_of(broker, token=token, reconnect_timeout=3600)
        with pytest.raises(ConnectFailedException, match=reason) as caught:
            await client.connect()
        assert caught.value.status is ResponseStatusCode.Unauthorized
        # A retry would be rejected as well.
        with pytest.raises(ConnectFailedException, match=reason):
            await client.list_streams()
        assert not client.connected
        await client.close()


@in_event_loop
async def test_roles_limit_operations(broker: BrokerProcess) -> None:
    catalog = Catalog(broker.root / "catalog.sqlite")
    for role in (Role.producer, Role.consumer):
        catalog.add_token(TokenRow(f"aio {role}", role, ("stream *",), 1), f"secret {role}")
    async with (
        client_of(broker) as admin,
        client_of(broker, token="secret producer") as producer,
        client_of(broker, token="secret consumer") as consumer,
    ):
        name = await new_stream(admin)
        assert await producer.append_message(name, b"0") == 0
        assert await producer.append_messages(name, [b"1"]) == range(1, 2)
        assert numbers_of([message async for message in consumer.read_all(name)]) == [0, 1]
        with pytest.raises(UnauthorizedException, match="producer does not allow ReadColumns"):
            await anext(producer.read_all(name))
        with pytest.raises(UnauthorizedException, match="consumer does not allow AppendMessage"):
            await consumer.append_message(name, b"x")
        with pytest.raises(UnauthorizedException, match="consumer does not allow AppendMessages"):
            await consumer.append_messages(name, [b"x"])
        with pytest.raises(UnauthorizedException, match="does not allow the stream 'other'"):
            await producer.append_message("other", b"x")


# TLS and Unix sockets


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateChain:
    return CertificateChain(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: CertificateChain
) -> Iterator[BrokerProcess]:
    """A broker with TLS and a Unix socket."""
    certificate, key = certificates.broker_files
    # The path of a Unix socket has to be short.
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerProcess(
            tmp_path_factory.mktemp("tls_broker") / "root",
            PENSTOCK_TLS_CERTIFICATE=str(certificate),
            PENSTOCK_TLS_KEY=str(key),
            PENSTOCK_UNIX_SOCKET=f"{directory}/s",
        ) as broker,
    ):
        yield broker


@LOOPS
def test_tls_verifies_the_certificate(
    tls_broker: BrokerProcess, certificates: CertificateChain, new_loop: NewLoop
) -> None:
    async def scenario() -> None:
        async with client_of(tls_broker, tls=certificates.authority) as client:
            name = await new_stream(client, 1000)
            payload = bytes(range(256)) * (4 * MEBIBYTE // 256)
            assert await client.append_message(name, payload) == 1000
            (found,) = [message async for message in client.read_all(name, -1)]
            assert found.payload == payload
        with pytest.raises(ConnectionError, match=r"TLS connection to 127\.0\.0\.1:\d+ failed"):
            await client_of(tls_broker, tls=True, reconnect_timeout=0).list_streams()

    run_in(new_loop, scenario())


@LOOPS
def test_local_broker_is_found_by_its_root(tls_broker: BrokerProcess, new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with AsyncStreamManagerClient(root=tls_broker.root) as client:
            # The socket needs no TLS.
            assert client.address.startswith("unix:")
            name = await new_stream(client)
            assert await client.append_message(name, b"0") == 0
        async with AsyncStreamManagerClient(port=tls_broker.port, root=tls_broker.root) as client:
            assert client.address == f"127.0.0.1:{tls_broker.port}"
            assert name in await client.list_streams()

    run_in(new_loop, scenario())


@in_event_loop
async def test_tls_to_a_server_without_tls_fails(broker: BrokerProcess) -> None:
    client = client_of(broker, tls=True, reconnect_timeout=0)
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{broker.port}"):
        await client.connect()
    await client.close()


# A server without extensions


@contextlib.asynccontextmanager
async def without_extensions(broker: BrokerProcess) -> AsyncIterator[int]:
    """Runs a relay that removes the client's extensions, and yields its port."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(peer: AsyncPeer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        version = await peer.reader.readexactly(1)
        operation, request = await peer.receive()
        del request["penstockExtensions"]
        writer.write(version + encode_frame(operation, cbor2.dumps(request)))
        await asyncio.gather(forward(peer.reader, writer), forward(reader, peer.writer))

    async with serving(serve) as endpoint:
        yield endpoint.port


@in_event_loop
async def test_server_without_extensions(broker: BrokerProcess) -> None:
    async with (
        without_extensions(broker) as port,
        AsyncStreamManagerClient("127.0.0.1", port, token=broker.token) as client,
    ):
        assert not client.server.has_extensions
        name = await new_stream(client)
        # Pipelined, and still in order.
        numbers = await client.append_messages(name, (b"%d" % number for number in range(3000)))
        assert numbers == list(range(3000))
        assert await client.append_messages(name, [b"3000"]) == (3000,)
        assert await client.append_messages(name, []) == []
        found = [message async for message in client.read_all(name, -2500)]
        assert numbers_of(found) == list(range(501, 3001))
        found = [message async for message in client.read_all(name, 0, 5)]
        assert numbers_of(found) == list(range(5))

        tail = client.tail(name, -1)
        assert numbers_of(await take(tail, 1)) == [3000]
        waiting = asyncio.ensure_future(anext(tail))
        await wait_until_async(lambda: connection_of(client)._pending)
        await client.append_message(name, b"3001")
        assert numbers_of([await waiting]) == [3001]

        with pytest.raises(UnknownOperationException, match="68"):
            await client.statistics()


@in_event_loop
async def test_too_large_answers_reduce_the_read_size() -> None:
    asked: list[int] = []

    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        stored = {"oldestSequenceNumber": 0, "newestSequenceNumber": 199, "totalBytes": 1}
        info = {"definition": definition("s").as_dict(), "storageStatus": stored}
        await peer.answer_next(messageStreamInfo={**info, "exportStatuses": []})
        while True:
            try:
                request = await peer.receive()
            except asyncio.IncompleteReadError:
                return
            options = request[1]["readMessagesOptions"]
            first, many = options["desiredStartSequenceNumber"], options["maxMessageCount"]
            asked.append(many)
            if many > 80:
                peer.answer(request, status=ResponseStatusCode.ResponsePayloadTooLarge)
            else:
                found = [Message("s", number, 0, b"%d" % number) for number in range(first, 200)]
                peer.answer(request, messages=[m.as_dict() for m in found[:many]])

    async with (
        serving(script) as endpoint,
        AsyncStreamManagerClient("127.0.0.1", endpoint.port) as client,
    ):
        found = [message async for message in client.read_all("s")]
    assert numbers_of(found) == list(range(200))
    assert asked == [200, 100, 50, 50, 50, 50]


@in_event_loop
async def test_without_extensions_one_rejected_message_does_not_stop_others(
    broker: BrokerProcess,
) -> None:
    async with (
        without_extensions(broker) as port,
        AsyncStreamManagerClient("127.0.0.1", port, token=broker.token) as client,
    ):
        described = definition(max_size=4096, stream_segment_size=1024)
        await client.create_message_stream(described)
        with pytest.raises(RequestPayloadTooLargeException) as caught:
            await client.append_messages(described.name, [b"a", bytes(5000), b"b", b"c"])

        assert caught.value.appended == 3
        stored = [message.payload async for message in client.read_all(described.name)]
        assert stored == [b"a", b"b", b"c"]


# A broker that is killed


@LOOPS
def test_client_reconnects_after_a_restart_between_calls(
    killable: BrokerProcess, new_loop: NewLoop
) -> None:
    async def scenario() -> None:
        async with client_of(killable) as client:
            name = await new_stream(client)
            for number in range(2):
                assert await client.append_message(name, b"%d" % number) == number
                # Blocks the event loop, so that it cannot see the restart.
                killable.kill()
                killable.start()
            assert await client.append_message(name, b"2") == 2
            assert numbers_of([message async for message in client.read_all(name)]) == [0, 1, 2]

    run_in(new_loop, scenario())


async def restart_in_thread(broker: BrokerProcess) -> None:
    """Restarts the broker while the event loop runs."""
    broker.kill()
    await asyncio.to_thread(broker.start)


@in_event_loop
async def test_long_poll_survives_a_restart(killable: BrokerProcess) -> None:
    async with client_of(killable) as client:
        name = await new_stream(client)
        options = ReadMessagesOptions(read_timeout_millis=30_000)
        waiting = asyncio.create_task(client.read_messages(name, options))
        await wait_until_async(lambda: connection_of(client)._pending)
        await restart_in_thread(killable)
        await client.append_message(name, b"0")
        assert numbers_of(await waiting) == [0]


@in_event_loop
async def test_tail_skips_no_message_across_restarts(killable: BrokerProcess) -> None:
    async with (
        client_of(killable, request_timeout=30) as client,
        client_of(killable) as other,
    ):
        name = await new_stream(other, 50)
        tail = client.tail(name, 0)
        found = await take(tail, 50)
        for first in (50, 100):
            following = asyncio.create_task(take(tail, 50))
            await wait_until_async(lambda: connection_of(client)._pending)
            await restart_in_thread(killable)
            for number in range(first, first + 50):
                await other.append_message(name, b"%d" % number)
            found += await following
        assert numbers_of(found) == list(range(150))


@in_event_loop
async def test_append_without_an_answer_is_not_sent_again(killable: BrokerProcess) -> None:
    async with client_of(killable) as client:
        name = await new_stream(client)
        with frozen(killable):
            single = asyncio.create_task(client.append_message(name, b"x"))
            batch = asyncio.create_task(client.append_messages(name, [b"y", b"z"]))
            await wait_until_async(lambda: len(connection_of(client)._pending) == 2)
            await asyncio.sleep(0)
            killable.kill()
            for lost in (single, batch):
                with pytest.raises(ConnectionLostException, match="may have executed it"):
                    await lost
            # Nothing was stored, but the client cannot know that.
            killable.start()
        assert [message async for message in client.read_all(name)] == []


@in_event_loop
async def test_append_with_retry_is_sent_again(killable: BrokerProcess) -> None:
    async with client_of(killable) as client:
        name = await new_stream(client)
        with frozen(killable):
            single = asyncio.create_task(client.append_message(name, b"0", retry=True))
            await wait_until_async(lambda: len(connection_of(client)._pending) == 1)
            await asyncio.sleep(0)
            killable.kill()
            await asyncio.to_thread(killable.start)
        assert await single == 0
        assert numbers_of([message async for message in client.read_all(name)]) == [0]


@in_event_loop
async def test_failed_retry_says_that_the_append_may_be_stored(
    killable: BrokerProcess,
) -> None:
    async with client_of(killable, reconnect_timeout=0.05) as client:
        name = await new_stream(client)
        with frozen(killable):
            append = asyncio.create_task(client.append_message(name, b"0", retry=True))
            await wait_until_async(lambda: len(connection_of(client)._pending) == 1)
            await asyncio.sleep(0)
            killable.kill()
            with pytest.raises(ConnectionLostException, match="may have executed it") as caught:
                await append
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@in_event_loop
async def test_failed_retry_of_a_read_raises_the_connection_error(killable: BrokerProcess) -> None:
    async with client_of(killable, reconnect_timeout=0.05) as client:
        with frozen(killable):
            listing = asyncio.create_task(client.list_streams())
            await wait_until_async(lambda: len(connection_of(client)._pending) == 1)
            await asyncio.sleep(0)
            killable.kill()
            with pytest.raises(ConnectionRefusedError):
                await listing


@in_event_loop
async def test_unsent_appends_are_sent_over_the_next_connection() -> None:
    payloads: list[bytes] = []

    async def script(peer: AsyncPeer) -> None:
        await peer.accept_handshake()
        if not payloads:
            # Reads one request and closes the connection.
            payloads.append((await peer.receive())[1]["payload"][:1])
            return
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await peer.receive()
                payloads.append(request[1]["payload"][:1])
                peer.answer(request, sequenceNumber=len(payloads))

    async with (
        serving(script) as endpoint,
        AsyncStreamManagerClient("127.0.0.1", endpoint.port) as client,
    ):
        large = [bytes((number,)) * (4 * MEBIBYTE) for number in range(10)]
        outcomes = await asyncio.gather(
            *(client.append_message("s", payload) for payload in large), return_exceptions=True
        )
    lost = [isinstance(outcome, ConnectionLostException) for outcome in outcomes]
    stored = [outcome for outcome in outcomes if isinstance(outcome, int)]
    # The first requests were sent, at least partly. All others waited for room.
    assert lost == sorted(lost, reverse=True)
    assert 1 <= sum(lost) < 10
    assert len(stored) == 10 - sum(lost)
    assert sorted(payloads) == [b"\0", *(bytes((number,)) for number in range(sum(lost), 10))]


@in_event_loop
async def test_unwritten_append_is_sent_over_the_next_connection() -> None:
    connections = 0

    async def script(peer: AsyncPeer) -> None:
        nonlocal connections
        connections += 1
        await peer.accept_handshake()
        if connections == 2:
            await peer.answer_next(sequenceNumber=7)
        await peer.wait_for_close()

    async with (
        serving(script) as endpoint,
        AsyncStreamManagerClient("127.0.0.1", endpoint.port) as client,
    ):
        append = asyncio.create_task(client.append_message("s", b"x"))
        await asyncio.sleep(0)
        # The request is queued, and no byte of it is written.
        assert connection_of(client)._outgoing
        connection_of(client)._transport.abort()
        assert await append == 7


@in_event_loop
async def test_without_extensions_lost_appends_are_sent_again_only_with_retry() -> None:
    connections = 0
    payloads: list[bytes] = []

    async def script(peer: AsyncPeer) -> None:
        nonlocal connections
        connections += 1
        await peer.accept_handshake()
        # Each connection answers three requests more than the one before.
        for _ in range(3 * connections):
            try:
                request = await peer.receive()
            except asyncio.IncompleteReadError:
                return
            payloads.append(request[1]["payload"])
            peer.answer(request, sequenceNumber=len(payloads))
        await peer.writer.drain()
        if connections < 3:
            peer.writer.transport.abort()
        else:
            await peer.wait_for_close()

    messages = [b"%d" % number for number in range(6)]
    async with (
        serving(script) as endpoint,
        AsyncStreamManagerClient("127.0.0.1", endpoint.port) as client,
    ):
        with pytest.raises(ConnectionLostException) as caught:
            await client.append_messages("s", messages)
        assert caught.value.appended <= 3
        assert payloads == messages[:3]
        payloads.clear()
        await client.append_messages("s", messages, retry=True)
    assert set(payloads) == set(messages)


@in_event_loop
async def test_reconnect_timeout_limits_the_wait_for_a_broker(
    killable: BrokerProcess,
) -> None:
    async with client_of(killable) as client:
        killable.kill()
        for reconnect_timeout in (0, 0.1):
            client.reconnect_timeout = reconnect_timeout
            with pytest.raises(ConnectionRefusedError) as caught:
                await client.list_streams()
            assert str(caught.value) == (
                f"no stream manager answers on 127.0.0.1:{killable.port}: Connection refused"
            )
        # The broker starts while the calls wait.
        client.reconnect_timeout = TIMEOUT_S
        waiting = [asyncio.create_task(client.list_streams()) for _ in range(50)]
        await asyncio.to_thread(killable.start)
        assert len(await asyncio.gather(*waiting)) == 50
        assert client.connected


@in_event_loop
async def test_request_timeout_starts_after_the_reconnect(
    killable: BrokerProcess,
) -> None:
    async with client_of(killable) as client:
        name = await new_stream(client, 1)
        tail = client.tail(name, 0)
        assert numbers_of(await take(tail, 1)) == [0]
        killable.kill()
        client.request_timeout = 4
        began = asyncio.get_running_loop().time()
        waiting = asyncio.ensure_future(anext(tail))
        await wait_until_async(lambda: asyncio.get_running_loop().time() > began + 4.5)
        await asyncio.to_thread(killable.start)
        async with client_of(killable) as other:
            await wait_until_async(lambda: client.connected)
            await other.append_message(name, b"1")
        assert numbers_of([await waiting]) == [1]


@in_event_loop
async def test_restarted_broker_on_another_port_is_found_by_its_root(
    killable: BrokerProcess,
) -> None:
    async with AsyncStreamManagerClient(root=killable.root, reconnect_timeout=TIMEOUT_S) as client:
        name = await new_stream(client)
        before = client.port
        killable.kill()
        # Another server has the old port. The client must not send it the token.
        with socket.create_server(("127.0.0.1", before)) as other:
            killable.port = 0
            await asyncio.to_thread(killable.start)
            assert await client.append_message(name, b"0") == 0
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.accept()
        assert client.port == killable.port != before


@in_event_loop
async def test_client_waits_for_a_broker_that_starts_later(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "root")
    client = AsyncStreamManagerClient(root=broker.root, reconnect_timeout=TIMEOUT_S)
    with pytest.raises(ConnectionRefusedError, match=f"no stream manager serves {broker.root}"):
        await client.connect()
    waiting = asyncio.create_task(client.list_streams())
    try:
        await asyncio.to_thread(broker.start)
        assert await waiting == []
        assert client.auth_token == broker.token
        await client.close()
    finally:
        broker.stop()


# Creating and closing clients


@in_event_loop
async def test_repr_and_address_show_the_connection(broker: BrokerProcess) -> None:
    client = client_of(broker)
    address = f"127.0.0.1:{broker.port}"
    assert (client.address, client.host, client.port) == (address, "127.0.0.1", broker.port)
    assert repr(client) == f"<AsyncStreamManagerClient {address}, not connected>"
    with pytest.raises(ClientException, match="not connected yet"):
        _ = client.server
    async with client:
        assert repr(client) == f"<AsyncStreamManagerClient {address}>"
        assert client.server.has_extensions
        assert client.server.protocol_version == "1.1.0"
    assert not client.connected


def test_constructor_rejects_an_invalid_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAM_MANAGER_SERVER_PORT", "x")

    with pytest.raises(SettingError, match="STREAM_MANAGER_SERVER_PORT is 'x'"):
        AsyncStreamManagerClient()


@in_event_loop
async def test_closed_client_cannot_be_used(broker: BrokerProcess) -> None:
    client = client_of(broker)
    async with client:
        name = await new_stream(client)
    await client.close()
    for call in (
        client.connect(),
        client.list_streams(),
        client.append_message(name, b"x"),
        client.append_messages(name, [b"x"]),
        anext(client.tail(name)),
    ):
        with pytest.raises(ClientException, match="closed: create a new one"):
            await call
    never_used = client_of(broker)
    await never_used.close()
    with pytest.raises(ClientException, match="closed"):
        await never_used.list_streams()


@LOOPS
def test_close_ends_all_pending_calls(broker: BrokerProcess, new_loop: NewLoop) -> None:
    async def scenario() -> None:
        client = client_of(broker)
        name = await new_stream(client)
        options = ReadMessagesOptions(read_timeout_millis=60_000)
        with frozen(broker):
            waiting = [
                asyncio.create_task(client.read_messages(name, options)),
                asyncio.ensure_future(anext(client.tail(name))),
                asyncio.create_task(client.append_message(name, b"x")),
                asyncio.create_task(client.append_message(name, b"x", retry=True)),
                asyncio.create_task(client.append_messages(name, [bytes(MEBIBYTE)] * 64)),
            ]
            await wait_until_async(lambda: len(connection_of(client)._pending) == 5)
            # One call has only begun.
            waiting.append(asyncio.create_task(client.append_message(name, b"x")))
            await client.close()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, StreamManagerException) for outcome in outcomes), outcomes
        assert isinstance(outcomes[2], ConnectionLostException)

    run_in(new_loop, scenario())


@in_event_loop
async def test_close_ends_calls_that_wait_for_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        unused_port = taken.getsockname()[1]
    connected = asyncio.Event()

    async def script(peer: AsyncPeer) -> None:
        connected.set()
        await peer.wait_for_close()

    async with serving(script) as endpoint:
        for port in (unused_port, endpoint.port):
            client = AsyncStreamManagerClient("127.0.0.1", port, reconnect_timeout=3600)
            waiting = [asyncio.create_task(client.list_streams()) for _ in range(3)]
            await (connected.wait() if port == endpoint.port else asyncio.sleep(0.01))
            await client.close()
            for call in waiting:
                with pytest.raises(ClientException, match="closed"):
                    await call


@in_event_loop
async def test_call_canceled_while_connecting_causes_no_warning() -> None:
    async with serving(AsyncPeer.wait_for_close) as endpoint:
        client = AsyncStreamManagerClient(
            "127.0.0.1", endpoint.port, request_timeout=0.5, reconnect_timeout=0
        )
        waiting = asyncio.ensure_future(client.list_streams())
        while (connecting := client._connecting) is None:
            await asyncio.sleep(0)
        waiting.cancel()
        # A TimeoutError if the attempt ends at the same time.
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await waiting
        await asyncio.wait((connecting,))
        del connecting
        # The event loop must not report the unretrieved exception of the attempt.
        del client
        gc.collect()


@LOOPS
def test_unsent_bytes_are_limited_while_the_broker_does_not_read(
    broker: BrokerProcess, new_loop: NewLoop
) -> None:
    async def scenario() -> None:
        async with client_of(broker) as client:
            name = await new_stream(client)
            max_unsent = 0

            async def append(number: int) -> int:
                payload = b"%d" % number
                appended = await client.append_message(name, payload.rjust(65_536))
                nonlocal max_unsent
                max_unsent = max(max_unsent, unsent_bytes(connection_of(client)))
                return appended

            with frozen(broker):
                appends = [asyncio.create_task(append(number)) for number in range(640)]
                await wait_until_blocked(connection_of(client))
                await asyncio.sleep(0.01)
                max_unsent = max(max_unsent, unsent_bytes(connection_of(client)))
            assert await asyncio.gather(*appends) == list(range(640))
            assert 0 < max_unsent < 3 * MEBIBYTE

    run_in(new_loop, scenario())


@in_event_loop
async def test_message_larger_than_the_stream_is_rejected(
    broker: BrokerProcess,
) -> None:
    async with client_of(broker) as client:
        described = definition(max_size=MEBIBYTE)
        await client.create_message_stream(described)
        with pytest.raises(RequestPayloadTooLargeException):
            await client.append_message(described.name, bytes(MEBIBYTE + 1))
        assert await client.append_message(described.name, b"0") == 0
