"""The client's side of the protocol on literal bytes, split at any position."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import __version__
from penstock.client import calls
from penstock.client.calls import ClientCall
from penstock.client.client_protocol import Answer, BrokenProtocolError, ClientProtocol, ServerInfo
from penstock.client.failures import is_retryable
from penstock.errors import (
    ConnectFailedException,
    RequestPayloadTooLargeException,
    ResponseStatusCode,
)
from penstock.model import ReadMessagesOptions
from penstock.model.message import MessageRun
from penstock.wire.codec import (
    decode_request,
    encode_append_responses,
    encode_messages,
    encode_read_response,
    encode_response,
)
from penstock.wire.frames import HEADER, encode_frame
from penstock.wire.operations import Operation
from penstock.wire.requests import (
    EXTENDED_REQUESTS,
    HANDSHAKE,
    AppendMessageRequest,
    ConnectRequest,
    CreateMessageStreamRequest,
    DeleteMessageStreamRequest,
    DescribeMessageStreamRequest,
    ListStreamsRequest,
    ReadMessagesRequest,
    Request,
    UpdateMessageStreamRequest,
)
from tests.support import MEBIBYTE
from tests.wire.captured import CAPTURED, Captured, split

CONNECT_RESPONSE = encode_response(
    Operation.ConnectResponse,
    "connect",
    protocolVersion="1.1.0",
    serverVersion="9.8.7",
    penstockExtensions=1,
    maxFrameBytes=70_000,
)


def decoded(frame: bytes) -> Request:
    length, operation = HEADER.unpack_from(frame)
    assert length == len(frame) - 4
    return decode_request(operation, frame[5:], {**HANDSHAKE, **EXTENDED_REQUESTS})


def connected() -> ClientProtocol:
    """Returns a state machine after its handshake."""
    client = ClientProtocol()
    (answer,) = client.receive(b"\x01" + CONNECT_RESPONSE)
    client.accept(answer)
    return client


def received(pieces: Iterable[bytes]) -> list[Answer]:
    client = ClientProtocol()
    return list(chain.from_iterable(map(client.receive, pieces)))


# Requests


def test_handshake_bytes() -> None:
    sent = ClientProtocol().connect("tok")

    assert sent == b"\x01" + encode_frame(
        1,
        b"\xa6irequestIdgconnect"
        b"oprotocolVersione1.1.0x\x1eotherSupportedProtocolVersions\x81e1.0.0"
        b"jsdkVersion" + cbor2.dumps(__version__) + b"rpenstockExtensions\x01iauthTokenctok",
    )


def test_handshake_without_a_token_has_no_token_field() -> None:
    sent = ClientProtocol().connect("")

    assert b"authToken" not in sent
    request = decoded(sent[1:])
    assert isinstance(request, ConnectRequest)
    assert request.auth_token == ""


def test_request_bytes() -> None:
    request_id, frame = ClientProtocol().request(calls.list_streams())

    assert request_id == "00000001"
    assert frame == bytes.fromhex("00000015 0b a1 69 726571756573744964 68 3030303030303031")


def test_append_bytes() -> None:
    request_id, frame = ClientProtocol().request(calls.append_message("S", b"hello"))

    assert request_id == "00000001"
    assert frame == bytes.fromhex(
        "0000002a 04 a3 69 726571756573744964 68 3030303030303031"
        " 64 6e616d65 61 53 67 7061796c6f6164 45 68656c6c6f"
    )


def test_request_ids_are_unique_and_have_a_fixed_width() -> None:
    client = ClientProtocol()
    call = calls.list_streams()

    requests = [client.request(call) for _ in range(70_000)]

    assert len({request_id for request_id, _ in requests}) == len(requests)
    assert {len(frame) for _, frame in requests} == {len(requests[0][1])}


def call_for(request: Request) -> ClientCall[Any]:
    """Returns the client call that makes the same request."""
    match request:
        case CreateMessageStreamRequest():
            return calls.create_message_stream(request.definition)
        case UpdateMessageStreamRequest():
            return calls.update_message_stream(request.definition)
        case DeleteMessageStreamRequest():
            return calls.delete_message_stream(request.name)
        case DescribeMessageStreamRequest():
            return calls.describe_message_stream(request.name)
        case AppendMessageRequest():
            return calls.append_message(request.name, request.payload)
        case ReadMessagesRequest():
            return calls.read_messages(request.stream_name, request.read_messages_options, 60)
        case ListStreamsRequest():
            return calls.list_streams()
    raise AssertionError(request)


@pytest.mark.parametrize(
    "captured",
    [frame for frame in CAPTURED if frame.operation != "Connect"],
    ids=lambda frame: f"{frame.client}-{frame.operation}",
)
def test_requests_equal_those_of_the_aws_clients(captured: Captured) -> None:
    theirs = decoded(captured.frame)

    request_id, frame = ClientProtocol().request(call_for(theirs))

    assert decoded(frame) == msgspec.structs.replace(theirs, request_id=request_id)


def test_handshake_equals_those_of_the_aws_clients() -> None:
    ours = decoded(ClientProtocol().connect("tok-123")[1:])

    for theirs in (decoded(frame.frame) for frame in CAPTURED if frame.operation == "Connect"):
        assert isinstance(theirs, ConnectRequest)
        assert ours == msgspec.structs.replace(
            theirs,
            request_id="connect",
            sdk_version=__version__,
            auth_token="tok-123",
            penstock_extensions=1,
        )


def test_request_above_the_max_frame_size_is_rejected() -> None:
    client = connected()
    around = len(client.request(calls.append_message("s", bytes(66_000)))[1]) - 4 - 66_000

    client.request(calls.append_message("s", bytes(70_000 - around)))
    with pytest.raises(RequestPayloadTooLargeException, match="expected at most 70000"):
        client.request(calls.append_message("s", bytes(70_001 - around)))


# Answers


def test_answer_bytes() -> None:
    appended = bytes.fromhex(
        "0000003c 09 a4 69 726571756573744964 68 3030303030303031 66 737461747573 00"
        " 6c 6572726f724d657373616765 60 6e 73657175656e63654e756d626572 18 2a"
    )
    listed = bytes.fromhex(
        "00000038 0c a4 69 726571756573744964 68 3030303030303032 66 737461747573 00"
        " 6c 6572726f724d657373616765 60 67 73747265616d73 82 61 61 61 62"
    )

    assert received([b"\x01" + CONNECT_RESPONSE + listed + appended])[1:] == [
        Answer(
            12,
            "00000002",
            {"requestId": "00000002", "status": 0, "errorMessage": "", "streams": ["a", "b"]},
        ),
        Answer(9, "00000001", {"status": 0, "sequenceNumber": 42}),
    ]


def read_answer(request_id: str, payload: bytes) -> bytes:
    messages = encode_messages("s", MessageRun(5, [6], [payload]))
    return b"".join(encode_read_response(request_id, 1, [messages]))


ids = st.text(st.characters(codec="ascii"), max_size=30)
frames = st.one_of(
    st.builds(
        lambda ids, first: encode_append_responses([cbor2.dumps(id_) for id_ in ids], first),
        st.lists(ids, min_size=1, max_size=3),
        st.integers(0, 2**62),
    ),
    st.builds(read_answer, ids, st.binary(min_size=1, max_size=300)),
    st.builds(
        encode_response,
        st.sampled_from(Operation),
        ids,
        st.sampled_from(ResponseStatusCode),
        st.text(max_size=30),
    ),
    st.builds(encode_frame, st.integers(-128, 127), st.binary(max_size=9)),
)


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_answers_do_not_depend_on_how_bytes_are_split(sent: list[bytes], places: list[int]) -> None:
    data = b"\x01" + b"".join(sent)

    assert received(split(data, places)) == received([data])


@given(st.lists(frames, min_size=1, max_size=4))
def test_answers_arrive_byte_by_byte(sent: list[bytes]) -> None:
    data = b"\x01" + b"".join(sent)

    assert received(data[place : place + 1] for place in range(len(data))) == received([data])


@given(
    st.lists(frames, max_size=4),
    st.sampled_from([0, -1, -(2**31), 2**30 + 1, 2**31 - 1]),
    st.binary(max_size=9),
    st.lists(st.integers(0, 10_000), max_size=6),
)
def test_invalid_frame_length_is_detected_however_bytes_are_split(
    sent: list[bytes], length: int, rest: bytes, places: list[int]
) -> None:
    data = b"\x01" + b"".join(sent) + HEADER.pack(length, 9) + rest

    with pytest.raises(BrokenProtocolError, match=f"a frame of {length} bytes"):
        received(split(data, places))


@given(st.binary(max_size=60), st.lists(st.integers(0, 100), max_size=4))
def test_arbitrary_bytes_give_answers_or_a_protocol_error(data: bytes, places: list[int]) -> None:
    broken = False
    try:
        received([b"\x01", *split(data, places)])
    except BrokenProtocolError:
        broken = True
    assert not broken or len(data) >= HEADER.size


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"\x80",
        b"\x00",
        b"\x9f" * 5000,
        b"\xa1irequestId",
        b"\xc1\x1b" + b"\xff" * 8,
        cbor2.dumps({"requestId": "00000001", "status": 0})[:-1],
    ],
)
@pytest.mark.parametrize("operation", [9, 10, 99, -1])
def test_undecodable_answer_is_ignored(operation: int, body: bytes) -> None:
    behind = encode_append_responses([b"aa"], 7)

    answers = connected().receive(encode_frame(operation, body) + behind)

    assert answers == [Answer(9, "a", {"status": 0, "sequenceNumber": 7})]


@pytest.mark.parametrize("request_id", [None, 5, [], b"x"])
def test_answer_with_an_invalid_id_matches_no_request(request_id: Any) -> None:
    frame = encode_frame(10, cbor2.dumps({"requestId": request_id, "status": 0}))

    (answer,) = connected().receive(frame)

    assert answer.request_id not in ("00000001", "")


def test_large_answer_arrives_in_many_pieces() -> None:
    payload = bytes(range(256)) * (5 * MEBIBYTE // 256)
    data = read_answer("r", payload) + encode_append_responses([b"aa"], 1)
    client = connected()

    pieces = [data[place : place + 65_536] for place in range(0, len(data), 65_536)]
    *nothing, answers = [client.receive(piece) for piece in pieces]

    assert nothing == [[]] * (len(pieces) - 1)
    assert answers[0].response["messages"][0]["payload"] == payload
    assert answers[1].request_id == "a"


# The handshake


def accepted(answer: bytes) -> ServerInfo:
    client = ClientProtocol()
    (found,) = client.receive(b"\x01" + answer)
    server = client.accept(found)
    assert client.server is server
    return server


def test_server_info_with_extensions() -> None:
    assert accepted(CONNECT_RESPONSE) == ServerInfo("9.8.7", "1.1.0", True, 70_000)


def test_server_info_has_defaults() -> None:
    server = accepted(encode_response(Operation.ConnectResponse, "connect"))

    assert server == ServerInfo("", "1.1.0", False, 1 << 30)


def test_server_info_has_the_protocol_version_that_the_server_chose() -> None:
    answer = encode_response(
        Operation.ConnectResponse, "x", protocolVersion="1.0.0", penstockExtensions=0
    )

    assert accepted(answer).protocol_version == "1.0.0"
    assert not accepted(answer).has_extensions


@pytest.mark.parametrize(
    ("status", "found", "retryable"),
    [
        (2, ResponseStatusCode.Unauthorized, False),
        (10, ResponseStatusCode.UnsupportedProtocolVersion, False),
        (12, ResponseStatusCode.FailedToConnect, True),
        (99, ResponseStatusCode.FailedToConnect, True),
        ("x", ResponseStatusCode.FailedToConnect, True),
        (None, ResponseStatusCode.FailedToConnect, True),
    ],
)
def test_refused_handshake_has_status_and_message(
    status: Any, found: ResponseStatusCode, retryable: bool
) -> None:
    body = {"requestId": "unknown", "status": status, "errorMessage": "go away"}

    with pytest.raises(ConnectFailedException, match="refused the connection: go away") as caught:
        accepted(encode_frame(Operation.ConnectResponse, cbor2.dumps(body)))

    assert caught.value.status is found
    assert is_retryable(caught.value) is retryable


def test_refused_handshake_without_a_message_names_its_status() -> None:
    with pytest.raises(ConnectFailedException, match="refused the connection: Unauthorized"):
        accepted(encode_frame(6, cbor2.dumps({"status": 2})))
    with pytest.raises(ConnectFailedException, match="refused the connection: FailedToConnect"):
        accepted(encode_frame(6, cbor2.dumps({})))


def test_handshake_rejects_another_operation() -> None:
    with pytest.raises(ConnectFailedException, match="with operation 12"):
        accepted(encode_response(Operation.ListStreamsResponse, "connect"))


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00", b"\x02\x01"])
def test_other_first_byte_is_rejected(data: bytes) -> None:
    with pytest.raises(
        ConnectFailedException,
        match=f"not a stream manager: the server answered with byte {data[0]}",
    ) as caught:
        ClientProtocol().receive(data)

    assert not is_retryable(caught.value)


def test_version_byte_may_arrive_alone() -> None:
    client = ClientProtocol()

    assert client.receive(b"\x01") == []
    assert len(client.receive(CONNECT_RESPONSE)) == 1
    # The version byte is expected only once.
    with pytest.raises(BrokenProtocolError):
        client.receive(b"\xff" * 5)


def test_omitted_read_options_are_not_sent() -> None:
    _, plain = connected().request(calls.read_messages("s", None, 60))
    _, named = connected().request(calls.read_messages("s", ReadMessagesOptions(), 60))

    assert b"readMessagesOptions" not in plain
    assert decoded(plain) == decoded(named)
