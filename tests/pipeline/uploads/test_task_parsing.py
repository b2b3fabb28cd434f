"""S3 tasks: parsing, and the placeholders of keys."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock.pipeline.uploads.task_parsing import TaskError, parse_task, resolve_key

TASK = {"inputUrl": "file:///data/a.txt", "bucket": "images", "key": "a/b.txt"}
# 2026-12-31T23:30:00.5Z, which is the year of the first week of 2027, and 2027 in Berlin.
NEW_YEARS_EVE = 1798759800_500_000_000


def payload_of(**changes: Any) -> bytes:
    return json.dumps({**TASK, **changes}).encode()


def test_task_has_the_fields_of_its_message() -> None:
    task = parse_task(payload_of(userMetadata={"Camera": "north 1"}))
    assert task.input_url == "file:///data/a.txt"
    assert (task.bucket, task.key) == ("images", "a/b.txt")
    assert task.user_metadata == {"Camera": "north 1"}


def test_unknown_fields_are_ignored() -> None:
    assert parse_task(payload_of(later="x", userMetadata=None)).user_metadata is None


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "expected a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "inputUrl"),
        (payload_of(inputUrl=""), "inputUrl"),
        (payload_of(inputUrl=7), "inputUrl"),
        (payload_of(bucket="No_Bucket"), "bucket"),
        (payload_of(bucket="10.0.0.1"), "bucket"),
        (payload_of(key=""), "key"),
        (payload_of(key="k" * 1025), "key"),
        (payload_of(key="ä" * 600), "more than 1024 bytes"),
        (payload_of(key="a b"), "' '"),
        (payload_of(key="a{b"), "'{'"),
        (payload_of(key="!{date:yyyy}"), "'!{date:yyyy}'"),
        (payload_of(key="!{timestamp}"), "'!{timestamp}'"),
        (payload_of(key="!{timestamp:}"), "'!{timestamp:}'"),
        (payload_of(key="x/!{timestamp:yyyy/bb}"), "b"),
        (payload_of(key="!{timestamp:[]}"), "empty"),
        (payload_of(userMetadata=["a"]), "userMetadata"),
        (payload_of(userMetadata={"a": 1}), "userMetadata"),
        (payload_of(userMetadata={"$aws-gg-x": "1"}), "'$aws-gg-'"),
        (payload_of(userMetadata={"X-Amz-Meta-x": "1"}), "'x-amz-'"),
        (payload_of(userMetadata={"a b": "1"}), "'a b'"),
        (payload_of(userMetadata={"A": "1", "a": "2"}), "twice"),
        (payload_of(userMetadata={"a": "ä"}), "ASCII"),
        (payload_of(userMetadata={"a": "b\r\nc: d"}), "ASCII"),
    ],
)
def test_invalid_task_is_refused_with_the_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(TaskError) as refusal:
        resolve_key(parse_task(payload).key, NEW_YEARS_EVE, UTC)
    assert reason in str(refusal.value)


def test_placeholders_are_resolved() -> None:
    key = "my-key/!{timestamp:YYYY}/!{timestamp:MM}/!{timestamp:dd}/!{timestamp:HH/mm}/data.txt"
    assert resolve_key(key, NEW_YEARS_EVE, UTC) == "my-key/2027/12/31/23/30/data.txt"
    berlin = ZoneInfo("Europe/Berlin")
    assert resolve_key(key, NEW_YEARS_EVE, berlin) == "my-key/2027/01/01/00/30/data.txt"


def test_padding_is_checked_at_the_time_of_the_upload() -> None:
    # Thursday has 8 letters: 1970 began with one.
    key = parse_task(payload_of(key="!{timestamp:pppppppEEEE}")).key
    assert resolve_key(key, NEW_YEARS_EVE + 86400 * 10**9, UTC) == " Friday"
    with pytest.raises(TaskError, match="'Thursday' is longer"):
        resolve_key(key, NEW_YEARS_EVE, UTC)


def test_pattern_may_have_more_than_letters() -> None:
    key = "!{timestamp:yyyy-MM-dd'T'HH:mm:ss.SSS}.jpg"
    assert resolve_key(key, NEW_YEARS_EVE, UTC) == "2026-12-31T23:30:00.500.jpg"


def test_key_that_becomes_too_long_is_refused() -> None:
    key = "k" * 1000 + "!{timestamp:EEEE}" + "/x" * 3
    assert parse_task(payload_of(key=key[:1017])).key == key[:1017]
    with pytest.raises(TaskError, match="more than 1024 bytes"):
        resolve_key(key + "!{timestamp:MMMM}" * 3, NEW_YEARS_EVE, UTC)
