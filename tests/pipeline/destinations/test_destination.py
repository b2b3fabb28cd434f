"""What holds for every destination."""

from __future__ import annotations

from penstock.pipeline.delivery import Budget, deliver
from penstock.pipeline.destinations.destination import Destination, Messages
from penstock.pipeline.settlements import Delivery
from tests.pipeline.destinations.suite import Harness

# Short, and still long enough for a call that does not hang.
SHORT_PATIENCE_S = 0.3


def run(destination: Destination, messages: Messages) -> Delivery:
    return deliver(destination, messages, messages.numbers[-1] + 1, Budget(60))


def test_messages_arrive_once_and_in_order(harness: Harness) -> None:
    count = min(2 * (harness.most or 100) + 1, 1001)
    messages = harness.messages(range(5, 5 + count))
    delivery = run(harness.open(), messages)
    assert delivery.error == ""
    assert delivery.settled_end == 5 + count
    assert delivery.exported_messages == count
    assert delivery.exported_bytes == sum(map(len, messages.payloads))
    assert delivery.sent_bytes >= delivery.exported_bytes
    assert harness.arrived() == list(range(5, 5 + count))


def test_a_call_has_no_more_than_the_limits_allow(harness: Harness) -> None:
    messages = harness.messages(range(1200))
    assert harness.open().prepare(messages, 0, 9999).stop == (harness.most or 1200)
    assert harness.open().prepare(messages, 7, 3).stop == 7 + min(harness.most or 3, 3)
    assert harness.open().prepare(messages, 1199, 500).stop == 1200
    # What AWS calls a batch is of no concern where there is no AWS.
    expected = 1200 if harness.most is None else min(harness.most, 4)
    assert harness.open(batch_size=4).prepare(messages, 0, 9999).stop == expected


def test_numbers_that_are_missing_are_no_matter(harness: Harness) -> None:
    messages = harness.messages(range(10)).pick([1, 4, 5, 9])
    delivery = deliver(harness.open(), messages, 12, Budget(60))
    assert delivery.settled_end == 12
    assert harness.arrived() == [1, 4, 5, 9]


def test_a_call_that_failed_is_told_and_can_be_made_again(harness: Harness) -> None:
    destination = harness.open()
    messages = harness.messages(range(4))
    harness.fail_once()
    delivery = run(destination, messages)
    assert delivery.error
    assert not delivery.timed_out
    assert delivery.settled_end == 0
    assert delivery.exported_messages == 0
    assert delivery.sent_bytes > 0
    assert run(destination, messages).settled_end == 4
    assert harness.arrived() == [0, 1, 2, 3]


def test_of_a_call_that_failed_in_part_only_that_part_goes_again(partial: Harness) -> None:
    partial.fail_partly()
    delivery = run(partial.open(), partial.messages(range(6)))
    assert delivery.error == ""
    assert delivery.settled_end == 6
    assert partial.arrived() == [0, 1, 3, 4, 2, 5]


def test_what_fails_for_long_is_told_and_the_rest_is_not_sent_again(partial: Harness) -> None:
    partial.fail_partly()
    # Time stands still, and no pause fits into it.
    budget = Budget(0.01, clock=lambda: 0.0)
    delivery = deliver(partial.open(), partial.messages(range(6)), 6, budget)
    assert delivery.error
    assert delivery.settled_end == 2
    assert delivery.arrived == [3, 4]
    assert delivery.exported_messages == 4


def test_what_can_never_arrive_is_skipped_with_a_reason(choosy: Harness) -> None:
    assert choosy.bad is not None
    payload, reason = choosy.bad
    delivery = run(choosy.open(), choosy.messages(range(5), {0: payload, 3: payload}))
    assert delivery.error == ""
    assert [number for number, _ in delivery.skipped] == [0, 3]
    assert all(reason in text for _, text in delivery.skipped)
    assert delivery.settled_end == 5
    assert delivery.exported_messages == 3
    assert choosy.arrived() == [1, 2, 4]


def test_only_what_can_never_arrive_needs_no_call(choosy: Harness) -> None:
    assert choosy.bad is not None
    call = choosy.open().prepare(
        choosy.messages(range(2), dict.fromkeys((0, 1), choosy.bad[0])), 0, 9
    )
    assert call.content is None
    assert call.skipped.keys() == {0, 1}


def test_an_answer_that_does_not_come_is_a_time_out(remote: Harness) -> None:
    assert remote.service is not None
    destination = remote.open(patience=SHORT_PATIENCE_S)
    remote.sandbox.set_fault(remote.service, hang=True, for_calls=1)
    delivery = run(destination, remote.messages(range(2)))
    assert delivery.timed_out
    assert delivery.error
    assert delivery.settled_end == 0


def test_a_connection_that_breaks_off_is_no_time_out(remote: Harness) -> None:
    assert remote.service is not None
    remote.sandbox.set_fault(remote.service, down=True, for_calls=1)
    delivery = run(remote.open(), remote.messages(range(2)))
    assert delivery.error
    assert not delivery.timed_out
    assert delivery.settled_end == 0


def test_another_can_be_opened_when_one_is_closed(harness: Harness) -> None:
    first = harness.open()
    assert run(first, harness.messages(range(2))).error == ""
    first.close()
    assert run(harness.open(), harness.messages(range(2, 4))).error == ""
    assert harness.arrived() == [0, 1, 2, 3]
