"""From maps to objects and back, and what is said when that is not possible."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequestException
from penstock.model import MessageStreamDefinition, from_wire, to_wire

from .samples import COMPLETE_EXPORTS, complete_definition, definition, with_export


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
def test_the_message_has_the_path_the_value_and_what_is_allowed(value: Any, message: str) -> None:
    assert refusal(value) == message


def test_a_long_value_is_shown_by_its_beginning() -> None:
    message = refusal(definition(name="x" * 1_000_000))

    assert message.startswith("name is 'xxxx")
    assert message.endswith("x…: expected str of length <= 255")
    assert len(message) < 200


def test_nulls_count_as_absent_at_every_depth() -> None:
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


def test_integral_floats_count_as_integers_at_every_depth() -> None:
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
def test_no_null_leaves_a_map(value: Any) -> None:
    def has_null(item: Any) -> bool:
        if isinstance(item, dict):
            return any(value is None or has_null(value) for value in item.values())
        return isinstance(item, list) and any(map(has_null, item))

    assert not has_null(to_wire(value))


def test_bytes_stay_bytes_and_a_text_is_not_taken_for_them() -> None:
    class Holder(msgspec.Struct):
        data: bytes

    assert to_wire(Holder(b"\xff")) == {"data": b"\xff"}
    assert from_wire({"data": b"abcd"}, Holder).data == b"abcd"
    with pytest.raises(InvalidRequestException, match="data is 'abcd': expected bytes"):
        from_wire({"data": "abcd"}, Holder)
