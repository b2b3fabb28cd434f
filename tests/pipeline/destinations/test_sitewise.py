from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.pipeline.delivery import Budget, deliver
from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import Messages
from penstock.pipeline.settlements import Delivery
from penstock.sandbox.server import Sandbox
from tests.pipeline.destinations.suite import SiteWiseHarness

VALUE = {"value": {"booleanValue": True}, "timestamp": {"timeInSeconds": 1}}
ENTRY = {"entryId": "e", "propertyAlias": "/a", "propertyValues": [VALUE]}


@pytest.fixture
def other_end(sandbox: Sandbox, tmp_path: Path) -> SiteWiseHarness:
    return SiteWiseHarness(sandbox, tmp_path)


def of(*entries: Any) -> Messages:
    numbers = range(len(entries))
    payloads = [
        entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in entries
    ]
    return Messages("s", 0, numbers, numbers, payloads)


def run(other_end: SiteWiseHarness, *entries: Any) -> Delivery:
    return deliver(other_end.open(), of(*entries), len(entries), Budget(60))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"[]", "expected a JSON object"),
        ({}, "entryId"),
        (ENTRY | {"entryId": "a b"}, "entryId"),
        (ENTRY | {"entryId": 7}, "entryId"),
        (ENTRY | {"propertyValues": []}, "propertyValues"),
        (ENTRY | {"propertyValues": [VALUE] * 11}, "propertyValues"),
        (ENTRY | {"propertyValues": [VALUE | {"value": 7}]}, "propertyValues[0].value"),
        (ENTRY | {"propertyValues": [{"value": {}}]}, "timestamp"),
        (ENTRY | {"propertyValues": [VALUE | {"timestamp": {}}]}, "timeInSeconds"),
        (ENTRY | {"propertyAlias": None}, "no propertyAlias, nor both assetId and propertyId"),
        (ENTRY | {"propertyAlias": None, "assetId": "a"}, "no propertyAlias"),
    ],
)
def test_what_is_no_entry_is_skipped_with_the_field(
    other_end: SiteWiseHarness, entry: Any, reason: str
) -> None:
    call = other_end.open().prepare(of(entry), 0, 10)
    assert call.content is None
    assert reason in call.skipped[0]


@pytest.mark.parametrize(
    "value",
    [
        {"integerValue": -(2**31)},
        {"doubleValue": 1},
        {"stringValue": ""},
        {"nullValue": {"valueType": "D"}},
        {"doubleValue": "NaN"},
        {"somethingNew": 1},
    ],
)
def test_what_is_a_value_is_for_sitewise_to_say(other_end: SiteWiseHarness, value: Any) -> None:
    entry = ENTRY | {"propertyValues": [VALUE | {"value": value}], "somethingNew": 7}
    call = other_end.open().prepare(of(entry), 0, 10)
    assert not call.skipped
    # It goes out as it came.
    assert json.loads(call.content.body) == {"entries": [entry]}


def test_entries_that_conflict_are_in_different_calls(other_end: SiteWiseHarness) -> None:
    entries = [
        other_end.entry(0),
        other_end.entry(1, entryId="e-0"),
        other_end.entry(2, propertyValues=other_end.entry(1)["propertyValues"]),
        other_end.entry(3),
    ]
    delivery = run(other_end, *entries)
    assert delivery.error == ""
    assert delivery.skipped == []
    assert delivery.exported_messages == 4
    assert other_end.arrived() == [0, 0, 2, 3]
    assert len(other_end.sandbox.calls("iotsitewise")) == 3


def test_a_property_is_the_same_by_its_ids_only(other_end: SiteWiseHarness) -> None:
    other = {"propertyAlias": None, "assetId": "a", "propertyId": "p"}
    messages = of(
        ENTRY,
        ENTRY | {"entryId": "f", **other},
        ENTRY | {"entryId": "g", **other, "propertyId": "q"},
        ENTRY | {"entryId": "h", **other, "timestamp": 1},
    )
    assert other_end.open().prepare(messages, 0, 10).stop == 3


def test_times_that_differ_by_their_nanoseconds_only_do_not_conflict(
    other_end: SiteWiseHarness,
) -> None:
    later = VALUE | {"timestamp": {"timeInSeconds": 1, "offsetInNanos": 1}}
    zero = VALUE | {"timestamp": {"timeInSeconds": 1, "offsetInNanos": 0}}
    destination = other_end.open()
    messages = of(
        ENTRY,
        ENTRY | {"entryId": "f", "propertyValues": [later]},
        ENTRY | {"entryId": "g", "propertyValues": [zero]},
    )
    assert destination.prepare(messages, 0, 10).stop == 2


def test_an_entry_that_is_out_of_range_is_skipped_and_others_arrive(
    other_end: SiteWiseHarness,
) -> None:
    delivery = run(
        other_end,
        other_end.entry(0),
        other_end.entry(1, propertyValues=[VALUE]),
        other_end.entry(2),
    )
    ((number, reason),) = delivery.skipped
    assert number == 1
    assert "TimestampOutOfRangeException" in reason
    assert other_end.arrived() == [0, 2]
    assert delivery.settled_end == 3


def test_an_entry_that_makes_a_call_invalid_is_found_and_skipped(
    other_end: SiteWiseHarness,
) -> None:
    bad = other_end.entry(3, propertyAlias="\t")
    entries = [bad if number == 3 else other_end.entry(number) for number in range(10)]
    delivery = run(other_end, *entries)
    ((number, reason),) = delivery.skipped
    assert number == 3
    assert "InvalidRequestException" in reason
    assert other_end.arrived() == [0, 1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("codes", "failed", "refused"),
    [
        (["InternalFailureException"], [0], []),
        (["ServiceUnavailableException"], [0], []),
        (["ThrottlingException"], [0], []),
        (["LimitExceededException"], [0], []),
        (["ConflictingOperationException"], [0], []),
        (["AccessDeniedException"], [0], []),
        (["ResourceNotFoundException"], [0], []),
        (["SomethingNew"], [0], []),
        (["InvalidRequestException"], [], [0]),
        (["TimestampOutOfRangeException"], [], [0]),
        (["InvalidRequestException", "TimestampOutOfRangeException"], [], [0]),
        (["InvalidRequestException", "ThrottlingException"], [0], []),
        ([], [0], []),
    ],
)
def test_errors_of_an_entry_are_lasting_or_pass(
    monkeypatch: pytest.MonkeyPatch,
    other_end: SiteWiseHarness,
    codes: list[str],
    failed: list[int],
    refused: list[int],
) -> None:
    errors = [{"errorCode": code, "errorMessage": "m", "timestamps": []} for code in codes]
    body = msgspec.json.encode({"errorEntries": [{"entryId": "e", "errors": errors}]})
    monkeypatch.setattr(aws, "call", lambda *_: body)
    destination = other_end.open()
    answer = destination.send(destination.prepare(of(ENTRY, ENTRY | {"entryId": "f"}), 0, 10))
    assert list(answer.failed) == failed
    assert list(answer.refused) == refused


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"errorEntries": [{"entryId": "other"}]}'])
def test_an_answer_that_is_none_settles_nothing(
    monkeypatch: pytest.MonkeyPatch, other_end: SiteWiseHarness, body: bytes
) -> None:
    monkeypatch.setattr(aws, "call", lambda *_: body)
    delivery = run(other_end, ENTRY)
    assert "iotsitewise BatchPutAssetPropertyValue" in delivery.error
    assert delivery.settled_end == 0
