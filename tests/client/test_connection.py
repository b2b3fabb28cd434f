"""One connection that threads share: the reader, waiting threads, interrupts and failures."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from penstock.client import calls
from penstock.client.calls import ClientCall
from penstock.client.connection import Connection, SentCall
from penstock.client.failures import NotSentError
from penstock.errors import (
    ClientException,
    ConnectFailedException,
    ConnectionLostException,
    InvalidRequestException,
    RequestTimeoutException,
    ResponseStatusCode,
    StreamManagerException,
)
from penstock.model import Message
from penstock.wire.frames import HEADER, encode_frame
from penstock.wire.operations import Operation
from tests.support import MEBIBYTE, TIMEOUT_S, wait_until

from .servers import ClientPeer, Request, Script, ScriptedServer, frame_to


def deadline_in(seconds: float = TIMEOUT_S) -> float:
    return time.monotonic() + seconds


def append(number: int) -> ClientCall[int]:
    """An append that a scripted server answers with this number."""
    return calls.append_message("s", str(number).encode())


def number_of(request: Request) -> int:
    return int(request.fields["payload"])


def answer(peer: ClientPeer, request: Request) -> None:
    peer.answer(request, sequenceNumber=number_of(request))


def serve_appends(peer: ClientPeer) -> None:
    while True:
        answer(peer, peer.receive())


def after_handshake(script: Script) -> Script:
    """Returns a script that accepts the handshake first."""

    def run(peer: ClientPeer) -> None:
        peer.accept_handshake()
        script(peer)

    return run


@contextmanager
def connected_to(script: Script) -> Iterator[Connection]:
    """Connects to a server that runs the script after the handshake."""
    with ScriptedServer(after_handshake(script)) as server:
        connection = Connection.open(server.endpoint, TIMEOUT_S, TIMEOUT_S)
        try:
            yield connection
        finally:
            connection.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def start_reader(
    pool: ThreadPoolExecutor, connection: Connection, call: ClientCall[int]
) -> Future[int]:
    """Starts a call whose thread becomes the reader."""
    future = pool.submit(connection.call, call, deadline_in())
    wait_until(lambda: connection._reader)
    return future


def start_sleeper(
    pool: ThreadPoolExecutor, connection: Connection, call: ClientCall[int]
) -> Future[int]:
    """Starts a call whose thread waits for another reader."""
    before = len(connection._sleepers)
    future = pool.submit(connection.call, call, deadline_in())
    wait_until(lambda: len(connection._sleepers) > before)
    return future


# Threads


def test_answers_in_any_order_reach_their_threads(pool: ThreadPoolExecutor) -> None:
    def script(peer: ClientPeer) -> None:
        requests = [peer.receive() for _ in range(50)]
        for request in reversed(requests):
            answer(peer, request)

    with connected_to(script) as connection:
        futures = [pool.submit(connection.call, append(n), deadline_in()) for n in range(50)]

        assert [future.result() for future in futures] == list(range(50))


def test_connection_starts_no_thread() -> None:
    with connected_to(serve_appends) as connection:
        before = set(threading.enumerate())
        assert connection.call(append(1), deadline_in()) == 1
        assert set(threading.enumerate()) <= before


def test_answered_reader_hands_over_to_another_thread(pool: ThreadPoolExecutor) -> None:
    may_answer = threading.Event()

    def script(peer: ClientPeer) -> None:
        first, second = peer.receive(), peer.receive()
        answer(peer, first)
        may_answer.wait(TIMEOUT_S)
        answer(peer, second)

    with connected_to(script) as connection:
        # The server answers the first request only after it received both.
        reader = start_reader(pool, connection, append(1))
        sleeper = pool.submit(connection.call, append(2), deadline_in())
        assert reader.result() == 1
        may_answer.set()
        assert sleeper.result(TIMEOUT_S / 2) == 2


def test_timed_out_reader_hands_over_to_another_thread(pool: ThreadPoolExecutor) -> None:
    may_answer = threading.Event()

    def script(peer: ClientPeer) -> None:
        peer.receive()
        second = peer.receive()
        may_answer.wait(TIMEOUT_S)
        answer(peer, second)

    with connected_to(script) as connection:
        reader = pool.submit(connection.call, append(1), deadline_in(0.2))
        wait_until(lambda: connection._reader)
        sleeper = start_sleeper(pool, connection, append(2))
        with pytest.raises(RequestTimeoutException):
            reader.result()
        may_answer.set()
        assert sleeper.result(TIMEOUT_S / 2) == 2


def test_waiting_thread_times_out_while_another_thread_reads(pool: ThreadPoolExecutor) -> None:
    may_answer = threading.Event()

    def script(peer: ClientPeer) -> None:
        first = peer.receive()
        peer.receive()
        may_answer.wait(TIMEOUT_S)
        answer(peer, first)

    with connected_to(script) as connection:
        reader = start_reader(pool, connection, append(1))
        with pytest.raises(RequestTimeoutException):
            connection.call(append(2), deadline_in(0.2))
        may_answer.set()
        assert reader.result() == 1


def test_requests_are_pipelined() -> None:
    def script(peer: ClientPeer) -> None:
        for request in [peer.receive() for _ in range(100)]:
            answer(peer, request)

    with connected_to(script) as connection:
        sent = connection.send([append(n) for n in range(100)], deadline_in())

        assert [connection.finish(pending, deadline_in()) for pending in sent] == list(range(100))


def test_answers_before_a_lost_connection_are_delivered() -> None:
    def script(peer: ClientPeer) -> None:
        for request in [peer.receive() for _ in range(10)][:4]:
            answer(peer, request)

    with connected_to(script) as connection:
        sent = connection.send([append(n) for n in range(10)], deadline_in())

        assert [connection.finish(pending, deadline_in()) for pending in sent[:4]] == [0, 1, 2, 3]
        for pending in sent[4:]:
            with pytest.raises(ConnectionLostException):
                connection.finish(pending, deadline_in())


# Interrupts


class Interrupt(Exception):
    """Raised by the signal handler."""


@contextmanager
def on_signal(handler: Callable[[], object]) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        handler()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def send_signal_when(condition: Callable[[], object]) -> None:
    """Signals the main thread, in which Python runs signal handlers."""
    wait_until(condition)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def interrupt() -> None:
    raise Interrupt


def test_interrupted_reader_fails_waiting_threads_at_once(pool: ThreadPoolExecutor) -> None:
    """Bytes may be missing, so that the connection is lost."""
    with connected_to(ClientPeer.wait_for_close) as connection, on_signal(interrupt):

        def wait_beside() -> int:
            wait_until(lambda: connection._reader)
            pool.submit(send_signal_when, lambda: connection._sleepers)
            return connection.call(append(2), deadline_in())

        beside = pool.submit(wait_beside)
        with pytest.raises(Interrupt):
            connection.call(append(1), deadline_in())

        with pytest.raises(ConnectionLostException):
            beside.result(TIMEOUT_S / 2)
        assert not connection.is_usable()


def test_timeout_error_of_a_signal_handler_is_raised(pool: ThreadPoolExecutor) -> None:
    def raise_timeout() -> None:
        raise TimeoutError("the program's own")

    def script(peer: ClientPeer) -> None:
        peer.receive()
        serve_appends(peer)

    with connected_to(script) as connection, on_signal(raise_timeout):
        pool.submit(send_signal_when, lambda: connection._reader)
        with pytest.raises(TimeoutError, match="the program's own"):
            connection.call(append(1), deadline_in())


def test_interrupt_before_received_bytes_are_decoded_loses_the_connection() -> None:
    """The received bytes are lost, so that later bytes are not a frame."""
    with connected_to(serve_appends) as connection:
        receive = connection._protocol.receive

        def receive_late(data: bytes) -> Any:
            connection._protocol.receive = receive  # type: ignore[method-assign] # once
            raise Interrupt

        connection._protocol.receive = receive_late  # type: ignore[method-assign] # see above

        with pytest.raises(Interrupt):
            connection.call(append(1), deadline_in())
        assert not connection.is_usable()


def test_signal_handler_may_close_the_connection(pool: ThreadPoolExecutor) -> None:
    with connected_to(ClientPeer.wait_for_close) as connection, on_signal(connection.close):
        pool.submit(send_signal_when, lambda: connection._reader)

        with pytest.raises(ConnectionLostException):
            connection.call(append(1), deadline_in())

        assert connection._transport._socket.fileno() == -1


# Closing


def test_lost_connection_fails_all_waiting_threads(pool: ThreadPoolExecutor) -> None:
    def script(peer: ClientPeer) -> None:
        for _ in range(10):
            peer.receive()

    with connected_to(script) as connection:
        futures = [pool.submit(connection.call, append(n), deadline_in()) for n in range(10)]

        for future in futures:
            with pytest.raises(ConnectionLostException):
                future.result(TIMEOUT_S / 2)
        assert not connection.is_usable()
        with pytest.raises(NotSentError):
            connection.call(append(1), deadline_in())


def test_close_fails_all_waiting_threads_and_closes_the_socket(pool: ThreadPoolExecutor) -> None:
    with connected_to(ClientPeer.wait_for_close) as connection:
        reader = start_reader(pool, connection, append(1))
        sleepers = [start_sleeper(pool, connection, append(n)) for n in range(2, 5)]

        connection.close()

        for future in (reader, *sleepers):
            with pytest.raises(ConnectionLostException):
                future.result(TIMEOUT_S / 2)
        assert connection._transport._socket.fileno() == -1


def test_close_fails_a_blocked_send(pool: ThreadPoolExecutor) -> None:
    is_over = threading.Event()
    with connected_to(lambda _: is_over.wait(TIMEOUT_S)) as connection:
        sender = pool.submit(
            connection.call, calls.append_message("s", bytes(64 * MEBIBYTE)), deadline_in()
        )
        wait_until(connection._sending.locked)

        connection.close()

        with pytest.raises(NotSentError):
            sender.result(TIMEOUT_S / 2)
        assert connection._transport._socket.fileno() == -1
        is_over.set()


def test_close_is_idempotent() -> None:
    with connected_to(serve_appends) as connection:
        connection.close()
        connection.close()
        assert not connection.is_usable()


def test_closed_connection_causes_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with connected_to(serve_appends) as connection:
            connection.call(append(1), deadline_in())
        del connection
        gc.collect()


def test_close_of_an_idle_connection_is_detected() -> None:
    with connected_to(lambda peer: answer(peer, peer.receive())) as connection:
        assert connection.call(append(1), deadline_in()) == 1

        wait_until(lambda: not connection.is_usable())


def test_forked_child_does_not_use_the_connection() -> None:
    with connected_to(serve_appends) as connection:
        assert connection.call(append(1), deadline_in()) == 1
        child = os.fork()
        if child == 0:
            # A close in the child does not end it.
            is_usable = connection.is_usable()
            connection.close()
            os._exit(17 if is_usable else 0)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert connection.call(append(2), deadline_in()) == 2


# Sending


def test_send_timeout_is_not_sent() -> None:
    is_over = threading.Event()
    with connected_to(lambda _: is_over.wait(TIMEOUT_S)) as connection:
        call = calls.append_message("s", bytes(64 * MEBIBYTE))

        with pytest.raises(NotSentError, match="did not accept the request in time"):
            connection.call(call, deadline_in(0.2))

        # A part of the frame was sent, so that no other frame can follow.
        assert not connection.is_usable()
        is_over.set()


def test_blocked_send_receives_answers() -> None:
    """The call of that answer timed out, so that no thread receives during the send."""
    has_given_up = threading.Event()

    def script(peer: ClientPeer) -> None:
        late = peer.receive()
        has_given_up.wait(TIMEOUT_S)
        peer.answer(late, messages=[], padding=bytes(64 * MEBIBYTE))
        peer.answer(peer.receive(), sequenceNumber=7)

    with connected_to(script) as connection:
        with pytest.raises(RequestTimeoutException):
            connection.call(calls.read_messages("s", None, 1), deadline_in(0.1))
        has_given_up.set()

        assert connection.call(calls.append_message("s", bytes(64 * MEBIBYTE)), deadline_in()) == 7


def test_answer_to_a_truncated_request_is_delivered() -> None:
    """A server rejects a frame that is too large before it has received all of it."""

    def script(peer: ClientPeer) -> None:
        peer.receive_bytes(HEADER.size)
        peer.send(
            encode_frame(
                Operation.AppendMessageResponse,
                b"\xa3irequestIdh00000001fstatus\x03lerrorMessageitoo large",
            )
        )

    with connected_to(script) as connection:
        call = calls.append_message("s", bytes(64 * MEBIBYTE))

        with pytest.raises(InvalidRequestException, match="too large"):
            connection.call(call, deadline_in())


def test_large_send_does_not_delay_answers(pool: ThreadPoolExecutor) -> None:
    def script(peer: ClientPeer) -> None:
        first = peer.receive()
        # The first is answered while the second is being sent.
        peer.receive_bytes(1)
        answer(peer, first)

    with connected_to(script) as connection:
        waiting = start_reader(pool, connection, append(1))
        sending = pool.submit(
            connection.call, calls.append_message("s", bytes(64 * MEBIBYTE)), deadline_in()
        )

        assert waiting.result(TIMEOUT_S / 2) == 1
        with pytest.raises((ConnectionLostException, NotSentError)):
            sending.result(TIMEOUT_S / 2)


# Late, duplicate, unexpected and malformed answers


def test_slow_answer_before_the_deadline_is_delivered() -> None:
    may_answer = threading.Event()

    def script(peer: ClientPeer) -> None:
        request = peer.receive()
        may_answer.wait(TIMEOUT_S)
        answer(peer, request)

    with connected_to(script) as connection:
        # Longer than the socket's receive timeout.
        threading.Timer(1.2, may_answer.set).start()
        assert connection.call(append(1), deadline_in()) == 1


def test_late_answer_is_ignored() -> None:
    def script(peer: ClientPeer) -> None:
        late, request = peer.receive(), peer.receive()
        answer(peer, late)
        answer(peer, request)
        serve_appends(peer)

    with connected_to(script) as connection:
        with pytest.raises(RequestTimeoutException, match="AppendMessage timed out"):
            connection.call(append(1), deadline_in(0.1))

        assert connection.call(append(2), deadline_in()) == 2
        assert connection.call(append(3), deadline_in()) == 3


@pytest.mark.parametrize(
    "frame",
    [
        frame_to(Request(Operation.AppendMessage, {"requestId": "unknown"}), sequenceNumber=9),
        frame_to(Request(Operation.AppendMessage, {"requestId": "1"}), operation=99),
        frame_to(Request(Operation.AppendMessage, {"requestId": ""}), operation=-1),
        encode_frame(Operation.AppendMessageResponse, b""),
        encode_frame(Operation.AppendMessageResponse, b"\xff\xff no CBOR"),
        encode_frame(Operation.AppendMessageResponse, b"\x83\x01\x02\x03"),
        encode_frame(Operation.AppendMessageResponse, b"\xa1irequestId"),
        encode_frame(Operation.ReadMessagesResponse, b"\xa1irequestId\x82\x01\x02"),
        encode_frame(Operation.ReadMessagesResponse, b"\x9f" * 10_000),
        encode_frame(Operation.ReadMessagesResponse, b"\xa1\x80\x01"),
    ],
)
def test_unexpected_answer_is_ignored(frame: bytes) -> None:
    def script(peer: ClientPeer) -> None:
        request = peer.receive()
        peer.send(frame)
        answer(peer, request)
        serve_appends(peer)

    with connected_to(script) as connection:
        assert connection.call(append(1), deadline_in()) == 1
        assert connection.call(append(2), deadline_in()) == 2


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(Operation.AppendMessageResponse, b"\xa4irequestId"),
        encode_frame(
            Operation.AppendMessageResponse,
            b"\xa4irequestIda\xfffstatus\x00lerrorMessage`nsequenceNumber\x00",
        ),
    ],
)
def test_malformed_append_answer_is_ignored(frame: bytes) -> None:
    def script(peer: ClientPeer) -> None:
        request = peer.receive()
        peer.send(frame)
        answer(peer, request)

    with connected_to(script) as connection:
        assert connection.call(append(1), deadline_in()) == 1


def test_duplicate_answer_is_ignored() -> None:
    def script(peer: ClientPeer) -> None:
        while True:
            request = peer.receive()
            answer(peer, request)
            peer.answer(request, sequenceNumber=999)

    with connected_to(script) as connection:
        assert [connection.call(append(n), deadline_in()) for n in range(5)] == list(range(5))


@pytest.mark.parametrize("length", [0, -1, (1 << 30) + 1, -(1 << 31)])
def test_invalid_frame_length_ends_the_connection(length: int) -> None:
    def script(peer: ClientPeer) -> None:
        peer.receive()
        peer.send(HEADER.pack(length, Operation.AppendMessageResponse))
        peer.wait_for_close()

    with connected_to(script) as connection:
        with pytest.raises(ConnectionLostException, match="may have executed it"):
            connection.call(append(1), deadline_in())
        assert not connection.is_usable()


def test_truncated_answer_is_a_lost_connection() -> None:
    def script(peer: ClientPeer) -> None:
        peer.send(frame_to(peer.receive(), sequenceNumber=1)[:-1])

    with connected_to(script) as connection, pytest.raises(ConnectionLostException):
        connection.call(append(1), deadline_in())


def test_answers_arrive_byte_by_byte() -> None:
    def script(peer: ClientPeer) -> None:
        while True:
            for byte in frame_to(peer.receive(), sequenceNumber=70_000):
                peer.send(bytes((byte,)))

    with connected_to(script) as connection:
        assert connection.call(append(1), deadline_in()) == 70_000
        assert connection.call(append(2), deadline_in()) == 70_000


def test_large_answer(pool: ThreadPoolExecutor) -> None:
    payload = os.urandom(MEBIBYTE) * 40
    message = {"streamName": "s", "sequenceNumber": 3, "ingestTime": 4, "payload": payload}

    def script(peer: ClientPeer) -> None:
        reading, appending = sorted(
            (peer.receive(), peer.receive()), key=lambda request: -request.operation
        )
        peer.send(frame_to(reading, messages=[message]) + frame_to(appending, sequenceNumber=1))

    with connected_to(script) as connection:
        reader = pool.submit(connection.call, calls.read_messages("s", None, 1), deadline_in())

        assert connection.call(append(1), deadline_in()) == 1
        assert reader.result() == [Message("s", 3, 4, payload)]


# Errors and undecodable answers


def ask(call: ClientCall[Any], **fields: Any) -> Any:
    """Returns the result of an answer with these fields."""
    with connected_to(lambda peer: peer.answer(peer.receive(), **fields)) as connection:
        return connection.call(call, deadline_in())


def test_unknown_status_is_raised() -> None:
    with pytest.raises(StreamManagerException, match=r"status 99.*: it rains") as caught:
        ask(append(1), status=99, errorMessage="it rains")

    assert caught.value.status == 99


@pytest.mark.parametrize("status", [None, "0", [], -1, 1.5])
def test_invalid_status_is_raised(status: object) -> None:
    with pytest.raises(StreamManagerException, match="status"):
        ask(append(1), status=status, sequenceNumber=1)


def test_answer_with_another_operation_is_an_error() -> None:
    with pytest.raises(
        ClientException, match=r"answered AppendMessage with operation 10|ReadMessagesResponse"
    ):
        ask(append(1), operation=Operation.ReadMessagesResponse)


def test_status_selects_the_exception() -> None:
    with pytest.raises(InvalidRequestException, match="it is full") as caught:
        ask(append(1), status=3, errorMessage="it is full")

    assert caught.value.status is ResponseStatusCode.InvalidRequest
    assert caught.value.request_id == "00000001"


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (append(1), {}),
        (append(1), {"sequenceNumber": "many"}),
        (calls.list_streams(), {"streams": 7}),
        (calls.describe_message_stream("s"), {"messageStreamInfo": 7}),
        (calls.statistics(), {"statistics": {}}),
        (calls.read_messages("s", None, 1), {"messages": [{"payload": 7}]}),
        (calls.read_columns("s", 0, 9, 1, 1), {"count": 1, "firstSequenceNumber": 0}),
        pytest.param(
            calls.read_columns("s", 0, 9, 1, 1),
            {
                "count": 2,
                "firstSequenceNumber": 0,
                "offsets": bytes(4),
                "ingestTimes": b"",
                "payloads": b"",
            },
        ),
    ],
)
def test_undecodable_answer_is_an_error(call: ClientCall[Any], fields: dict[str, Any]) -> None:
    with pytest.raises(ClientException, match="cannot decode"):
        ask(call, **fields)


# The handshake


def open_to(script: Script, request_timeout: float = TIMEOUT_S) -> None:
    with ScriptedServer(script) as server:
        Connection.open(server.endpoint, TIMEOUT_S, request_timeout).close()


def test_server_info_is_available_after_connect() -> None:
    with connected_to(serve_appends) as connection:
        assert connection.server.protocol_version == "1.1.0"
        assert connection.server.has_extensions is False


def test_server_with_another_protocol_is_rejected() -> None:
    with pytest.raises(ConnectFailedException, match="not a stream manager"):
        open_to(lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


def test_close_during_the_handshake_is_reported() -> None:
    with pytest.raises(ConnectFailedException, match="closed the connection") as caught:
        open_to(lambda peer: (peer.receive_bytes(1), peer.receive()))

    assert caught.value.status is ResponseStatusCode.FailedToConnect


def test_handshake_times_out() -> None:
    with pytest.raises(TimeoutError):
        open_to(ClientPeer.wait_for_close, request_timeout=0.2)


@pytest.mark.parametrize(
    "fields", [{"penstockExtensions": "yes"}, {"penstockExtensions": 1, "maxFrameBytes": "many"}]
)
def test_undecodable_handshake_is_a_failed_connect(fields: dict[str, Any]) -> None:
    with pytest.raises(ConnectFailedException):
        open_to(lambda peer: peer.accept_handshake(**fields))


class _HookedReader(dict[str, Any]):
    """The reader of a connection; `get` calls a hook."""

    def __init__(self, readers: dict[str, Any], hook: Callable[[], object]) -> None:
        super().__init__(readers)
        self._hook = hook

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        self._hook()
        return found


def test_dead_reader_does_not_remove_its_successor() -> None:
    with connected_to(serve_appends) as connection:
        former = [SentCall(append(1), "1")]
        current = SentCall(append(2), "2")
        turn = weakref.ref(current)

        def pass_on() -> None:
            """The former reader's thread ends, and another thread becomes the reader."""
            if former:
                former.clear()
                readers["reader"] = turn

        readers = _HookedReader({"reader": weakref.ref(former[0])}, pass_on)
        connection._reader = readers
        connection._release_dead_reader()

        assert dict(readers) == {"reader": turn}
        readers.clear()


def test_twelve_threads_share_a_connection() -> None:
    def ask(first: int) -> list[int]:
        return [
            connection.call(append(number), deadline_in()) for number in range(first, first + 300)
        ]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with connected_to(serve_appends) as connection, ThreadPoolExecutor(12) as threads:
            results = threads.map(ask, range(0, 3600, 300))
            assert sorted(itertools.chain(*results)) == list(range(3600))
    finally:
        sys.setswitchinterval(interval)
