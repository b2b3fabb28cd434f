"""The shared tests of all destinations."""

from __future__ import annotations

import pytest

from penstock.pipeline.destinations.destination import MAX_RETRY_AFTER, parse_retry_after
from tests.pipeline.destinations.suite import Harness, deliver

# Short, and still long enough for a call that does not hang.
SHORT_TIMEOUT_S = 0.3


def test_messages_arrive_once_and_in_order(harness: Harness) -> None:
    count = min(2 * (harness.max_messages or 100) + 1, 1001)
    messages = harness.messages(range(5, 5 + count))
    delivery = deliver(harness.open(), messages)
    assert delivery.error == ""
    assert delivery.settled_end == 5 + count
    assert delivery.exported_messages == count
    assert delivery.exported_bytes == sum(map(len, messages.payloads))
    assert delivery.sent_bytes >= delivery.exported_bytes
    assert harness.arrived() == list(range(5, 5 + count))


def test_call_respects_the_limits(harness: Harness) -> None:
    assert harness.open().max_messages == harness.max_messages
    # Batch sizes limit calls to AWS; a channel ignores them.
    expected = None if harness.max_messages is None else min(harness.max_messages, 4)
    assert harness.open(batch_size=4).max_messages == expected
    messages = harness.messages(range(harness.max_messages or 1200))
    call = harness.open().prepare(messages)
    assert (call.message_count, list(call.numbers)) == (
        len(messages.numbers),
        list(messages.numbers),
    )


def test_missing_messages_are_not_sent(harness: Harness) -> None:
    messages = harness.messages(range(10)).pick([1, 4, 5, 9])
    delivery = deliver(harness.open(), messages, 12)
    assert delivery.settled_end == 12
    assert harness.arrived() == [1, 4, 5, 9]


def test_failed_call_is_reported_and_can_be_retried(harness: Harness) -> None:
    destination = harness.open()
    messages = harness.messages(range(4))
    harness.fail_once()
    delivery = deliver(destination, messages)
    assert delivery.error
    assert delivery.settled_end == 0
    assert delivery.exported_messages == 0
    assert delivery.sent_bytes > 0
    assert deliver(destination, messages).settled_end == 4
    assert harness.arrived() == [0, 1, 2, 3]


def test_only_failed_messages_of_a_call_are_retried(partly_failing: Harness) -> None:
    partly_failing.fail_partly()
    delivery = deliver(partly_failing.open(), partly_failing.messages(range(6)))
    assert delivery.error == ""
    assert delivery.settled_end == 6
    assert partly_failing.arrived() == [0, 1, 3, 4, 2, 5]


def test_stopped_delivery_reports_failed_and_arrived_messages(partly_failing: Harness) -> None:
    partly_failing.fail_partly()
    delivery = deliver(partly_failing.open(), partly_failing.messages(range(6)), stops=True)
    assert delivery.error
    assert delivery.settled_end == 2
    assert delivery.arrived == [3, 4]
    assert delivery.exported_messages == 4


def test_invalid_messages_are_skipped_with_a_reason(rejecting: Harness) -> None:
    assert rejecting.bad is not None
    payload, reason = rejecting.bad
    delivery = deliver(rejecting.open(), rejecting.messages(range(5), {0: payload, 3: payload}))
    assert delivery.error == ""
    assert [number for number, _ in delivery.skipped] == [0, 3]
    assert all(reason in text for _, text in delivery.skipped)
    assert delivery.settled_end == 5
    assert delivery.exported_messages == 3
    assert rejecting.arrived() == [1, 2, 4]


def test_call_of_invalid_messages_is_not_made(rejecting: Harness) -> None:
    assert rejecting.bad is not None
    messages = rejecting.messages(range(2), dict.fromkeys((0, 1), rejecting.bad[0]))
    call = rejecting.open().prepare(messages)
    assert (call.message_count, len(call.numbers)) == (2, 0)
    assert call.skipped.keys() == {0, 1}


def test_call_without_an_answer_times_out(remote: Harness) -> None:
    assert remote.service is not None
    destination = remote.open(timeout=SHORT_TIMEOUT_S)
    remote.sandbox.set_fault(remote.service, hang=True, for_calls=1)
    delivery = deliver(destination, remote.messages(range(2)))
    assert delivery.error
    assert delivery.settled_end == 0


def test_broken_connection_is_an_error(remote: Harness) -> None:
    assert remote.service is not None
    remote.sandbox.set_fault(remote.service, down=True, for_calls=1)
    delivery = deliver(remote.open(), remote.messages(range(2)))
    assert delivery.error
    assert delivery.settled_end == 0


def test_destination_can_be_opened_again(harness: Harness) -> None:
    assert deliver(harness.open(), harness.messages(range(2))).error == ""
    assert deliver(harness.open(), harness.messages(range(2, 4))).error == ""
    assert harness.arrived() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("120", 120.0),
        ("soon", None),
        ("-3", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:05 GMT", 0.0),
        ("18446744073709551615", MAX_RETRY_AFTER),
        ("9" * 400, MAX_RETRY_AFTER),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, now=10.0) == seconds
