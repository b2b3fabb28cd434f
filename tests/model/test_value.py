"""The base classes of the model: construction, fields, and the method names of the SDK."""

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
def test_object_can_be_created_empty(kind: type[Value]) -> None:
    assert kind() == kind()


def test_fields_can_be_set_later() -> None:
    definition = MessageStreamDefinition()

    definition.name = "s"
    with pytest.raises(ValidationException, match="object missing required field strategyOnFull"):
        validate(definition)
    definition.strategy_on_full = StrategyOnFull.RejectNewData

    assert validate(definition) == MessageStreamDefinition(
        "s", strategy_on_full=StrategyOnFull.RejectNewData
    )


def test_required_field_is_checked_in_nested_objects() -> None:
    definition = make_definition()
    definition.export_definition.kinesis = [KinesisConfig("k", "n"), KinesisConfig("k2")]

    with pytest.raises(ValidationException, match=r"exportDefinition.kinesis\[1\].*kinesisStream"):
        validate(definition)


def test_unknown_field_is_rejected() -> None:
    with pytest.raises(AttributeError):
        MessageStreamDefinition().nmae = "s"  # type: ignore[attr-defined] # a typing error
    with pytest.raises(TypeError):
        MessageStreamDefinition(nmae="s")  # type: ignore[call-arg] # a typing error


def test_objects_do_not_share_defaults() -> None:
    one, other = MessageStreamDefinition(), MessageStreamDefinition()

    one.export_definition.kinesis = [KinesisConfig("k", "n")]

    assert other.export_definition == ExportDefinition()


def test_as_dict_returns_the_fields() -> None:
    plain = samples.complete_definition()

    assert MessageStreamDefinition.from_dict(plain).as_dict() == plain


def test_as_dict_omits_unset_fields() -> None:
    assert KinesisConfig("k").as_dict() == {"identifier": "k"}
    # A tuple may have objects with unset fields too.
    several = ExportDefinition(kinesis=(KinesisConfig("k"),))  # type: ignore[arg-type] # a list
    assert several.as_dict() == {"kinesis": [{"identifier": "k"}]}


def test_bytes_stay_bytes() -> None:
    message = Message("s", 1, 2, b"\x00\xff")

    assert message.as_dict()["payload"] == b"\x00\xff"
    assert Message.from_dict(message.as_dict()) == message


def test_from_dict_does_not_validate() -> None:
    definition = MessageStreamDefinition.from_dict({**samples.definition(), "maxSize": 5})

    assert definition.max_size == 5
    with pytest.raises(ValidationException, match="maxSize is 5"):
        validate(definition)


def test_missing_fields_have_defaults() -> None:
    assert MessageStreamDefinition.from_dict({}) == MessageStreamDefinition()


@pytest.mark.parametrize("plain", [None, 5, [], "text"])
def test_from_dict_rejects_values_that_are_not_maps(plain: object) -> None:
    with pytest.raises(ValueError, match="expected a map"):
        MessageStreamDefinition.from_dict(plain)  # type: ignore[arg-type] # not a map


def test_export_statuses_may_be_missing() -> None:
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


def test_repr_has_the_fields() -> None:
    assert repr(KinesisConfig("k", "n")).startswith(
        "KinesisConfig(identifier='k', kinesis_stream_name='n'"
    )


@pytest.mark.parametrize("member", CHOICES)
def test_choice_prints_its_name(member: Choice) -> None:
    named = f"{type(member).__name__}.{member.name}"

    assert str(member) == named
    assert f"{member}" == named
    assert f"{member:>40}" == named.rjust(40)


@pytest.mark.parametrize("member", CHOICES)
def test_choice_is_a_number_on_the_wire(member: Choice) -> None:
    plain = member.as_dict()

    assert type(plain) is int
    assert type(member).from_dict(plain) is member


@pytest.mark.parametrize("member", [*CHOICES, *Quality])
def test_choice_of_0_is_true(member: Enum) -> None:
    assert bool(member)


def test_unknown_choice_is_rejected() -> None:
    with pytest.raises(ValueError, match="9 is not a valid Status"):
        Status.from_dict(9)


def test_quality_is_a_name_on_the_wire() -> None:
    assert Quality.GOOD.as_dict() == "GOOD"
    assert Quality.from_dict("BAD") is Quality.BAD
