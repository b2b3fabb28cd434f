"""Conversion of maps to objects and back, and its errors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ClientException, InvalidRequestException, ValidationException
from penstock.model import (
    ExportDefinition,
    HTTPConfig,
    KinesisConfig,
    MessageStreamDefinition,
    MessageStreamInfo,
    ReadMessagesOptions,
    S3ExportTaskExecutorConfig,
    StatusConfig,
    StrategyOnFull,
    from_wire,
    to_wire,
)
from penstock.model.validation import from_server, validate

from .samples import COMPLETE_EXPORTS, EXPORTS, complete_definition, definition, with_export


def refusal(value: Any) -> str:
    with pytest.raises(InvalidRequestException) as caught:
        from_wire(value, MessageStreamDefinition)
    return caught.value.message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (definition(maxSize=1), "maxSize is 1: expected int >= 1024"),
        (definition(name=5), "name is 5: expected str, got int"),
        (definition(name=["a"]), "name is a list: expected str, got array"),
        (definition(name={"a": 1}), "name is a map: expected str, got object"),
        (definition(name=b"s"), "name is b's': expected str, got bytes"),
        (definition(flushOnWrite="yes"), "flushOnWrite is 'yes': expected bool, got str"),
        (
            definition(strategyOnFull=2),
            "strategyOnFull is 2: expected one of 0 (RejectNewData), 1 (OverwriteOldestData)",
        ),
        (
            with_export("s3TaskExecutor", statusConfig={"statusLevel": 5}),
            "exportDefinition.s3TaskExecutor[0].statusConfig.statusLevel is 5: expected one of "
            "0 (ERROR), 1 (WARN), 2 (INFO), 3 (DEBUG), 4 (TRACE)",
        ),
        ({"name": "s"}, "object missing required field strategyOnFull"),
        (definition(exportDefinition=[]), "exportDefinition is a list: expected object, got array"),
        (
            definition(exportDefinition={"http": {}}),
            "exportDefinition.http is a map: expected array | null, got object",
        ),
        (
            definition(exportDefinition={"http": [None]}),
            "exportDefinition.http[0] is None: expected object, got null",
        ),
        ({1: 2}, "expected str for each key"),
        (definition(exportDefinition={1: 2}), "exportDefinition: expected str for each key"),
    ],
)
def test_error_has_path_value_and_allowed_values(value: Any, message: str) -> None:
    assert refusal(value) == message


def test_long_value_is_truncated_in_the_error() -> None:
    message = refusal(definition(name="x" * 1_000_000))

    assert message.startswith("name is 'xxxx")
    assert message.endswith("x…: expected str of length <= 255")
    assert len(message) < 200


def test_nulls_are_ignored_at_every_depth() -> None:
    value = definition(
        timeToLiveMillis=None,
        exportDefinition={
            "kinesis": None,
            "http": [{**COMPLETE_EXPORTS["http"], "priority": None}],
        },
    )

    found = from_wire(value, MessageStreamDefinition)

    assert found.time_to_live_millis is None
    assert found.export_definition.kinesis is None
    assert found.export_definition.http is not None
    assert found.export_definition.http[0].priority is None


def test_integral_floats_are_integers_at_every_depth() -> None:
    value = complete_definition()

    def to_floats(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: to_floats(value) for key, value in item.items()}
        if isinstance(item, list):
            return [to_floats(value) for value in item]
        return float(item) if type(item) is int else item

    assert from_wire(to_floats(value), MessageStreamDefinition) == from_wire(
        value, MessageStreamDefinition
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3),
        lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=3), items),
    )
)
def test_to_wire_omits_nulls(value: Any) -> None:
    def has_null(item: Any) -> bool:
        if isinstance(item, dict):
            return any(value is None or has_null(value) for value in item.values())
        return isinstance(item, list) and any(map(has_null, item))

    assert not has_null(to_wire(value))


def test_text_is_not_decoded_as_bytes() -> None:
    class Holder(msgspec.Struct):
        data: bytes

    assert to_wire(Holder(b"\xff")) == {"data": b"\xff"}
    assert from_wire({"data": b"abcd"}, Holder).data == b"abcd"
    with pytest.raises(InvalidRequestException, match="data is 'abcd': expected bytes"):
        from_wire({"data": "abcd"}, Holder)


class Inner(msgspec.Struct, rename="camel"):
    how_far: Literal["all", "some"] | None = None


class Outer(msgspec.Struct):
    parts: list[Inner]
    number: Literal[1, 2] = 1


def test_error_names_the_values_of_a_literal() -> None:
    assert from_wire({"parts": [{"howFar": "some"}]}, Outer).parts[0].how_far == "some"
    for value, message in (
        (
            {"parts": [{}, {"howFar": "none"}]},
            "parts[1].howFar is 'none': expected one of all, some",
        ),
        ({"parts": [], "number": 3}, "number is 3: expected one of 1, 2"),
    ):
        with pytest.raises(InvalidRequestException) as caught:
            from_wire(value, Outer)
        assert caught.value.message == message


# Required fields


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "object missing required field name"),
        (definition(name=None), "object missing required field name"),
        (
            with_export("kinesis", kinesisStreamName=None),
            "exportDefinition.kinesis[0]: object missing required field kinesisStreamName",
        ),
        (
            definition(exportDefinition={"http": [EXPORTS["http"], {"identifier": "second"}]}),
            "exportDefinition.http[1]: object missing required field uri",
        ),
        (
            definition(exportDefinition={"IotSitewise": [{}]}),
            "exportDefinition.IotSitewise[0]: object missing required field identifier",
        ),
        # Invalid fields are reported before missing ones.
        ({"maxSize": 1}, "maxSize is 1: expected int >= 1024"),
    ],
)
def test_missing_field_is_named_with_its_path(value: Any, message: str) -> None:
    assert refusal(value) == message


def test_optional_fields_may_be_missing() -> None:
    assert from_wire({}, ReadMessagesOptions) == ReadMessagesOptions()
    assert from_wire(definition(), MessageStreamDefinition).time_to_live_millis is None


# Objects of programs


def make_definition(**fields: Any) -> MessageStreamDefinition:
    return MessageStreamDefinition(
        **{"name": "s", "strategy_on_full": StrategyOnFull.RejectNewData, **fields}
    )


def validation_error(value: Any) -> str:
    with pytest.raises(ValidationException) as caught:
        validate(value)
    assert isinstance(caught.value, ClientException)
    return caught.value.message


def test_valid_object_is_returned() -> None:
    value = from_wire(complete_definition(), MessageStreamDefinition)

    assert validate(value) == value
    assert validate(ReadMessagesOptions(5, 1, 2, 3)) == ReadMessagesOptions(5, 1, 2, 3)


def test_object_whose_fields_are_set_later_is_valid() -> None:
    value = MessageStreamDefinition()
    assert validation_error(value) == "object missing required field name"
    value.name = "s"
    assert validation_error(value) == "object missing required field strategyOnFull"
    value.strategy_on_full = StrategyOnFull.OverwriteOldestData

    assert validate(value) == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (make_definition(name=""), "name is '': expected str of length >= 1"),
        (make_definition(name=5), "name is 5: expected str, got int"),
        (make_definition(max_size=1), "maxSize is 1: expected int >= 1024"),
        (make_definition(max_size="1 GiB"), "maxSize is '1 GiB': expected int, got str"),
        (make_definition(max_size=1024.5), "maxSize is 1024.5: expected int, got float"),
        (
            make_definition(strategy_on_full=9),
            "strategyOnFull is 9: expected one of 0 (RejectNewData), 1 (OverwriteOldestData)",
        ),
        (
            make_definition(export_definition=[]),
            "exportDefinition is a list: expected object, got array",
        ),
        (
            make_definition(export_definition=ExportDefinition(kinesis=KinesisConfig("k", "n"))),  # type: ignore[arg-type] # a mistake
            "exportDefinition.kinesis is a map: expected array | null, got object",
        ),
        (
            make_definition(
                export_definition=ExportDefinition(http=[HTTPConfig("h", "u", batch_size=0)])
            ),
            "exportDefinition.http[0].batchSize is 0: expected int >= 1",
        ),
        (
            make_definition(
                export_definition=ExportDefinition(
                    s3_task_executor=[
                        S3ExportTaskExecutorConfig("x", status_config=StatusConfig(9))  # type: ignore[arg-type] # a mistake
                    ]
                )
            ),
            "exportDefinition.s3TaskExecutor[0].statusConfig.statusLevel is 9: expected one of "
            "0 (ERROR), 1 (WARN), 2 (INFO), 3 (DEBUG), 4 (TRACE)",
        ),
    ],
)
def test_validate_rejects_objects_that_the_server_rejects(value: Any, message: str) -> None:
    assert validation_error(value) == message


def test_object_that_cannot_be_encoded_is_rejected() -> None:
    assert validation_error(make_definition(name=object())).startswith("MessageStreamDefinition: ")
    assert validation_error(make_definition(export_definition=make_definition)).startswith(
        "MessageStreamDefinition: "
    )


def test_maps_and_tuples_are_accepted_for_objects_and_lists() -> None:
    value = make_definition(export_definition={"kinesis": (EXPORTS["kinesis"],)})

    checked = validate(value)

    assert checked.export_definition.kinesis == [KinesisConfig("k", "n")]


# Objects of servers


def test_values_of_a_server_are_accepted_outside_of_limits() -> None:
    plain = with_export("kinesis", batchSize=9_999_999, color="blue") | {"maxSize": 1, "more": 2}

    found = from_server(plain, MessageStreamDefinition)

    assert found.max_size == 1
    assert found.strategy_on_full is StrategyOnFull.RejectNewData
    assert found.export_definition.kinesis == [KinesisConfig("k", "n", batch_size=9_999_999)]


def test_fields_that_a_server_omits_are_unset() -> None:
    assert from_server({"definition": None}, MessageStreamInfo) == MessageStreamInfo()
    assert from_server({}, MessageStreamDefinition) == MessageStreamDefinition()


def test_valid_map_of_a_server_is_read_like_that_of_a_client() -> None:
    plain = complete_definition()

    assert from_server(plain, MessageStreamDefinition) == from_wire(plain, MessageStreamDefinition)


@pytest.mark.parametrize("plain", [None, 5, [], "x", {"strategyOnFull": 9}, {"persistence": "x"}])
def test_invalid_map_of_a_server_raises_value_error(plain: Any) -> None:
    with pytest.raises(ValueError, match=r"9|x|expected a map"):
        from_server(plain, MessageStreamDefinition)


CONVERTING = """
import sys
import threading

import msgspec

from penstock.model.validation import convert

sys.setswitchinterval(1e-6)
for number in range(50):
    inner = msgspec.defstruct(f"Inner{number}", [(f"f{each}", int, 0) for each in range(30)])
    fields = [(f"g{each}", list[inner], []) for each in range(20)]
    outer = msgspec.defstruct(f"Outer{number}", fields)
    start = threading.Barrier(6)

    def run():
        start.wait()
        assert convert({"g19": [{"f29": 2}]}, outer).g19[0].f29 == 2

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_convert_to_a_new_type_concurrently() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CONVERTING], check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
