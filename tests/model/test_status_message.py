"""Status messages: JSON that programs written for the AWS SDKs read."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.model import (
    EventType,
    S3ExportTaskDefinition,
    Status,
    StatusConfig,
    StatusContext,
    StatusLevel,
    StatusMessage,
    from_wire,
    to_wire,
)

from .samples import s3_task, status_message


def test_complete_status_message_survives_a_round_trip() -> None:
    wanted = status_message()

    found = from_wire(wanted, StatusMessage)

    assert to_wire(found) == wanted
    assert json.loads(msgspec.json.encode(to_wire(found))) == wanted
    assert msgspec.json.decode(json.dumps(wanted), type=StatusMessage) == found
    assert found == StatusMessage(
        EventType.S3Task,
        StatusLevel.INFO,
        Status.Failure,
        StatusContext(from_wire(s3_task(), S3ExportTaskDefinition), "e", "s", 7),
        "no such bucket",
        1_700_000_000_000,
    )


def test_unset_fields_are_omitted() -> None:
    message = StatusMessage(EventType.S3Task, status=Status.Success, status_context=StatusContext())

    assert to_wire(message) == {"eventType": 0, "status": 0, "statusContext": {}}
    assert to_wire(StatusConfig()) == {}


@pytest.mark.parametrize(
    ("members", "names"),
    [
        (EventType, ["S3Task"]),
        (Status, ["Success", "Failure", "InProgress", "Warning", "Canceled"]),
        (StatusLevel, ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"]),
    ],
)
def test_enum_values_are_those_of_the_aws_sdks(members: type[Status], names: list[str]) -> None:
    assert {member.value: member.name for member in members} == dict(enumerate(names))
