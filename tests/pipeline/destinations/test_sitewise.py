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
def harness(sandbox: Sandbox, tmp_path: Path) -> SiteWiseHarness:
    return SiteWiseHarness(sandbox, tmp_path)


def make_messages(*messages: Any) -> Messages:
    numbers = range(len(messages))
    payloads = [
        message if isinstance(message, bytes) else json.dumps(message).encode()
        for message in messages
    ]
    return Messages("s", 0, numbers, numbers, payloads)


def run(harness: SiteWiseHarness, *messages: Any) -> DeliveryTotals:
    return deliver(harness.open(), make_messages(*messages), len(messages))


def texts(call: DestinationCall) -> list[list[bytes]]:
    """The entries of each API call."""
    return [[bytes(entry.text) for entry in batch] for batch in call.content]


def count_calls(harness: SiteWiseHarness) -> int:
    return len(harness.sandbox.calls("iotsitewise"))


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
        ([ENTRY] * 201, "201 SiteWise entries: the maximum of a message is 200"),
        ({}, "entryId"),
        (ENTRY | {"entryId": "a b"}, "entryId"),
        (ENTRY | {"entryId": 7}, "entryId"),
        (ENTRY | {"propertyValues": []}, "propertyValues"),
        (ENTRY | {"propertyValues": [VALUE] * 11}, "propertyValues"),
        (ENTRY | {"propertyValues": [VALUE] * 2}, "two values with the same timestamp"),
        (ENTRY | {"propertyValues": [VALUE | {"value": 7}]}, "propertyValues[0].value"),
        (ENTRY | {"propertyValues": [{"value": {}}]}, "timestamp"),
        (ENTRY | {"propertyValues": [VALUE | {"timestamp": {}}]}, "timeInSeconds"),
        (ENTRY | {"propertyAlias": None}, "expected propertyAlias, or assetId and propertyId"),
        (ENTRY | {"propertyAlias": None, "assetId": "a"}, "expected propertyAlias"),
    ],
)
def test_invalid_entry_is_skipped_with_the_field(
    harness: SiteWiseHarness, entry: Any, reason: str
) -> None:
    call = harness.open().prepare(make_messages(entry))
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
def test_values_are_not_checked(harness: SiteWiseHarness, value: Any) -> None:
    entry = ENTRY | {"propertyValues": [VALUE | {"value": value}], "somethingNew": 7}
    call = harness.open().prepare(make_messages(entry))
    assert not call.skipped
    # The entry is sent as it was written.
    assert texts(call) == [[json.dumps(entry).encode()]]


def test_entries_that_conflict_are_in_different_calls(harness: SiteWiseHarness) -> None:
    entries = [
        harness.entry(0),
        harness.entry(1, entryId="e-0"),
        harness.entry(2, propertyValues=harness.entry(1)["propertyValues"]),
        harness.entry(3),
    ]
    delivery = run(harness, *entries)
    assert delivery.error == ""
    assert delivery.skipped == []
    assert delivery.exported_messages == 4
    assert harness.arrived() == [0, 0, 2, 3]
    assert count_calls(harness) == 3


def test_values_conflict_if_their_property_has_the_same_ids(harness: SiteWiseHarness) -> None:
    other = {"propertyAlias": None, "assetId": "a", "propertyId": "p"}
    messages = make_messages(
        ENTRY,
        ENTRY | {"entryId": "f", **other},
        ENTRY | {"entryId": "g", **other, "propertyId": "q"},
        ENTRY | {"entryId": "h", **other, "timestamp": 1},
    )
    assert harness.open().prepare(messages).message_count == 3


def test_times_that_differ_by_their_nanoseconds_only_do_not_conflict(
    harness: SiteWiseHarness,
) -> None:
    later = VALUE | {"timestamp": {"timeInSeconds": 1, "offsetInNanos": 1}}
    zero = VALUE | {"timestamp": {"timeInSeconds": 1, "offsetInNanos": 0}}
    destination = harness.open()
    messages = make_messages(
        ENTRY,
        ENTRY | {"entryId": "f", "propertyValues": [later]},
        ENTRY | {"entryId": "g", "propertyValues": [zero]},
    )
    assert destination.prepare(messages).message_count == 2


def test_entry_out_of_range_is_skipped_and_others_arrive(
    harness: SiteWiseHarness,
) -> None:
    delivery = run(
        harness,
        harness.entry(0),
        harness.entry(1, propertyValues=[VALUE]),
        harness.entry(2),
    )
    ((number, reason),) = delivery.skipped
    assert number == 1
    assert "TimestampOutOfRangeException" in reason
    assert harness.arrived() == [0, 2]
    assert delivery.settled_end == 3


def test_entry_that_makes_a_call_invalid_is_found_and_skipped(
    harness: SiteWiseHarness,
) -> None:
    bad = harness.entry(3, propertyAlias="\t")
    entries = [bad if number == 3 else harness.entry(number) for number in range(10)]
    delivery = run(harness, *entries)
    ((number, reason),) = delivery.skipped
    assert number == 3
    assert "InvalidRequestException" in reason
    assert harness.arrived() == [0, 1, 2, 4, 5, 6, 7, 8, 9]


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
def test_errors_of_an_entry_are_final_or_temporary(
    monkeypatch: pytest.MonkeyPatch,
    harness: SiteWiseHarness,
    codes: list[str],
    failed: list[int],
    refused: list[int],
) -> None:
    errors = [{"errorCode": code, "errorMessage": "m", "timestamps": []} for code in codes]
    body = msgspec.json.encode({"errorEntries": [{"entryId": "e", "errors": errors}]})
    monkeypatch.setattr(aws, "call", lambda *_: body)
    destination = harness.open()
    answer = destination.send(destination.prepare(make_messages(ENTRY, ENTRY | {"entryId": "f"})))
    assert list(answer.failed) == failed
    assert list(answer.refused) == refused


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"errorEntries": [{"entryId": "other"}]}'])
def test_no_message_counts_as_exported_after_an_invalid_answer(
    monkeypatch: pytest.MonkeyPatch, harness: SiteWiseHarness, body: bytes
) -> None:
    monkeypatch.setattr(aws, "call", lambda *_: body)
    delivery = run(harness, ENTRY)
    assert "iotsitewise BatchPutAssetPropertyValue" in delivery.error
    assert delivery.settled_end == 0


def test_many_invalid_messages_fit_in_a_report(harness: SiteWiseHarness) -> None:
    delivery = run(harness, *[b"?"] * (MAX_SKIPPED + 1))
    assert 0 < len(delivery.skipped) <= MAX_SKIPPED
    assert delivery.settled_end == len(delivery.skipped)


def test_list_and_object_with_entries_arrive_in_one_call(harness: SiteWiseHarness) -> None:
    delivery = run(
        harness,
        [harness.entry(0), harness.entry(1)],
        harness.entry(2),
        {"entries": [harness.entry(3), harness.entry(4)], "enablePartialEntryProcessing": True},
    )
    assert delivery.error == ""
    assert delivery.skipped == []
    assert delivery.exported_messages == 3
    assert harness.arrived() == [0, 1, 2, 3, 4]
    assert count_calls(harness) == 1


@pytest.mark.parametrize("message", [b"[%s , %s]", b'{"entries":[ %s,%s ]}'])
def test_entries_of_a_list_are_sent_as_they_were_written(
    harness: SiteWiseHarness, message: bytes
) -> None:
    written = [
        b'{"entryId" : "%d", "propertyAlias": "/\\u0061", "new": 1.10, "propertyValues": '
        b'[{"value": {"doubleValue": 1e2}, "timestamp": {"timeInSeconds": %d}}]}' % (number, number)
        for number in (1, 2)
    ]
    call = harness.open().prepare(make_messages(message % tuple(written)))
    assert texts(call) == [written]


def test_message_with_many_entries_takes_several_calls(harness: SiteWiseHarness) -> None:
    large = [harness.entry(number) for number in range(1, 26)]
    delivery = run(harness, harness.entry(0), large, harness.entry(26))
    assert delivery.error == ""
    assert delivery.exported_messages == 3
    assert harness.arrived() == list(range(27))
    assert count_calls(harness) == 1 + 3 + 1


def test_message_may_have_as_many_entries_as_the_limit(harness: SiteWiseHarness) -> None:
    delivery = run(harness, [harness.entry(number) for number in range(200)])
    assert delivery.exported_messages == 1
    assert harness.arrived() == list(range(200))
    assert count_calls(harness) == 20


def test_messages_share_a_call_if_all_their_entries_fit(harness: SiteWiseHarness) -> None:
    entries = [harness.entry(number) for number in range(14)]
    messages = make_messages(entries[:4], entries[4:10], entries[10:13], entries[13])
    assert harness.open().prepare(messages).message_count == 2
    assert harness.open().prepare(messages.pick(range(1, 4))).message_count == 3


def test_batch_size_counts_messages(harness: SiteWiseHarness) -> None:
    entries = [harness.entry(number) for number in range(6)]
    delivery = deliver(
        harness.open(batch_size=2), make_messages(entries[:3], entries[3:5], entries[5])
    )
    assert delivery.exported_messages == 3
    assert harness.arrived() == list(range(6))
    assert count_calls(harness) == 2


def test_equal_entry_ids_never_share_a_call(harness: SiteWiseHarness) -> None:
    delivery = run(
        harness,
        [harness.entry(0), harness.entry(1, entryId="e-0"), harness.entry(2)],
        [harness.entry(3, entryId="e-2"), harness.entry(4)],
    )
    assert delivery.error == ""
    assert delivery.exported_messages == 2
    assert harness.arrived() == [0, 0, 2, 2, 4]
    assert count_calls(harness) == 3


def test_only_failed_entries_of_a_message_are_retried(harness: SiteWiseHarness) -> None:
    harness.fail_partly()
    delivery = run(harness, [harness.entry(number) for number in range(6)], harness.entry(6))
    assert delivery.error == ""
    assert delivery.exported_messages == 2
    assert harness.arrived() == [0, 1, 3, 4, 6, 2, 5]


def test_message_with_failed_entries_is_not_exported(harness: SiteWiseHarness) -> None:
    harness.fail_partly()
    messages = make_messages([harness.entry(number) for number in range(6)], harness.entry(6))
    delivery = deliver(harness.open(), messages, stops=True)
    assert "ThrottlingException" in delivery.error
    assert "(entries[2], entries[5])" in delivery.error
    assert delivery.settled_end == 0
    assert delivery.arrived == [1]
    # The next delivery sends the whole message again.
    assert deliver(harness.open(), messages.pick([0])).exported_messages == 1
    assert harness.arrived() == [0, 1, 3, 4, 6, 0, 1, 2, 3, 4, 5]


def test_later_calls_are_made_although_entries_of_the_first_failed(
    harness: SiteWiseHarness,
) -> None:
    harness.fail_partly()
    delivery = run(harness, [harness.entry(number) for number in range(12)])
    assert delivery.exported_messages == 1
    assert harness.arrived() == [0, 1, 3, 4, 6, 7, 9, 10, 11, 2, 5, 8]


def test_value_does_not_overtake_a_failed_one_that_it_replaces(
    harness: SiteWiseHarness,
) -> None:
    harness.sandbox.set_fault("iotsitewise", refuse_every=1, for_calls=1)
    first = harness.entry(0)
    second = harness.entry(1, propertyValues=first["propertyValues"])
    delivery = run(harness, [first, second])
    assert delivery.exported_messages == 1
    assert harness.arrived() == [0, 1]


def test_message_with_a_refused_entry_is_skipped_and_other_entries_arrive(
    harness: SiteWiseHarness,
) -> None:
    delivery = run(
        harness,
        [
            harness.entry(0),
            harness.entry(1, propertyValues=[VALUE]),
            harness.entry(2),
            harness.entry(3, propertyValues=[VALUE | {"timestamp": {"timeInSeconds": 2}}]),
        ],
        harness.entry(4),
    )
    ((number, reason),) = delivery.skipped
    assert number == 0
    assert reason.count("TimestampOutOfRangeException") == 1
    assert reason.endswith("(entries[1], entries[3])")
    assert delivery.exported_messages == 1
    assert harness.arrived() == [0, 2, 4]


def test_message_with_a_refused_and_a_failed_entry_is_retried_then_skipped(
    harness: SiteWiseHarness,
) -> None:
    harness.fail_partly()
    delivery = run(
        harness,
        [harness.entry(0, propertyValues=[VALUE]), harness.entry(1), harness.entry(2)],
    )
    assert delivery.error == ""
    ((_, reason),) = delivery.skipped
    assert "TimestampOutOfRangeException" in reason
    assert reason.endswith("(entries[0])")
    assert harness.arrived() == [1, 2]


def test_malformed_entries_are_named_and_other_entries_arrive(harness: SiteWiseHarness) -> None:
    delivery = run(harness, [harness.entry(0), 7, harness.entry(2, entryId=""), ENTRY])
    ((_, reason),) = delivery.skipped
    assert "expected a JSON object (entries[1]); " in reason
    assert "entryId" in reason
    assert "(entries[2]); " in reason
    assert reason.endswith("(entries[3])")
    assert harness.arrived() == [0]


def test_invalid_entry_is_found_among_the_entries_of_its_message(
    harness: SiteWiseHarness,
) -> None:
    entries = [harness.entry(number) for number in range(16)]
    entries[4] = harness.entry(4, propertyAlias="\t")
    delivery = run(harness, entries[:2], entries[2:15], entries[15])
    ((number, reason),) = delivery.skipped
    assert number == 1
    assert "InvalidRequestException" in reason
    assert reason.endswith("(entries[2])")
    assert delivery.exported_messages == 2
    assert harness.arrived() == [number for number in range(16) if number != 4]


def test_invalid_entry_is_found_if_its_message_shares_a_call(harness: SiteWiseHarness) -> None:
    entries = [harness.entry(number) for number in range(6)]
    entries[3] = harness.entry(3, propertyAlias="\t")
    delivery = run(harness, entries[:2], entries[2:4], entries[4:])
    ((number, reason),) = delivery.skipped
    assert number == 1
    assert reason.endswith("(entries[1])")
    assert harness.arrived() == [0, 1, 2, 4, 5]


def test_calls_of_one_message_may_take_longer_than_the_timeout_of_a_call(
    harness: SiteWiseHarness,
) -> None:
    # The timeout is a multiple of the delay, for a busy machine.
    harness.sandbox.set_fault("iotsitewise", delay_millis=600)
    large = make_messages([harness.entry(number) for number in range(100)])
    delivery = deliver(harness.open(timeout=5.5), large)
    assert (delivery.error, delivery.settled_end) == ("", 1)
    assert count_calls(harness) == 10
