"""S3 export tasks in messages of programs for the AWS SDKs."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.errors import InvalidRequestException
from penstock.model import S3ExportTaskDefinition, from_wire, to_wire
from penstock.model.s3_task import find_task

from .samples import s3_task


def test_complete_task_survives_a_round_trip() -> None:
    found = msgspec.json.decode(json.dumps(s3_task()), type=S3ExportTaskDefinition)

    assert found == S3ExportTaskDefinition(
        "file:///data/a.bin", "some-bucket", "a/!{timestamp:yyyy}/b", {"site": "north"}
    )
    assert to_wire(found) == s3_task()
    assert from_wire(s3_task(), S3ExportTaskDefinition) == found


@pytest.mark.parametrize("missing", ["inputUrl", "bucket", "key"])
def test_missing_required_field_is_named(missing: str) -> None:
    task = {key: value for key, value in s3_task().items() if key != missing}

    with pytest.raises(InvalidRequestException, match=f"missing required field {missing}"):
        from_wire(task, S3ExportTaskDefinition)


def test_metadata_is_text_and_optional() -> None:
    task = s3_task()
    del task["userMetadata"]

    assert to_wire(from_wire(task, S3ExportTaskDefinition)) == task
    with pytest.raises(InvalidRequestException, match=r"userMetadata.*expected str"):
        from_wire({**task, "userMetadata": {"a": 1}}, S3ExportTaskDefinition)
    with pytest.raises(InvalidRequestException, match="userMetadata: expected str for each key"):
        from_wire({**task, "userMetadata": {1: "a"}}, S3ExportTaskDefinition)


def test_find_task_returns_the_fields_unchanged() -> None:
    given = {
        "inputUrl": "file:/a",
        "bucket": "No Bucket",
        "key": "!{x}",
        "userMetadata": {"A": "b"},
    }
    assert find_task(json.dumps({**given, "more": [1]}).encode()) == given
    del given["userMetadata"]
    assert find_task(json.dumps({**given, "userMetadata": None}).encode()) == given


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"inputUrl": "file:/a", "bucket": "b"}',
        b'{"inputUrl": 1, "bucket": "b", "key": "k"}',
        b'{"inputUrl": "file:/a", "bucket": "b", "key": "k", "userMetadata": {"a": 1}}',
    ],
)
def test_find_task_returns_none_if_clients_cannot_decode_it(payload: bytes) -> None:
    assert find_task(payload) is None
