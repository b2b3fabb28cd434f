"""Decoding of requests and encoding of answers, on literal bytes."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    InvalidRequestException,
    ResponseStatusCode,
    StreamManagerException,
    status_for_version,
)
from penstock.model.message import MessageRun
from penstock.wire.cbor import MalformedError
from penstock.wire.codec import (
    MAX_CONTROL_BYTES,
    UnreadableRequestError,
    decode_append_response,
    decode_request,
    encode_append_request,
    encode_append_responses,
    encode_head,
    encode_messages,
    encode_read_response,
    encode_response,
    encode_text,
    encode_uint,
)
from penstock.wire.frames import HEADER
from penstock.wire.operations import Operation
from penstock.wire.requests import EXTENDED_REQUESTS, HANDSHAKE

from .captured import CAPTURED

EVERYTHING = {**HANDSHAKE, **EXTENDED_REQUESTS}

CONNECT_ANSWER = bytes.fromhex(
    "000000af06a769726571756573744964782466333032653330392d343763612d343565302d623061332d"
    "38393731333130646234333466737461747573006c6572726f724d657373616765606f70726f746f636f"
    "6c56657273696f6e65312e312e307819737570706f7274656450726f746f636f6c56657273696f6e7382"
    "65312e302e3065312e312e306d73657276657256657273696f6e65322e332e3170636c69656e74496465"
    "6e74696669657263632d31"
)
APPEND_ANSWER = bytes.fromhex(
    "0000005809a469726571756573744964782439366634373338342d333865632d343135652d393061302d"
    "34326264326531623862356266737461747573006c6572726f724d657373616765606e73657175656e63"
    "654e756d62657200"
)
READ_ANSWER = bytes.fromhex(
    "0000006f 0a a4"
    " 69 726571756573744964 61 20"
    " 66 737461747573 00"
    " 6c 6572726f724d657373616765 60"
    " 68 6d65737361676573 81 a4"
    " 6a 73747265616d4e616d65 61 53"
    " 6e 73657175656e63654e756d626572 18 2a"
    " 6a 696e6765737454696d65 1b 0000018bcfe56800"
    " 67 7061796c6f6164 45 68656c6c6f"
)


def decode_frames(data: bytes) -> list[tuple[int, dict[str, Any]]]:
    frames = []
    while data:
        length, operation = HEADER.unpack_from(data)
        frames.append((operation, cbor2.loads(data[5 : 4 + length])))
        data = data[4 + length :]
    return frames


# Answers


def test_bytes_of_a_connect_response() -> None:
    answer = encode_response(
        Operation.ConnectResponse,
        "f302e309-47ca-45e0-b0a3-8971310db434",
        protocolVersion="1.1.0",
        supportedProtocolVersions=["1.0.0", "1.1.0"],
        serverVersion="2.3.1",
        clientIdentifier="c-1",
    )

    assert answer == CONNECT_ANSWER


def test_bytes_of_an_append_response() -> None:
    request_id = b"x$96f47384-38ec-415e-90a0-42bd2e1b8b5b"

    assert encode_append_responses([request_id], 0) == APPEND_ANSWER
    generic = encode_response(
        Operation.AppendMessageResponse, request_id[2:].decode(), sequenceNumber=0
    )
    assert generic == APPEND_ANSWER


def test_bytes_of_a_read_response() -> None:
    messages = encode_messages("S", MessageRun(42, [1_700_000_000_000], [b"hello"]))

    assert b"".join(encode_read_response(" ", 1, [messages])) == READ_ANSWER


def test_error_response_has_status_and_message() -> None:
    answer = encode_response(
        Operation.CreateMessageStreamResponse, " ", ResponseStatusCode.InvalidRequest, "no"
    )

    assert answer == bytes.fromhex(
        "00000026 07 a3 69 726571756573744964 61 20 66 737461747573 03"
        " 6c 6572726f724d657373616765 62 6e6f"
    )


@given(
    st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=20),
    st.sampled_from([0, 20, 23, 250, 65_530, 65_536, 2**32 - 10, 2**32, 2**53, 2**63 - 30])
    | st.integers(0, 2**62),
)
def test_append_responses_equal_single_responses(request_ids: list[str], first: int) -> None:
    run = encode_append_responses([cbor2.dumps(request_id) for request_id in request_ids], first)

    assert run == b"".join(
        encode_response(Operation.AppendMessageResponse, request_id, sequenceNumber=number)
        for number, request_id in enumerate(request_ids, first)
    )


@given(st.integers(2, 40), st.integers(1, 255), st.integers(60_000, 70_000) | st.just(2**32 - 20))
def test_append_responses_to_ids_of_one_size_equal_single_responses(
    count: int, size: int, first: int
) -> None:
    request_ids = [chr(ord("a") + number % 26) * size for number in range(count)]

    answers = decode_frames(encode_append_responses([cbor2.dumps(i) for i in request_ids], first))

    assert answers == [
        (9, {"requestId": request_id, "status": 0, "errorMessage": "", "sequenceNumber": number})
        for number, request_id in enumerate(request_ids, first)
    ]


@given(
    st.text(min_size=1, max_size=300),
    st.text(min_size=1, max_size=300),
    st.integers(0, 2**63 - 20),
    st.lists(
        st.tuples(st.integers(0, 2**63 - 1), st.binary(max_size=3) | st.sampled_from([b"x" * 300])),
        max_size=12,
    ),
    st.integers(1, 12),
)
def test_read_response_has_the_messages(
    request_id: str, name: str, first: int, stored: list[tuple[int, bytes]], per_step: int
) -> None:
    steps = [
        encode_messages(name, MessageRun(first + start, *zip(*stored[start:stop], strict=True)))
        for start in range(0, len(stored), per_step)
        for stop in [start + per_step]
    ]

    answer = b"".join(encode_read_response(request_id, len(stored), steps))

    assert decode_frames(answer) == [
        (
            10,
            {
                "requestId": request_id,
                "status": 0,
                "errorMessage": "",
                "messages": [
                    {
                        "streamName": name,
                        "sequenceNumber": number,
                        "ingestTime": ingest_time,
                        "payload": payload,
                    }
                    for number, (ingest_time, payload) in enumerate(stored, first)
                ],
            },
        )
    ]


@given(st.integers(0, 2**64 - 1) | st.sampled_from([23, 24, 255, 256, 65535, 65536, 2**32 - 1]))
def test_numbers_have_the_smallest_width(value: int) -> None:
    assert encode_uint(value) == cbor2.dumps(value)
    assert encode_head(0x60, value)[0] >> 5 == 3


@given(st.text(max_size=400))
def test_text_length_is_in_bytes(text: str) -> None:
    assert encode_text(text) == cbor2.dumps(text)


@pytest.mark.parametrize("status", ResponseStatusCode)
def test_status_for_1_0_0_is_known_in_1_0_0(
    status: ResponseStatusCode,
) -> None:
    mapped = status_for_version(status, "1.0.0")

    assert mapped <= ResponseStatusCode.MessageStoreReadError
    assert (mapped == status) == (status <= 14)
    assert status_for_version(status, "1.1.0") is status


@pytest.mark.parametrize(("status", "mapped"), [(15, 1), (16, 3), (17, 3), (18, 3)])
def test_each_newer_status_is_mapped_for_1_0_0(status: int, mapped: int) -> None:
    assert status_for_version(ResponseStatusCode(status), "1.0.0") == mapped


# The client's fast path for appends


def test_bytes_of_an_append_request() -> None:
    assert encode_append_request("00000001", "S", b"hello") == bytes.fromhex(
        "0000002a 04 a3 69 726571756573744964 68 3030303030303031"
        " 64 6e616d65 61 53 67 7061796c6f6164 45 68656c6c6f"
    )


@given(
    st.text(st.characters(codec="ascii"), min_size=1, max_size=23),
    st.text(min_size=1, max_size=300),
    st.binary(min_size=1, max_size=40) | st.sampled_from([23, 24, 255, 256, 65_535, 65_536]),
)
def test_append_request_equals_the_general_encoding(
    request_id: str, name: str, payload: bytes | int
) -> None:
    payload = bytes(payload)
    body = cbor2.dumps({"requestId": request_id, "name": name, "payload": payload})

    assert encode_append_request(request_id, name, payload) == HEADER.pack(len(body) + 1, 4) + body


def test_append_response_is_decoded_from_literal_bytes() -> None:
    body = bytes.fromhex(
        "a4 69 726571756573744964 68 3030303030303031 66 737461747573 00"
        " 6c 6572726f724d657373616765 60 6e 73657175656e63654e756d626572 1a 00010000"
    )

    assert decode_append_response(body) == ("00000001", 65_536)


@given(
    st.text(st.characters(codec="ascii"), min_size=1, max_size=23),
    st.sampled_from([0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1])
    | st.integers(0, 2**63 - 1),
)
def test_append_response_is_decoded_like_the_general_decoder(request_id: str, number: int) -> None:
    frame = encode_append_responses([cbor2.dumps(request_id)], number)

    assert decode_append_response(frame[HEADER.size :]) == (request_id, number)


APPENDED = {"requestId": "r", "status": 0, "errorMessage": "", "sequenceNumber": 5}


@pytest.mark.parametrize(
    "answer",
    [
        {**APPENDED, "status": 3},
        {**APPENDED, "errorMessage": "no"},
        {**APPENDED, "sequenceNumber": -1},
        {**APPENDED, "sequenceNumber": 5.0},
        {**APPENDED, "sequenceNumber": "5"},
        {**APPENDED, "more": 1},
        {**APPENDED, "requestId": 5},
        {**APPENDED, "requestId": "r" * 24},
        {**APPENDED, "requestId": "r" * 300},
        {"requestId": "r", "status": 0, "sequenceNumber": 5},
        dict(reversed(APPENDED.items())),
        {},
        [],
    ],
)
def test_append_response_of_another_shape_is_not_decoded(answer: Any) -> None:
    assert decode_append_response(cbor2.dumps(answer)) is None


@given(st.integers(0, 80), st.integers(0, 255))
def test_damaged_append_response_is_decoded_like_the_general_decoder_or_not_at_all(
    place: int, value: int
) -> None:
    body = bytearray(encode_append_responses([b"hrequest1"], 70_000)[HEADER.size :])
    body[place % len(body)] = value

    found = decode_append_response(bytes(body))

    if found is not None:
        answer = cbor2.loads(body)
        assert found == (answer["requestId"], answer["sequenceNumber"])
        assert answer["status"] == 0


def test_id_with_a_long_head_is_not_decoded() -> None:
    request_id = "r" * 23
    body = encode_append_responses([b"x\x17" + request_id.encode()], 5)[HEADER.size :]

    assert cbor2.loads(body)["requestId"] == request_id
    assert decode_append_response(body) in (None, (request_id, 5))


@given(st.integers(0, 80))
def test_truncated_append_response_is_not_decoded(place: int) -> None:
    body = encode_append_responses([b"hrequest1"], 70_000)[HEADER.size :]

    assert decode_append_response(body[: place % len(body)]) is None


# Requests


@pytest.mark.parametrize("body", [b"", b"\xa0", b"\x80", b"garbage", cbor2.dumps({"name": "s"})])
def test_request_without_a_readable_id_is_unreadable(body: bytes) -> None:
    with pytest.raises(UnreadableRequestError):
        decode_request(Operation.ListStreams, body, EVERYTHING)


@pytest.mark.parametrize("request_id", [None, "", 5, b"r", ["r"], {}])
def test_request_whose_id_is_not_a_text_is_unreadable(request_id: Any) -> None:
    with pytest.raises(UnreadableRequestError, match="no requestId"):
        decode_request(Operation.ListStreams, cbor2.dumps({"requestId": request_id}), EVERYTHING)


def test_id_may_be_anywhere_in_a_valid_request() -> None:
    body = cbor2.dumps({"name": "s", "requestId": "behind"})

    assert decode_request(Operation.DescribeMessageStream, body, EVERYTHING).request_id == "behind"


def test_malformed_request_error_has_the_leading_id() -> None:
    body = cbor2.dumps({"requestId": "r", "name": "s"})

    for broken in (body[:-1], body + b"\0", body[:-2] + b"\xc1\x00"):
        with pytest.raises(InvalidRequestException, match="malformed") as caught:
            decode_request(Operation.DescribeMessageStream, broken, EVERYTHING)
        assert caught.value.request_id == "r"


@pytest.mark.parametrize(
    ("operation", "is_allowed"),
    [
        (Operation.AppendMessage, True),
        (Operation.AppendMessages, True),
        (Operation.CreateMessageStream, False),
        (Operation.ReadMessages, False),
        (99, False),
    ],
)
def test_only_appends_may_be_large(operation: int, is_allowed: bool) -> None:
    body = cbor2.dumps({"requestId": "r", "other": bytes(MAX_CONTROL_BYTES)})

    with pytest.raises(InvalidRequestException) as caught:
        decode_request(operation, body, EVERYTHING)

    assert ("max 4194304 for this operation" in caught.value.message) is not is_allowed
    assert caught.value.request_id == "r"


@pytest.mark.parametrize("value", [1.0, 1, 2.0**62])
def test_integral_floats_are_integers(value: float) -> None:
    body = cbor2.dumps(
        {"requestId": "r", "name": "s", "firstSequenceNumber": value, "endSequenceNumber": value}
    )

    request: Any = decode_request(Operation.ReadColumns, body, EVERYTHING)

    assert request.first_sequence_number == request.end_sequence_number == int(value)
    assert type(request.first_sequence_number) is int


@pytest.mark.parametrize("value", [0.5, float("inf"), float("-inf"), float("nan"), 2.0**63, 1e300])
def test_other_floats_are_rejected(value: float) -> None:
    body = cbor2.dumps(
        {"requestId": "r", "name": "s", "firstSequenceNumber": value, "endSequenceNumber": 1}
    )

    with pytest.raises(InvalidRequestException, match=r"firstSequenceNumber is .*expected int"):
        decode_request(Operation.ReadColumns, body, EVERYTHING)


# Arbitrary bytes


def check_decodes(operation: int, body: bytes) -> None:
    """Decodes a request; only the two errors that a session handles may be raised."""
    failure: StreamManagerException | None = None
    try:
        decode_request(operation, body, EVERYTHING)
    except UnreadableRequestError:
        pass
    except StreamManagerException as error:
        failure = error
    assert failure is None or (failure.request_id and failure.status)


operations = st.sampled_from(sorted(EVERYTHING)) | st.integers(-128, 127)


@given(operations, st.binary(max_size=100))
def test_arbitrary_bytes_are_a_request_or_a_known_error(operation: int, body: bytes) -> None:
    check_decodes(operation, body)
    check_decodes(operation, b"\xa2irequestIdar" + body)


scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.just(cbor2.undefined)
)
FIELDS = """
definition name payload streamName readMessagesOptions protocolVersion exportDefinition kinesis
IotSitewise strategyOnFull sizes payloads http identifier statusConfig s3TaskExecutor
otherSupportedProtocolVersions
"""
field_names = st.sampled_from(FIELDS.split())
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda items: (
        st.dictionaries(field_names | scalars, items, max_size=5) | st.lists(items, max_size=2)
    ),
    max_leaves=8,
)


@given(operations, st.dictionaries(field_names, values, max_size=5))
def test_any_value_in_any_field_is_a_request_or_a_known_error(
    operation: int, fields: dict[str, Any]
) -> None:
    check_decodes(operation, cbor2.dumps({"requestId": "r", **fields}))


@given(st.data())
def test_damaged_frames_of_the_aws_clients_are_requests_or_known_errors(
    data: st.DataObject,
) -> None:
    frame = data.draw(st.sampled_from(CAPTURED))
    body = bytearray(frame.body)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["change", "truncate", "insert", "repeat"])):
            case "change":
                body[place] = data.draw(st.integers(0, 255))
            case "truncate":
                del body[place + 1 :]
            case "insert":
                body[place:place] = data.draw(st.binary(min_size=1, max_size=9))
            case "repeat":
                body += body[place:]

    check_decodes(frame.frame[4], bytes(body))


def test_malformed_errors_do_not_leave_the_decoder() -> None:
    assert not issubclass(MalformedError, StreamManagerException)
    for body in (b"\xa1irequestIdar\x00", b"\xa1irequestIdar" + b"\x9f" * 100):
        with pytest.raises(InvalidRequestException):
            decode_request(Operation.ListStreams, body, EVERYTHING)
