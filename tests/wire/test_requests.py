"""Requests: recorded frames of the AWS clients, and other encodings of each request."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from penstock.errors import InvalidRequestException, StreamManagerException
from penstock.model import (
    ExportDefinition,
    ExportFormat,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    Persistence,
    ReadMessagesOptions,
    S3ExportTaskExecutorConfig,
    StatusConfig,
    StatusLevel,
    StrategyOnFull,
)
from penstock.wire.codec import decode_request
from penstock.wire.operations import Operation
from penstock.wire.requests import (
    EXTENDED_REQUESTS,
    HANDSHAKE,
    REQUESTS,
    AppendMessageRequest,
    AppendMessagesRequest,
    CommitExportsRequest,
    ConnectRequest,
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
    Requests,
    ReserveBandwidthRequest,
    RewindExportRequest,
    StatisticsRequest,
    UpdateMessageStreamRequest,
    WatchStreamsRequest,
)

from .captured import CLIENTS, Captured, captured_from

EVERYTHING: Requests = {**HANDSHAKE, **EXTENDED_REQUESTS}

PYTHON_DEFINITION = MessageStreamDefinition(
    name="SomeStream",
    max_size=268435456,
    stream_segment_size=16777216,
    time_to_live_millis=60000,
    strategy_on_full=StrategyOnFull.OverwriteOldestData,
    persistence=Persistence.File,
    flush_on_write=False,
    export_definition=ExportDefinition(
        http=[HTTPConfig("h1", "http://localhost/x", export_format=ExportFormat.JSON_BATCHED)],
        iot_analytics=[IoTAnalyticsConfig("a1", "ch", "p")],
        kinesis=[
            KinesisConfig(
                "k1",
                "ks",
                batch_size=10,
                batch_interval_millis=60000,
                priority=1,
                start_sequence_number=0,
                disabled=False,
            )
        ],
        iot_sitewise=[IoTSiteWiseConfig("s1")],
        s3_task_executor=[
            S3ExportTaskExecutorConfig(
                "s3",
                5242880,
                status_config=StatusConfig(StatusLevel.INFO, "st"),
            )
        ],
    ),
)
JAVASCRIPT_DEFINITION = MessageStreamDefinition(
    name="S",
    max_size=2**60,
    strategy_on_full=StrategyOnFull.RejectNewData,
    export_definition=ExportDefinition(
        kinesis=[KinesisConfig("k", "n", start_sequence_number=2**53 + 2)]
    ),
)
JAVA_DEFINITION = MessageStreamDefinition(
    name="S",
    max_size=2**63 - 1,
    strategy_on_full=StrategyOnFull.RejectNewData,
    export_definition=ExportDefinition(
        kinesis=[KinesisConfig("k", "n", start_sequence_number=2**63 - 2)],
        iot_sitewise=[IoTSiteWiseConfig("s")],
    ),
)

# In the order of the recording.
MEANT: dict[str, list[Request]] = {
    "python": [
        ConnectRequest(
            request_id="f302e309-47ca-45e0-b0a3-8971310db434",
            protocol_version="1.1.0",
            other_supported_protocol_versions=["1.0.0"],
            sdk_version="1.1.2",
            auth_token="tok-123",
        ),
        CreateMessageStreamRequest(
            request_id="255c2b2c-8ab9-460f-985f-18387cb7fd62", definition=PYTHON_DEFINITION
        ),
        AppendMessageRequest(
            request_id="96f47384-38ec-415e-90a0-42bd2e1b8b5b",
            name="SomeStream",
            payload=b"Arbitrary bytes data",
        ),
        ReadMessagesRequest(
            request_id="22de7428-d395-4fb1-ac65-0d24ead8ee53",
            stream_name="SomeStream",
            read_messages_options=ReadMessagesOptions(0, 1, 10, 1000),
        ),
        ReadMessagesRequest(
            request_id="5d9c54e3-2963-42ca-999c-ea85032c6f6a", stream_name="SomeStream"
        ),
        ListStreamsRequest(request_id="032a3a48-17d3-4c64-8b58-356cee4d149f"),
        DescribeMessageStreamRequest(
            request_id="76646a42-474b-4ea4-84d6-69dd6b4e8a8a", name="SomeStream"
        ),
        UpdateMessageStreamRequest(
            request_id="1af58aaf-e415-45d7-960f-65e5b8bfaa8f", definition=PYTHON_DEFINITION
        ),
        DeleteMessageStreamRequest(
            request_id="8da7f4d1-ab8d-4942-aa8e-7f637fa22e9d", name="SomeStream"
        ),
    ],
    # This client uses one request id for all requests.
    "javascript": [
        ConnectRequest(
            request_id=" ",
            protocol_version="1.1.0",
            other_supported_protocol_versions=["1.0.0"],
            sdk_version="1.1.0",
        ),
        CreateMessageStreamRequest(request_id=" ", definition=JAVASCRIPT_DEFINITION),
        AppendMessageRequest(request_id=" ", name="S", payload=b"hello"),
        ReadMessagesRequest(
            request_id=" ",
            stream_name="S",
            read_messages_options=ReadMessagesOptions(None, 1, 5, 0),
        ),
        ListStreamsRequest(request_id=" "),
        DescribeMessageStreamRequest(request_id=" ", name="S"),
        AppendMessageRequest(request_id=" ", name="S", payload=b"a"),
        AppendMessageRequest(request_id=" ", name="S", payload=b"b"),
        AppendMessageRequest(request_id=" ", name="S", payload=b"c"),
    ],
    # This client sends indefinite maps, and an empty token if none is set.
    "java": [
        ConnectRequest(
            request_id="04af63da-64e3-4605-a157-0f3abaa9aa34",
            protocol_version="1.1.0",
            other_supported_protocol_versions=["1.0.0"],
            sdk_version="1.1.0",
            auth_token="",
        ),
        CreateMessageStreamRequest(
            request_id="884c97c8-f204-4984-a85e-0ea4d58655d9", definition=JAVA_DEFINITION
        ),
        AppendMessageRequest(
            request_id="e44f4ed5-3ada-4199-b60c-21dd134671df", name="S", payload=b"hello"
        ),
        ReadMessagesRequest(
            request_id="72457275-f030-4013-a111-de701476a407",
            stream_name="S",
            read_messages_options=ReadMessagesOptions(None, 1, 5, 0),
        ),
        ReadMessagesRequest(request_id="0daf0f20-2f86-409a-8ccb-620447878a68", stream_name="S"),
        ListStreamsRequest(request_id="c18f7857-c056-4496-9a03-ce5a97cbb9b2"),
        DescribeMessageStreamRequest(request_id="c30c4f5c-eb03-4613-9b7a-b62ed8131ebd", name="S"),
        UpdateMessageStreamRequest(
            request_id="0fe519d8-060a-4c88-aaa7-e01f884c67e5", definition=JAVA_DEFINITION
        ),
        DeleteMessageStreamRequest(request_id="95c71ce7-6b7c-4301-a9bc-8fc30264e615", name="S"),
    ],
}


@pytest.mark.parametrize(
    ("frame", "expected"),
    [pair for client in CLIENTS for pair in zip(captured_from(client), MEANT[client], strict=True)],
    ids=lambda value: f"{value.client}-{value.operation}" if isinstance(value, Captured) else "",
)
def test_frames_of_the_aws_clients_are_decoded(frame: Captured, expected: Request) -> None:
    assert frame.frame[4] == expected.operation == Operation[frame.operation]
    assert decode_request(frame.frame[4], frame.body, EVERYTHING) == expected


DEFINITION = {"name": "s", "strategyOnFull": 0}

REPORT = {
    "lease": "l",
    "stream": "s",
    "streamId": "i",
    "identifier": "e",
    "first": 0,
    "settledEnd": 1,
}

# A complete request of each type: (fields, optional fields).
COMPLETE: dict[type[Request], tuple[dict[str, Any], set[str]]] = {
    ConnectRequest: (
        {
            "protocolVersion": "1.1.0",
            "otherSupportedProtocolVersions": ["1.0.0"],
            "sdkVersion": "1.1.2",
            "authToken": "t",
            "penstockExtensions": 1,
        },
        {"otherSupportedProtocolVersions", "sdkVersion", "authToken", "penstockExtensions"},
    ),
    CreateMessageStreamRequest: ({"definition": DEFINITION}, set()),
    UpdateMessageStreamRequest: ({"definition": DEFINITION}, set()),
    DeleteMessageStreamRequest: ({"name": "s"}, set()),
    DescribeMessageStreamRequest: ({"name": "s"}, set()),
    AppendMessageRequest: ({"name": "s", "payload": b"p"}, set()),
    ReadMessagesRequest: (
        {"streamName": "s", "readMessagesOptions": {"minMessageCount": 1}},
        {"readMessagesOptions"},
    ),
    ListStreamsRequest: ({}, set()),
    AppendMessagesRequest: ({"name": "s", "sizes": b"\1\0\0\0", "payloads": b"p"}, set()),
    ReadColumnsRequest: (
        {
            "name": "s",
            "firstSequenceNumber": 0,
            "endSequenceNumber": 1,
            "maxBytes": 1,
            "readTimeoutMillis": 0,
        },
        {"maxBytes", "readTimeoutMillis"},
    ),
    StatisticsRequest: ({}, set()),
    WatchStreamsRequest: (
        {"patterns": ["s*"], "nextNumbers": {"s1": 4}, "waitMillis": 5},
        {"nextNumbers", "waitMillis"},
    ),
    LocateMessagesRequest: (
        {
            "name": "s",
            "firstSequenceNumber": 0,
            "endSequenceNumber": 1,
            "maxBytes": 1,
            "streamId": "i",
        },
        {"maxBytes", "streamId"},
    ),
    ReadStoredRequest: (
        {
            "name": "s",
            "firstSequenceNumber": 0,
            "endSequenceNumber": 1,
            "maxBytes": 1,
            "streamId": "i",
        },
        {"maxBytes", "streamId"},
    ),
    PlanExportsRequest: (
        {
            "pipeline": "p",
            "task": "t",
            "leaseMillis": 100,
            "holding": ["l"],
            "maxSlices": 1,
            "maxBytes": 1,
            "maxPriority": 3,
            "waitMillis": 5,
            "stops": True,
        },
        {"holding", "maxSlices", "maxBytes", "maxPriority", "waitMillis", "stops"},
    ),
    CommitExportsRequest: ({"reports": [REPORT]}, set()),
    ReserveBandwidthRequest: ({"lease": "l", "size": 1, "waitMillis": 5}, {"waitMillis"}),
    RewindExportRequest: ({"streamName": "s", "identifier": "e", "sequenceNumber": 1}, set()),
}
WITH_FIELDS = [
    (kind, name) for kind, (fields, _) in COMPLETE.items() for name in ("requestId", *fields)
]
by_kind_and_field = pytest.mark.parametrize(
    ("kind", "name"), WITH_FIELDS, ids=[f"{kind.__name__}-{name}" for kind, name in WITH_FIELDS]
)


def decode(kind: type[Request], **fields: Any) -> Request:
    body = cbor2.dumps({"requestId": "r", **COMPLETE[kind][0], **fields})
    return decode_request(kind.operation, body, EVERYTHING)


def test_every_request_is_covered() -> None:
    assert set(COMPLETE) == set(EVERYTHING.values())


@pytest.mark.parametrize("kind", COMPLETE, ids=lambda kind: kind.__name__)
def test_unknown_keys_are_ignored(kind: type[Request]) -> None:
    assert decode(kind, fromTheFuture={"a": [1, 2]}, another=None) == decode(kind)


@by_kind_and_field
def test_null_is_the_same_as_absent(kind: type[Request], name: str) -> None:
    fields, optional = COMPLETE[kind]
    absent = {key: value for key, value in fields.items() if key != name}
    body = {"requestId": "r", **absent} if name != "requestId" else absent

    def outcome(body: dict[str, Any]) -> object:
        try:
            return decode_request(kind.operation, cbor2.dumps(body), EVERYTHING)
        except Exception as error:  # noqa: BLE001 - any error is compared
            return type(error), str(error)

    assert outcome({**body, name: None}) == outcome(body)
    assert isinstance(outcome(body), Request) == (name in optional)


@by_kind_and_field
def test_missing_field_is_named(kind: type[Request], name: str) -> None:
    fields, optional = COMPLETE[kind]
    if name == "requestId" or name in optional:
        return
    body = cbor2.dumps({"requestId": "r", **{k: v for k, v in fields.items() if k != name}})

    with pytest.raises(InvalidRequestException, match=f"missing required field {name}") as caught:
        decode_request(kind.operation, body, EVERYTHING)

    assert caught.value.request_id == "r"


WRONG_VALUES: dict[type, list[Any]] = {
    str: [1, b"x", [], {}, True, 1.5],
    bytes: [1, "x", "eA==", [], {}, True, 1.5],
    int: ["1", b"1", [], {}, True, 1.5],
    bool: [1, "true", [], {}],
    dict: [1, "x", b"x", [], True],
    list: [1, "x", b"x", {}, True],
}


@by_kind_and_field
def test_value_of_another_type_is_rejected_and_its_field_named(
    kind: type[Request], name: str
) -> None:
    right = COMPLETE[kind][0].get(name)
    if right is None:
        return
    for wrong in WRONG_VALUES[type(right)]:
        with pytest.raises(InvalidRequestException, match=rf"\A{name}\b.*expected") as caught:
            decode(kind, **{name: wrong})

        assert caught.value.request_id == "r"


@pytest.mark.parametrize("request_id", [" ", "a", "1-2_3.4, 5", "x" * 1024])
def test_request_id_of_the_clients_is_accepted(request_id: str) -> None:
    assert decode(ListStreamsRequest, requestId=request_id).request_id == request_id


@pytest.mark.parametrize("request_id", ["a/b", "ü", "a\n", "x" * 1025])
def test_invalid_request_id_is_rejected_and_echoed(request_id: str) -> None:
    with pytest.raises(InvalidRequestException, match="requestId is ") as caught:
        decode(ListStreamsRequest, requestId=request_id)

    assert caught.value.request_id == request_id


@pytest.mark.parametrize("operation", [0, 6, 17, 18, 63, 71, 81, 127, -1, -128])
def test_response_operation_is_unknown(operation: int) -> None:
    with pytest.raises(StreamManagerException, match=f"operation {operation} is not known") as c:
        decode_request(operation, cbor2.dumps({"requestId": "r"}), EVERYTHING)

    assert (type(c.value).__name__, c.value.request_id) == ("UnknownOperationException", "r")


@pytest.mark.parametrize("operation", sorted(EXTENDED_REQUESTS.keys() - REQUESTS.keys()))
def test_extension_is_unknown_to_clients_without_extensions(operation: int) -> None:
    # Also with invalid fields: the client must know the answer's status.
    for fields in ({}, {"name": "s"}, {"name": 5, "sizes": "x"}):
        with pytest.raises(StreamManagerException, match="not known"):
            decode_request(operation, cbor2.dumps({"requestId": "r", **fields}), REQUESTS)


def test_second_handshake_is_unknown() -> None:
    body = cbor2.dumps({"requestId": "r", "protocolVersion": "1.1.0"})

    with pytest.raises(StreamManagerException, match="operation 1 is not known"):
        decode_request(Operation.Connect, body, EXTENDED_REQUESTS)


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        (AppendMessageRequest, {"payload": b""}, "payload is b'': expected bytes of length >= 1"),
        (AppendMessageRequest, {"name": ""}, "name is '': expected str of length >= 1"),
        (AppendMessagesRequest, {"sizes": b"\1\0\0"}, "sizes is .*length >= 4"),
        (AppendMessagesRequest, {"payloads": b""}, "payloads is .*length >= 1"),
        (ReadColumnsRequest, {"firstSequenceNumber": -1}, "firstSequenceNumber is -1.* >= 0"),
        (ReadColumnsRequest, {"endSequenceNumber": -1}, "endSequenceNumber is -1.* >= 0"),
        (ReadColumnsRequest, {"maxBytes": 0}, "maxBytes is 0: .* >= 1"),
        (ReadColumnsRequest, {"maxBytes": (1 << 29) + 1}, "maxBytes is 536870913: .* <= 536870912"),
        (ReadColumnsRequest, {"readTimeoutMillis": -1}, "readTimeoutMillis is -1: .* >= 0"),
        (WatchStreamsRequest, {"patterns": []}, "patterns is a list: .*length >= 1"),
        (WatchStreamsRequest, {"patterns": ["s"] * 1025}, "patterns is a list: .*length <= 1024"),
        (WatchStreamsRequest, {"patterns": ["s", ""]}, r"patterns\[1\] is '': .*length >= 1"),
        (WatchStreamsRequest, {"patterns": ["*" * 256]}, r"patterns\[0\] is .*length <= 255"),
        (WatchStreamsRequest, {"nextNumbers": {"s": -1}}, "nextNumbers.* >= 0"),
        (WatchStreamsRequest, {"nextNumbers": {"s": "x"}}, "nextNumbers.*expected int"),
        (WatchStreamsRequest, {"waitMillis": -1}, "waitMillis is -1: .* >= 0"),
        (LocateMessagesRequest, {"firstSequenceNumber": -1}, "firstSequenceNumber is -1.* >= 0"),
        (LocateMessagesRequest, {"endSequenceNumber": 2**63}, "endSequenceNumber is .* <= "),
        (LocateMessagesRequest, {"maxBytes": 0}, "maxBytes is 0: .* >= 1"),
        (LocateMessagesRequest, {"name": "a*"}, "name is 'a\\*': "),
        (ReadStoredRequest, {"firstSequenceNumber": -1}, "firstSequenceNumber is -1.* >= 0"),
        (ReadStoredRequest, {"maxBytes": 0}, "maxBytes is 0: .* >= 1"),
        (ReadStoredRequest, {"maxBytes": (1 << 29) + 1}, "maxBytes is 536870913: .* <= 536870912"),
    ],
)
def test_limits_of_requests_are_named(
    kind: type[Request], fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidRequestException, match=problem):
        decode(kind, **fields)
