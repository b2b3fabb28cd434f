"""Peers that do not read their answers, and the memory that all answers share."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from penstock.broker.answering import answer_in_room
from penstock.broker.memory import SMALL_ANSWER_BYTES, AnswerMemory, AnswerRoom
from penstock.errors import ResponseStatusCode, ServerOutOfMemoryException, StreamManagerException
from penstock.wire.operations import Operation
from tests.client.servers import Certificates, make_certificates
from tests.support import (
    MEBIBYTE,
    PROMPT_S,
    TIMEOUT_S,
    LocalBroker,
    Peer,
    append,
    create,
    frame,
    read,
    wait_until,
)

LIMIT = 8 * MEBIBYTE
LARGE_BYTES = 32 * 1024
LARGE_MESSAGES = 768

ALL_MESSAGES = {"maxMessageCount": 2**31 - 1}
REQUESTS = {
    "large reads": frame(
        Operation.ReadMessages, streamName="large", readMessagesOptions=ALL_MESSAGES
    ),
    "columns": frame(
        Operation.ReadColumns,
        name="large",
        firstSequenceNumber=0,
        endSequenceNumber=1000,
        maxBytes=4 * MEBIBYTE,
        readTimeoutMillis=0,
    ),
    "stored messages": frame(
        Operation.ReadStored,
        name="large",
        firstSequenceNumber=0,
        endSequenceNumber=1000,
        maxBytes=4 * MEBIBYTE,
    ),
    "small reads": frame(Operation.ReadMessages, streamName="medium"),
}

SOME_KINDS = ("large reads", "small reads")


class TightBroker(LocalBroker):
    """A broker with little memory for answers, and three kinds of listeners."""

    def __init__(self, root: Path, certificates: Certificates) -> None:
        self.context = certificates.client_context()
        self.socket_path = str(root.with_name("socket"))
        super().__init__(
            root,
            max_unsent_response_bytes=LIMIT,
            unix_socket=self.socket_path,
            local_port=0,
            tls_certificate=str(certificates.certificate),
            tls_key=str(certificates.key),
        )

    def open(self, transport: str) -> Peer:
        """A connected peer with a small receive buffer."""
        if transport == "unix":
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(TIMEOUT_S)
            connection.connect(self.socket_path)
        else:
            connection = socket.socket()
            connection.settimeout(TIMEOUT_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", self.tls_port if transport == "tls" else self.port))
            if transport == "tls":
                connection = self.context.wrap_socket(connection, server_hostname="127.0.0.1")
        peer = Peer(connection)
        assert peer.introduce(self.token, penstockExtensions=1)["status"] == 0
        return peer

    def __enter__(self) -> Self:
        super().__enter__()
        self.tls_port = self.port
        self.port = self.broker.local_port or 0
        return self

    @property
    def answers(self) -> AnswerMemory:
        return self.broker.answers

    def unsent_bytes(self) -> int:
        """The unsent bytes of all sessions and their transports."""
        return self.run(
            lambda: sum(
                session._unsent_bytes + session._transport.get_write_buffer_size()
                for session in self.broker._sessions
            )
        )

    def paused_sessions(self) -> int:
        return self.run(lambda: sum(each._writing_is_paused for each in self.broker._sessions))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[TightBroker]:
    with TightBroker(tmp_path_factory.mktemp("answering") / "root", certificates) as broker:
        with broker.connect() as client:
            create(client, "work")
            create(client, "medium")
            append(client, "medium", bytes(20 * 1024))
            create(client, "large")
            for _ in range(LARGE_MESSAGES // 128):
                client.append_many("large", [b"x" * LARGE_BYTES] * 128)
        yield broker


def others_are_served(broker: TightBroker) -> None:
    """Appends, reads one message, and reads many messages with another client."""
    with broker.connect() as client:
        for _ in range(5):
            began = time.monotonic()
            number = append(client, "work", b"a message")
            (message,) = read(client, "work", desiredStartSequenceNumber=number)
            assert message["payload"] == b"a message"
            assert read(client, "large", **ALL_MESSAGES)
            assert time.monotonic() - began < PROMPT_S


@pytest.mark.parametrize(
    ("transport", "kind"),
    [
        *(("tcp", kind) for kind in REQUESTS),
        *((transport, kind) for transport in ("tls", "unix") for kind in SOME_KINDS),
    ],
)
def test_unsent_answers_are_bounded_and_others_are_served(
    broker: TightBroker, transport: str, kind: str
) -> None:
    peers = 12
    with ExitStack() as opened:
        for _ in range(peers):
            peer = opened.enter_context(broker.open(transport))
            # More than the buffers of the system.
            peer.say(REQUESTS[kind] * 400)
        wait_until(lambda: broker.paused_sessions() == peers)

        for _ in range(3):
            others_are_served(broker)
            assert broker.unsent_bytes() <= LIMIT + 2 * peers * SMALL_ANSWER_BYTES

    wait_until(lambda: broker.run(lambda: broker.answers.used) == 0)
    with broker.connect() as client:
        assert len(read(client, "large", **ALL_MESSAGES)) * LARGE_BYTES > LIMIT // 4


def test_read_whose_minimum_does_not_fit_waits_for_memory(broker: TightBroker) -> None:
    minimum = LIMIT // LARGE_BYTES
    whole = frame(
        Operation.ReadMessages,
        streamName="large",
        readMessagesOptions={"minMessageCount": minimum, "maxMessageCount": minimum},
    )
    with broker.open("tcp") as hung, broker.open("tcp") as waiting:
        hung.say(REQUESTS["large reads"])
        wait_until(lambda: broker.paused_sessions() == 1)
        waiting.say(whole)
        wait_until(lambda: broker.run(lambda: broker.answers.waiting) == 1)

        # Its connection and other connections handle requests in the meantime.
        assert waiting.ask(Operation.DescribeMessageStream, name="work")[1]["status"] == 0
        others_are_served(broker)

        hung.close()
        assert len(waiting.take_answer()[1]["messages"]) == minimum
    wait_until(lambda: broker.run(lambda: broker.answers.used) == 0)


def test_read_whose_messages_are_evicted_while_it_waits_for_memory_fails(
    broker: TightBroker,
) -> None:
    minimum = LIMIT // LARGE_BYTES
    with broker.connect() as client:
        create(client, "shrinking", maxSize=16 * MEBIBYTE, streamSegmentSize=MEBIBYTE)
        client.append_many("shrinking", [b"x" * LARGE_BYTES] * minimum)
        with broker.open("tcp") as hung, broker.open("tcp") as waiting:
            hung.say(REQUESTS["large reads"])
            wait_until(lambda: broker.paused_sessions() == 1)
            options = {"minMessageCount": minimum}
            waiting.say(
                frame(Operation.ReadMessages, streamName="shrinking", readMessagesOptions=options)
            )
            wait_until(lambda: broker.run(lambda: broker.answers.waiting) == 1)

            append(client, "shrinking", bytes(15 * MEBIBYTE))
            hung.close()

            answer = waiting.take_answer()[1]
            assert answer["status"] == ResponseStatusCode.NotEnoughMessages
        wait_until(lambda: broker.run(lambda: broker.answers.used) == 0)


def test_wait_for_memory_ends_when_the_connection_is_lost(broker: TightBroker) -> None:
    options = {"minMessageCount": LIMIT // LARGE_BYTES}
    with broker.open("tcp") as hung:
        hung.say(REQUESTS["large reads"])
        wait_until(lambda: broker.paused_sessions() == 1)
        with broker.open("tcp") as waiting:
            waiting.say(
                frame(Operation.ReadMessages, streamName="large", readMessagesOptions=options)
            )
            wait_until(lambda: broker.run(lambda: broker.answers.waiting) == 1)

        wait_until(lambda: broker.run(lambda: broker.answers.waiting) == 0)


def test_single_read_larger_than_the_budget_is_answered(broker: TightBroker) -> None:
    with broker.open("tcp") as peer:
        options = {"minMessageCount": LARGE_MESSAGES, "maxMessageCount": LARGE_MESSAGES}

        _, answer = peer.ask(
            Operation.ReadMessages, streamName="large", readMessagesOptions=options
        )

        assert LARGE_MESSAGES * LARGE_BYTES > LIMIT
        numbers = [message["sequenceNumber"] for message in answer["messages"]]
        assert numbers == list(range(LARGE_MESSAGES))


def test_slow_reader_receives_all_bytes_in_order(broker: TightBroker) -> None:
    """Answers in pieces, mixed with small answers, arrive complete and in order."""
    for transport in ("tcp", "tls", "unix"):
        with broker.open(transport) as peer:
            describe = frame(Operation.DescribeMessageStream, name="large")
            large, columns = REQUESTS["large reads"], REQUESTS["columns"]
            peer.say(large * 3 + describe + columns * 3 + describe)
            wait_until(lambda: broker.paused_sessions() == 1)

            answers = [peer.take_answer() for _ in range(8)]

            assert [operation for operation, _ in answers] == [
                *[Operation.ReadMessagesResponse] * 3,
                Operation.DescribeMessageStreamResponse,
                *[Operation.ReadColumnsResponse] * 3,
                Operation.DescribeMessageStreamResponse,
            ]
            for _, answer in answers[:3]:
                for message in answer["messages"]:
                    assert message["payload"] == b"x" * LARGE_BYTES


class LateCall:
    """A call whose deadline has passed."""

    def __init__(self) -> None:
        self.answer_by = 0.0
        self.failed = asyncio.get_running_loop().create_future()

    def fail(self, error: StreamManagerException) -> None:
        self.failed.set_result(error)

    def work(self, steps: Iterator[None]) -> None:
        raise AssertionError("there is no memory")

    def on_close(self, cancel: Callable[[], object]) -> None: ...


def test_read_without_memory_fails_before_the_client_times_out() -> None:
    async def wait_for_memory() -> None:
        memory = AnswerMemory(LIMIT)
        assert memory.open().grow(LIMIT, is_needed=True)
        call = LateCall()

        def build(room: AnswerRoom) -> Iterator[None]:
            room.require(MEBIBYTE)
            yield from ()

        for _ in answer_in_room(call, memory, build):
            pass
        assert memory.waiting == 1
        error = await asyncio.wait_for(call.failed, TIMEOUT_S)

        assert isinstance(error, ServerOutOfMemoryException)
        assert "max_unsent_response_bytes" in error.message
        assert (memory.waiting, memory.used) == (0, LIMIT)

    asyncio.run(wait_for_memory())
