"""Creating, describing, listing and deleting streams."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.samples import NO_EXPORTS
from tests.support import Json

from .conftest import Connect
from .harness import (
    APPEND,
    CREATE,
    FILE,
    MEMORY,
    OVERWRITE_OLDEST_DATA,
    READ,
    REJECT_NEW_DATA,
    STREAM_MANAGER,
    Client,
    Sdk,
    SdkError,
    contains,
    definition,
    for_1_1_sdks,
    for_python_sdks,
    refused,
    unique_name,
)


def every_export(sdk: Sdk, status_stream: str) -> Json:
    """Returns an export of each type that the SDK supports, with all fields set."""
    common: Json = {"batchSize": 10, "batchIntervalMillis": 60000, "priority": 3}
    if sdk.knows_1_1:
        common |= {"startSequenceNumber": 0, "disabled": True}
    exports: Json = {
        "http": [{"identifier": "http", "uri": "http://127.0.0.1:9/in", **common}],
        "iotAnalytics": [{"identifier": "iota", "iotChannel": "chan", **common}],
        "kinesis": [
            {"identifier": "kin 1", "kinesisStreamName": "one", **common},
            {"identifier": "kin 2", "kinesisStreamName": "two", **common},
        ],
    }
    if sdk.knows_1_1:
        exports["http"][0]["exportFormat"] = 1
        # The 1.0 SDK has the field, but its validation compares a text with a number.
        exports["iotAnalytics"][0]["iotMsgIdPrefix"] = "p-"
        exports["IotSitewise"] = [{"identifier": "site", **common}]
        exports["s3TaskExecutor"] = [
            {
                "identifier": "s3",
                "sizeThresholdForMultipartUploadBytes": 5242880,
                "priority": 10,
                "disabled": True,
                "statusConfig": {"statusLevel": 4, "statusStreamName": status_stream},
            }
        ]
    return exports


def s3_export(status_stream: str) -> Json:
    status = {"statusLevel": 2, "statusStreamName": status_stream}
    return {"s3TaskExecutor": [{"identifier": "s3", "statusConfig": status}]}


def nulls_in(value: Any) -> bool:
    if isinstance(value, dict):
        return any(nulls_in(item) for item in value.values())
    if isinstance(value, list):
        return any(nulls_in(item) for item in value)
    return value is None


def test_new_stream_has_the_documented_defaults(client: Client) -> None:
    name = client.create()

    described = client.describe(name)["definition"]

    assert described["name"] == name
    assert described["maxSize"] == 256 * 1024 * 1024
    assert described["streamSegmentSize"] == 16 * 1024 * 1024
    assert described["strategyOnFull"] == REJECT_NEW_DATA
    assert described.get("persistence", FILE) == FILE
    assert described.get("flushOnWrite", False) is False
    assert "timeToLiveMillis" not in described


def test_stream_with_all_fields_set_is_described_unchanged(client: Client) -> None:
    wanted = definition(
        unique_name(),
        maxSize=1 << 30,
        streamSegmentSize=1 << 20,
        timeToLiveMillis=3600000,
        strategyOnFull=OVERWRITE_OLDEST_DATA,
        persistence=FILE,
        flushOnWrite=True,
        exportDefinition=every_export(client.sdk, status_stream=client.create()),
    )
    client.create(**wanted)

    assert contains(client.describe(wanted["name"])["definition"], wanted)


def test_empty_stream_has_no_messages_and_no_bytes(client: Client) -> None:
    assert client.storage(client.create()) == (0, -1, 0)


def test_every_export_has_a_status_before_the_first_message(client: Client) -> None:
    exports = every_export(client.sdk, status_stream=client.create())
    name = client.create(exportDefinition=exports)

    statuses = client.describe(name)["exportStatuses"]

    identifiers = [export["identifier"] for group in exports.values() for export in group]
    assert sorted(s["exportConfigIdentifier"] for s in statuses) == sorted(identifiers)
    assert {s["lastExportedSequenceNumber"] for s in statuses} == {-1}
    on_the_wire = client.last_response()["messageStreamInfo"]["exportStatuses"]
    assert {s["exportedBytesFromStream"] for s in on_the_wire} == {0}
    assert {s["exportedMessagesCount"] for s in on_the_wire} == {0}


def test_describe_returns_all_export_lists_and_the_statuses(client: Client) -> None:
    client.describe(client.create())

    info = client.last_response()["messageStreamInfo"]
    assert info["definition"]["exportDefinition"] == NO_EXPORTS
    assert info["exportStatuses"] == []


def test_describe_returns_empty_export_lists(client: Client) -> None:
    kinesis = {"identifier": "k", "kinesisStreamName": "s"}
    client.describe(client.create(exportDefinition={"kinesis": [kinesis]}))

    lists = client.last_response()["messageStreamInfo"]["definition"]["exportDefinition"]
    assert lists.keys() == NO_EXPORTS.keys()
    assert contains(lists.pop("kinesis"), [kinesis])
    assert set(map(len, lists.values())) == {0}


def test_answers_have_no_nulls(client: Client) -> None:
    # A null for an enum, a list or a map ends the read loop of these clients.
    exports = {"kinesis": [{"identifier": "k", "kinesisStreamName": "s"}]}
    client.describe(client.create(exportDefinition=exports))

    assert not nulls_in(client.last_response())


def test_success_has_an_empty_error_message(client: Client) -> None:
    client.list_streams()

    assert client.last_response()["errorMessage"] == ""


def test_creating_a_stream_twice_is_rejected_with_the_exact_text(client: Client) -> None:
    name = client.create()

    with pytest.raises(SdkError) as caught:
        client.create(name=name)

    assert caught.value.error == "InvalidRequestException"
    # Existing programs compare the whole text.
    assert caught.value.message == "the message stream already exists"


def test_creating_a_stream_twice_keeps_the_first(client: Client) -> None:
    name = client.create()
    client.append(name, b"first")

    with refused("InvalidRequestException"):
        client.create(name=name, maxSize=4096, streamSegmentSize=1024)

    assert client.storage(name) == (0, 0, 5)
    assert client.describe(name)["definition"]["maxSize"] == 256 * 1024 * 1024


@for_1_1_sdks
def test_s3_export_requires_an_existing_status_stream(client: Client) -> None:
    name, status_stream = unique_name(), unique_name()

    with refused("InvalidRequestException", status_stream):
        client.create(name=name, exportDefinition=s3_export(status_stream))

    assert name not in client.list_streams()
    client.create(name=status_stream)
    client.create(name=name, exportDefinition=s3_export(status_stream))


def test_list_returns_each_stream_once(client: Client) -> None:
    names = {client.create() for _ in range(3)}

    listed = client.list_streams()

    assert names <= set(listed)
    assert len(listed) == len(set(listed))


def test_all_sdks_see_the_same_streams(client: Client, connect: Connect) -> None:
    name = client.create()
    other = connect(STREAM_MANAGER)
    assert other.append(name, b"from another client") == 0

    assert client.read(name)[0]["payload"] == b"from another client"
    assert client.list_streams() == other.list_streams()


def test_deleted_stream_is_not_found(client: Client) -> None:
    name = client.create()
    client.append(name, b"x")

    client.delete(name)

    assert name not in client.list_streams()
    with refused("ResourceNotFoundException"):
        client.describe(name)
    with refused("ResourceNotFoundException"):
        client.delete(name)


def test_recreated_stream_is_empty(client: Client) -> None:
    name = client.create()
    client.append(name, b"old")
    client.delete(name)

    client.create(name=name)

    assert client.storage(name) == (0, -1, 0)
    assert client.append(name, b"new") == 0
    assert [m["payload"] for m in client.read(name)] == [b"new"]


def test_unknown_stream_is_not_found_by_any_operation(client: Client) -> None:
    name = unique_name()

    for call in (
        lambda: client.append(name, b"x"),
        lambda: client.read(name),
        lambda: client.describe(name),
        lambda: client.delete(name),
    ):
        with refused("ResourceNotFoundException"):
            call()
    assert name not in client.list_streams()


def test_waiting_read_of_an_unknown_stream_is_not_found(client: Client) -> None:
    with refused("ResourceNotFoundException"):
        client.read(unique_name(), readTimeoutMillis=20000)


@pytest.mark.parametrize("name", [".", "..", "...", "a b,c", "x.log", " ", "-", "A" * 255])
def test_every_valid_name_works(client: Client, name: str) -> None:
    client.create(name=name)
    try:
        assert client.append(name, b"payload") == 0
        assert [(m["streamName"], m["payload"]) for m in client.read(name)] == [(name, b"payload")]
        assert client.describe(name)["definition"]["name"] == name
        assert name in client.list_streams()
    finally:
        client.delete(name)
    assert name not in client.list_streams()


def test_names_are_case_sensitive(client: Client) -> None:
    name = client.create()
    upper = client.create(name=name.upper())
    client.append(name, b"lower")

    assert client.storage(upper) == (0, -1, 0)


@for_python_sdks
def test_server_rejects_non_ascii_letters(client: Client) -> None:
    # The pattern in the Python SDKs matches all Unicode letters.
    with refused("InvalidRequestException", "name"):
        client.create(name="größe")


@pytest.mark.parametrize("name", ["", "größe", "a/b", "a\0b", "line\n", "a:b", "x" * 256])
def test_invalid_name_is_rejected_and_the_field_named(client: Client, name: str) -> None:
    with refused("InvalidRequestException", "name"):
        client.send(CREATE, definition=definition(name))

    assert name not in client.list_streams()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("maxSize", 1023),
        ("streamSegmentSize", 1023),
        ("streamSegmentSize", 2147483648),
        ("timeToLiveMillis", 59999),
        ("timeToLiveMillis", 9223372036855),
        ("strategyOnFull", 2),
        ("persistence", 2),
        ("flushOnWrite", "yes"),
        ("maxSize", "big"),
    ],
)
def test_value_out_of_range_is_rejected_and_the_field_named(
    client: Client, field: str, value: object
) -> None:
    name = unique_name()

    with refused("InvalidRequestException", field):
        client.send(CREATE, definition=definition(name, **{field: value}))

    assert name not in client.list_streams()


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("kinesis", "batchSize", 501),
        ("kinesis", "batchSize", 0),
        ("kinesis", "batchIntervalMillis", 59999),
        ("kinesis", "priority", 11),
        ("kinesis", "priority", 0),
        ("kinesis", "startSequenceNumber", -1),
        ("kinesis", "identifier", "größe"),
        ("kinesis", "kinesisStreamName", ""),
        ("iotAnalytics", "batchSize", 101),
        ("iotAnalytics", "iotMsgIdPrefix", "p" * 33),
        ("IotSitewise", "batchSize", 11),
        ("http", "exportFormat", 2),
        ("http", "uri", ""),
        ("s3TaskExecutor", "sizeThresholdForMultipartUploadBytes", 5242879),
    ],
)
def test_export_value_out_of_range_is_rejected_and_the_field_named(
    client: Client, kind: str, field: str, value: object
) -> None:
    required = {
        "kinesis": {"kinesisStreamName": "s"},
        "iotAnalytics": {"iotChannel": "c"},
        "http": {"uri": "http://127.0.0.1:9/"},
    }
    export = {"identifier": "e", **required.get(kind, {}), field: value}

    with refused("InvalidRequestException", field):
        exports = {kind: [export]}
        client.send(CREATE, definition=definition(unique_name(), exportDefinition=exports))


def test_two_exports_with_one_identifier_are_rejected(client: Client) -> None:
    twice = [{"identifier": "same", "kinesisStreamName": name} for name in ("a", "b")]

    with refused("InvalidRequestException", "same"):
        client.create(exportDefinition={"kinesis": twice})


def test_definition_without_a_strategy_is_rejected_and_the_field_named(client: Client) -> None:
    with refused("InvalidRequestException", "strategyOnFull"):
        client.send(CREATE, definition={"name": unique_name()})


@pytest.mark.parametrize(
    ("operation", "body", "field"),
    [
        (CREATE, {}, "definition"),
        (APPEND, {"payload": b"x"}, "name"),
        (APPEND, {"name": "a"}, "payload"),
        (READ, {}, "streamName"),
    ],
)
def test_request_without_a_required_field_is_rejected_and_the_field_named(
    client: Client, operation: int, body: Json, field: str
) -> None:
    with refused("InvalidRequestException", field):
        client.send(operation, **body)


def test_unknown_fields_are_ignored(client: Client) -> None:
    name = unique_name()

    client.send(CREATE, definition=definition(name, ofTheFuture={"a": [1]}), alsoNew=1)

    assert name in client.list_streams()


def test_size_above_2_to_the_53_is_accepted(client: Client, connect: Connect) -> None:
    # The Node.js SDK sends such a number as a float, and cannot decode it.
    name = client.create(maxSize=1 << 60)

    assert connect(STREAM_MANAGER).describe(name)["definition"]["maxSize"] == 1 << 60


def test_memory_stream_is_described_as_such(client: Client) -> None:
    name = client.create(persistence=MEMORY)

    assert client.describe(name)["definition"]["persistence"] == MEMORY
