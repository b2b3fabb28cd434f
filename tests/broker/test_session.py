"""Slow, faulty and hostile peers, while another client works."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cbor2
import pytest

from penstock.broker.access import Access, Role
from penstock.broker.session import Session, SessionState, measure_unsent
from penstock.errors import ResponseStatusCode, UnauthorizedException
from penstock.store.rows import TokenRow
from penstock.wire.frames import LENGTH, MAX_FRAME_BYTES, encode_frame
from penstock.wire.operations import RESPONSE_TO, Operation
from tests.raw_connection import RawConnection
from tests.support import (
    MEBIBYTE,
    PROMPT_S,
    TIMEOUT_S,
    BrokerProcess,
    Json,
    LocalBroker,
    Peer,
    append,
    append_frame,
    connect_frame,
    create,
    frame,
    read,
    running,
    wait_until,
)

Status = ResponseStatusCode


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path_factory.mktemp("session") / "root",
        PENSTOCK_MAX_RESPONSE_BYTES=str(4 * MEBIBYTE),
    ) as broker:
        with broker.connect() as client:
            create(client, "work")
            create(client, "quiet")
        yield broker


@pytest.fixture(scope="module")
def short_timeout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a handshake timeout that is just long enough for a busy machine."""
    root = tmp_path_factory.mktemp("short_timeout") / "root"
    with BrokerProcess(root, PENSTOCK_HANDSHAKE_TIMEOUT_MS="3000") as broker:
        with broker.connect() as client:
            create(client, "work")
        yield broker


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalBroker]:
    """A broker in this process, with little memory for large frames."""
    with LocalBroker(tmp_path / "root", max_frame_bytes=4 * MEBIBYTE) as broker:
        with broker.connect() as client:
            create(client, "work")
        yield broker


def check_others_are_served(broker: BrokerProcess | LocalBroker, calls: int = 10) -> None:
    """Appends and reads with another client, and checks that each answer is prompt."""
    with broker.connect() as client:
        for _ in range(calls):
            began = time.monotonic()
            number = append(client, "work", b"a message")
            (message,) = read(client, "work", desiredStartSequenceNumber=number)
            assert message["payload"] == b"a message"
            assert time.monotonic() - began < PROMPT_S


def is_closed(peer: Peer) -> bool:
    """Whether the broker closed the connection without sending more."""
    return peer.take_rest() == b""


def waiting_reads(client: RawConnection, name: str) -> int:
    streams = client.call(Operation.Statistics)["statistics"]["streams"]
    return sum(stream["waitingReads"] for stream in streams if stream["name"] == name)


def session_of(local: LocalBroker, peer: Peer) -> Session:
    port = peer.socket.getsockname()[1]
    (session,) = (found for found in local.sessions if found.peer.endswith(f":{port}"))
    return session


def check_timeouts(local: LocalBroker, session: Session, now: float) -> None:
    local.run(lambda: session.check_timeouts(now))


# The handshake


@pytest.mark.parametrize(
    ("said", "status", "request_id"),
    [
        (b"\x00", Status.UnsupportedConnectVersion, "unknown"),
        (b"\x02", Status.UnsupportedConnectVersion, "unknown"),
        (b"GET / HTTP/1.1\r\n\r\n", Status.UnsupportedConnectVersion, "unknown"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", Status.UnsupportedConnectVersion, "unknown"),
        (b"\x01GET / HTTP/1.1\r\n\r\n", Status.InvalidRequest, "unknown"),
        (b"\x01" + LENGTH.pack(65_537) + b"\x01", Status.InvalidRequest, "unknown"),
        (b"\x01" + LENGTH.pack(2**31 - 1) + b"\x01", Status.InvalidRequest, "unknown"),
        (b"\x01" + LENGTH.pack(-1) + b"\x01", Status.InvalidRequest, "unknown"),
        (b"\x01" + LENGTH.pack(0) + b"\x01", Status.InvalidRequest, "unknown"),
        (b"\x01" + frame(Operation.ListStreams), Status.UnexpectedOperation, "r"),
        (b"\x01" + frame(99), Status.UnexpectedOperation, "r"),
        (b"\x01" + encode_frame(1, b""), Status.InvalidRequest, "unknown"),
        (b"\x01" + encode_frame(1, b"\xff" * 100), Status.InvalidRequest, "unknown"),
        (b"\x01" + encode_frame(1, b"\xa1irequestIdar" + b"\x81" * 99), Status.InvalidRequest, "r"),
        (b"\x01" + encode_frame(1, cbor2.dumps({})), Status.InvalidRequest, "unknown"),
        (b"\x01" + frame(Operation.Connect), Status.InvalidRequest, "r"),
        (b"\x01" + connect_frame("t", protocolVersion=1), Status.InvalidRequest, "r"),
        (b"\x01" + connect_frame("t", protocolVersion="x"), Status.InvalidProtocolVersion, "r"),
        (
            b"\x01"
            + connect_frame("t", protocolVersion="3.0.0", otherSupportedProtocolVersions=[]),
            Status.UnsupportedProtocolVersion,
            "r",
        ),
        (b"\x01" + connect_frame("wrong"), Status.Unauthorized, "r"),
        (b"\x01" + connect_frame(), Status.Unauthorized, "r"),
        (b"\x01" + connect_frame(authToken=""), Status.Unauthorized, "r"),
        (b"\x01" + connect_frame(authToken=5), Status.InvalidRequest, "r"),
    ],
)
def test_invalid_handshake_is_answered_and_closed(
    broker: BrokerProcess, said: bytes, status: ResponseStatusCode, request_id: str
) -> None:
    with broker.reach() as peer:
        peer.say(said)

        answer = peer.take_connect_answer()

        assert (answer["status"], answer["requestId"]) == (status, request_id)
        assert answer["errorMessage"]
        assert is_closed(peer)
    check_others_are_served(broker, calls=1)


def test_requests_may_be_sent_together_with_the_handshake(
    broker: BrokerProcess,
) -> None:
    with broker.reach() as peer:
        peer.say(b"\x01" + connect_frame(broker.token) + frame(Operation.ListStreams) * 3)

        assert peer.take_connect_answer()["status"] == 0
        assert [peer.take_answer()[1]["status"] for _ in range(3)] == [0, 0, 0]


def test_handshake_may_arrive_byte_by_byte(broker: BrokerProcess) -> None:
    with broker.reach() as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"\x01" + connect_frame(broker.token) + frame(Operation.ListStreams):
            peer.say(bytes((byte,)))

        assert peer.take_connect_answer()["status"] == 0
        assert peer.take_answer()[1]["status"] == 0


def test_second_handshake_is_an_unknown_operation(broker: BrokerProcess) -> None:
    with broker.meet() as peer:
        operation, answer = peer.ask(Operation.Connect, protocolVersion="1.1.0")

        assert (operation, answer["status"]) == (17, Status.UnknownOperation)
        assert peer.ask(Operation.ListStreams)[1]["status"] == 0


def test_missing_handshake_times_out(short_timeout: BrokerProcess) -> None:
    with (
        short_timeout.reach() as silent,
        short_timeout.reach() as short,
        short_timeout.reach() as unfinished,
    ):
        short.say(b"\x01")
        unfinished.say(b"\x01" + connect_frame("t")[:-1])
        check_others_are_served(short_timeout, calls=1)

        for peer in (silent, short, unfinished):
            assert peer.take_connect_answer()["status"] == Status.ServerTimeout
            assert is_closed(peer)


def test_slow_handshake_times_out(short_timeout: BrokerProcess) -> None:
    with short_timeout.reach() as peer:
        # A byte every 20 ms: the whole handshake would take minutes.
        peer.socket.settimeout(0.02)
        for byte in b"\x01" + connect_frame(short_timeout.token) * 100:
            try:
                peer.say(bytes((byte,)))
                if peer.socket.recv(1, socket.MSG_PEEK) is not None:
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
        else:
            pytest.fail("the handshake does not time out")
        check_others_are_served(short_timeout, calls=1)


# External token verification


class StubVerifier:
    """Accepts one token, when the test lets it answer."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.calls = 0
        self.is_broken = False

    async def verify(self, secret: str) -> Access:
        self.calls += 1
        await self.may_answer.wait()
        if self.is_broken:
            raise RuntimeError("the verifier failed")
        if secret != "external":
            raise UnauthorizedException("unknown token")
        return Access(TokenRow("external", Role.admin, ("*",), 0))


@pytest.fixture
def verifier(local: LocalBroker) -> StubVerifier:
    verifier = StubVerifier()
    local.broker.authenticator.verifier = verifier
    return verifier


def test_handshake_is_answered_after_external_verification(
    local: LocalBroker, verifier: StubVerifier
) -> None:
    with local.reach() as peer, local.reach() as other:
        peer.say(b"\x01" + connect_frame("external") + frame(Operation.ListStreams) * 2)
        other.say(b"\x01" + connect_frame("wrong") + frame(Operation.ListStreams))
        wait_until(lambda: verifier.calls == 2)
        check_others_are_served(local, calls=1)
        # Requests that arrive during the verification wait too.
        peer.say(frame(Operation.ListStreams))

        local.run(verifier.may_answer.set)

        assert peer.take_connect_answer()["status"] == 0
        assert [peer.take_answer()[1]["status"] for _ in range(3)] == [0, 0, 0]
        answer = other.take_connect_answer()
        assert (answer["status"], answer["errorMessage"]) == (
            Status.Unauthorized,
            "unknown token",
        )
        assert is_closed(other)


def test_handshake_times_out_during_external_verification(
    local: LocalBroker, verifier: StubVerifier
) -> None:
    with local.reach() as peer:
        peer.say(b"\x01" + connect_frame("external"))
        wait_until(lambda: verifier.calls)
        session = session_of(local, peer)

        check_timeouts(local, session, local.loop.time() + 11)

        assert peer.take_connect_answer()["status"] == Status.ServerTimeout
        assert is_closed(peer)
        local.run(verifier.may_answer.set)
        check_others_are_served(local, calls=1)


def test_stop_does_not_wait_for_external_verification(
    local: LocalBroker, verifier: StubVerifier
) -> None:
    with local.reach() as peer:
        peer.say(b"\x01" + connect_frame("external"))
        wait_until(lambda: verifier.calls)

        local.stop()

        assert is_closed(peer)


def test_failed_verifier_closes_one_connection(local: LocalBroker, verifier: StubVerifier) -> None:
    verifier.is_broken = True
    with local.reach() as peer:
        peer.say(b"\x01" + connect_frame("external"))
        wait_until(lambda: verifier.calls)

        local.run(verifier.may_answer.set)

        answer = peer.take_connect_answer()
        assert (answer["status"], answer["errorMessage"]) == (
            Status.FailedToConnect,
            "the server failed to check the token",
        )
        assert is_closed(peer)
        check_others_are_served(local, calls=1)


# The state of a session


def test_state_follows_the_connection(local: LocalBroker, verifier: StubVerifier) -> None:
    with local.reach() as peer:
        wait_until(lambda: local.sessions)
        session = session_of(local, peer)
        states = [session.state]

        peer.say(b"\x01" + connect_frame("external"))
        wait_until(lambda: verifier.calls)
        states.append(session.state)

        local.run(verifier.may_answer.set)
        assert peer.take_connect_answer()["status"] == 0
        states.append(session.state)

        local.run(session.stop)
        states.append(session.state)

        local.run(session.finish)
        states.append(session.state)
        assert is_closed(peer)
    assert states == list(SessionState)


def test_stopping_session_answers_a_verified_handshake_but_no_request(
    local: LocalBroker, verifier: StubVerifier
) -> None:
    with local.reach() as peer:
        peer.say(b"\x01" + connect_frame("external") + frame(Operation.ListStreams))
        wait_until(lambda: verifier.calls)
        session = session_of(local, peer)
        local.run(session.stop)

        local.run(verifier.may_answer.set)

        assert peer.take_connect_answer()["status"] == 0
        assert session.state is SessionState.STOPPING
        local.run(session.finish)
        assert is_closed(peer)


def test_stop_does_not_reopen_a_closing_session(local: LocalBroker) -> None:
    with local.meet() as peer:
        session = session_of(local, peer)
        local.run(session.finish)

        local.run(session.stop)

        assert session.state is SessionState.CLOSING
        assert is_closed(peer)


# Invalid frames


@pytest.mark.parametrize("length", [0, -1, -(2**31)])
def test_invalid_frame_length_closes_the_connection(broker: BrokerProcess, length: int) -> None:
    with broker.meet() as peer:
        peer.say(LENGTH.pack(length) + b"\x0b" + b"rest")

        assert is_closed(peer)
    check_others_are_served(broker, calls=1)


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**31 - 1])
@pytest.mark.parametrize("operation", [Operation.AppendMessage, Operation.CreateMessageStream])
def test_oversized_frame_is_answered_before_the_close(
    broker: BrokerProcess, operation: Operation, length: int
) -> None:
    with broker.meet() as peer:
        peer.say(LENGTH.pack(length) + bytes((operation,)) + b"\xa3irequestIdclongdname")

        answered, answer = peer.take_answer()

        assert answered == RESPONSE_TO[operation]
        assert answer["requestId"] == "lon"
        assert answer["status"] == Status.RequestPayloadTooLarge
        assert is_closed(peer)


def test_oversized_frame_without_a_request_id_closes_the_connection(
    broker: BrokerProcess,
) -> None:
    with broker.meet() as peer:
        peer.say(LENGTH.pack(2**31 - 1) + b"\x04" + b"\xa1" * 600)

        assert is_closed(peer)
    check_others_are_served(broker, calls=1)


def test_complete_frame_above_the_configured_limit_is_answered(local: LocalBroker) -> None:
    with local.meet() as peer:
        peer.say(append_frame("work", bytes(3 * MEBIBYTE)))
        assert peer.take_answer()[1]["status"] == 0

        # The broker may close the connection before it has read the frame.
        with suppress(BrokenPipeError, ConnectionResetError):
            peer.say(append_frame("work", bytes(5 * MEBIBYTE), "long"))

        assert peer.take_answer()[1]["requestId"] == "long"
    check_others_are_served(local, calls=1)


@pytest.mark.parametrize(
    "said",
    [
        b"\x00",
        LENGTH.pack(100),
        LENGTH.pack(100) + b"\x04",
        append_frame("work", b"x" * 100)[:-1],
        append_frame("work", b"x" * 1000) * 10 + b"\x00\x00",
        LENGTH.pack(MAX_FRAME_BYTES) + b"\x04" + bytes(100_000),
        b"\x01" + connect_frame("t"),
    ],
)
def test_peer_may_disconnect_at_any_time(broker: BrokerProcess, said: bytes) -> None:
    with broker.meet() as peer:
        peer.say(said)
    with broker.meet() as peer:
        peer.say(said)
        # A reset instead of an orderly close.
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    check_others_are_served(broker, calls=1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xa0",
        b"\x00",
        b"\xff" * 50,
        b"\xbf" * 1000,
        b"\x9f" * 100_000,
        b"\xda\x00\x00\x00\x00" * 100,
        b"\xbb" + b"\xff" * 8,
        cbor2.dumps({"requestId": 5}),
        cbor2.dumps({"requestId": ""}),
        cbor2.dumps(["requestId", "r"]),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xa3irequestIdb\xff\xfednamedworkgpayloadA1",
    ],
)
@pytest.mark.parametrize("operation", [4, 5, 11, 99])
def test_request_without_a_readable_id_closes_the_connection(
    broker: BrokerProcess, operation: int, body: bytes
) -> None:
    with broker.meet() as peer:
        peer.say(encode_frame(operation, body))

        assert is_closed(peer)


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\xff",
        b"ddefinition" + b"\x81" * 100,
        b"ddefinition" + b"\xa1\x61\x61" * 50_000,
        b"jdefinition\xc1\x1a\x00\x00\x00\x00",
        b"jdefinition\xd8\x1c\x81\xd8\x1d\x00",
        b"jdefinition\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"jdefinition\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"jdefinition\x9f" + b"\x00" * 150_000,
        b"jdefinition\xa1\x01\x02",
        b"jdefinition\x62\xff\xfe",
    ],
)
def test_malformed_request_with_an_id_is_answered_and_the_connection_stays_open(
    broker: BrokerProcess, rest: bytes
) -> None:
    with broker.meet() as peer:
        peer.say(encode_frame(Operation.CreateMessageStream, b"\xa2irequestIdar" + rest))

        operation, answer = peer.take_answer()

        assert operation == Operation.CreateMessageStreamResponse
        assert (answer["requestId"], answer["status"]) == ("r", Status.InvalidRequest)
        assert peer.ask(Operation.ListStreams)[1]["status"] == 0


def test_append_with_an_invalid_request_id_is_rejected(broker: BrokerProcess) -> None:
    with broker.meet() as peer:
        peer.say(append_frame("work", b"x", request_id="a/b") + append_frame("work", b"x"))

        _, answer = peer.take_answer()

        assert (answer["requestId"], answer["status"]) == ("a/b", Status.InvalidRequest)
        assert "requestId" in answer["errorMessage"]
        assert peer.take_answer()[1]["status"] == Status.Success


REQUESTS: dict[Operation, Json] = {
    Operation.CreateMessageStream: {"definition": {"name": "work", "strategyOnFull": 0}},
    Operation.UpdateMessageStream: {"definition": {"name": "work", "strategyOnFull": 0}},
    Operation.DeleteMessageStream: {"name": "nowhere"},
    Operation.DescribeMessageStream: {"name": "work"},
    Operation.AppendMessage: {"name": "work", "payload": b"x"},
    Operation.ReadMessages: {"streamName": "work", "readMessagesOptions": {}},
    Operation.AppendMessages: {"name": "work", "sizes": b"\1\0\0\0", "payloads": b"x"},
    Operation.ReadColumns: {
        "name": "work",
        "firstSequenceNumber": 0,
        "endSequenceNumber": 1,
        "maxBytes": 10,
        "readTimeoutMillis": 0,
    },
}
WRONG: list[Any] = [
    None,
    1,
    -1,
    2**63,
    1.5,
    "",
    "ü/",
    b"",
    b"x",
    True,
    [],
    [[]],
    {},
    {"a": {}},
    {1: 2},
]


@pytest.mark.parametrize("operation", REQUESTS, ids=lambda operation: operation.name)
def test_any_value_in_any_field_is_answered(broker: BrokerProcess, operation: Operation) -> None:
    """The answer is success or a matching status, and the connection stays open."""
    requests = [
        {**REQUESTS[operation], name: wrong} for name in REQUESTS[operation] for wrong in WRONG
    ]
    with broker.meet(penstockExtensions=1) as peer:
        peer.say(b"".join(frame(operation, **fields) for fields in requests))

        for fields in requests:
            answered, answer = peer.take_answer()
            assert answered == RESPONSE_TO[operation]
            assert answer["requestId"] == "r"
            assert answer["status"] in (0, 3, 5, 13), (fields, answer)
            assert (answer["status"] == 0) == (answer["errorMessage"] == "")
        assert peer.ask(Operation.ListStreams)[1]["status"] == 0
    check_others_are_served(broker, calls=1)


@pytest.mark.parametrize("operation", [0, 6, 17, 18, 63, 64, 66, 68, 70, 127, -1, -128])
def test_unknown_operation_is_answered(broker: BrokerProcess, operation: int) -> None:
    for fields in ({}, {"name": 5}, {"name": "work", "sizes": b"\1\0\0\0", "payloads": b"x"}):
        with broker.meet() as peer:
            answered, answer = peer.ask(operation, **fields)

            assert answered == Operation.UnknownOperationError
            assert answer["status"] == Status.UnknownOperation
            assert str(operation) in answer["errorMessage"]


def test_client_of_1_0_0_gets_only_statuses_that_it_knows(broker: BrokerProcess) -> None:
    with broker.meet(protocolVersion="1.0.0", otherSupportedProtocolVersions=None) as peer:
        memory = {"name": "work", "strategyOnFull": 1, "persistence": 1}
        requests: list[tuple[int, Json]] = [
            (99, {}),
            (Operation.AppendMessages, REQUESTS[Operation.AppendMessages]),
            (Operation.Connect, {"protocolVersion": "1.0.0"}),
            (Operation.UpdateMessageStream, {"definition": memory}),
            *((operation, dict.fromkeys(fields, 5)) for operation, fields in REQUESTS.items()),
        ]
        for operation, fields in requests:
            _, answer = peer.ask(operation, **fields)
            assert answer["status"] == Status.InvalidRequest
        peer.say(LENGTH.pack(2**31 - 1) + b"\x04\xa3irequestIdar")
        assert peer.take_answer()[1]["status"] == Status.RequestPayloadTooLarge


# Many requests


def test_thousands_of_frames_in_one_write_are_answered_in_order(broker: BrokerProcess) -> None:
    with broker.connect() as client:
        create(client, "ordered")
    makers: list[Callable[[str], bytes]] = [
        lambda request_id: append_frame("ordered", b"x" * 50, request_id),
        lambda request_id: append_frame("nowhere", b"x", request_id),
        lambda request_id: frame(Operation.ListStreams, requestId=request_id),
        lambda request_id: frame(
            Operation.ReadMessages, requestId=request_id, streamName="ordered"
        ),
        lambda request_id: append_frame("ordered", b"y" * 50, request_id),
        lambda request_id: frame(
            Operation.DescribeMessageStream, requestId=request_id, name="ordered"
        ),
        lambda request_id: frame(99, requestId=request_id),
    ]
    sent = [
        (f"{number}", makers[number % 7 if number % 100 < 20 else 0]) for number in range(10_000)
    ]
    with (
        broker.meet() as peer,
        running(lambda: peer.say(b"".join(make(request_id) for request_id, make in sent))),
    ):
        numbers = []
        for request_id, _ in sent:
            _, answer = peer.take_answer()
            assert answer["requestId"] == request_id
            if "sequenceNumber" in answer:
                numbers.append(answer["sequenceNumber"])

    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 8000


def test_requests_above_the_limit_of_open_calls_wait(broker: BrokerProcess) -> None:
    wanted = 6000
    with broker.connect() as client:
        create(client, "late")
    waiting = frame(
        Operation.ReadMessages,
        streamName="late",
        readMessagesOptions={"readTimeoutMillis": 3_600_000},
    )
    with (
        broker.meet() as peer,
        broker.connect() as client,
        running(lambda: peer.say(waiting * wanted)),
    ):
        wait_until(lambda: waiting_reads(client, "late") >= 4096)
        check_others_are_served(broker)
        assert waiting_reads(client, "late") == 4096
        append(client, "late", b"at last")
        answers = [peer.take_answer()[1] for _ in range(wanted)]
    assert {len(answer["messages"]) for answer in answers} == {1}


def raise_descriptor_limit(needed: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"the system allows {hard} descriptors, and {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def test_2000_idle_connections_need_little_memory(broker: BrokerProcess) -> None:
    raise_descriptor_limit(2200)
    before = broker.resident_bytes
    token = broker.token
    with ExitStack() as idle:
        hello = b"\x01" + connect_frame(token)
        peers = []
        for _ in range(2000):
            peers.append(idle.enter_context(broker.reach()))
            peers[-1].say(hello)
        for peer in peers:
            assert peer.take_connect_answer()["status"] == 0
        check_others_are_served(broker)

        assert broker.resident_bytes - before < 60 * MEBIBYTE
        # The idle connections still work.
        assert peers[0].ask(Operation.ListStreams)[1]["status"] == 0
        assert peers[-1].ask(Operation.ListStreams)[1]["status"] == 0
    with broker.connect() as client:
        wait_until(lambda: client.call(Operation.Statistics)["statistics"]["connections"] < 10)


def test_connection_above_the_limit_is_refused_with_the_reason(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root", PENSTOCK_MAX_CONNECTIONS="3") as broker:
        with broker.meet(), broker.meet(), broker.meet(), broker.reach() as fourth:
            answer = fourth.take_connect_answer()
            assert answer["status"] == Status.FailedToConnect
            assert "3 connections" in answer["errorMessage"]
            assert is_closed(fourth)

        def may_enter() -> bool:
            with broker.reach() as peer:
                return bool(peer.introduce(broker.token)["status"] == 0)

        wait_until(may_enter)


# Peers that do not read


@pytest.fixture(scope="module")
def large_stream(broker: BrokerProcess) -> str:
    """A stream with 24 MiB in it."""
    with broker.connect() as client:
        create(client, "large")
        for _ in range(6):
            client.append_many("large", [b"x" * 65_536] * 64)
    return "large"


LARGE_READ = {"minMessageCount": 1, "maxMessageCount": 10_000}


def peak_memory_until(broker: BrokerProcess, done: Callable[[], bool]) -> int:
    """The peak memory of the broker until `done` returns True."""
    peak = 0
    deadline = time.monotonic() + TIMEOUT_S
    while not done() and time.monotonic() < deadline:
        peak = max(peak, broker.resident_bytes)
        if peak > 1500 * MEBIBYTE:
            pytest.fail("the broker's memory grows without bounds")
    return peak


def test_peer_that_reads_no_answers_holds_memory_of_one_answer(
    broker: BrokerProcess, large_stream: str
) -> None:
    before = broker.resident_bytes
    served = count()
    request = frame(Operation.ReadMessages, streamName=large_stream, readMessagesOptions=LARGE_READ)
    with broker.meet() as slow:
        slow.say(request * 3000)

        def serve() -> bool:
            check_others_are_served(broker, calls=1)
            return next(served) >= 100

        peak = peak_memory_until(broker, serve)

        assert next(served) > 100
        assert peak - before < 64 * MEBIBYTE
        # The peer can still read its answers.
        messages = slow.take_answer()[1]["messages"]
        assert [message["sequenceNumber"] for message in messages] == list(range(len(messages)))
        assert 60 <= len(messages) <= 64


def test_large_reads_woken_by_one_append_are_answered_one_by_one(
    broker: BrokerProcess, large_stream: str
) -> None:
    with broker.connect() as client:
        end = client.call(Operation.DescribeMessageStream, name=large_stream)["messageStreamInfo"][
            "storageStatus"
        ]["newestSequenceNumber"]
        # All reads need the stored messages and one more.
        request = frame(
            Operation.ReadMessages,
            streamName=large_stream,
            readMessagesOptions={
                "desiredStartSequenceNumber": end - 59,
                "minMessageCount": 61,
                "readTimeoutMillis": 3_600_000,
            },
        )
        with broker.meet() as slow:
            slow.say(request * 1000)

            wait_until(lambda: waiting_reads(client, large_stream) == 1000)
            before = broker.resident_bytes
            served = count()

            def serve() -> bool:
                check_others_are_served(broker, calls=1)
                return next(served) >= 50

            append(client, large_stream, b"the missing message")
            peak = peak_memory_until(broker, serve)

            assert peak - before < 64 * MEBIBYTE
            for _ in range(3):
                assert len(slow.take_answer()[1]["messages"]) == 61
        wait_until(lambda: waiting_reads(client, large_stream) == 0)


def test_fast_reader_does_not_delay_other_connections(
    broker: BrokerProcess, large_stream: str
) -> None:
    """Requests a thousand answers of a mebibyte each in one write, and reads them at once."""
    request = frame(
        Operation.ReadMessages,
        streamName=large_stream,
        readMessagesOptions={"maxMessageCount": 15},
    )
    answers = 1000
    with broker.meet() as greedy:

        def take() -> None:
            greedy.say(request * answers)
            left = len(one_answer) * answers
            while left:
                left -= len(greedy.socket.recv(min(left, MEBIBYTE)))

        greedy.say(request)
        head = greedy.take(5)
        one_answer = head + greedy.take(LENGTH.unpack(head[:4])[0] - 1)
        with running(take):
            check_others_are_served(broker, calls=100)


def test_session_yields_after_a_mebibyte_of_answers(local: LocalBroker) -> None:
    with local.connect() as client:
        create(client, "large")
        client.append_many("large", [bytes(MEBIBYTE // 2)] * 4)
    request = frame(
        Operation.ReadMessages, streamName="large", readMessagesOptions={"maxMessageCount": 1}
    )
    with local.meet() as peer:
        session = session_of(local, peer)

        def answers_in_one_turn() -> float:
            session.data_received(request * 10)
            assert session._is_yielding
            return 10 - len(session._protocol._buffer[session._protocol._position :]) / len(request)

        assert local.run(answers_in_one_turn) == 2
        for _ in range(10):
            assert len(peer.take_answer()[1]["messages"]) == 1


# Slow peers


def test_unfinished_frame_times_out(local: LocalBroker) -> None:
    with local.meet() as peer:
        session = session_of(local, peer)
        peer.say(append_frame("work", bytes(1000))[:500])
        wait_until(lambda: session._protocol.is_inside_frame)
        began = session._frame_began

        check_timeouts(local, session, began + 59)
        assert session.state is SessionState.OPEN
        check_timeouts(local, session, began + 61)

        assert is_closed(peer)
    check_others_are_served(local)


def test_idle_connection_is_never_closed(local: LocalBroker) -> None:
    with local.meet() as peer:
        session = session_of(local, peer)

        check_timeouts(local, session, local.loop.time() + 1_000_000)

        assert peer.ask(Operation.ListStreams)[1]["status"] == 0


def test_busy_peer_does_not_time_out(local: LocalBroker) -> None:
    """The received data always ends inside a frame, but each time inside another one."""
    sent = append_frame("work", bytes(1000))
    with local.meet() as peer:
        session = session_of(local, peer)
        peer.say(sent[:500])
        wait_until(lambda: session._protocol.is_inside_frame)
        began = session._frame_began
        for _ in range(3):
            wait_until(lambda: local.loop.time() > began + 0.01)
            peer.say(sent[500:] + sent[:500])
            assert peer.take_answer()[1]["status"] == 0
        wait_until(lambda: session._protocol.is_inside_frame)

        check_timeouts(local, session, began + 60.005)

        peer.say(sent[500:])
        assert peer.take_answer()[1]["status"] == 0


def test_large_frame_has_a_max_duration(local: LocalBroker) -> None:
    sent = append_frame("work", bytes(3 * MEBIBYTE))
    with local.meet() as peer:
        session = session_of(local, peer)
        peer.say(sent[: 2 * MEBIBYTE])
        wait_until(lambda: session._protocol.buffered_bytes == 2 * MEBIBYTE)
        began = session._frame_began

        check_timeouts(local, session, began + 300)
        assert session.state is SessionState.OPEN
        # Other connections wait for its memory, so the total time of a frame is limited.
        check_timeouts(local, session, began + 601)

        assert is_closed(peer)


def test_peer_that_reads_no_answers_is_dropped_after_a_minute(local: LocalBroker) -> None:
    with local.connect() as client:
        create(client, "large")
        client.append_many("large", [bytes(MEBIBYTE)] * 3)
        client.append_many("large", [bytes(MEBIBYTE)] * 3)
    with local.meet() as slow:
        session = session_of(local, slow)
        request = frame(
            Operation.ReadMessages, streamName="large", readMessagesOptions={"minMessageCount": 6}
        )
        slow.say(request * 10)
        wait_until(lambda: session._writing_is_paused)
        paused = session._progress_at

        check_timeouts(local, session, paused + 59)
        assert session.state is SessionState.OPEN
        # The system may still move bytes into the peer's buffer, which counts as progress.
        minutes = count(2)

        def is_dropped_a_minute_later() -> bool:
            check_timeouts(local, session, paused + 61 * next(minutes))
            return session not in local.sessions

        wait_until(is_dropped_a_minute_later)
    check_others_are_served(local)


def test_slow_peer_that_reads_answers_is_not_dropped(local: LocalBroker) -> None:
    with local.connect() as client:
        create(client, "large")
        for _ in range(8):
            client.append_many("large", [bytes(MEBIBYTE)] * 3)
    with local.meet() as slow:
        session = session_of(local, slow)
        options = {"minMessageCount": 24}
        slow.say(frame(Operation.ReadMessages, streamName="large", readMessagesOptions=options))
        wait_until(lambda: session._writing_is_paused)

        def has_moved() -> bool:
            """Checks timeouts a minute later, if the peer has read bytes since the last check."""
            if measure_unsent(session._transport) == session._progress:
                return False
            session.check_timeouts(session._progress_at + 61)
            return True

        for _ in range(3):
            # The system opens its window only when a large part of its buffer is free.
            while not local.run(has_moved):
                slow.take(256 * 1024)
            assert session.state is SessionState.OPEN


def test_closing_session_is_aborted_after_a_minute(local: LocalBroker) -> None:
    with local.connect() as client:
        create(client, "large")
        for _ in range(3):
            client.append_many("large", [bytes(MEBIBYTE)] * 3)
    with local.meet() as slow:
        session = session_of(local, slow)
        request = frame(
            Operation.ReadMessages, streamName="large", readMessagesOptions={"minMessageCount": 9}
        )
        slow.say(request)
        wait_until(lambda: session._writing_is_paused)
        came = session._handshake_began
        wait_until(lambda: local.loop.time() > came + 0.02)
        local.run(session.finish)

        # The minute begins with the close, not with the connection.
        check_timeouts(local, session, came + 60.01)
        assert session in local.sessions
        check_timeouts(local, session, local.loop.time() + 61)

        wait_until(lambda: session not in local.sessions)


def test_late_answer_closes_the_connection(local: LocalBroker) -> None:
    """A late answer crashes the AWS clients; a closed connection does not."""
    with local.meet() as peer:
        session = session_of(local, peer)

        def answer_late() -> None:
            call = session.open_call("r", Operation.ListStreams)
            call._answer_by = local.loop.time() - 1
            call.succeed(streams=[])

        local.run(answer_late)

        assert is_closed(peer)


# Memory for large frames


def test_memory_of_a_frame_is_released_after_the_frame(local: LocalBroker) -> None:
    """Also if the next frame has begun, as usual with pipelined requests."""
    large = append_frame("work", bytes(3 * MEBIBYTE))
    small = append_frame("work", b"x")
    with local.meet() as first, local.meet() as second:
        first.say(large + small[:10])
        assert first.take_answer()[1]["status"] == 0

        second.say(large)

        assert second.take_answer()[1]["status"] == 0
        first.say(small[10:])
        assert first.take_answer()[1]["status"] == 0


def test_each_large_frame_of_a_connection_is_counted(local: LocalBroker) -> None:
    first = append_frame("work", bytes(3 * MEBIBYTE // 2))
    second = append_frame("work", bytes(3 * MEBIBYTE))
    with local.meet() as peer:
        session = session_of(local, peer)
        peer.say(first + second[: 2 * MEBIBYTE])
        assert peer.take_answer()[1]["status"] == 0
        wait_until(lambda: session._protocol.buffered_bytes == 2 * MEBIBYTE)

        assert local.run(lambda: dict(local.broker.memory._reserved)) == {session: len(second)}

        peer.say(second[2 * MEBIBYTE :])
        assert peer.take_answer()[1]["status"] == 0
    assert local.run(lambda: dict(local.broker.memory._reserved)) == {}


def test_large_frames_queue_for_memory_and_small_frames_do_not(local: LocalBroker) -> None:
    large = append_frame("work", bytes(3 * MEBIBYTE))
    with local.meet() as first, local.meet() as second:
        first.say(large[: 2 * MEBIBYTE])
        wait_until(lambda: session_of(local, first)._protocol.expected_bytes)

        def ask() -> None:
            second.say(large)
            assert second.take_answer()[1]["status"] == 0

        with running(ask):
            waiting = session_of(local, second)
            wait_until(lambda: not local.broker.memory.admits(waiting))
            check_others_are_served(local)
            # The wait for memory does not count as slow.
            check_timeouts(local, waiting, local.loop.time() + 61)
            # The first peer disconnects inside its frame.
            first.close()


# Lost connections


def test_connection_lost_calls_one_callback_for_each_key(
    local: LocalBroker,
) -> None:
    called: list[str] = []
    with local.meet() as peer:
        session = session_of(local, peer)
        for key, word in (("a", "first"), ("b", "other"), ("a", "second")):
            local.run(partial(session.on_connection_lost, key, partial(called.append, word)))
        assert peer.ask(Operation.ListStreams)[1]["status"] == 0
        assert called == []
    wait_until(lambda: not local.sessions)
    assert called == ["second", "other"]
