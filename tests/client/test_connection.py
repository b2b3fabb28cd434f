"""One connection under many threads: who reads, who waits, and what goes wrong on the way."""

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

from .servers import Caller, Request, Script, ScriptedServer, frame_to


def later(seconds: float = TIMEOUT_S) -> float:
    return time.monotonic() + seconds


def append(number: int) -> ClientCall[int]:
    """An append that a scripted server answers with this number."""
    return calls.append_message("s", str(number).encode())


def number_of(request: Request) -> int:
    return int(request.fields["payload"])


def answer(caller: Caller, request: Request) -> None:
    caller.answer(request, sequenceNumber=number_of(request))


def serve_appends(caller: Caller) -> None:
    while True:
        answer(caller, caller.take())


def greeting(script: Script) -> Script:
    """A script that begins behind the handshake."""

    def run(caller: Caller) -> None:
        caller.greet()
        script(caller)

    return run


@contextmanager
def connected_to(script: Script) -> Iterator[Connection]:
    """A connection to a server that follows a script behind the handshake."""
    with ScriptedServer(greeting(script)) as server:
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
    """A thread that reads from the connection, for itself and others."""
    future = pool.submit(connection.call, call, later())
    wait_until(lambda: connection._reader)
    return future


def start_sleeper(
    pool: ThreadPoolExecutor, connection: Connection, call: ClientCall[int]
) -> Future[int]:
    """A thread that waits while another one reads."""
    before = len(connection._sleepers)
    future = pool.submit(connection.call, call, later())
    wait_until(lambda: len(connection._sleepers) > before)
    return future


# Threads


def test_answers_in_any_order_go_to_the_threads_that_asked(pool: ThreadPoolExecutor) -> None:
    def script(caller: Caller) -> None:
        requests = [caller.take() for _ in range(50)]
        for request in reversed(requests):
            answer(caller, request)

    with connected_to(script) as connection:
        futures = [pool.submit(connection.call, append(n), later()) for n in range(50)]

        assert [future.result() for future in futures] == list(range(50))


def test_no_thread_is_started() -> None:
    with connected_to(serve_appends) as connection:
        before = set(threading.enumerate())
        assert connection.call(append(1), later()) == 1
        assert set(threading.enumerate()) <= before


def test_one_who_has_its_answer_leaves_the_reading_to_another(pool: ThreadPoolExecutor) -> None:
    may_answer = threading.Event()

    def script(caller: Caller) -> None:
        first, second = caller.take(), caller.take()
        answer(caller, first)
        may_answer.wait(TIMEOUT_S)
        answer(caller, second)

    with connected_to(script) as connection:
        # Held back, so that both have asked before the first is answered.
        reader = start_reader(pool, connection, append(1))
        sleeper = pool.submit(connection.call, append(2), later())
        assert reader.result() == 1
        may_answer.set()
        assert sleeper.result(TIMEOUT_S / 2) == 2


def test_one_whose_time_is_up_leaves_the_reading_to_another(pool: ThreadPoolExecutor) -> None:
    may_answer = threading.Event()

    def script(caller: Caller) -> None:
        caller.take()
        second = caller.take()
        may_answer.wait(TIMEOUT_S)
        answer(caller, second)

    with connected_to(script) as connection:
        reader = pool.submit(connection.call, append(1), later(0.2))
        wait_until(lambda: connection._reader)
        sleeper = start_sleeper(pool, connection, append(2))
        with pytest.raises(RequestTimeoutException):
            reader.result()
        may_answer.set()
        assert sleeper.result(TIMEOUT_S / 2) == 2


def test_one_that_waits_for_another_to_read_gives_up_in_time_too(pool: ThreadPoolExecutor) -> None:
    may_answer = threading.Event()

    def script(caller: Caller) -> None:
        first = caller.take()
        caller.take()
        may_answer.wait(TIMEOUT_S)
        answer(caller, first)

    with connected_to(script) as connection:
        reader = start_reader(pool, connection, append(1))
        with pytest.raises(RequestTimeoutException):
            connection.call(append(2), later(0.2))
        may_answer.set()
        assert reader.result() == 1


def test_several_requests_are_sent_before_the_first_answer() -> None:
    def script(caller: Caller) -> None:
        for request in [caller.take() for _ in range(100)]:
            answer(caller, request)

    with connected_to(script) as connection:
        sent = connection.send([append(n) for n in range(100)], later())

        assert [connection.finish(pending, later()) for pending in sent] == list(range(100))


def test_those_that_were_answered_before_the_end_have_their_answers() -> None:
    def script(caller: Caller) -> None:
        for request in [caller.take() for _ in range(10)][:4]:
            answer(caller, request)

    with connected_to(script) as connection:
        sent = connection.send([append(n) for n in range(10)], later())

        assert [connection.finish(pending, later()) for pending in sent[:4]] == [0, 1, 2, 3]
        for pending in sent[4:]:
            with pytest.raises(ConnectionLostException):
                connection.finish(pending, later())


# Interrupts


class Interrupt(Exception):
    """What the handler of a signal raises."""


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
    """To the main thread, which is the one that runs handlers."""
    wait_until(condition)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def interrupt() -> None:
    raise Interrupt


def test_one_that_is_interrupted_lets_nobody_wait_in_vain(pool: ThreadPoolExecutor) -> None:
    """Bytes may be missing, and so the connection is lost; those who wait learn it at once."""
    with connected_to(Caller.wait_for_end) as connection, on_signal(interrupt):

        def wait_beside() -> int:
            wait_until(lambda: connection._reader)
            pool.submit(send_signal_when, lambda: connection._sleepers)
            return connection.call(append(2), later())

        beside = pool.submit(wait_beside)
        with pytest.raises(Interrupt):
            connection.call(append(1), later())

        with pytest.raises(ConnectionLostException):
            beside.result(TIMEOUT_S / 2)
        assert not connection.is_usable()


def test_a_timeout_of_somebody_elses_is_passed_on(pool: ThreadPoolExecutor) -> None:
    def give_up() -> None:
        raise TimeoutError("the program's own")

    def script(caller: Caller) -> None:
        caller.take()
        serve_appends(caller)

    with connected_to(script) as connection, on_signal(give_up):
        pool.submit(send_signal_when, lambda: connection._reader)
        with pytest.raises(TimeoutError, match="the program's own"):
            connection.call(append(1), later())


def test_a_thread_that_is_struck_between_taking_bytes_and_using_them_loses_the_connection() -> None:
    """Those bytes are gone, and what follows them makes no sense."""
    with connected_to(serve_appends) as connection:
        receive = connection._protocol.receive

        def receive_late(data: bytes) -> Any:
            connection._protocol.receive = receive  # type: ignore[method-assign] # once
            raise Interrupt

        connection._protocol.receive = receive_late  # type: ignore[method-assign] # see above

        with pytest.raises(Interrupt):
            connection.call(append(1), later())
        assert not connection.is_usable()


def test_the_handler_of_a_signal_may_close_what_it_interrupts(pool: ThreadPoolExecutor) -> None:
    with connected_to(Caller.wait_for_end) as connection, on_signal(connection.close):
        pool.submit(send_signal_when, lambda: connection._reader)

        with pytest.raises(ConnectionLostException):
            connection.call(append(1), later())

        assert connection._transport._socket.fileno() == -1


# The end


def test_the_end_of_a_connection_wakes_all_who_wait(pool: ThreadPoolExecutor) -> None:
    def script(caller: Caller) -> None:
        for _ in range(10):
            caller.take()

    with connected_to(script) as connection:
        futures = [pool.submit(connection.call, append(n), later()) for n in range(10)]

        for future in futures:
            with pytest.raises(ConnectionLostException):
                future.result(TIMEOUT_S / 2)
        assert not connection.is_usable()
        with pytest.raises(NotSentError):
            connection.call(append(1), later())


def test_a_close_wakes_all_who_wait_and_then_nothing_is_open(pool: ThreadPoolExecutor) -> None:
    with connected_to(Caller.wait_for_end) as connection:
        reader = start_reader(pool, connection, append(1))
        sleepers = [start_sleeper(pool, connection, append(n)) for n in range(2, 5)]

        connection.close()

        for future in (reader, *sleepers):
            with pytest.raises(ConnectionLostException):
                future.result(TIMEOUT_S / 2)
        assert connection._transport._socket.fileno() == -1


def test_a_close_wakes_one_that_cannot_send(pool: ThreadPoolExecutor) -> None:
    is_over = threading.Event()
    with connected_to(lambda _: is_over.wait(TIMEOUT_S)) as connection:
        sender = pool.submit(
            connection.call, calls.append_message("s", bytes(64 * MEBIBYTE)), later()
        )
        wait_until(connection._sending.locked)

        connection.close()

        with pytest.raises(NotSentError):
            sender.result(TIMEOUT_S / 2)
        assert connection._transport._socket.fileno() == -1
        is_over.set()


def test_a_close_may_come_twice() -> None:
    with connected_to(serve_appends) as connection:
        connection.close()
        connection.close()
        assert not connection.is_usable()


def test_a_connection_that_was_closed_leaves_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with connected_to(serve_appends) as connection:
            connection.call(append(1), later())
        del connection
        gc.collect()


def test_the_end_while_nobody_asks_is_noticed_before_the_next_request() -> None:
    with connected_to(lambda caller: answer(caller, caller.take())) as connection:
        assert connection.call(append(1), later()) == 1

        wait_until(lambda: not connection.is_usable())


def test_a_child_process_leaves_the_connection_to_its_parent() -> None:
    with connected_to(serve_appends) as connection:
        assert connection.call(append(1), later()) == 1
        child = os.fork()
        if child == 0:
            # Not even a close in the child ends it.
            is_usable = connection.is_usable()
            connection.close()
            os._exit(17 if is_usable else 0)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert connection.call(append(2), later()) == 2


# Sending


def test_a_request_that_cannot_leave_in_time_was_not_sent() -> None:
    is_over = threading.Event()
    with connected_to(lambda _: is_over.wait(TIMEOUT_S)) as connection:
        call = calls.append_message("s", bytes(64 * MEBIBYTE))

        with pytest.raises(NotSentError, match="takes no more"):
            connection.call(call, later(0.2))

        # A part of it has left: nothing can follow.
        assert not connection.is_usable()
        is_over.set()


def test_a_request_is_sent_to_a_server_that_must_first_get_rid_of_an_answer() -> None:
    """Nobody waits for that answer any more, and so nobody reads while the request is sent."""
    has_given_up = threading.Event()

    def script(caller: Caller) -> None:
        late = caller.take()
        has_given_up.wait(TIMEOUT_S)
        caller.answer(late, messages=[], padding=bytes(64 * MEBIBYTE))
        caller.answer(caller.take(), sequenceNumber=7)

    with connected_to(script) as connection:
        with pytest.raises(RequestTimeoutException):
            connection.call(calls.read_messages("s", None, 1), later(0.1))
        has_given_up.set()

        assert connection.call(calls.append_message("s", bytes(64 * MEBIBYTE)), later()) == 7


def test_an_answer_that_comes_instead_of_the_end_of_a_request_is_the_answer() -> None:
    """So a server refuses what is too large for it, and hangs up."""

    def script(caller: Caller) -> None:
        caller.take_bytes(HEADER.size)
        caller.say(
            encode_frame(
                Operation.AppendMessageResponse,
                b"\xa3irequestIdh00000001fstatus\x03lerrorMessageitoo large",
            )
        )

    with connected_to(script) as connection:
        call = calls.append_message("s", bytes(64 * MEBIBYTE))

        with pytest.raises(InvalidRequestException, match="too large"):
            connection.call(call, later())


def test_one_that_sends_what_is_large_holds_up_nobody_who_waits(pool: ThreadPoolExecutor) -> None:
    def script(caller: Caller) -> None:
        first = caller.take()
        # The second has begun: the first is answered while it is still being sent.
        caller.take_bytes(1)
        answer(caller, first)

    with connected_to(script) as connection:
        waiting = start_reader(pool, connection, append(1))
        sending = pool.submit(
            connection.call, calls.append_message("s", bytes(64 * MEBIBYTE)), later()
        )

        assert waiting.result(TIMEOUT_S / 2) == 1
        with pytest.raises((ConnectionLostException, NotSentError)):
            sending.result(TIMEOUT_S / 2)


# Answers that come late, twice, for nobody, or are none


def test_a_slow_answer_within_the_time_is_an_answer() -> None:
    may_answer = threading.Event()

    def script(caller: Caller) -> None:
        request = caller.take()
        may_answer.wait(TIMEOUT_S)
        answer(caller, request)

    with connected_to(script) as connection:
        # Longer than the tick after which the kernel wakes a thread.
        threading.Timer(1.2, may_answer.set).start()
        assert connection.call(append(1), later()) == 1


def test_a_late_answer_is_passed_over_and_the_connection_goes_on() -> None:
    def script(caller: Caller) -> None:
        late, request = caller.take(), caller.take()
        answer(caller, late)
        answer(caller, request)
        serve_appends(caller)

    with connected_to(script) as connection:
        with pytest.raises(RequestTimeoutException, match="AppendMessage was not answered in time"):
            connection.call(append(1), later(0.1))

        assert connection.call(append(2), later()) == 2
        assert connection.call(append(3), later()) == 3


@pytest.mark.parametrize(
    "nonsense",
    [
        frame_to(Request(Operation.AppendMessage, {"requestId": "nobody"}), sequenceNumber=9),
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
def test_what_is_an_answer_to_nothing_is_passed_over(nonsense: bytes) -> None:
    def script(caller: Caller) -> None:
        request = caller.take()
        caller.say(nonsense)
        answer(caller, request)
        serve_appends(caller)

    with connected_to(script) as connection:
        assert connection.call(append(1), later()) == 1
        assert connection.call(append(2), later()) == 2


@pytest.mark.parametrize(
    "nonsense",
    [
        encode_frame(Operation.AppendMessageResponse, b"\xa4irequestId"),
        encode_frame(
            Operation.AppendMessageResponse,
            b"\xa4irequestIda\xfffstatus\x00lerrorMessage`nsequenceNumber\x00",
        ),
    ],
)
def test_what_is_nearly_the_answer_to_an_append_is_passed_over(nonsense: bytes) -> None:
    def script(caller: Caller) -> None:
        request = caller.take()
        caller.say(nonsense)
        answer(caller, request)

    with connected_to(script) as connection:
        assert connection.call(append(1), later()) == 1


def test_a_second_answer_to_the_same_request_is_passed_over() -> None:
    def script(caller: Caller) -> None:
        while True:
            request = caller.take()
            answer(caller, request)
            caller.answer(request, sequenceNumber=999)

    with connected_to(script) as connection:
        assert [connection.call(append(n), later()) for n in range(5)] == list(range(5))


@pytest.mark.parametrize("length", [0, -1, (1 << 30) + 1, -(1 << 31)])
def test_a_length_that_makes_no_sense_is_the_end(length: int) -> None:
    def script(caller: Caller) -> None:
        caller.take()
        caller.say(HEADER.pack(length, Operation.AppendMessageResponse))
        caller.wait_for_end()

    with connected_to(script) as connection:
        with pytest.raises(ConnectionLostException, match="may have been carried out"):
            connection.call(append(1), later())
        assert not connection.is_usable()


def test_the_end_in_the_middle_of_an_answer_is_a_lost_connection() -> None:
    def script(caller: Caller) -> None:
        caller.say(frame_to(caller.take(), sequenceNumber=1)[:-1])

    with connected_to(script) as connection, pytest.raises(ConnectionLostException):
        connection.call(append(1), later())


def test_answers_may_come_byte_by_byte() -> None:
    def script(caller: Caller) -> None:
        while True:
            for byte in frame_to(caller.take(), sequenceNumber=70_000):
                caller.say(bytes((byte,)))

    with connected_to(script) as connection:
        assert connection.call(append(1), later()) == 70_000
        assert connection.call(append(2), later()) == 70_000


def test_an_answer_may_be_large(pool: ThreadPoolExecutor) -> None:
    payload = os.urandom(MEBIBYTE) * 40
    message = {"streamName": "s", "sequenceNumber": 3, "ingestTime": 4, "payload": payload}

    def script(caller: Caller) -> None:
        reading, appending = sorted(
            (caller.take(), caller.take()), key=lambda request: -request.operation
        )
        caller.say(frame_to(reading, messages=[message]) + frame_to(appending, sequenceNumber=1))

    with connected_to(script) as connection:
        reader = pool.submit(connection.call, calls.read_messages("s", None, 1), later())

        assert connection.call(append(1), later()) == 1
        assert reader.result() == [Message("s", 3, 4, payload)]


# Answers that are answers, and strange


def ask(call: ClientCall[Any], **fields: Any) -> Any:
    """What comes of an answer with these fields."""
    with connected_to(lambda caller: caller.answer(caller.take(), **fields)) as connection:
        return connection.call(call, later())


def test_a_status_that_is_not_known_is_told() -> None:
    with pytest.raises(StreamManagerException, match=r"status 99.*: it rains") as caught:
        ask(append(1), status=99, errorMessage="it rains")

    assert caught.value.status == 99


@pytest.mark.parametrize("status", [None, "0", [], -1, 1.5])
def test_a_status_that_is_none_is_told(status: object) -> None:
    with pytest.raises(StreamManagerException, match="status"):
        ask(append(1), status=status, sequenceNumber=1)


def test_an_answer_of_another_operation_is_told() -> None:
    with pytest.raises(
        ClientException, match=r"answered AppendMessage with operation 10|ReadMessagesResponse"
    ):
        ask(append(1), operation=Operation.ReadMessagesResponse)


def test_a_failure_is_the_exception_of_its_status() -> None:
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
def test_an_answer_that_cannot_be_understood_is_told(
    call: ClientCall[Any], fields: dict[str, Any]
) -> None:
    with pytest.raises(ClientException, match="cannot be understood"):
        ask(call, **fields)


# The handshake


def open_to(script: Script, request_timeout: float = TIMEOUT_S) -> None:
    with ScriptedServer(script) as server:
        Connection.open(server.endpoint, TIMEOUT_S, request_timeout).close()


def test_a_server_says_what_it_is() -> None:
    with connected_to(serve_appends) as connection:
        assert connection.server.protocol_version == "1.1.0"
        assert connection.server.has_extensions is False


def test_what_is_no_stream_manager_is_told() -> None:
    with pytest.raises(ConnectFailedException, match="no stream manager"):
        open_to(lambda caller: caller.say(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


def test_a_server_that_hangs_up_in_the_handshake_is_told() -> None:
    with pytest.raises(ConnectFailedException, match="closed the connection") as caught:
        open_to(lambda caller: (caller.take_bytes(1), caller.take()))

    assert caught.value.status is ResponseStatusCode.FailedToConnect


def test_a_server_that_does_not_answer_the_handshake_is_given_up_in_time() -> None:
    with pytest.raises(TimeoutError):
        open_to(Caller.wait_for_end, request_timeout=0.2)


@pytest.mark.parametrize(
    "fields", [{"penstockExtensions": "yes"}, {"penstockExtensions": 1, "maxFrameBytes": "many"}]
)
def test_a_handshake_that_cannot_be_understood_is_a_refusal(fields: dict[str, Any]) -> None:
    with pytest.raises(ConnectFailedException):
        open_to(lambda caller: caller.greet(**fields))


class _Turns(dict[str, Any]):
    """Whose turn it is to read. After each look, something else happens."""

    def __init__(self, turns: dict[str, Any], happens: Callable[[], object]) -> None:
        super().__init__(turns)
        self._happens = happens

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        self._happens()
        return found


def test_the_turn_of_a_reader_is_not_ended_because_the_one_before_it_is_gone() -> None:
    with connected_to(serve_appends) as connection:
        former = [SentCall(append(1), "1")]
        current = SentCall(append(2), "2")
        turn = weakref.ref(current)

        def pass_on() -> None:
            """The former reader ends its turn and is gone, and another thread begins to read."""
            if former:
                former.clear()
                turns["reader"] = turn

        turns = _Turns({"reader": weakref.ref(former[0])}, pass_on)
        connection._reader = turns
        connection._free_turn()

        assert dict(turns) == {"reader": turn}
        turns.clear()


def test_many_threads_share_a_connection() -> None:
    def ask(first: int) -> list[int]:
        return [connection.call(append(number), later()) for number in range(first, first + 300)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with connected_to(serve_appends) as connection, ThreadPoolExecutor(12) as threads:
            results = threads.map(ask, range(0, 3600, 300))
            assert sorted(itertools.chain(*results)) == list(range(3600))
    finally:
        sys.setswitchinterval(interval)
