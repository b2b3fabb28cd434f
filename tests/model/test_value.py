"""What all types of the model share: making them, filling them in, and the names of the SDK."""

from __future__ import annotations

import copy
import pickle
from enum import Enum

import pytest

from penstock import model
from penstock.errors import ValidationException
from penstock.model import (
    ExportDefinition,
    KinesisConfig,
    Message,
    MessageStreamDefinition,
    MessageStreamInfo,
    Quality,
    Status,
    StorageStatus,
    StrategyOnFull,
)
from penstock.model.validation import validate
from penstock.model.value import Choice, Value

from . import samples

VALUES = [
    kind
    for name in model.__all__
    if isinstance(kind := getattr(model, name), type) and issubclass(kind, Value)
]
CHOICES = [
    member
    for name in model.__all__
    if isinstance(kind := getattr(model, name), type) and issubclass(kind, Choice)
    for member in kind
]


def make_definition() -> MessageStreamDefinition:
    return MessageStreamDefinition.from_dict(samples.complete_definition())


@pytest.mark.parametrize("kind", VALUES)
def test_an_object_can_be_made_empty(kind: type[Value]) -> None:
    assert kind() == kind()


def test_an_object_is_filled_in_after_it_was_made() -> None:
    definition = MessageStreamDefinition()

    definition.name = "s"
    with pytest.raises(ValidationException, match="object missing required field strategyOnFull"):
        validate(definition)
    definition.strategy_on_full = StrategyOnFull.RejectNewData

    assert validate(definition) == MessageStreamDefinition(
        "s", strategy_on_full=StrategyOnFull.RejectNewData
    )


def test_a_required_field_is_missed_also_in_objects_that_others_hold() -> None:
    definition = make_definition()
    definition.export_definition.kinesis = [KinesisConfig("k", "n"), KinesisConfig("k2")]

    with pytest.raises(ValidationException, match=r"exportDefinition.kinesis\[1\].*kinesisStream"):
        validate(definition)


def test_an_object_has_no_other_fields_than_its_own() -> None:
    with pytest.raises(AttributeError):
        MessageStreamDefinition().nmae = "s"  # type: ignore[attr-defined] # that is the point
    with pytest.raises(TypeError):
        MessageStreamDefinition(nmae="s")  # type: ignore[call-arg] # the same


def test_two_objects_share_no_default() -> None:
    one, other = MessageStreamDefinition(), MessageStreamDefinition()

    one.export_definition.kinesis = [KinesisConfig("k", "n")]

    assert other.export_definition == ExportDefinition()


def test_an_object_says_what_it_was_made_from() -> None:
    plain = samples.complete_definition()

    assert MessageStreamDefinition.from_dict(plain).as_dict() == plain


def test_an_object_leaves_out_what_is_unset() -> None:
    assert KinesisConfig("k").as_dict() == {"identifier": "k"}
    # A tuple too, which may hold objects with unset fields.
    several = ExportDefinition(kinesis=(KinesisConfig("k"),))  # type: ignore[arg-type] # a list
    assert several.as_dict() == {"kinesis": [{"identifier": "k"}]}


def test_bytes_stay_bytes() -> None:
    message = Message("s", 1, 2, b"\x00\xff")

    assert message.as_dict()["payload"] == b"\x00\xff"
    assert Message.from_dict(message.as_dict()) == message


def test_a_map_is_taken_as_it_is_and_checked_before_it_leaves() -> None:
    definition = MessageStreamDefinition.from_dict({**samples.definition(), "maxSize": 5})

    assert definition.max_size == 5
    with pytest.raises(ValidationException, match="maxSize is 5"):
        validate(definition)


def test_what_is_missing_has_its_default() -> None:
    assert MessageStreamDefinition.from_dict({}) == MessageStreamDefinition()


@pytest.mark.parametrize("plain", [None, 5, [], "text"])
def test_what_is_no_map_is_no_object(plain: object) -> None:
    with pytest.raises(ValueError, match="expected a map"):
        MessageStreamDefinition.from_dict(plain)  # type: ignore[arg-type] # as it may come


def test_a_stream_without_exports_may_say_nothing_of_them() -> None:
    info = MessageStreamInfo.from_dict(
        {
            "definition": samples.definition(),
            "storageStatus": {
                "oldestSequenceNumber": 0,
                "newestSequenceNumber": -1,
                "totalBytes": 0,
            },
        }
    )

    assert info.export_statuses == []
    assert info.storage_status == StorageStatus(0, -1, 0)


def test_objects_can_be_copied_and_pickled() -> None:
    definition = make_definition()

    for twin in (copy.deepcopy(definition), pickle.loads(pickle.dumps(definition))):
        assert twin == definition
        twin.export_definition.kinesis = None
        assert definition.export_definition.kinesis


def test_an_object_shows_its_fields() -> None:
    assert repr(KinesisConfig("k", "n")).startswith(
        "KinesisConfig(identifier='k', kinesis_stream_name='n'"
    )


@pytest.mark.parametrize("member", CHOICES)
def test_a_choice_is_printed_by_its_name(member: Choice) -> None:
    named = f"{type(member).__name__}.{member.name}"

    assert str(member) == named
    assert f"{member}" == named
    assert f"{member:>40}" == named.rjust(40)


@pytest.mark.parametrize("member", CHOICES)
def test_a_choice_is_its_number_on_the_wire(member: Choice) -> None:
    plain = member.as_dict()

    assert type(plain) is int
    assert type(member).from_dict(plain) is member


@pytest.mark.parametrize("member", [*CHOICES, *Quality])
def test_a_choice_is_true_also_if_it_is_the_first(member: Enum) -> None:
    assert bool(member)


def test_a_number_that_is_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="9 is not a valid Status"):
        Status.from_dict(9)


def test_a_quality_is_its_name_on_the_wire() -> None:
    assert Quality.GOOD.as_dict() == "GOOD"
    assert Quality.from_dict("BAD") is Quality.BAD
