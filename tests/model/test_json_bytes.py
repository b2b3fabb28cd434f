"""JSON bodies of messages: encoding, validation and decoding."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import ValidationException
from penstock.model import (
    AssetPropertyValue,
    EventType,
    ExportDefinition,
    KinesisConfig,
    MessageStreamDefinition,
    PutAssetPropertyValueEntry,
    Quality,
    S3ExportTaskDefinition,
    Status,
    StatusContext,
    StatusLevel,
    StatusMessage,
    StrategyOnFull,
    TimeInNanos,
    Variant,
)
from penstock.model.json_bytes import Util
from penstock.model.value import Value
from tests.model import samples


def to_json(value: Value) -> Any:
    return json.loads(Util.validate_and_serialize_to_json_bytes(value))


def value(**fields: Any) -> AssetPropertyValue:
    return AssetPropertyValue(Variant(**fields), TimeInNanos(1_700_000_000))


def entry(*values: AssetPropertyValue) -> PutAssetPropertyValueEntry:
    return PutAssetPropertyValueEntry("e", property_values=list(values))


def test_sitewise_entry_is_json_with_wire_names() -> None:
    values = [
        AssetPropertyValue(
            value=Variant(double_value=1.5),
            timestamp=TimeInNanos(1_700_000_000, 5),
            quality=Quality.GOOD,
        )
    ]
    whole = PutAssetPropertyValueEntry("e-1", "asset", "property", "/turbine/1/rpm", values)

    assert to_json(whole) == samples.entry()


def test_s3_task_is_json_with_wire_names() -> None:
    task = S3ExportTaskDefinition(
        "file:///data/a.bin", "some-bucket", "a/!{timestamp:yyyy}/b", {"site": "north"}
    )

    assert to_json(task) == samples.s3_task()


def test_status_is_json_with_wire_names() -> None:
    task = S3ExportTaskDefinition.from_dict(samples.s3_task())
    message = StatusMessage(
        EventType.S3Task,
        StatusLevel.INFO,
        Status.Failure,
        StatusContext(task, "e", "s", 7),
        "no such bucket",
        1_700_000_000_000,
    )

    assert to_json(message) == samples.status_message()


def test_unset_fields_are_omitted() -> None:
    assert to_json(entry(value(boolean_value=False))) == {
        "entryId": "e",
        "propertyValues": [
            {"value": {"booleanValue": False}, "timestamp": {"timeInSeconds": 1_700_000_000}}
        ],
    }


def test_empty_lists_are_omitted() -> None:
    export = ExportDefinition(http=[], kinesis=[KinesisConfig("k", "n")])
    definition = MessageStreamDefinition(
        "s", strategy_on_full=StrategyOnFull.RejectNewData, export_definition=export
    )

    assert to_json(definition)["exportDefinition"] == {
        "kinesis": [{"identifier": "k", "kinesisStreamName": "n"}]
    }


def test_converted_values_are_written() -> None:
    # Each value is converted to the type of its field before it is written.
    loose = PutAssetPropertyValueEntry(
        "e",
        property_values=(  # type: ignore[arg-type] # as programs do that are not type-checked
            AssetPropertyValue(
                Variant(double_value=2),
                TimeInNanos(1_700_000_000.0),  # type: ignore[arg-type] # the same
                "BAD",  # type: ignore[arg-type] # the same
            ),
        ),
    )

    assert Util.validate_and_serialize_to_json_bytes(loose) == (
        b'{"entryId": "e", "propertyValues": [{"value": {"doubleValue": 2.0}, '
        b'"timestamp": {"timeInSeconds": 1700000000}, "quality": "BAD"}]}'
    )


@pytest.mark.parametrize("number", [0.1, -2.0, 1e300, -1e19, 5e-324, 2.0**53])
def test_double_keeps_its_value(number: float) -> None:
    written = to_json(Variant(double_value=number))["doubleValue"]

    assert written == number
    assert isinstance(written, float)


def test_integer_may_be_negative() -> None:
    assert to_json(Variant(integer_value=-(2**31))) == {"integerValue": -(2**31)}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (entry(), "propertyValues"),
        (entry(*[value(double_value=1)] * 11), "propertyValues"),
        (entry(value(string_value="")), r"propertyValues\[0\].value.stringValue"),
        (entry(value(integer_value=2**31)), r"propertyValues\[0\].value.integerValue"),
        (PutAssetPropertyValueEntry("a b", property_values=[value(double_value=1)]), "entryId"),
        (PutAssetPropertyValueEntry(), "entryId"),
        (TimeInNanos(0), "timeInSeconds"),
        (TimeInNanos(1, 10**9), "offsetInNanos"),
        (S3ExportTaskDefinition("u", "BucketName", "k"), "bucket"),
        (S3ExportTaskDefinition("u", "bucket", "a b"), "key"),
        (S3ExportTaskDefinition(bucket="bucket", key="k"), "inputUrl"),
        (S3ExportTaskDefinition(5, "bucket", "k"), "inputUrl"),  # type: ignore[arg-type] # wrong
        (StatusMessage(EventType.S3Task), "status"),
    ],
)
def test_invalid_object_is_rejected_with_the_field(wrong: Value, named: str) -> None:
    with pytest.raises(ValidationException, match=named):
        Util.validate_and_serialize_to_json_bytes(wrong)


@pytest.mark.parametrize(
    ("plain", "kind"),
    [
        (samples.entry(), PutAssetPropertyValueEntry),
        (samples.s3_task(), S3ExportTaskDefinition),
        (samples.status_message(), StatusMessage),
    ],
)
def test_object_survives_a_round_trip(plain: samples.Json, kind: type[Value]) -> None:
    read = Util.deserialize_json_bytes_to_obj(json.dumps(plain).encode(), kind)

    assert type(read) is kind
    assert to_json(read) == plain


def test_unknown_fields_are_ignored() -> None:
    plain = {**samples.status_message(), "attempts": 3}

    message = Util.deserialize_json_bytes_to_obj(json.dumps(plain).encode(), StatusMessage)

    assert message.status is Status.Failure


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[]", b"5", b"null", b'{"eventType": 0, "status": 9}']
)
def test_invalid_bytes_raise_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Util.deserialize_json_bytes_to_obj(data, StatusMessage)


def test_status_of_an_invalid_task_can_be_read() -> None:
    plain = samples.status_message()
    plain["statusContext"]["s3ExportTaskDefinition"]["bucket"] = "Not A Bucket"

    message = Util.deserialize_json_bytes_to_obj(json.dumps(plain).encode(), StatusMessage)

    assert message.status_context is not None
    assert message.status_context.s3_export_task_definition is not None
    assert message.status_context.s3_export_task_definition.bucket == "Not A Bucket"
