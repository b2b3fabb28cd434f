"""The server's state machine: bytes in, events out, however the bytes are split."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ResponseStatusCode, StreamManagerException
from penstock.wire.codec import UnreadableRequestError, decode_request
from penstock.wire.frames import LENGTH, MAX_FRAME_BYTES, encode_frame
from penstock.wire.operations import Operation
from penstock.wire.protocol import (
    MAX_CONNECT_FRAME_BYTES,
    AppendRun,
    Event,
    Frame,
    ServerProtocol,
    Violation,
)
from penstock.wire.requests import REQUESTS, AppendMessageRequest
from tests.support import append_frame

from .captured import (
    CAPTURED,
    CLIENTS,
    captured_from,
    connected,
    events_of,
    one_of,
    split,
    without_runs,
)

JAVASCRIPT_APPEND = bytes.fromhex(
    "00000023 04 a3 69 726571756573744964 61 20 64 6e616d65 61 53 67 7061796c6f6164 45 68656c6c6f"
)


def violation(protocol: ServerProtocol, data: bytes) -> Violation:
    """Returns the violation in these bytes; checks that later bytes are ignored."""
    protocol.receive(data)
    event = protocol.next_event()
    assert isinstance(event, Violation)
    protocol.receive(one_of("python", "ListStreams").frame)
    assert protocol.next_event() is None
    assert protocol.buffered_bytes == 0
    return event


# The handshake


def test_handshake_is_a_version_byte_and_a_connect_frame() -> None:
    protocol = ServerProtocol()
    assert protocol.in_handshake

    protocol.receive(bytes.fromhex("01 0000000e 01 a1 69 726571756573744964 61 20"))

    assert protocol.next_event() == Frame(1, bytes.fromhex("a1 69 726571756573744964 61 20"))
    assert protocol.next_event() is None
    protocol.accept()
    assert not protocol.in_handshake


@pytest.mark.parametrize("version", [0, 2, 3, 22, 71, 255])
def test_unsupported_connect_version_is_rejected(version: int) -> None:
    event = violation(ServerProtocol(), bytes((version,)))

    assert event == Violation(
        f"connect version {version} is not supported; this server supports 1",
        ResponseStatusCode.UnsupportedConnectVersion,
        Operation.ConnectResponse,
        "unknown",
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_other_operations_before_the_handshake_are_rejected(client: str) -> None:
    for captured in captured_from(client)[1:]:
        event = violation(ServerProtocol(), b"\x01" + captured.frame)

        assert event.status is ResponseStatusCode.UnexpectedOperation
        assert event.operation is Operation.ConnectResponse
        assert event.request_id == cbor2.loads(captured.body)["requestId"]


def test_too_long_handshake_is_rejected_by_its_length() -> None:
    limit = MAX_CONNECT_FRAME_BYTES
    assert limit == 64 * 1024
    protocol = ServerProtocol()
    protocol.receive(b"\x01" + LENGTH.pack(limit) + b"\x01" + bytes(limit - 1))
    assert protocol.next_event() == Frame(1, bytes(limit - 1))

    event = violation(ServerProtocol(), b"\x01" + LENGTH.pack(limit + 1) + b"\x01")

    assert event.status is ResponseStatusCode.InvalidRequest
    assert event.reason == "a frame length of 65537: expected 1 to 65536"
    assert event.request_id == "unknown"


@pytest.mark.parametrize("length", [0, -1, -(2**31), 2**31 - 1])
def test_invalid_lengths_are_rejected_before_and_after_the_handshake(length: int) -> None:
    head = LENGTH.pack(length) + b"\x01"

    assert violation(ServerProtocol(), b"\x01" + head).request_id == "unknown"
    event = violation(connected(), head + bytes(600))
    assert event.request_id is None
    assert str(length) in event.reason


# Frames


def test_frames_are_returned_in_order() -> None:
    protocol = connected()

    protocol.receive(bytes.fromhex("00000002 0b a0 00000001 05 00000003 ff 0102"))

    assert protocol.next_event() == Frame(11, b"\xa0")
    assert protocol.next_event() == Frame(5, b"")
    assert protocol.next_event() == Frame(-1, b"\x01\x02")
    assert protocol.next_event() is None


def test_incomplete_frame_is_not_returned() -> None:
    protocol = connected()
    assert not protocol.is_inside_frame

    for byte in bytes.fromhex("00000003 0b a0"):
        protocol.receive(bytes((byte,)))
        assert protocol.next_event() is None
        assert protocol.is_inside_frame
    protocol.receive(b"\xa0")

    assert protocol.next_event() == Frame(11, b"\xa0\xa0")
    assert not protocol.is_inside_frame


@pytest.mark.parametrize("client", CLIENTS)
def test_frames_of_the_aws_clients_do_not_depend_on_how_bytes_are_split(client: str) -> None:
    sent = b"\x01" + b"".join(captured.frame for captured in captured_from(client))
    whole = events_of(ServerProtocol(), [sent])

    single = list(without_runs(whole))
    assert len(single) == len(captured_from(client))
    for event, captured in zip(single, captured_from(client), strict=True):
        if isinstance(event, AppendRun):
            expected = cbor2.loads(captured.body)
            assert event.stream_name == expected["name"]
            assert [cbor2.loads(request_id) for request_id in event.request_ids] == [
                expected["requestId"]
            ]
            assert event.payloads == [expected["payload"]]
        else:
            assert event == Frame(captured.frame[4], captured.body)

    def same(pieces: list[bytes]) -> bool:
        return list(without_runs(events_of(ServerProtocol(), pieces))) == single

    assert same([sent[place : place + 1] for place in range(len(sent))])
    assert all(same([sent[:place], sent[place:]]) for place in range(len(sent)))


def test_consecutive_appends_are_one_run() -> None:
    protocol = connected()
    last = [captured.frame for captured in captured_from("javascript")[-3:]]

    protocol.receive(JAVASCRIPT_APPEND + b"".join(last))

    assert protocol.next_event() == AppendRun("S", [b"\x61\x20"] * 4, [b"hello", b"a", b"b", b"c"])


def test_large_frame_is_collected_in_pieces() -> None:
    protocol = connected()
    payload = bytes(range(256)) * 4096
    sent = encode_frame(4, cbor2.dumps({"requestId": "r", "name": "s", "payload": payload}))

    protocol.receive(sent[:1000])
    assert protocol.next_event() is None
    assert protocol.expected_bytes == len(sent)
    assert protocol.buffered_bytes == 1000
    events = events_of(protocol, [*split(sent[1000:], range(0, len(sent), 70_001)), sent[:7]])

    assert events == [AppendRun("s", [b"ar"], [payload])]
    assert protocol.expected_bytes == len(sent)
    assert protocol.buffered_bytes == 7
    assert events_of(protocol, [sent[7:]]) == events
    assert protocol.expected_bytes == protocol.buffered_bytes == 0


# Frames that are too long


@pytest.mark.parametrize("operation", [Operation.AppendMessage, Operation.ReadMessages])
def test_too_long_frame_has_its_request_id_if_readable(
    operation: Operation,
) -> None:
    head = LENGTH.pack(MAX_FRAME_BYTES + 1) + bytes((operation,))
    protocol = connected()
    protocol.receive(head + bytes.fromhex("a3 69 726571756573744964 63 6162"))
    assert protocol.next_event() is None

    event = violation(protocol, b"c")

    assert event == Violation(
        "a frame of 1073741825 bytes: expected at most 1073741824",
        ResponseStatusCode.RequestPayloadTooLarge,
        Operation[f"{operation.name}Response"],
        "abc",
    )


def test_too_long_frame_without_a_leading_id_has_no_request_id() -> None:
    head = LENGTH.pack(2**31 - 1) + b"\x04"
    protocol = connected()
    protocol.receive(head + b"\xa1\x64name\x79\x03\xe8" + b"x" * 500)
    assert protocol.next_event() is None

    event = violation(protocol, b"x" * 100)

    assert event.request_id is None
    assert event.status is ResponseStatusCode.RequestPayloadTooLarge


def test_max_frame_size_applies_to_each_frame_of_a_piece() -> None:
    limit = 200
    fits = encode_frame(4, cbor2.dumps({"requestId": "r", "name": "s", "payload": b"x" * 150}))
    too_long = encode_frame(4, cbor2.dumps({"requestId": "q", "name": "s", "payload": bytes(200)}))
    protocol = connected(limit)

    events = events_of(protocol, [fits + fits + too_long + fits])

    assert events[0] == AppendRun("s", [b"ar"] * 2, [b"x" * 150] * 2)
    assert isinstance(events[1], Violation)
    assert events[1].request_id == "q"
    assert len(events) == 2


# Memory


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=64), st.integers(1, 20))
def test_buffered_bytes_do_not_exceed_received_bytes(length: int, body: bytes, pieces: int) -> None:
    protocol = connected()
    received = 0
    for piece in [LENGTH.pack(length) + b"\x05", *[body] * pieces]:
        protocol.receive(piece)
        received += len(piece)
        while protocol.next_event() is not None:
            pass
        assert protocol.buffered_bytes <= received


def test_large_frame_in_tiny_pieces_needs_little_extra_memory() -> None:
    protocol = connected()
    protocol.receive(LENGTH.pack(MAX_FRAME_BYTES) + b"\x04")

    for number in range(200_000):
        protocol.receive(bytes((number % 256, 1)))
        assert protocol.next_event() is None

    pieces: list[bytes] = protocol._pieces
    kept = sys.getsizeof(pieces) + sum(map(sys.getsizeof, pieces))
    assert protocol.buffered_bytes == 400_005
    assert kept < 1.1 * protocol.buffered_bytes


def test_violated_connection_buffers_nothing() -> None:
    protocol = connected()

    for _ in range(100):
        protocol.receive(LENGTH.pack(-1) + bytes(10_000))
        protocol.next_event()

    assert protocol.buffered_bytes == 0
    assert not protocol.is_inside_frame


# The fast path for appends


def as_python(request_id: str, name: str, payload: bytes) -> bytes:
    return cbor2.dumps({"requestId": request_id, "name": name, "payload": payload})


def as_java(request_id: str, name: str, payload: bytes) -> bytes:
    return b"\xbf" + as_python(request_id, name, payload)[1:] + b"\xff"


def reordered(request_id: str, name: str, payload: bytes) -> bytes:
    return cbor2.dumps({"payload": payload, "requestId": request_id, "name": name})


def with_more(request_id: str, name: str, payload: bytes) -> bytes:
    return cbor2.dumps({"requestId": request_id, "name": name, "payload": payload, "more": 1})


def with_wide_heads(request_id: str, name: str, payload: bytes) -> bytes:
    return (
        b"\xa3irequestIdx"
        + bytes((len(request_id),))
        + request_id.encode()
        + b"dnamex"
        + bytes((len(name),))
        + name.encode()
        + b"gpayload\x5b"
        + len(payload).to_bytes(8, "big")
        + payload
    )


Shape = Callable[[str, str, bytes], bytes]
shapes: st.SearchStrategy[Shape] = st.sampled_from(
    [as_python, as_python, as_java, reordered, with_more, with_wide_heads]
)
appends = st.builds(
    lambda shape, request_id, name, payload: encode_frame(
        Operation.AppendMessage, shape(request_id, name, payload)
    ),
    shapes,
    st.sampled_from([" ", "r", "q", "x" * 36, "y" * 36, "dname", "z" * 200]),
    # Names of one length, so that frames to different streams have the same length.
    st.sampled_from(["S", "T", "gpayload", "SomeStream", "OtherOneXX", "n" * 30, "n" * 255]),
    st.sampled_from([b"a", b"\xff", b"\xff\xff", b"hello", b"x" * 23, b"x" * 24, b"x" * 300])
    | st.binary(min_size=1, max_size=30)
    # A payload that looks like a frame.
    | st.just(JAVASCRIPT_APPEND),
)
others = st.sampled_from([captured.frame for captured in CAPTURED[1:9]]) | st.builds(
    lambda body: encode_frame(Operation.AppendMessage, body), st.binary(max_size=40)
)
sequences = st.lists(appends | appends | appends | others, min_size=1, max_size=25)


def decoded_by_library(frame: bytes) -> Any:
    """Decodes a frame with the library alone."""
    try:
        return frame[4], cbor2.loads(frame[5:])
    except (ValueError, EOFError, cbor2.CBORDecodeError):
        return frame


def decoded_events(events: list[Event]) -> list[Any]:
    decoded: list[Any] = []
    for event in without_runs(events):
        if isinstance(event, AppendRun):
            append = {"requestId": cbor2.loads(event.request_ids[0]), "name": event.stream_name}
            decoded.append((Operation.AppendMessage, {**append, "payload": event.payloads[0]}))
        else:
            assert isinstance(event, Frame)
            decoded.append(decoded_by_library(encode_frame(event.operation, event.body)))
    return decoded


@given(sequences, st.lists(st.integers(0, 10_000), max_size=8))
def test_fast_path_equals_the_general_decoder(frames: list[bytes], places: list[int]) -> None:
    events = events_of(connected(), split(b"".join(frames), places))

    assert decoded_events(events) == list(map(decoded_by_library, frames))


@given(sequences)
def test_frames_arrive_byte_by_byte(frames: list[bytes]) -> None:
    sent = b"".join(frames)
    pieces = [sent[start:stop] for start, stop in pairwise(range(len(sent) + 1))]

    assert decoded_events(events_of(connected(), pieces)) == list(map(decoded_by_library, frames))


# Ids, names and payloads as bytes; some are invalid.
raw_ids = st.sampled_from(
    [b" ", b"r", b"q-1", b"x" * 23, b"x" * 36, b"z" * 200, b"\xff", b"a\xc3\xa9", b"a/b", b"$" * 24]
) | st.binary(max_size=40)
raw_names = st.sampled_from([b"S", b"SomeStream", b"n" * 255, b"a/b", b"\xc3\xa9"]) | st.binary(
    max_size=20
)
raw_payloads = st.sampled_from([b"a", b"hello", b"x" * 300]) | st.binary(max_size=30)
widths = st.integers(0, 4)


def string(major: int, width: int, content: bytes) -> bytes:
    """Encodes a CBOR string; `width` selects the size of its length, 0 the smallest one."""
    if width == 0:
        return smallest_head(major, content)
    size = 1 << (width - 1)
    length = len(content) % (1 << 8 * size)
    return bytes((major << 5 | 23 + width,)) + length.to_bytes(size, "big") + content


def smallest_head(major: int, content: bytes) -> bytes:
    head = bytearray(cbor2.dumps(len(content)))
    head[0] |= major << 5
    return bytes(head) + content


raw_appends = st.builds(
    lambda is_definite, request_id, id_width, name, name_width, payload, payload_width: (
        encode_frame(
            Operation.AppendMessage,
            (b"\xa3" if is_definite else b"\xbf")
            + b"irequestId"
            + string(3, id_width, request_id)
            + b"dname"
            + string(3, name_width, name)
            + b"gpayload"
            + string(2, payload_width, payload)
            + (b"" if is_definite else b"\xff"),
        )
    ),
    st.booleans(),
    raw_ids,
    widths,
    raw_names,
    widths,
    raw_payloads,
    widths,
)


@st.composite
def damaged_appends(draw: st.DrawFn) -> bytes:
    frame = bytearray(
        draw(raw_appends | st.sampled_from([c.frame for c in CAPTURED if c.frame[4] == 4]))
    )
    place = draw(st.integers(5, len(frame) - 1))
    frame[place] = draw(st.integers(0, 255))
    return bytes(frame)


def decoded_by_general_path(frame: bytes) -> tuple[str, str, bytes] | None:
    """Decodes an append frame; None for a frame that is rejected."""
    try:
        request = decode_request(frame[4], frame[5:], REQUESTS)
    except (UnreadableRequestError, StreamManagerException):
        return None
    assert isinstance(request, AppendMessageRequest)
    return request.request_id, request.name, request.payload


@given(
    st.lists(appends | raw_appends | damaged_appends(), min_size=1, max_size=12).map(
        # Consecutive equal frames are cut out together.
        lambda frames: [each for frame in frames for each in [frame] * (1 + len(frame) % 3)]
    ),
    st.lists(st.integers(0, 10_000), max_size=4),
)
def test_fast_path_accepts_only_appends_that_the_general_decoder_accepts(
    frames: list[bytes], places: list[int]
) -> None:
    events = list(without_runs(events_of(connected(), split(b"".join(frames), places))))

    assert len(events) == len(frames)
    for event, frame in zip(events, frames, strict=True):
        if isinstance(event, AppendRun):
            request_id = cbor2.loads(event.request_ids[0])
            cut_out = (request_id, event.stream_name, event.payloads[0])
            assert cut_out == decoded_by_general_path(frame)
        else:
            assert event == Frame(frame[4], frame[5:])


@pytest.mark.parametrize("lengths", [(36, 36), (48, 48), (36, 48, 36), (5, 24, 255, 5)])
def test_appends_with_valid_request_ids_of_any_length_are_cut_out(lengths: Sequence[int]) -> None:
    sent = [append_frame("S", b"1", "x" * length) for length in lengths]

    events = list(without_runs(events_of(connected(), [b"".join(sent)])))

    assert [
        cbor2.loads(event.request_ids[0]) for event in events if isinstance(event, AppendRun)
    ] == ["x" * length for length in lengths]


@pytest.mark.parametrize("request_id", [b"\xff", b"a/b", b"\xc3\xa9", b"$" * 24, b"x" * 30 + b"\n"])
@pytest.mark.parametrize("before", [0, 1, 5])
# As characters, 36 is a dollar sign and invalid, and 48 is a zero and valid.
@pytest.mark.parametrize("other_length", [None, 5, 36, 48])
def test_append_with_invalid_request_id_is_left_to_the_general_decoder(
    request_id: bytes, before: int, other_length: int | None
) -> None:
    def append(text: bytes) -> bytes:
        body = b"\xa3irequestId" + smallest_head(3, text) + b"dnameaSgpayloadA1"
        return encode_frame(Operation.AppendMessage, body)

    good, bad = append(b"x" * (other_length or len(request_id))), append(request_id)

    events = list(without_runs(events_of(connected(), [good * before + bad + good])))

    assert events[before] == Frame(Operation.AppendMessage, bad[5:])
    assert decoded_by_general_path(bad) is None


# Arbitrary bytes


def check_events(protocol: ServerProtocol, pieces: list[bytes]) -> None:
    """Checks that the pieces give events, and that no more bytes are buffered than received."""
    received = 0
    for piece in pieces:
        protocol.receive(piece)
        received += len(piece)
        while (event := protocol.next_event()) is not None:
            assert isinstance(event, (Frame, AppendRun, Violation))
            if protocol.in_handshake and isinstance(event, Frame):
                protocol.accept()
        assert protocol.buffered_bytes <= received


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_arbitrary_bytes_give_events(data: bytes, places: list[int]) -> None:
    for protocol in (ServerProtocol(), connected(), connected(65_536)):
        check_events(protocol, split(data, places))
    check_events(ServerProtocol(), split(b"\x01" + data, places))


@given(st.data())
def test_damaged_frames_give_events(data: st.DataObject) -> None:
    sent = bytearray().join(
        data.draw(st.lists(st.sampled_from([c.frame for c in CAPTURED]), min_size=1, max_size=6))
    )
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(sent) - 1))
        sent[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not sent:
            return

    places = data.draw(st.lists(st.integers(0, 5000), max_size=5))
    check_events(connected(), split(bytes(sent), places))
