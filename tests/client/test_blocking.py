"""The blocking client against real brokers and scripted servers."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock.client.blocking import StreamManagerClient
from penstock.errors import (
    ClientException,
    ConnectFailedException,
    ConnectionLostException,
    InvalidRequestException,
    NotEnoughMessagesException,
    RequestPayloadTooLargeException,
    RequestTimeoutException,
    ResourceNotFoundException,
    ResponseStatusCode,
    SettingError,
    StreamManagerException,
    UnansweredException,
    UnauthorizedException,
    UnknownOperationException,
    ValidationException,
)
from penstock.model import (
    Message,
    MessageStreamDefinition,
    ReadMessagesOptions,
    StrategyOnFull,
)
from penstock.wire.frames import HEADER
from penstock.wire.operations import Operation
from tests.cli.command import penstock
from tests.support import (
    MEBIBYTE,
    TIMEOUT_S,
    BrokerProcess,
    LocalBroker,
    clean_environment,
    wait_until,
)

from .servers import (
    Certificates,
    ClientPeer,
    Relay,
    Request,
    ScriptedServer,
    client_of,
    make_certificates,
    make_stream,
)


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes environment variables and files that a client would use."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("blocking")
    with BrokerProcess(
        directory / "root", PENSTOCK_UNIX_SOCKET=str(directory / "socket")
    ) as broker:
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[StreamManagerClient]:
    with client_of(broker) as client:
        yield client


@pytest.fixture(scope="module")
def _killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("killable") / "root") as broker:
        yield broker


@pytest.fixture
def killable(_killable: BrokerProcess) -> BrokerProcess:
    """A broker that a test may kill."""
    if _killable.process is None:
        _killable.start()
    return _killable


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def restart(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


def payloads(messages: Iterable[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def waiting_reads(client: StreamManagerClient, stream: str) -> int:
    return sum(s.waiting_reads for s in client.statistics().streams if s.name == stream)


def serve_appends(peer: ClientPeer) -> None:
    """Accepts the handshake, and answers each append with its payload as the number."""
    peer.accept_handshake()
    while True:
        request = peer.receive()
        peer.answer(request, sequenceNumber=int(request.fields["payload"]))


# Operations


def test_stream_is_created_updated_used_and_deleted(client: StreamManagerClient) -> None:
    name = make_stream(client)
    assert name in client.list_streams()
    client.update_message_stream(
        MessageStreamDefinition(
            name=name, max_size=MEBIBYTE * 64, strategy_on_full=StrategyOnFull.RejectNewData
        )
    )
    info = client.describe_message_stream(name)
    assert info.definition.max_size == MEBIBYTE * 64
    assert info.storage_status.newest_sequence_number == -1

    assert client.append_message(name, b"first") == 0
    (message,) = client.read_messages(name)
    assert message.payload == b"first"
    assert message.stream_name == name

    client.delete_message_stream(name)
    with pytest.raises(ResourceNotFoundException, match=name):
        client.append_message(name, b"more")


def test_read_follows_its_options(client: StreamManagerClient) -> None:
    name = make_stream(client)
    client.append_messages(name, numbered(10))

    options = ReadMessagesOptions(
        desired_start_sequence_number=3, min_message_count=2, max_message_count=4
    )
    assert payloads(client.read_messages(name, options)) == [b"3", b"4", b"5", b"6"]
    with pytest.raises(NotEnoughMessagesException):
        client.read_messages(name, ReadMessagesOptions(min_message_count=11))


def test_invalid_arguments_are_rejected_before_sending(broker: BrokerProcess) -> None:
    with Relay(broker) as relay, client_of(relay) as client:
        sent = len(relay.operations)
        for refused in (
            lambda: client.append_message("no/name", b"x"),
            lambda: client.append_message("s", b""),
            lambda: client.append_message("s", "text"),  # type: ignore[arg-type] # is refused
            lambda: client.create_message_stream("s"),  # type: ignore[arg-type] # is refused
            lambda: client.read_messages("s", ReadMessagesOptions(read_timeout_millis=70_000)),
        ):
            with pytest.raises(ValidationException):
                refused()
        assert len(relay.operations) == sent


def test_statistics(client: StreamManagerClient) -> None:
    name = make_stream(client)
    client.append_messages(name, numbered(5))

    statistics = client.statistics()

    assert statistics.connections >= 1
    (stream,) = [stream for stream in statistics.streams if stream.name == name]
    assert stream.newest_sequence_number == 4


# Threads that share a client


def test_threads_that_share_a_client_get_their_own_answers(
    client: StreamManagerClient, pool: ThreadPoolExecutor
) -> None:
    names = [make_stream(client) for _ in range(3)]
    accepted = client.statistics().connections_accepted
    is_over = threading.Event()

    def append(thread: int) -> list[int]:
        name = names[thread % 3]
        return [client.append_message(name, b"%d %d" % (thread, n)) for n in range(200)]

    def read(name: str) -> None:
        while not is_over.is_set():
            for number, message in enumerate(client.read_all(name)):
                assert message.sequence_number == number
                assert message.stream_name == name

    readers = [pool.submit(read, name) for name in names]
    appenders = [pool.submit(append, thread) for thread in range(8)]
    numbers = [appender.result() for appender in appenders]
    is_over.set()
    for reader in readers:
        reader.result()

    for thread, given in enumerate(numbers):
        assert given == sorted(given)
        stored = {m.sequence_number: m.payload for m in client.read_all(names[thread % 3])}
        assert [stored[n] for n in given] == [b"%d %d" % (thread, n) for n in range(200)]
    for which, name in enumerate(names):
        given_here = [n for thread in range(which, 8, 3) for n in numbers[thread]]
        assert sorted(given_here) == list(range(len(given_here)))
        assert len(given_here) == len(list(client.read_all(name)))
    # All calls used one connection.
    assert client.statistics().connections_accepted == accepted


def test_client_starts_no_thread(broker: BrokerProcess) -> None:
    before = set(threading.enumerate())
    with client_of(broker) as client:
        name = make_stream(client)
        client.append_messages(name, numbered(10))
        assert payloads(client.read_all(name)) == numbered(10)
        assert payloads(itertools.islice(client.tail(name, 0), 10)) == numbered(10)

        assert set(threading.enumerate()) <= before


def test_long_poll_does_not_delay_other_calls(
    client: StreamManagerClient, pool: ThreadPoolExecutor
) -> None:
    waited_for, other = make_stream(client), make_stream(client)
    options = ReadMessagesOptions(read_timeout_millis=30_000)
    polls = [pool.submit(client.read_messages, waited_for, options) for _ in range(5)]
    wait_until(lambda: waiting_reads(client, waited_for) == 5)

    # The connection's reader is one of the long polls.
    assert [client.append_message(other, b"x") for _ in range(100)] == list(range(100))
    assert not any(poll.done() for poll in polls)

    client.append_message(waited_for, b"at last")
    assert [payloads(poll.result()) for poll in polls] == [[b"at last"]] * 5


def test_large_appends_and_large_reads_run_concurrently(
    client: StreamManagerClient, pool: ThreadPoolExecutor
) -> None:
    name = make_stream(client)
    large = random.Random(1).randbytes(MEBIBYTE) * 12
    client.append_messages(name, [large] * 2)
    options = ReadMessagesOptions(max_message_count=2, min_message_count=2)

    def read() -> bool:
        return all(message.payload == large for message in client.read_messages(name, options))

    futures: list[Future[Any]] = []
    for _ in range(4):
        futures += [pool.submit(read), pool.submit(client.append_message, name, large)]

    assert all(future.result() is not False for future in futures)


def test_append_after_a_large_read_timed_out(client: StreamManagerClient) -> None:
    """The broker accepts no request before the client has received the late answer."""
    name = make_stream(client)
    large = bytes(16 * MEBIBYTE)
    for _ in range(3):
        client.append_message(name, large)
    options = ReadMessagesOptions(max_message_count=3, min_message_count=3)

    client.request_timeout = 0.001
    with pytest.raises(RequestTimeoutException):
        client.read_messages(name, options)
    client.request_timeout = TIMEOUT_S

    assert client.append_message(name, large) == 3


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage keeps a lock when interrupted")
@pytest.mark.skipif(
    sys.version_info[:2] == (3, 14),
    reason="its `with lock` keeps a lock when interrupted: python/cpython issue 148874",
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_client_stays_usable_after_interrupts(
    broker: BrokerProcess, pool: ThreadPoolExecutor
) -> None:
    """A signal handler raises an exception at random places."""
    is_armed, interrupts = False, 0
    randomness = random.Random(2)

    class InterruptError(Exception):
        pass

    def raise_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_armed, interrupts
        if is_armed:
            is_armed, interrupts = False, interrupts + 1
            raise InterruptError

    with client_of(broker, request_timeout=TIMEOUT_S) as client:
        name = make_stream(client)
        is_over = threading.Event()

        def append_concurrently() -> tuple[list[bytes], list[bytes]]:
            known: list[bytes] = []
            unknown: list[bytes] = []
            for n in itertools.count():
                if is_over.is_set():
                    return known, unknown
                payload = b"concurrent %d" % n
                try:
                    client.append_message(name, payload)
                    known.append(payload)
                except ConnectionLostException:
                    unknown.append(payload)
            raise AssertionError

        concurrent = pool.submit(append_concurrently)
        known: list[bytes] = []
        unknown: list[bytes] = []
        before = signal.signal(signal.SIGALRM, raise_interrupt)
        try:
            for n in range(100_000):
                if interrupts == 150:
                    break
                payload = b"%d" % n
                try:
                    signal.setitimer(signal.ITIMER_REAL, randomness.uniform(1e-6, 4e-4))
                    is_armed = True
                    client.append_message(name, payload)
                    is_armed = False
                    known.append(payload)
                except (InterruptError, ConnectionLostException):
                    is_armed = False
                    unknown.append(payload)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            is_over.set()
        known_concurrent, unknown_concurrent = concurrent.result()

        assert interrupts == 150
        check_stored(client, name, known + known_concurrent, unknown + unknown_concurrent)


def check_stored(
    client: StreamManagerClient, name: str, known: list[bytes], unknown: list[bytes]
) -> None:
    """Checks that acknowledged messages are stored once, and others at most once."""
    stored = Counter(payloads(client.read_all(name)))
    assert {stored[payload] for payload in known} <= {1}
    assert {stored[payload] for payload in unknown} <= {0, 1}
    assert stored.keys() <= {*known, *unknown}


def test_forked_child_opens_its_own_connection(client: StreamManagerClient) -> None:
    name = make_stream(client)
    assert client.append_message(name, b"parent") == 0
    accepted = client.statistics().connections_accepted
    child = os.fork()
    if child == 0:
        try:
            os._exit(client.append_message(name, b"child"))
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 1
    assert client.append_message(name, b"parent") == 2
    assert payloads(client.read_all(name)) == [b"parent", b"child", b"parent"]
    assert client.statistics().connections_accepted == accepted + 1


# A broker that is killed


def test_client_reconnects_after_a_restart_between_calls(
    killable: BrokerProcess,
) -> None:
    with client_of(killable) as client:
        name = make_stream(client)
        client.append_message(name, b"before")
        restart(killable)

        assert client.append_message(name, b"after") == 1
        assert payloads(client.read_all(name)) == [b"before", b"after"]
        restart(killable)
        assert client.append_messages(name, [b"more"]) == range(2, 3)


def test_waiting_read_is_repeated_after_a_restart(
    killable: BrokerProcess, pool: ThreadPoolExecutor
) -> None:
    with client_of(killable) as client, client_of(killable) as other:
        name = make_stream(client)
        options = ReadMessagesOptions(read_timeout_millis=30_000)
        read = pool.submit(client.read_messages, name, options)
        wait_until(lambda: waiting_reads(other, name) == 1)
        restart(killable)
        wait_until(lambda: waiting_reads(other, name) == 1)
        other.append_message(name, b"at last")

        assert payloads(read.result()) == [b"at last"]


def append_without_answer(
    killable: BrokerProcess,
    relay: Relay,
    client: StreamManagerClient,
    name: str,
    pool: ThreadPoolExecutor,
    *,
    retry: bool = False,
) -> Future[int]:
    """Starts an append that is stored by a broker that is killed before its answer arrives."""
    relay.hold()
    appending = pool.submit(client.append_message, name, b"lost", retry=retry)
    with client_of(killable) as other:
        wait_until(lambda: len(list(other.read_all(name))) == 1)
    killable.kill()
    relay.cut()
    relay.release()
    return appending


def test_append_without_an_answer_says_that_it_may_be_stored(
    killable: BrokerProcess, pool: ThreadPoolExecutor
) -> None:
    with Relay(killable) as relay, client_of(relay) as client:
        name = make_stream(client)
        appending = append_without_answer(killable, relay, client, name, pool)

        with pytest.raises(
            ConnectionLostException, match=r"AppendMessage .* may have executed it"
        ) as caught:
            appending.result()

        assert isinstance(caught.value, UnansweredException)
        assert isinstance(caught.value, ConnectionError)
        assert isinstance(caught.value, StreamManagerException)
        killable.start()
        assert client.append_message(name, b"next") == 1
        assert payloads(client.read_all(name)) == [b"lost", b"next"]


def test_append_without_an_answer_is_sent_again_with_retry(
    killable: BrokerProcess, pool: ThreadPoolExecutor
) -> None:
    with Relay(killable) as relay, client_of(relay) as client:
        name = make_stream(client)
        appending = append_without_answer(killable, relay, client, name, pool, retry=True)
        killable.start()

        assert appending.result() == 1
        assert payloads(client.read_all(name)) == [b"lost", b"lost"]


def test_failed_retry_says_that_the_append_may_be_stored(
    killable: BrokerProcess, pool: ThreadPoolExecutor
) -> None:
    with Relay(killable) as relay, client_of(relay, reconnect_timeout=0.2) as client:
        name = make_stream(client)
        appending = append_without_answer(killable, relay, client, name, pool, retry=True)

        with pytest.raises(UnansweredException):
            appending.result()


def test_restarted_broker_on_another_port_is_found_by_its_root(killable: BrokerProcess) -> None:
    with StreamManagerClient(root=killable.root) as client:
        name = make_stream(client)
        client.append_message(name, b"before")
        killable.kill()
        old, killable.port = killable.port, 0
        with socket.create_server(("127.0.0.1", old)):
            # Another server listens on the old port.
            killable.start()
            assert killable.port != old

            assert client.append_message(name, b"after") == 1
        assert client.port == killable.port


def test_reconnect_fails_after_its_timeout(
    killable: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(killable, reconnect_timeout=3) as client:
        name = make_stream(client)
        killable.kill()
        wait_until(lambda: not client.connected)
        with (
            caplog.at_level(logging.DEBUG, "StreamManagerClient"),
            pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{killable.port}"),
        ):
            client.append_message(name, b"x")
        assert len([r for r in caplog.records if "retrying" in r.message]) > 1
        assert not client.connected

        # The client is usable again after the broker's restart.
        killable.start()
        assert client.append_message(name, b"x") == 0


@pytest.mark.parametrize(
    "variable", ["STREAM_MANAGER_STORE_ROOT_DIR", "STREAM_MANAGER_SERVER_PORT"]
)
def test_client_does_not_reconnect_to_another_broker(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def point_to(broker: LocalBroker) -> None:
        is_root = variable.endswith("DIR")
        monkeypatch.setenv(variable, str(broker.root if is_root else broker.port))

    with LocalBroker(tmp_path / "other", authenticate_client=False) as other:
        with LocalBroker(tmp_path / "own_broker", authenticate_client=False) as own_broker:
            point_to(own_broker)
            client = StreamManagerClient(reconnect_timeout=0)
            make_stream(client)
        point_to(other)

        with pytest.raises(ConnectionError):
            client.list_streams()
        client.close()


def test_reconnect_timeout_0_is_one_attempt() -> None:
    def disconnect(peer: ClientPeer) -> None:
        peer.receive_bytes(1)

    with ScriptedServer(lambda peer: peer.accept_handshake(), disconnect) as server:
        client = client_of(server, reconnect_timeout=0)
        wait_until(lambda: not client.connected)

        with pytest.raises(ConnectFailedException, match="closed the connection"):
            client.append_message("s", b"x")
        assert server.connections == 2
        client.close()


def test_every_acknowledged_message_is_stored_once_across_kill_9(
    killable: BrokerProcess, pool: ThreadPoolExecutor
) -> None:
    with client_of(killable) as client:
        name = make_stream(client)
        is_over = threading.Event()
        answered = itertools.count()

        def append(thread: int) -> tuple[list[bytes], list[bytes]]:
            known: list[bytes] = []
            unknown: list[bytes] = []
            for n in itertools.count():
                if is_over.is_set():
                    return known, unknown
                batch = [b"%d %d %d" % (thread, n, k) for k in range(1 + n % 3)]
                try:
                    if n % 2:
                        client.append_messages(name, batch)
                    else:
                        del batch[1:]
                        client.append_message(name, batch[0])
                    known += batch
                    next(answered)
                except ConnectionLostException:
                    unknown += batch
            raise AssertionError

        threads = [pool.submit(append, thread) for thread in range(4)]
        for more in (300, 600):
            wait_until(lambda more=more: next(answered) > more)  # type: ignore[misc] # mypy#12459
            restart(killable)
        wait_until(lambda: next(answered) > 900)
        is_over.set()
        results = [thread.result() for thread in threads]

        check_stored(
            client,
            name,
            [payload for known, _ in results for payload in known],
            [payload for _, unknown in results for payload in unknown],
        )


# Lost connections


@pytest.mark.parametrize("pieces", [b"", HEADER.pack(-5, 9), b"\x00\x00\x10\x00\x09 cut off"])
def test_lost_connection_is_replaced(pieces: bytes) -> None:
    taken: list[Request] = []

    def lose(peer: ClientPeer) -> None:
        peer.accept_handshake()
        taken.append(peer.receive())
        peer.send(pieces)

    with ScriptedServer(lose, serve_appends) as server, client_of(server) as client:
        with pytest.raises(ConnectionLostException, match="AppendMessage"):
            client.append_message("s", b"1")

        assert client.append_message("s", b"2") == 2
        assert server.connections == 2
        # The first append was sent once.
        assert len(taken) == 1


@pytest.mark.parametrize("operation", ["create", "update", "delete", "append", "append many"])
def test_requests_with_effects_are_not_sent_again(operation: str) -> None:
    seen: list[int] = []

    def take(peer: ClientPeer) -> None:
        peer.accept_handshake(penstockExtensions=1)
        seen.append(peer.receive().operation)

    definition = MessageStreamDefinition(name="s", strategy_on_full=StrategyOnFull.RejectNewData)
    with ScriptedServer(take) as server, client_of(server) as client:
        changes: dict[str, Callable[[], object]] = {
            "create": lambda: client.create_message_stream(definition),
            "update": lambda: client.update_message_stream(definition),
            "delete": lambda: client.delete_message_stream("s"),
            "append": lambda: client.append_message("s", b"x"),
            "append many": lambda: client.append_messages("s", [b"x", b"y"]),
        }
        with pytest.raises(ConnectionLostException):
            changes[operation]()
        assert len(seen) == 1
        assert server.connections == 1


def test_idempotent_requests_are_sent_again() -> None:
    def lose(peer: ClientPeer) -> None:
        peer.accept_handshake()
        peer.receive()

    def serve(peer: ClientPeer) -> None:
        peer.accept_handshake()
        peer.answer(peer.receive(), streams=["a", "b"])

    with ScriptedServer(lose, lose, serve) as server, client_of(server) as client:
        assert client.list_streams() == ["a", "b"]
        assert server.connections == 3


def test_partly_sent_append_is_sent_again() -> None:
    """A server does not execute a truncated frame."""

    def cut_off(peer: ClientPeer) -> None:
        peer.accept_handshake()
        peer.receive_bytes(1000)

    def serve(peer: ClientPeer) -> None:
        peer.accept_handshake()
        request = peer.receive()
        peer.answer(request, sequenceNumber=len(request.fields["payload"]))

    with ScriptedServer(cut_off, serve) as server, client_of(server) as client:
        assert client.append_message("s", bytes(32 * MEBIBYTE)) == 32 * MEBIBYTE
        assert server.connections == 2


def test_late_answer_is_ignored() -> None:
    def late(peer: ClientPeer) -> None:
        peer.accept_handshake()
        first, second = peer.receive(), peer.receive()
        peer.answer(first, sequenceNumber=1)
        peer.answer(second, sequenceNumber=2)
        peer.wait_for_close()

    with ScriptedServer(late) as server, client_of(server) as client:
        client.request_timeout = 0.2
        with pytest.raises(RequestTimeoutException, match="AppendMessage") as caught:
            client.append_message("s", b"1")

        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, UnansweredException)
        client.request_timeout = TIMEOUT_S
        assert client.append_message("s", b"2") == 2
        assert server.connections == 1


def test_request_timeout_starts_after_the_reconnect() -> None:
    """Otherwise a request would time out right after a slow reconnect."""
    is_back = threading.Event()

    def accept_when_back(peer: ClientPeer) -> None:
        if is_back.is_set():
            serve_appends(peer)

    with (
        ScriptedServer(lambda peer: peer.accept_handshake(), accept_when_back) as server,
        client_of(server, request_timeout=4) as client,
    ):
        wait_until(lambda: not client.connected)
        threading.Timer(4.5, is_back.set).start()

        assert client.append_message("s", b"7") == 7


def test_close_while_connecting_closes_the_new_connection(pool: ThreadPoolExecutor) -> None:
    is_closed, has_ended = threading.Event(), threading.Event()

    def accept_late(peer: ClientPeer) -> None:
        is_closed.wait(TIMEOUT_S)
        peer.accept_handshake()
        peer.wait_for_close()
        has_ended.set()

    with ScriptedServer(lambda peer: peer.accept_handshake(), accept_late) as server:
        client = client_of(server)
        wait_until(lambda: not client.connected)
        appending = pool.submit(client.append_message, "s", b"x")
        wait_until(lambda: server.connections == 2)
        client.close()
        is_closed.set()

        with pytest.raises(ClientException, match="is closed"):
            appending.result(TIMEOUT_S / 2)
        assert has_ended.wait(TIMEOUT_S / 2)


def test_threads_share_a_failed_reconnect(
    pool: ThreadPoolExecutor,
) -> None:
    """After one thread's attempts failed, waiting threads do not repeat them one by one."""
    with (
        ScriptedServer(lambda peer: peer.accept_handshake(), ClientPeer.wait_for_close) as server,
        client_of(server, reconnect_timeout=0) as client,
    ):
        client.request_timeout = 0.3
        wait_until(lambda: not client.connected)
        futures = [pool.submit(client.append_message, "s", b"x") for _ in range(10)]
        for future in futures:
            with pytest.raises((TimeoutError, ConnectionError)):
                future.result()

        assert server.connections < 1 + len(futures)


def test_threads_that_share_a_failed_reconnect_get_separate_exceptions(
    pool: ThreadPoolExecutor,
) -> None:
    """An exception has attributes of one thread, such as `appended`."""
    both_ready, may_refuse = threading.Barrier(2), threading.Event()

    def refuse(peer: ClientPeer) -> None:
        may_refuse.wait(TIMEOUT_S)
        peer.accept_handshake(status=2, errorMessage="not any more")

    def append(client: StreamManagerClient) -> None:
        both_ready.wait(TIMEOUT_S)
        client.append_message("s", b"x")

    with (
        ScriptedServer(lambda peer: peer.accept_handshake(), refuse) as server,
        client_of(server) as client,
    ):
        wait_until(lambda: not client.connected)
        futures = [pool.submit(append, client) for _ in range(2)]
        wait_until(lambda: server.connections == 2)
        # Gives the second thread time to wait for the first.
        threading.Timer(0.2, may_refuse.set).start()
        first, second = (future.exception() for future in futures)

        assert isinstance(first, ConnectFailedException)
        assert isinstance(second, ConnectFailedException)
        assert first is not second


def test_later_thread_gets_its_full_reconnect_timeout(pool: ThreadPoolExecutor) -> None:
    is_back = threading.Event()

    def accept_when_back(peer: ClientPeer) -> None:
        if is_back.is_set():
            serve_appends(peer)

    with (
        ScriptedServer(lambda peer: peer.accept_handshake(), accept_when_back) as server,
        client_of(server, reconnect_timeout=6) as client,
    ):
        wait_until(lambda: not client.connected)
        began = time.monotonic()
        first = pool.submit(client.append_message, "s", b"1")
        wait_until(lambda: time.monotonic() - began > 3)
        # It has 3 seconds left when the first one fails.
        second = pool.submit(client.append_message, "s", b"2")

        assert isinstance(first.exception(), ConnectFailedException)
        is_back.set()
        assert second.result() == 2


# Slow and large answers


def test_answers_arrive_byte_by_byte(broker: BrokerProcess) -> None:
    with Relay(broker, piece_bytes=1) as relay, client_of(relay) as client:
        name = make_stream(client)
        assert list(client.append_messages(name, numbered(50))) == list(range(50))
        assert payloads(client.read_all(name)) == numbered(50)
        assert client.describe_message_stream(name).storage_status.newest_sequence_number == 49


def test_answer_of_40_mebibytes(client: StreamManagerClient) -> None:
    name = make_stream(client)
    large = random.Random(3).randbytes(MEBIBYTE) * 10
    client.append_messages(name, [large] * 4)

    read = client.read_messages(name, ReadMessagesOptions(min_message_count=4, max_message_count=4))

    assert payloads(read) == [large] * 4
    assert payloads(client.read_all(name)) == [large] * 4


# A server without extensions


@pytest.fixture(scope="module")
def plain_relay(broker: BrokerProcess) -> Iterator[Relay]:
    """A relay to the broker that removes the client's extensions."""
    with Relay(broker, strip_extensions=True) as relay:
        yield relay


@pytest.fixture
def plain_client(plain_relay: Relay) -> Iterator[StreamManagerClient]:
    with client_of(plain_relay) as client:
        assert not client.server.has_extensions
        yield client


def test_append_messages_without_extensions_is_pipelined(
    plain_relay: Relay, plain_client: StreamManagerClient
) -> None:
    name = make_stream(plain_client)
    before = plain_relay.operations.count(Operation.AppendMessage)

    given = plain_client.append_messages(name, numbered(3000))

    assert list(given) == list(range(3000))
    assert plain_relay.operations.count(Operation.AppendMessage) - before == 3000
    assert payloads(plain_client.read_all(name)) == numbered(3000)


def test_rejected_message_reports_the_number_of_stored_messages(
    plain_client: StreamManagerClient,
) -> None:
    name = make_stream(
        plain_client,
        max_size=100_000,
        stream_segment_size=25_000,
        strategy_on_full=StrategyOnFull.RejectNewData,
    )

    with pytest.raises(InvalidRequestException) as caught:
        plain_client.append_messages(name, [bytes(100)] * 1500)

    stored = list(plain_client.read_all(name))
    assert 0 < len(stored) < 1500
    assert caught.value.appended == len(stored)


def test_lost_connection_reports_the_number_of_stored_messages() -> None:
    def serve(peer: ClientPeer) -> None:
        peer.accept_handshake()
        for number in range(700):
            peer.answer(peer.receive(), sequenceNumber=number)

    with ScriptedServer(serve) as server, client_of(server) as client:
        with pytest.raises(ConnectionLostException) as caught:
            client.append_messages("s", numbered(1000))
        assert caught.value.appended == 700


def test_retry_sends_unanswered_messages_again() -> None:
    stored: list[bytes] = []

    def serve(count: int) -> Any:
        def script(peer: ClientPeer) -> None:
            peer.accept_handshake()
            for _ in range(count):
                request = peer.receive()
                stored.append(request.fields["payload"])
                peer.answer(request, sequenceNumber=len(stored) - 1)

        return script

    with ScriptedServer(serve(70), serve(1000)) as server, client_of(server) as client:
        given = client.append_messages("s", numbered(100), retry=True)

        assert list(given) == list(range(100))
        assert stored == numbered(100)


def test_tail_without_extensions(
    plain_client: StreamManagerClient, client: StreamManagerClient, pool: ThreadPoolExecutor
) -> None:
    name = make_stream(client)
    client.append_messages(name, numbered(10))
    tailing = plain_client.tail(name, -3)
    assert payloads(itertools.islice(tailing, 3)) == [b"7", b"8", b"9"]

    following = pool.submit(next, tailing)
    wait_until(lambda: waiting_reads(client, name) == 1)
    client.append_message(name, b"10")

    assert following.result().payload == b"10"


def test_statistics_need_extensions(plain_client: StreamManagerClient) -> None:
    with pytest.raises(UnknownOperationException):
        plain_client.statistics()


def test_server_with_protocol_1_0_0() -> None:
    def serve(peer: ClientPeer) -> None:
        message = peer.accept_handshake(protocolVersion="1.0.0", serverVersion="1.0.4")
        assert message["protocolVersion"] == "1.1.0"
        assert message["otherSupportedProtocolVersions"] == ["1.0.0"]
        for number in range(3):
            peer.answer(peer.receive(), sequenceNumber=number)
        peer.answer(peer.receive(), status=13, errorMessage="not enough")
        unknown = peer.receive()
        operation = Operation.UnknownOperationError
        peer.answer(unknown, operation=operation, status=3, errorMessage="unknown")

    with ScriptedServer(serve) as server, client_of(server) as client:
        assert client.server.protocol_version == "1.0.0"
        assert client.server.version == "1.0.4"
        assert client.append_message("s", b"a") == 0
        assert list(client.append_messages("s", [b"b", b"c"])) == [1, 2]
        with pytest.raises(NotEnoughMessagesException):
            client.read_messages("s")
        with pytest.raises(InvalidRequestException, match="unknown"):
            client.statistics()


# Batches


def test_append_messages_is_one_request(broker: BrokerProcess) -> None:
    with Relay(broker) as relay, client_of(relay) as client:
        name = make_stream(client)
        before = len(relay.operations)

        assert client.append_messages(name, numbered(5000)) == range(5000)

        assert relay.operations[before:] == [Operation.AppendMessages]
        assert payloads(client.read_all(name)) == numbered(5000)


def test_append_of_no_messages_sends_no_request(broker: BrokerProcess) -> None:
    with Relay(broker) as relay, client_of(relay) as client:
        before = len(relay.operations)
        assert list(client.append_messages("s", [])) == []
        assert len(relay.operations) == before


def test_append_messages_accepts_generators_and_bytes_like_objects(
    client: StreamManagerClient,
) -> None:
    name = make_stream(client)
    kinds: list[Any] = [b"a", bytearray(b"b"), memoryview(b"c")]

    assert client.append_messages(name, (kind for kind in kinds)) == range(3)
    assert payloads(client.read_all(name)) == [b"a", b"b", b"c"]


def test_append_messages_splits_large_batches(broker: BrokerProcess) -> None:
    with Relay(broker) as relay, client_of(relay) as client:
        name = make_stream(client)
        messages = [b"%4d" % n * 256 for n in range(9000)]

        given = client.append_messages(name, iter(messages))

        assert list(given) == list(range(9000))
        assert relay.operations.count(Operation.AppendMessages) == 3
        assert payloads(client.read_all(name)) == messages


def test_batch_is_stored_all_or_none_when_the_stream_is_full(client: StreamManagerClient) -> None:
    name = make_stream(
        client,
        max_size=100_000,
        stream_segment_size=25_000,
        strategy_on_full=StrategyOnFull.RejectNewData,
    )
    client.append_messages(name, [bytes(100)] * 500)

    with pytest.raises(InvalidRequestException) as caught:
        client.append_messages(name, [bytes(100)] * 900)

    assert caught.value.appended == 0
    assert len(list(client.read_all(name))) == 500


def test_full_stream_reports_the_number_of_stored_messages(client: StreamManagerClient) -> None:
    name = make_stream(client, max_size=6 * MEBIBYTE, strategy_on_full=StrategyOnFull.RejectNewData)

    with pytest.raises(InvalidRequestException) as caught:
        client.append_messages(name, [bytes(1024)] * 8000)

    assert 0 < caught.value.appended < 8000
    assert len(list(client.read_all(name))) == caught.value.appended


@pytest.mark.parametrize("bad", ["text", b"", None, 7])
def test_invalid_message_stops_the_batch(client: StreamManagerClient, bad: Any) -> None:
    name = make_stream(client)
    with pytest.raises(ValidationException) as caught:
        client.append_messages(name, [b"good", bad, b"good"])
    assert caught.value.appended == 0
    assert list(client.read_all(name)) == []


def test_invalid_message_in_a_later_batch_reports_the_number_of_stored_messages(
    client: StreamManagerClient,
) -> None:
    name = make_stream(client)
    messages: list[Any] = [bytes(1024)] * 6000 + [None]

    with pytest.raises(ValidationException) as caught:
        client.append_messages(name, messages)

    assert 0 < caught.value.appended < 6000
    assert len(list(client.read_all(name))) == caught.value.appended


def test_broker_killed_between_batches_reports_the_number_of_stored_messages(
    killable: BrokerProcess,
) -> None:
    with client_of(killable, reconnect_timeout=0) as client:
        name = make_stream(client)

        def messages() -> Iterator[bytes]:
            for _ in range(4):
                yield bytes(2 * MEBIBYTE)
            killable.kill()
            yield bytes(2 * MEBIBYTE)

        with pytest.raises(ConnectionError) as caught:
            client.append_messages(name, messages())

        stored = getattr(caught.value, "appended", None)
        notes = getattr(caught.value, "__notes__", [""])[0]
        assert stored or "messages were appended" in notes


@pytest.mark.parametrize("messages", [b"bytes", "text", bytearray(b"bytes"), memoryview(b"x")])
def test_append_messages_rejects_a_single_message(
    client: StreamManagerClient, messages: Any
) -> None:
    with pytest.raises(ValidationException, match="expected an iterable"):
        client.append_messages("s", messages)


@pytest.fixture(scope="module")
def small_frame_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a small max frame size."""
    root = tmp_path_factory.mktemp("small_frame_broker") / "root"
    with BrokerProcess(root, PENSTOCK_MAX_FRAME_BYTES="65536") as broker:
        yield broker


def test_batches_fit_the_max_frame_size_of_the_broker(small_frame_broker: BrokerProcess) -> None:
    with client_of(small_frame_broker) as client:
        assert client.server.max_frame_bytes == 65_536
        name = make_stream(client)
        messages = [bytes(1000)] * 500 + [bytes(50_000)] + numbered(20_000)

        assert list(client.append_messages(name, messages)) == list(range(len(messages)))
        assert payloads(client.read_all(name)) == messages


@pytest.mark.parametrize("size", [70_000, 32 * MEBIBYTE])
def test_oversized_message_is_not_retried(small_frame_broker: BrokerProcess, size: int) -> None:
    """The broker closes the connection, which would be retried for other requests."""
    with client_of(small_frame_broker) as other, client_of(small_frame_broker) as client:
        name = make_stream(client)
        accepted = other.statistics().connections_accepted
        with pytest.raises(RequestPayloadTooLargeException):
            client.append_message(name, bytes(size))
        assert other.statistics().connections_accepted == accepted


def test_oversized_message_is_rejected_before_sending(small_frame_broker: BrokerProcess) -> None:
    with Relay(small_frame_broker) as relay, client_of(relay) as client:
        name = make_stream(client)
        sent = len(relay.operations)
        with pytest.raises(RequestPayloadTooLargeException):
            client.append_message(name, bytes(70_000))
        with pytest.raises(RequestPayloadTooLargeException):
            client.append_messages(name, [b"x", bytes(70_000)])
        assert len(relay.operations) == sent + 1
        assert client.append_message(name, b"x") == 1
        assert relay.connections == 1


# read_all


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, range(10)),
        (4, None, range(4, 10)),
        (2, 5, range(2, 5)),
        (0, 100, range(10)),
        (-3, None, range(7, 10)),
        (-100, None, range(10)),
        (-3, 9, range(7, 9)),
        (10, None, range(0)),
        (100, None, range(0)),
        (5, 5, range(0)),
        (5, 2, range(0)),
    ],
)
@pytest.mark.parametrize("extensions", [True, False])
def test_read_all_reads_slices(
    client: StreamManagerClient,
    plain_client: StreamManagerClient,
    start: int,
    end: int | None,
    expected: range,
    extensions: bool,
) -> None:
    name = make_stream(client)
    client.append_messages(name, numbered(10))

    messages = list((client if extensions else plain_client).read_all(name, start, end))

    assert [message.sequence_number for message in messages] == list(expected)
    assert payloads(messages) == [b"%d" % number for number in expected]


@pytest.mark.parametrize("extensions", [True, False])
def test_read_all_of_an_empty_stream(
    client: StreamManagerClient, plain_client: StreamManagerClient, extensions: bool
) -> None:
    name = make_stream(client)
    reader = client if extensions else plain_client

    assert list(reader.read_all(name)) == []
    assert list(reader.read_all(name, -5)) == []


@pytest.mark.parametrize("extensions", [True, False])
def test_evicted_messages_are_skipped(
    client: StreamManagerClient, plain_client: StreamManagerClient, extensions: bool
) -> None:
    name = make_stream(client, max_size=4096, stream_segment_size=1024)
    messages = [b"%8d" % n * 16 for n in range(100)]
    for message in messages:
        client.append_message(name, message)
    oldest = client.describe_message_stream(name).storage_status.oldest_sequence_number
    assert 0 < oldest < 100
    reader = client if extensions else plain_client

    assert payloads(reader.read_all(name)) == messages[oldest:]
    assert payloads(reader.read_all(name, -1000)) == messages[oldest:]
    assert payloads(itertools.islice(reader.tail(name, 0), 100 - oldest)) == messages[oldest:]


def test_read_all_ignores_messages_appended_later(client: StreamManagerClient) -> None:
    name = make_stream(client)
    client.append_messages(name, numbered(10))

    reading = client.read_all(name)
    client.append_messages(name, numbered(10))

    assert len(list(reading)) == 10


def test_read_all_and_tail_of_a_missing_stream_raise_at_once(
    client: StreamManagerClient,
) -> None:
    with pytest.raises(ResourceNotFoundException):
        client.read_all("nowhere")
    with pytest.raises(ResourceNotFoundException):
        client.tail("nowhere")


# tail


def test_tail_without_a_start_yields_only_new_messages(
    client: StreamManagerClient, pool: ThreadPoolExecutor
) -> None:
    name = make_stream(client)
    client.append_messages(name, numbered(10))
    tailing = client.tail(name)
    following = pool.submit(next, tailing)
    wait_until(lambda: waiting_reads(client, name) == 1)

    client.append_messages(name, [b"a", b"b"])

    assert following.result().payload == b"a"
    assert next(tailing).payload == b"b"


def test_tail_begins_at_its_start(client: StreamManagerClient) -> None:
    name = make_stream(client)
    client.append_messages(name, numbered(10))

    assert payloads(itertools.islice(client.tail(name, 6), 4)) == [b"6", b"7", b"8", b"9"]
    assert payloads(itertools.islice(client.tail(name, -2), 2)) == [b"8", b"9"]


def test_tail_continues_after_restarts(killable: BrokerProcess, pool: ThreadPoolExecutor) -> None:
    with client_of(killable) as client, client_of(killable) as other:
        name = make_stream(client)
        tailing = client.tail(name, 0)
        followed = pool.submit(lambda: payloads(itertools.islice(tailing, 40)))
        for part in range(2):
            other.append_messages(name, [b"%d" % n for n in range(part * 20, part * 20 + 10)])
            restart(killable)
            other.append_messages(name, [b"%d" % n for n in range(part * 20 + 10, part * 20 + 20)])

        assert followed.result() == numbered(40)


def test_close_ends_a_tail(
    broker: BrokerProcess, client: StreamManagerClient, pool: ThreadPoolExecutor
) -> None:
    name = make_stream(client)
    tailed = client_of(broker)
    following = pool.submit(list, tailed.tail(name))
    wait_until(lambda: waiting_reads(client, name) == 1)

    tailed.close()

    with pytest.raises(ClientException, match="is closed"):
        following.result(TIMEOUT_S / 2)


# Tokens and roles


def make_token(broker: BrokerProcess, name: str, *words: str) -> str:
    made = penstock("tokens", "create", name, *words, "--root", str(broker.root))
    assert made.code == 0, made.error
    return made.output.strip()


@pytest.mark.parametrize(
    ("token", "message"), [("wrong", "not known"), ("", "a token is required")]
)
def test_wrong_token_is_rejected(broker: BrokerProcess, token: str, message: str) -> None:
    with pytest.raises(ConnectFailedException, match=message) as caught:
        client_of(broker, token=token)

    assert caught.value.status is ResponseStatusCode.Unauthorized


def test_producer_appends_and_consumer_reads(broker: BrokerProcess) -> None:
    with (
        client_of(broker) as client,
        client_of(broker, token=make_token(broker, "p", "--role", "producer")) as producer,
        client_of(broker, token=make_token(broker, "c", "--role", "consumer")) as consumer,
    ):
        name = make_stream(client)
        assert producer.append_messages(name, [b"x", b"y"]) == range(2)
        assert payloads(consumer.read_all(name)) == [b"x", b"y"]
        for refused in (
            lambda: producer.read_messages(name),
            lambda: producer.delete_message_stream(name),
            lambda: consumer.append_message(name, b"x"),
            lambda: consumer.append_messages(name, [b"x", b"y"]),
        ):
            with pytest.raises(UnauthorizedException, match="the role"):
                refused()


def test_revoked_token_ends_its_connection(broker: BrokerProcess, pool: ThreadPoolExecutor) -> None:
    with (
        client_of(broker) as admin,
        client_of(broker, token=make_token(broker, "gone", "--role", "admin")) as client,
    ):
        name = make_stream(admin)
        tailing = pool.submit(list, client.tail(name))
        wait_until(lambda: waiting_reads(admin, name) == 1)
        assert penstock("tokens", "revoke", "gone", "--root", str(broker.root)).code == 0

        # A rejected token is not retried.
        with pytest.raises(ConnectFailedException) as caught:
            tailing.result()
        assert caught.value.status is ResponseStatusCode.Unauthorized
        with pytest.raises(ConnectFailedException):
            client.append_message(name, b"x")


# TLS and the Unix socket


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_broker(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    root = tmp_path_factory.mktemp("tls_broker") / "root"
    with BrokerProcess(root, **certificates.environment()) as broker:
        yield broker


@pytest.mark.parametrize("kind", ["text", "path", "context"])
def test_tls_option_accepts_a_path_and_a_context(
    tls_broker: BrokerProcess, certificates: Certificates, kind: str
) -> None:
    tls = {
        "text": str(certificates.authority),
        "path": certificates.authority,
        "context": certificates.client_context(),
    }[kind]
    with client_of(tls_broker, tls=tls) as client:
        name = make_stream(client)
        assert client.append_message(name, b"x") == 0


def test_certificate_of_an_unknown_authority_is_rejected(
    tls_broker: BrokerProcess, tmp_path: Path
) -> None:
    for tls in (True, make_certificates(tmp_path).authority):
        with pytest.raises(
            ConnectionError, match=f"127.0.0.1:{tls_broker.port} failed: .*verify failed"
        ):
            client_of(tls_broker, tls=tls)
    with pytest.raises(SettingError, match="is not a PEM file"):
        client_of(tls_broker, tls=tmp_path / "nothing.pem")


def test_certificate_for_another_host_is_rejected(
    tls_broker: BrokerProcess, certificates: Certificates
) -> None:
    # The same address under a name that the certificate does not have.
    with pytest.raises(ConnectionError, match="verify failed"):
        StreamManagerClient("127.1", tls_broker.port, token="", tls=certificates.authority)


def test_certificate_of_a_root_s_broker_is_trusted(
    tls_broker: BrokerProcess, pool: ThreadPoolExecutor
) -> None:
    with StreamManagerClient(root=tls_broker.root) as client:
        name = make_stream(client)
        assert client.append_message(name, b"x") == 0
        assert client.port == tls_broker.port


def test_connection_without_tls_to_a_tls_broker_fails(tls_broker: BrokerProcess) -> None:
    with pytest.raises((ConnectionError, ConnectFailedException)):
        client_of(tls_broker, tls=False)


def test_threads_share_a_client_over_tls(
    tls_broker: BrokerProcess, certificates: Certificates, pool: ThreadPoolExecutor
) -> None:
    with client_of(tls_broker, tls=certificates.authority) as client:
        name = make_stream(client)

        def append(thread: int) -> list[tuple[int, bytes]]:
            sizes = [1 + (thread * 7919 + n * 104729) % 60_000 for n in range(40)]
            return [
                (client.append_message(name, payload), payload)
                for payload in (bytes([thread]) * size for size in sizes)
            ]

        given = dict(
            pair
            for future in [pool.submit(append, thread) for thread in range(6)]
            for pair in future.result()
        )
        assert {m.sequence_number: m.payload for m in client.read_all(name)} == given


def test_large_messages_pass_over_tls_in_both_directions(
    tls_broker: BrokerProcess, certificates: Certificates, pool: ThreadPoolExecutor
) -> None:
    with client_of(tls_broker, tls=certificates.authority) as client:
        name = make_stream(client)
        large = random.Random(4).randbytes(MEBIBYTE) * 10
        client.append_message(name, large)
        appends = [pool.submit(client.append_message, name, large) for _ in range(3)]
        reads = [pool.submit(client.read_messages, name) for _ in range(3)]

        assert sorted(append.result() for append in appends) == [1, 2, 3]
        assert all(payloads(read.result()) == [large] for read in reads)


def test_lost_tls_connection_is_replaced(
    tls_broker: BrokerProcess, certificates: Certificates
) -> None:
    with client_of(tls_broker, tls=certificates.authority) as client:
        name = make_stream(client)
        client.append_message(name, b"before")
        restart(tls_broker)

        assert client.append_message(name, b"after") == 1


def test_unix_socket(broker: BrokerProcess) -> None:
    path = str(broker.root.parent / "socket")
    with StreamManagerClient(unix_socket=path, token=broker.token) as client:
        assert client.address == f"unix:{path}"
        name = make_stream(client)
        assert client.append_messages(name, [bytes(3 * MEBIBYTE)] * 3)[-1] == 2
        assert len(list(client.read_all(name))) == 3


def test_missing_unix_socket_is_a_connection_error(tmp_path: Path) -> None:
    path = str(tmp_path / "missing")
    with pytest.raises(ConnectionError, match=f"unix:{path}: No such file"):
        StreamManagerClient(unix_socket=path)


# Creating and closing clients


def test_repr_and_address_show_the_connection(broker: BrokerProcess) -> None:
    client = client_of(broker)
    assert repr(client) == f"<StreamManagerClient 127.0.0.1:{broker.port}>"
    assert client.connected
    assert client.address == f"127.0.0.1:{broker.port}"
    assert client.server.has_extensions
    client.close()
    assert repr(client) == f"<StreamManagerClient 127.0.0.1:{broker.port}, not connected>"
    assert not client.connected


def test_closed_client_cannot_be_used(broker: BrokerProcess) -> None:
    with client_of(broker) as client:
        name = make_stream(client)
        reading = client.read_all(name)
        client.append_message(name, b"x")
    client.close()

    for use in (
        client.list_streams,
        lambda: client.append_message(name, b"x"),
        lambda: client.append_messages(name, [b"x"]),
        lambda: list(client.read_all(name)),
    ):
        with pytest.raises(ClientException, match="is closed"):
            use()
    assert list(reading) == []


@pytest.mark.parametrize("operation", ["read", "append"])
def test_close_from_another_thread_ends_waiting_calls(
    operation: str, pool: ThreadPoolExecutor
) -> None:
    is_received = threading.Event()

    def never_answer(peer: ClientPeer) -> None:
        peer.accept_handshake()
        peer.receive()
        is_received.set()
        peer.wait_for_close()

    with ScriptedServer(never_answer) as server:
        client = client_of(server)
        if operation == "read":
            waiting: Future[Any] = pool.submit(client.read_messages, "s")
        else:
            waiting = pool.submit(client.append_message, "s", b"x")
        assert is_received.wait(TIMEOUT_S)

        client.close()

        # The append may have been stored. The read is idempotent.
        kind = ClientException if operation == "read" else ConnectionLostException
        with pytest.raises(kind):
            waiting.result(TIMEOUT_S / 2)
        assert server.connections == 1


def test_closed_client_causes_no_warning(broker: BrokerProcess) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client = client_of(broker)
        client.list_streams()
        client.close()
        del client
        gc.collect()

    assert [str(warning.message) for warning in caught] == []


def test_connect_without_a_server_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}: Connection refused"):
        StreamManagerClient("127.0.0.1", port)


def test_handshake_times_out() -> None:
    with (
        ScriptedServer(ClientPeer.wait_for_close) as server,
        pytest.raises(TimeoutError, match=f"127.0.0.1:{server.port}: timed out"),
    ):
        client_of(server, request_timeout=0.2)
