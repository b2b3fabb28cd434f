"""Requests as the server decodes them, and the decoding of answers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import calls
from penstock.client.calls import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, ClientCall
from penstock.client.client_protocol import ClientProtocol
from penstock.errors import (
    EXCEPTION_OF,
    ClientException,
    ResponseStatusCode,
    StreamManagerException,
    UnknownOperationException,
    ValidationException,
)
from penstock.model import (
    ExportDefinition,
    KinesisConfig,
    Message,
    MessageStreamDefinition,
    Persistence,
    ReadMessagesOptions,
    StrategyOnFull,
)
from penstock.model.exporting import DeliveryReport, PipelineDescription, SkippedMessage
from penstock.model.storage import Location, SegmentSummary, StoredRun, StreamPosition
from penstock.wire.codec import decode_request
from penstock.wire.frames import HEADER
from penstock.wire.operations import RESPONSE_TO, Operation
from penstock.wire.requests import (
    EXTENDED_REQUESTS,
    AppendMessageRequest,
    AppendMessagesRequest,
    CommitExportsRequest,
    CreateMessageStreamRequest,
    DeleteMessageStreamRequest,
    DescribeMessageStreamRequest,
    ListStreamsRequest,
    LocateMessagesRequest,
    PlanExportsRequest,
    ReadColumnsRequest,
    ReadMessagesRequest,
    ReadStoredRequest,
    Request,
    ReserveBandwidthRequest,
    RewindExportRequest,
    StatisticsRequest,
    UpdateMessageStreamRequest,
    WatchStreamsRequest,
)
from tests.model.samples import definition as plain_definition
from tests.support import MEBIBYTE

ID = "00000001"
FRAME_BYTES = 1 << 30

DEFINITION = MessageStreamDefinition(
    "some stream",
    max_size=4096,
    strategy_on_full=StrategyOnFull.OverwriteOldestData,
    persistence=Persistence.Memory,
    export_definition=ExportDefinition(kinesis=[KinesisConfig("k", "stream", batch_size=5)]),
)


REPORT = DeliveryReport(
    lease="l",
    stream="s",
    stream_id="i",
    identifier="e",
    first=3,
    settled_end=5,
    arrived=[7, 8],
    exported_messages=3,
    exported_bytes=30,
    skipped=[SkippedMessage(4, "malformed")],
    sent_bytes=50,
    error="no way",
    pause_millis=100,
    is_final=False,
)


def request_of(call: ClientCall[Any]) -> Request:
    """Encodes a call and decodes it like a server."""
    _, frame = ClientProtocol().request(call)
    return decode_request(frame[4], frame[HEADER.size :], EXTENDED_REQUESTS)


def result_of(call: ClientCall[Any], **response: Any) -> Any:
    """Returns the result of an answer; its status is success unless the fields contain another."""
    success = {"requestId": ID, "status": 0, "errorMessage": ""}
    return call.resolve(RESPONSE_TO[call.operation], {**success, **response})


def append_batch(*payloads: bytes) -> ClientCall[Any]:
    ((call,),) = calls.plan_appends("s", payloads, True, FRAME_BYTES)
    return call


# Requests

READ_OR_NONE = calls.read_messages_or_none("s", 4, 9, 500)
ABOUT = PipelineDescription(
    started=5, spark_version="4.1.0", master="local[3]", spark_page="http://127.0.0.1:4040"
)
REQUESTS: list[tuple[ClientCall[Any], Request]] = [
    (
        calls.create_message_stream(DEFINITION),
        CreateMessageStreamRequest(request_id=ID, definition=DEFINITION),
    ),
    (
        calls.update_message_stream(DEFINITION),
        UpdateMessageStreamRequest(request_id=ID, definition=DEFINITION),
    ),
    (calls.delete_message_stream("s"), DeleteMessageStreamRequest(request_id=ID, name="s")),
    (calls.describe_message_stream("s"), DescribeMessageStreamRequest(request_id=ID, name="s")),
    (calls.list_streams(), ListStreamsRequest(request_id=ID)),
    (calls.statistics(), StatisticsRequest(request_id=ID)),
    (
        calls.append_message("s", b"\x00\xff"),
        AppendMessageRequest(request_id=ID, name="s", payload=b"\x00\xff"),
    ),
    (
        append_batch(b"a", b"bcd"),
        AppendMessagesRequest(
            request_id=ID, name="s", sizes=b"\x01\0\0\0\x03\0\0\0", payloads=b"abcd"
        ),
    ),
    (calls.read_messages("s", None, 60), ReadMessagesRequest(request_id=ID, stream_name="s")),
    (
        calls.read_messages("s", ReadMessagesOptions(4, 1, 9, 60_000), 60),
        ReadMessagesRequest(
            request_id=ID,
            stream_name="s",
            read_messages_options=ReadMessagesOptions(4, 1, 9, 60_000),
        ),
    ),
    (
        READ_OR_NONE,
        ReadMessagesRequest(
            request_id=ID, stream_name="s", read_messages_options=ReadMessagesOptions(4, 1, 9, 500)
        ),
    ),
    (
        calls.read_columns("s", 4, 2**63 - 1, 1024, 500),
        ReadColumnsRequest(
            request_id=ID,
            name="s",
            first_sequence_number=4,
            end_sequence_number=2**63 - 1,
            max_bytes=1024,
            read_timeout_millis=500,
        ),
    ),
    (
        calls.watch_streams(("a", "b*"), {"a": 7}, 60_000, 60),
        WatchStreamsRequest(
            request_id=ID, patterns=["a", "b*"], next_numbers={"a": 7}, wait_millis=60_000
        ),
    ),
    (
        calls.locate_messages("s", "i", 4, 2**63 - 1, None),
        LocateMessagesRequest(
            request_id=ID,
            name="s",
            stream_id="i",
            first_sequence_number=4,
            end_sequence_number=2**63 - 1,
        ),
    ),
    (
        calls.locate_messages("s", "i", 4, 9, 1 << 40),
        LocateMessagesRequest(
            request_id=ID,
            name="s",
            stream_id="i",
            first_sequence_number=4,
            end_sequence_number=9,
            max_bytes=1 << 40,
        ),
    ),
    (
        calls.read_stored("s", "i", 4, 9, 1024),
        ReadStoredRequest(
            request_id=ID,
            name="s",
            stream_id="i",
            first_sequence_number=4,
            end_sequence_number=9,
            max_bytes=1024,
        ),
    ),
    (
        calls.plan_exports(
            "p",
            "t",
            lease_millis=5000,
            holding=("l", "m"),
            reports=[REPORT],
            max_slices=4,
            max_bytes=1024,
            max_priority=3,
            wait_millis=60_000,
            about=ABOUT,
            stops=True,
            request_timeout=60,
        ),
        PlanExportsRequest(
            request_id=ID,
            pipeline="p",
            task="t",
            lease_millis=5000,
            holding=["l", "m"],
            reports=[REPORT],
            max_slices=4,
            max_bytes=1024,
            max_priority=3,
            wait_millis=60_000,
            about=ABOUT,
            stops=True,
        ),
    ),
    (
        calls.plan_exports(
            "p",
            "t",
            lease_millis=5000,
            holding=(),
            reports=(),
            max_slices=0,
            max_bytes=0,
            max_priority=None,
            wait_millis=0,
            about=None,
            stops=False,
            request_timeout=60,
        ),
        PlanExportsRequest(
            request_id=ID, pipeline="p", task="t", lease_millis=5000, max_slices=0, max_bytes=0
        ),
    ),
    (calls.commit_exports([REPORT]), CommitExportsRequest(request_id=ID, reports=[REPORT])),
    (
        calls.reserve_bandwidth("l", 1024, wait_millis=500, request_timeout=60),
        ReserveBandwidthRequest(request_id=ID, lease="l", size=1024, wait_millis=500),
    ),
    (
        calls.rewind_export("s", "e", 5),
        RewindExportRequest(request_id=ID, stream_name="s", identifier="e", sequence_number=5),
    ),
]


@pytest.mark.parametrize(("call", "arrived"), REQUESTS, ids=[c.operation.name for c, _ in REQUESTS])
def test_request_arrives_unchanged(call: ClientCall[Any], arrived: Request) -> None:
    assert request_of(call) == arrived


def test_every_operation_of_the_server_has_a_call() -> None:
    assert {call.operation for call, _ in REQUESTS} == set(EXTENDED_REQUESTS)


def test_only_idempotent_calls_may_be_repeated() -> None:
    assert {call.operation for call, _ in REQUESTS if call.may_repeat} == {
        Operation.ListStreams,
        Operation.DescribeMessageStream,
        Operation.ReadMessages,
        Operation.ReadColumns,
        Operation.Statistics,
        Operation.WatchStreams,
        Operation.LocateMessages,
        Operation.ReadStored,
        # A repeated request frees leases that the task does not hold. A repeated report changes
        # nothing.
        Operation.PlanExports,
        Operation.CommitExports,
        # A repeated reservation is charged twice, which delays other exports a little.
        Operation.ReserveBandwidth,
        Operation.RewindExport,
    }


# Arguments

EXPECTED_NAME = "expected 1 to 255 letters, digits, spaces or any of , . - _"


@pytest.mark.parametrize("name", ["", "x" * 256, "a/b", "ä", "a\n", 5, None, b"s"])
def test_invalid_stream_name_is_rejected(name: Any) -> None:
    expected = f"^stream_name is {re.escape(repr(name))}: {EXPECTED_NAME}"
    for make in (
        calls.delete_message_stream,
        calls.describe_message_stream,
        lambda name: calls.append_message(name, b"x"),
        lambda name: calls.read_messages(name, None, 60),
        lambda name: next(calls.plan_appends(name, [b"x"], True, FRAME_BYTES)),
        lambda name: calls.locate_messages(name, "i", 0, 1, None),
        lambda name: calls.read_stored(name, "i", 0, 1, 1),
    ):
        with pytest.raises(ValidationException, match=expected):
            make(name)


@pytest.mark.parametrize("name", ["x" * 255, "a b,c.d-e_f", "0"])
def test_valid_stream_name_is_accepted(name: str) -> None:
    assert request_of(calls.describe_message_stream(name)) == DescribeMessageStreamRequest(
        request_id=ID, name=name
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("text", "data is str: expected bytes"),
        (None, "data is NoneType: expected bytes"),
        ([1], "data is list: expected bytes"),
        (b"", "data is empty: expected 1 byte or more"),
        (bytearray(), "data is empty: expected 1 byte or more"),
    ],
)
def test_invalid_data_is_rejected(data: Any, message: str) -> None:
    with pytest.raises(ValidationException, match=f"^{message}$"):
        calls.append_message("s", data)
    with pytest.raises(ValidationException, match=f"^{message}$"):
        next(calls.plan_appends("s", [data], True, FRAME_BYTES))


@pytest.mark.parametrize(
    "data", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a.b.c.")[::2]]
)
def test_bytearray_and_memoryview_are_accepted(data: Any) -> None:
    assert payloads_of(calls.append_message("s", data)) == [bytes(data)]
    assert payloads_of(append_batch(data)) == [bytes(data)]


@pytest.mark.parametrize("messages", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc"])
def test_append_messages_rejects_a_single_message(messages: Any) -> None:
    with pytest.raises(ValidationException, match="expected an iterable of messages, each bytes"):
        next(calls.plan_appends("s", messages, True, FRAME_BYTES))


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (None, "definition is NoneType: expected a MessageStreamDefinition"),
        (plain_definition(), "definition is dict: expected a MessageStreamDefinition"),
        (MessageStreamDefinition(), "object missing required field name"),
        (MessageStreamDefinition("s"), "object missing required field strategyOnFull"),
        (
            MessageStreamDefinition("s", strategy_on_full=StrategyOnFull.RejectNewData, max_size=1),
            "maxSize is 1: expected int >= 1024",
        ),
        (
            MessageStreamDefinition("s", strategy_on_full=7),  # type: ignore[arg-type] # a mistake
            "strategyOnFull is 7: expected one of 0 (RejectNewData), 1 (OverwriteOldestData)",
        ),
        (
            msgspec.structs.replace(
                DEFINITION, export_definition=ExportDefinition(kinesis=[KinesisConfig("k")])
            ),
            "exportDefinition.kinesis[0]: object missing required field kinesisStreamName",
        ),
    ],
)
def test_invalid_definition_is_rejected(definition: Any, message: str) -> None:
    for make in (calls.create_message_stream, calls.update_message_stream):
        with pytest.raises(ValidationException, match=f"^{re.escape(message)}$"):
            make(definition)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "options is dict: expected a ReadMessagesOptions"),
        (ReadMessagesOptions(-1), "desiredStartSequenceNumber is -1: expected int >= 0"),
        (ReadMessagesOptions(None, 0), "minMessageCount is 0: expected int >= 1"),
        (
            ReadMessagesOptions(None, 5, 4),
            "min_message_count is 5: expected at most max_message_count, 4",
        ),
        (
            ReadMessagesOptions(None, 1, 1, 2001),
            "read_timeout_millis is 2001: expected at most the client's request_timeout, 2 s",
        ),
    ],
)
def test_invalid_options_are_rejected(options: Any, message: str) -> None:
    with pytest.raises(ValidationException, match=f"^{re.escape(message)}$"):
        calls.read_messages("s", options, 2)


# Batches


def sizes_of(call: ClientCall[Any]) -> list[int]:
    request = request_of(call)
    if isinstance(request, AppendMessagesRequest):
        return list(struct.unpack(f"<{len(request.sizes) // 4}I", request.sizes))
    assert isinstance(request, AppendMessageRequest)
    return [len(request.payload)]


def payloads_of(call: ClientCall[Any]) -> list[bytes]:
    request = request_of(call)
    if isinstance(request, AppendMessageRequest):
        return [request.payload]
    assert isinstance(request, AppendMessagesRequest)
    ends = accumulate(sizes_of(call), initial=0)
    return [request.payloads[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize("has_extensions", [True, False])
def test_no_messages_need_no_request(has_extensions: bool) -> None:
    assert list(calls.plan_appends("s", [], has_extensions, FRAME_BYTES)) == []


def test_with_extensions_a_request_has_max_batch_messages() -> None:
    groups = list(calls.plan_appends("s", [b"x"] * (MAX_BATCH_MESSAGES + 1), True, FRAME_BYTES))

    assert [[len(sizes_of(call)) for call in group] for group in groups] == [
        [MAX_BATCH_MESSAGES],
        [1],
    ]


def test_with_extensions_a_request_has_max_batch_bytes() -> None:
    # Each message needs 4 more bytes, for its size.
    half = bytes(MAX_BATCH_BYTES // 2 - 4)
    groups = list(calls.plan_appends("s", [half, half, half, b"x"], True, FRAME_BYTES))

    assert [[len(sizes_of(call)) for call in group] for group in groups] == [[2], [2]]


def test_message_above_max_batch_bytes_is_sent_alone() -> None:
    large = bytes(MAX_BATCH_BYTES + 1)
    groups = list(calls.plan_appends("s", [b"x", large, large, b"x"], True, FRAME_BYTES))

    assert [sizes_of(call) for (call,) in groups] == [[1], [len(large)], [len(large)], [1]]


def test_requests_fit_the_max_frame_size_of_the_server() -> None:
    groups = list(calls.plan_appends("s", [bytes(996)] * 100, True, 65_536))

    frames = [len(ClientProtocol().request(call)[1]) for (call,) in groups]
    assert max(frames) < 65_536
    assert [len(sizes_of(call)) for (call,) in groups] == [32, 32, 32, 4]


def test_without_extensions_each_message_is_one_request() -> None:
    groups = list(calls.plan_appends("s", [b"%d" % n for n in range(1200)], False, FRAME_BYTES))

    assert [len(group) for group in groups] == [512, 512, 176]
    assert {call.operation for group in groups for call in group} == {Operation.AppendMessage}


def test_without_extensions_bytes_in_flight_are_limited() -> None:
    groups = list(calls.plan_appends("s", [bytes(MEBIBYTE - 4)] * 9, False, FRAME_BYTES))

    assert [len(group) for group in groups] == [4, 4, 1]


@given(
    st.lists(st.integers(1, 3000), max_size=60), st.booleans(), st.sampled_from([65_536, 8192, 1])
)
def test_every_message_is_sent_once_and_in_order(
    sizes: list[int], has_extensions: bool, max_frame_bytes: int
) -> None:
    messages = [bytes((number,)) * size for number, size in enumerate(sizes)]

    groups = calls.plan_appends("s", messages, has_extensions, max_frame_bytes)

    sent = [payloads_of(call) for group in groups for call in group]
    assert list(chain.from_iterable(sent)) == messages
    if has_extensions:
        assert all(
            len(batch) == 1 or sum(map(len, batch)) + 4 * len(batch) <= max_frame_bytes // 2
            for batch in sent
        )


@pytest.mark.parametrize(
    ("has_extensions", "max_messages"), [(True, MAX_BATCH_MESSAGES), (False, 512)]
)
def test_iterable_is_consumed_as_requests_are_sent(has_extensions: bool, max_messages: int) -> None:
    taken = 0

    def messages() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x"

    groups = calls.plan_appends("s", messages(), has_extensions, FRAME_BYTES)
    assert taken == 0
    for number in (1, 2, 3):
        next(groups)
        # One more message is consumed, to see that it does not fit.
        assert taken == number * max_messages + 1


def test_numbers_of_one_request_are_a_range() -> None:
    numbers = calls.join_numbers([range(5, 8)])

    assert numbers == range(5, 8)


@pytest.mark.parametrize(
    ("groups", "numbers"),
    [([], []), ([range(5, 7), range(9, 10)], [5, 6, 9]), ([(5,), (7,), (6,)], [5, 7, 6])],
)
def test_numbers_of_several_requests_are_a_list(groups: Any, numbers: list[int]) -> None:
    assert calls.join_numbers(groups) == numbers


def test_each_kind_of_append_returns_its_numbers() -> None:
    assert result_of(calls.append_message("s", b"x"), sequenceNumber=7) == 7
    assert result_of(append_batch(b"x", b"y"), firstSequenceNumber=7, count=2) == range(7, 9)
    ((first, _),) = calls.plan_appends("s", [b"x", b"y"], False, FRAME_BYTES)
    assert result_of(first, sequenceNumber=7) == (7,)


def test_patterns_must_not_be_a_string() -> None:
    with pytest.raises(ValidationException, match="patterns is str: expected a list"):
        calls.watch_streams("abc", {}, 0, 60)


def test_wait_is_limited_by_the_request_timeout() -> None:
    with pytest.raises(
        ValidationException,
        match="wait_millis is 2001: expected at most the client's request_timeout, 2 s",
    ):
        calls.watch_streams(["abc"], {}, 2001, 2)


# Answers


def columns(first: int, messages: list[tuple[int, bytes]]) -> dict[str, Any]:
    """Encodes messages as columns, like a server with extensions."""
    offsets = list(accumulate((len(payload) for _, payload in messages), initial=0))
    return {
        "firstSequenceNumber": first,
        "count": len(messages),
        "offsets": struct.pack(f"<{len(offsets)}i", *offsets),
        "ingestTimes": struct.pack(f"<{len(messages)}q", *(time for time, _ in messages)),
        "payloads": b"".join(payload for _, payload in messages),
        "oldestSequenceNumber": 0,
        "endSequenceNumber": first + len(messages),
    }


@given(
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.binary(min_size=1, max_size=9)), max_size=9),
)
def test_columns_are_decoded_to_messages(first: int, messages: list[tuple[int, bytes]]) -> None:
    call = calls.read_columns("s", 0, 1, 1, 0)

    assert result_of(call, **columns(first, messages)) == [
        Message("s", number, time, payload)
        for number, (time, payload) in enumerate(messages, first)
    ]


PLAIN_MESSAGE = {"streamName": "s", "sequenceNumber": 4, "ingestTime": 5, "payload": b"\xff"}


def test_messages_are_decoded() -> None:
    expected = [Message("s", 4, 5, b"\xff")]

    for call in (calls.read_messages("s", None, 60), READ_OR_NONE):
        assert result_of(call, messages=[PLAIN_MESSAGE]) == expected


def test_not_enough_messages_is_an_error_or_an_empty_list() -> None:
    with pytest.raises(EXCEPTION_OF[ResponseStatusCode.NotEnoughMessages], match="why"):
        result_of(calls.read_messages("s", None, 60), status=13, errorMessage="why")
    assert result_of(READ_OR_NONE, status=13) == []


def test_other_answers_are_decoded() -> None:
    described = {
        "definition": plain_definition(),
        "storageStatus": {
            "oldestSequenceNumber": 1,
            "newestSequenceNumber": 2,
            "totalBytes": 3,
        },
        "exportStatuses": [{"exportConfigIdentifier": "k"}],
    }

    info = result_of(calls.describe_message_stream("s"), messageStreamInfo=described)

    assert info.definition.name == "s"
    assert info.storage_status.newest_sequence_number == 2
    assert info.export_statuses[0].last_exported_sequence_number == -1
    assert result_of(calls.list_streams(), streams=["a", "b"]) == ["a", "b"]
    assert result_of(calls.delete_message_stream("s")) is None


def test_stream_positions_are_decoded() -> None:
    call = calls.watch_streams(["*"], {}, 0, 60)
    plain = {
        "name": "s",
        "streamId": "i",
        "oldestSequenceNumber": 3,
        "endSequenceNumber": 2**63 - 1,
        "fromTheFuture": 1,
    }

    assert result_of(call, streams=[plain]) == [StreamPosition("s", "i", 3, 2**63 - 1)]
    assert result_of(call, streams=[]) == []


PLAIN_LOCATION = {
    "root": "/root",
    "instance": "x",
    "hasFiles": True,
    "oldestSequenceNumber": 3,
    "endSequenceNumber": 9,
    "limitSequenceNumber": 5,
    "segments": [
        {
            "first": 3,
            "end": 9,
            "size": 100,
            "oldestTime": 1,
            "newestTime": 2,
            "dataCrc": 2**32 - 1,
            "indexCrc": 7,
        }
    ],
}


def test_location_is_decoded() -> None:
    call = calls.locate_messages("s", "i", 0, 9, 50)

    assert result_of(call, **PLAIN_LOCATION) == Location(
        "/root", "x", True, 3, 9, 5, [SegmentSummary(3, 9, 100, 1, 2, 2**32 - 1, 7)]
    )


PLAIN_RUN = {"firstSequenceNumber": 3, "position": 40, "entries": bytes(16), "payloads": b"xyz"}


def test_stored_messages_are_decoded_without_a_copy() -> None:
    run = result_of(calls.read_stored("s", "i", 0, 9, 50), **PLAIN_RUN)

    assert run == StoredRun(3, 40, bytes(16), b"xyz")
    assert run.payloads is PLAIN_RUN["payloads"]


@pytest.mark.parametrize("status", [s for s in ResponseStatusCode if s in EXCEPTION_OF])
def test_every_status_has_its_exception_for_every_call(status: ResponseStatusCode) -> None:
    for call in (call for call, _ in REQUESTS if call.fields != READ_OR_NONE.fields):
        with pytest.raises(EXCEPTION_OF[status], match=r"^why$") as caught:
            result_of(call, status=int(status), errorMessage="why")

        assert type(caught.value) is EXCEPTION_OF[status]
        assert (caught.value.status, caught.value.request_id) == (status, ID)


@pytest.mark.parametrize("status", [8, 9, 10, 11, 12])
def test_handshake_status_is_raised(status: int) -> None:
    with pytest.raises(StreamManagerException, match=r"^why$") as caught:
        result_of(calls.list_streams(), status=status, errorMessage="why")

    assert caught.value.status is ResponseStatusCode(status)


@pytest.mark.parametrize("status", [19, -1, "x", None])
def test_unknown_status_is_raised_unchanged(status: Any) -> None:
    with pytest.raises(
        StreamManagerException, match=rf"unknown status {re.escape(repr(status))}: why"
    ) as caught:
        result_of(calls.list_streams(), status=status, errorMessage="why")

    assert caught.value.status == status


def test_error_without_a_message_names_its_status() -> None:
    with pytest.raises(StreamManagerException, match=r"^ResourceNotFound$"):
        result_of(calls.delete_message_stream("s"), status=5)


@pytest.mark.parametrize(
    ("call", "response"),
    [
        (calls.append_message("s", b"x"), {}),
        (calls.append_message("s", b"x"), {"sequenceNumber": "many"}),
        (calls.append_message("s", b"x"), {"sequenceNumber": None}),
        (append_batch(b"x"), {"count": 1}),
        (append_batch(b"x"), {"firstSequenceNumber": 1}),
        (append_batch(b"x"), {"firstSequenceNumber": 1, "count": "x"}),
        (calls.list_streams(), {}),
        (calls.list_streams(), {"streams": 5}),
        (calls.describe_message_stream("s"), {}),
        (calls.describe_message_stream("s"), {"messageStreamInfo": 5}),
        (calls.statistics(), {"statistics": {"version": "1"}}),
        (calls.read_messages("s", None, 60), {}),
        (calls.read_messages("s", None, 60), {"messages": [5]}),
        (calls.read_messages("s", None, 60), {"messages": [{**PLAIN_MESSAGE, "payload": "x"}]}),
        (calls.read_columns("s", 0, 1, 1, 0), {"count": 0, "firstSequenceNumber": 0}),
        (calls.watch_streams(["*"], {}, 0, 60), {}),
        (calls.watch_streams(["*"], {}, 0, 60), {"streams": [{"name": "s"}]}),
        (calls.locate_messages("s", "i", 0, 1, 1), {}),
        (calls.locate_messages("s", "i", 0, 1, 1), {**PLAIN_LOCATION, "segments": [5]}),
        (calls.locate_messages("s", "i", 0, 1, 1), {**PLAIN_LOCATION, "instance": None}),
        (calls.read_stored("s", "i", 0, 1, 1), {}),
        *(
            (calls.read_stored("s", "i", 0, 1, 1), {**PLAIN_RUN, name: "x"})
            for name in ("firstSequenceNumber", "position", "entries", "payloads")
        ),
    ],
)
def test_incomplete_answer_is_an_error(call: ClientCall[Any], response: Any) -> None:
    with pytest.raises(ClientException):
        result_of(call, **response)


def test_answer_without_a_status_is_an_error() -> None:
    for call, _ in REQUESTS:
        with pytest.raises(ClientException, match=f"cannot decode .* {call.operation.name}: "):
            call.resolve(RESPONSE_TO[call.operation], {"requestId": ID})


def test_answer_with_another_operation_is_an_error() -> None:
    with pytest.raises(ClientException, match="answered ListStreams with operation 9"):
        calls.list_streams().resolve(Operation.AppendMessageResponse, {"status": 0})


def test_unknown_operation_is_raised() -> None:
    with pytest.raises(UnknownOperationException, match="68"):
        calls.statistics().resolve(17, {"status": 18, "errorMessage": "operation 68"})
