"""S3 tasks as messages, and the keys that they ask for."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock.pipeline.uploads.tasks import TaskError, parse_task, resolve_key

TASK = {"inputUrl": "file:///data/a.txt", "bucket": "images", "key": "a/b.txt"}
# 2026-12-31T23:30:00.5Z, which is the year of the first week of 2027, and 2027 in Berlin.
NEW_YEARS_EVE = 1798759800_500_000_000


def payload_of(**changes: Any) -> bytes:
    return json.dumps({**TASK, **changes}).encode()


def test_a_task_is_what_its_message_says() -> None:
    task = parse_task(payload_of(userMetadata={"Camera": "north 1"}))
    assert task.input_url == "file:///data/a.txt"
    assert (task.bucket, task.key) == ("images", "a/b.txt")
    assert task.user_metadata == {"Camera": "north 1"}


def test_what_is_not_known_of_a_task_is_left_alone() -> None:
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
def test_what_is_no_task_is_refused_with_the_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(TaskError) as refusal:
        parse_task(payload)
    assert reason in str(refusal.value)


def test_placeholders_in_a_key_are_filled_in() -> None:
    key = "my-key/!{timestamp:YYYY}/!{timestamp:MM}/!{timestamp:dd}/!{timestamp:HH/mm}/data.txt"
    assert resolve_key(key, NEW_YEARS_EVE, UTC) == "my-key/2027/12/31/23/30/data.txt"
    berlin = ZoneInfo("Europe/Berlin")
    assert resolve_key(key, NEW_YEARS_EVE, berlin) == "my-key/2027/01/01/00/30/data.txt"


def test_patterns_may_have_more_than_letters() -> None:
    key = "!{timestamp:yyyy-MM-dd'T'HH:mm:ss.SSS}.jpg"
    assert resolve_key(key, NEW_YEARS_EVE, UTC) == "2026-12-31T23:30:00.500.jpg"


def test_a_key_that_is_too_long_once_it_is_filled_in_is_refused() -> None:
    key = "k" * 1000 + "!{timestamp:EEEE}" + "/x" * 3
    assert parse_task(payload_of(key=key[:1017])).key == key[:1017]
    with pytest.raises(TaskError, match="more than 1024 bytes"):
        resolve_key(key + "!{timestamp:MMMM}" * 3, NEW_YEARS_EVE, UTC)
