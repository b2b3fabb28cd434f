from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.model.exporting import MAX_SKIPPED
from penstock.pipeline.delivery import DeliveryTotals
from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import DestinationCall, Messages
from penstock.sandbox.local_sandbox import Sandbox
from tests.pipeline.destinations.suite import SiteWiseHarness, deliver

VALUE = {"value": {"booleanValue": True}, "timestamp": {"timeInSeconds": 1}}
ENTRY = {"entryId": "e", "propertyAlias": "/a", "propertyValues": [VALUE]}


@pytest.fixture
def other_end(sandbox: Sandbox, tmp_path: Path) -> SiteWiseHarness:
    return SiteWiseHarness(sandbox, tmp_path)


def of(*messages: Any) -> Messages:
    numbers = range(len(messages))
    payloads = [
        message if isinstance(message, bytes) else json.dumps(message).encode()
        for message in messages
    ]
    return Messages("s", 0, numbers, numbers, payloads)


def run(other_end: SiteWiseHarness, *messages: Any) -> DeliveryTotals:
    return deliver(other_end.open(), of(*messages), len(messages))


def texts(call: DestinationCall) -> list[list[bytes]]:
    """The entries of each call of the API."""
    return [[bytes(entry.text) for entry in batch] for batch in call.content]


def count_calls(other_end: SiteWiseHarness) -> int:
    return len(other_end.sandbox.calls("iotsitewise"))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"7", "expected a JSON object"),
        (b"[]", "expected a list with one entry or more"),
        (b'{"entries": []}', "expected a list with one entry or more"),
        (b'{"entries": null}', "expected a list with one entry or more"),
        ({"entries": ENTRY}, "expected a list with one entry or more"),
        ([7], "expected a JSON object (entries[0])"),
        ([[ENTRY], None], "expected a JSON object (entries[0], entries[1])"),
        ({"entries": [7]}, "expected a JSON object (entries[0])"),
        ([ENTRY] * 201, "201 SiteWise entries: a message has 200 at most"),
        ({}, "entryId"),
        (ENTRY | {"entryId": "a b"}, "entryId"),
        (ENTRY | {"entryId": 7}, "entryId"),
        (ENTRY | {"propertyValues": []}, "propertyValues"),
        (ENTRY | {"propertyValues": [VALUE] * 11}, "propertyValues"),
        (ENTRY | {"propertyValues": [VALUE] * 2}, "two values with the same timestamp"),
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
    call = other_end.open().prepare(of(entry))
    assert not call.numbers
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
    call = other_end.open().prepare(of(entry))
    assert not call.skipped
    # It goes out as it came.
    assert texts(call) == [[json.dumps(entry).encode()]]


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
    assert count_calls(other_end) == 3


def test_a_property_is_the_same_by_its_ids_only(other_end: SiteWiseHarness) -> None:
    other = {"propertyAlias": None, "assetId": "a", "propertyId": "p"}
    messages = of(
        ENTRY,
        ENTRY | {"entryId": "f", **other},
        ENTRY | {"entryId": "g", **other, "propertyId": "q"},
        ENTRY | {"entryId": "h", **other, "timestamp": 1},
    )
    assert other_end.open().prepare(messages).message_count == 3


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
    assert destination.prepare(messages).message_count == 2


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
    answer = destination.send(destination.prepare(of(ENTRY, ENTRY | {"entryId": "f"})))
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


def test_many_invalid_messages_fit_in_a_report(other_end: SiteWiseHarness) -> None:
    delivery = run(other_end, *[b"?"] * (MAX_SKIPPED + 1))
    assert 0 < len(delivery.skipped) <= MAX_SKIPPED
    assert delivery.settled_end == len(delivery.skipped)


def test_list_and_object_with_entries_arrive_in_one_call(other_end: SiteWiseHarness) -> None:
    delivery = run(
        other_end,
        [other_end.entry(0), other_end.entry(1)],
        other_end.entry(2),
        {"entries": [other_end.entry(3), other_end.entry(4)], "enablePartialEntryProcessing": True},
    )
    assert delivery.error == ""
    assert delivery.skipped == []
    assert delivery.exported_messages == 3
    assert other_end.arrived() == [0, 1, 2, 3, 4]
    assert count_calls(other_end) == 1


@pytest.mark.parametrize("message", [b"[%s , %s]", b'{"entries":[ %s,%s ]}'])
def test_entries_of_a_list_go_out_as_they_were_written(
    other_end: SiteWiseHarness, message: bytes
) -> None:
    written = [
        b'{"entryId" : "%d", "propertyAlias": "/\\u0061", "new": 1.10, "propertyValues": '
        b'[{"value": {"doubleValue": 1e2}, "timestamp": {"timeInSeconds": %d}}]}' % (number, number)
        for number in (1, 2)
    ]
    call = other_end.open().prepare(of(message % tuple(written)))
    assert texts(call) == [written]


def test_message_with_many_entries_takes_several_calls(other_end: SiteWiseHarness) -> None:
    large = [other_end.entry(number) for number in range(1, 26)]
    delivery = run(other_end, other_end.entry(0), large, other_end.entry(26))
    assert delivery.error == ""
    assert delivery.exported_messages == 3
    assert other_end.arrived() == list(range(27))
    assert count_calls(other_end) == 1 + 3 + 1


def test_message_may_have_as_many_entries_as_the_limit(other_end: SiteWiseHarness) -> None:
    delivery = run(other_end, [other_end.entry(number) for number in range(200)])
    assert delivery.exported_messages == 1
    assert other_end.arrived() == list(range(200))
    assert count_calls(other_end) == 20


def test_messages_share_a_call_if_all_their_entries_fit(other_end: SiteWiseHarness) -> None:
    entries = [other_end.entry(number) for number in range(14)]
    messages = of(entries[:4], entries[4:10], entries[10:13], entries[13])
    assert other_end.open().prepare(messages).message_count == 2
    assert other_end.open().prepare(messages.pick(range(1, 4))).message_count == 3


def test_batch_size_counts_messages(other_end: SiteWiseHarness) -> None:
    entries = [other_end.entry(number) for number in range(6)]
    delivery = deliver(other_end.open(batch_size=2), of(entries[:3], entries[3:5], entries[5]))
    assert delivery.exported_messages == 3
    assert other_end.arrived() == list(range(6))
    assert count_calls(other_end) == 2


def test_equal_entry_ids_never_share_a_call(other_end: SiteWiseHarness) -> None:
    delivery = run(
        other_end,
        [other_end.entry(0), other_end.entry(1, entryId="e-0"), other_end.entry(2)],
        [other_end.entry(3, entryId="e-2"), other_end.entry(4)],
    )
    assert delivery.error == ""
    assert delivery.exported_messages == 2
    assert other_end.arrived() == [0, 0, 2, 2, 4]
    assert count_calls(other_end) == 3


def test_only_failed_entries_of_a_message_are_retried(other_end: SiteWiseHarness) -> None:
    other_end.fail_partly()
    delivery = run(other_end, [other_end.entry(number) for number in range(6)], other_end.entry(6))
    assert delivery.error == ""
    assert delivery.exported_messages == 2
    assert other_end.arrived() == [0, 1, 3, 4, 6, 2, 5]


def test_message_with_failed_entries_is_not_settled(other_end: SiteWiseHarness) -> None:
    other_end.fail_partly()
    messages = of([other_end.entry(number) for number in range(6)], other_end.entry(6))
    delivery = deliver(other_end.open(), messages, stops=True)
    assert "ThrottlingException" in delivery.error
    assert "(entries[2], entries[5])" in delivery.error
    assert delivery.settled_end == 0
    assert delivery.arrived == [1]
    # The next delivery knows nothing of this one.
    assert deliver(other_end.open(), messages.pick([0])).exported_messages == 1
    assert other_end.arrived() == [0, 1, 3, 4, 6, 0, 1, 2, 3, 4, 5]


def test_later_calls_are_made_although_entries_of_the_first_failed(
    other_end: SiteWiseHarness,
) -> None:
    other_end.fail_partly()
    delivery = run(other_end, [other_end.entry(number) for number in range(12)])
    assert delivery.exported_messages == 1
    assert other_end.arrived() == [0, 1, 3, 4, 6, 7, 9, 10, 11, 2, 5, 8]


def test_value_does_not_overtake_a_failed_one_that_it_replaces(
    other_end: SiteWiseHarness,
) -> None:
    other_end.sandbox.set_fault("iotsitewise", refuse_every=1, for_calls=1)
    first = other_end.entry(0)
    second = other_end.entry(1, propertyValues=first["propertyValues"])
    delivery = run(other_end, [first, second])
    assert delivery.exported_messages == 1
    assert other_end.arrived() == [0, 1]


def test_message_with_a_refused_entry_is_skipped_and_other_entries_arrive(
    other_end: SiteWiseHarness,
) -> None:
    delivery = run(
        other_end,
        [
            other_end.entry(0),
            other_end.entry(1, propertyValues=[VALUE]),
            other_end.entry(2),
            other_end.entry(3, propertyValues=[VALUE | {"timestamp": {"timeInSeconds": 2}}]),
        ],
        other_end.entry(4),
    )
    ((number, reason),) = delivery.skipped
    assert number == 0
    assert reason.count("TimestampOutOfRangeException") == 1
    assert reason.endswith("(entries[1], entries[3])")
    assert delivery.exported_messages == 1
    assert other_end.arrived() == [0, 2, 4]


def test_message_with_a_refused_and_a_failed_entry_is_retried_then_skipped(
    other_end: SiteWiseHarness,
) -> None:
    other_end.fail_partly()
    delivery = run(
        other_end,
        [other_end.entry(0, propertyValues=[VALUE]), other_end.entry(1), other_end.entry(2)],
    )
    assert delivery.error == ""
    ((_, reason),) = delivery.skipped
    assert "TimestampOutOfRangeException" in reason
    assert reason.endswith("(entries[0])")
    assert other_end.arrived() == [1, 2]


def test_malformed_entries_are_named_and_other_entries_arrive(other_end: SiteWiseHarness) -> None:
    delivery = run(other_end, [other_end.entry(0), 7, other_end.entry(2, entryId=""), ENTRY])
    ((_, reason),) = delivery.skipped
    assert "expected a JSON object (entries[1]); " in reason
    assert "entryId" in reason
    assert "(entries[2]); " in reason
    assert reason.endswith("(entries[3])")
    assert other_end.arrived() == [0]


def test_entry_that_makes_calls_invalid_is_found_among_those_of_its_message(
    other_end: SiteWiseHarness,
) -> None:
    entries = [other_end.entry(number) for number in range(16)]
    entries[4] = other_end.entry(4, propertyAlias="\t")
    delivery = run(other_end, entries[:2], entries[2:15], entries[15])
    ((number, reason),) = delivery.skipped
    assert number == 1
    assert "InvalidRequestException" in reason
    assert reason.endswith("(entries[2])")
    assert delivery.exported_messages == 2
    assert other_end.arrived() == [number for number in range(16) if number != 4]


def test_invalid_entry_is_found_if_its_message_shares_a_call(other_end: SiteWiseHarness) -> None:
    entries = [other_end.entry(number) for number in range(6)]
    entries[3] = other_end.entry(3, propertyAlias="\t")
    delivery = run(other_end, entries[:2], entries[2:4], entries[4:])
    ((number, reason),) = delivery.skipped
    assert number == 1
    assert reason.endswith("(entries[1])")
    assert other_end.arrived() == [0, 1, 2, 4, 5]


def test_calls_of_one_message_may_take_longer_than_the_timeout_of_a_call(
    other_end: SiteWiseHarness,
) -> None:
    # Each has a multiple of its time left for a busy machine.
    other_end.sandbox.set_fault("iotsitewise", delay_millis=600)
    large = of([other_end.entry(number) for number in range(100)])
    delivery = deliver(other_end.open(timeout=5.5), large)
    assert (delivery.error, delivery.settled_end) == ("", 1)
    assert count_calls(other_end) == 10
