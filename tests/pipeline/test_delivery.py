"""Deliveries to a fake destination."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.exporting import MAX_SKIPPED
from penstock.pipeline.delivery import (
    MAX_SKIPPED_PER_DELIVERY,
    DeliveryTotals,
    MessageDelivery,
    SliceProgress,
    StoppedError,
    StopSignal,
)
from penstock.pipeline.destinations.destination import (
    CallResult,
    Destination,
    DestinationCall,
    Messages,
    RefusedError,
    UnavailableError,
)
from tests.support import TIMEOUT_S, running

# The result of a call with these numbers: an answer, or an error that is raised.
Behavior = Callable[[Sequence[int]], CallResult | Exception]


class ManualClock(StopSignal):
    """Time that passes only in pauses. The delivery is stopped when the time is up."""

    def __init__(self, seconds: float = 60.0) -> None:
        super().__init__()
        self.now = 100.0
        self.ends_at = self.now + seconds
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.ends_at:
            self.stop()

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.spend(seconds)
        return not self.is_set


class FakeDestination(Destination):
    def __init__(
        self,
        behave: Behavior = lambda _: CallResult(),
        max_messages: int | None = 10,
        malformed: Mapping[int, str] | None = None,
        pause: float = 0.0,
    ) -> None:
        self.behave = behave
        self.max_messages = max_messages
        self.malformed = malformed or {}
        self.calls: list[list[int]] = []
        self.arrived: list[int] = []
        self._pause = pause

    def prepare(self, messages: Messages) -> DestinationCall:
        numbers = list(messages.numbers)
        skipped = {number: self.malformed[number] for number in numbers if number in self.malformed}
        sent = [number for number in numbers if number not in skipped]
        return DestinationCall(len(numbers), sent, None, len(sent), skipped)

    def send(self, call: DestinationCall) -> CallResult:
        numbers = list(call.numbers)
        self.calls.append(numbers)
        outcome = self.behave(numbers)
        if isinstance(outcome, Exception):
            raise outcome
        gone = {**outcome.failed, **outcome.refused}
        self.arrived += [number for number in numbers if number not in gone]
        return outcome

    @property
    def pause(self) -> float:
        return self._pause


def in_turn(*outcomes: CallResult | Exception) -> Behavior:
    """Returns these results in turn, and then successes."""
    remaining = iter(outcomes)
    return lambda _: next(remaining, CallResult())


def make(numbers: Sequence[int], first: int | None = None) -> Messages:
    first = first if first is not None else (numbers[0] if numbers else 0)
    return Messages("s", first, numbers, numbers, [bytes(number + 1) for number in numbers])


def run(
    destination: Destination,
    numbers: Sequence[int] = range(25),
    clock: ManualClock | None = None,
    **options: Any,
) -> DeliveryTotals:
    end = numbers[-1] + 1 if numbers else 0
    return deliver(destination, make(numbers), end, clock, **options)


def deliver(
    destination: Destination,
    messages: Messages,
    end: int,
    clock: ManualClock | None = None,
    **options: Any,
) -> DeliveryTotals:
    clock = clock or ManualClock()
    delivery = MessageDelivery(destination, messages, end, clock, clock=clock, **options)
    delivery.run()
    return delivery.totals()


def test_messages_are_sent_in_order_in_full_calls() -> None:
    destination = FakeDestination()
    delivery = run(destination)
    assert destination.arrived == list(range(25))
    assert [len(call) for call in destination.calls] == [10, 10, 5]
    assert delivery == DeliveryTotals(
        settled_end=25, exported_messages=25, exported_bytes=sum(range(26)), sent_bytes=25
    )


def test_slice_without_messages_is_done() -> None:
    delivery = deliver(FakeDestination(), make([], first=3), 9)
    assert delivery == DeliveryTotals(settled_end=9)


def test_missing_messages_at_the_end_of_a_slice_are_done() -> None:
    delivery = deliver(FakeDestination(), make([5, 7], first=3), 20)
    assert delivery.settled_end == 20


def test_failed_messages_are_retried_before_others_are_sent() -> None:
    clock = ManualClock()
    destination = FakeDestination(in_turn(CallResult(failed={3: "busy", 7: "busy"})))
    delivery = run(destination, clock=clock)
    assert destination.calls[1:3] == [[3, 7], list(range(10, 20))]
    assert sorted(destination.arrived) == list(range(25))
    assert delivery.error == ""
    assert delivery.settled_end == 25
    assert len(clock.pauses) == 1


def test_pauses_between_retries_are_doubled() -> None:
    clock = ManualClock()
    failure = CallResult(failed={0: "busy"})
    destination = FakeDestination(in_turn(*[failure] * 8))
    delivery = run(destination, range(1), clock)
    assert (delivery.error, len(destination.calls)) == ("busy", 6)
    for pause, longest in zip(clock.pauses, (0.05, 0.1, 0.2, 0.4, 0.8), strict=True):
        assert longest / 2 <= pause <= longest


def test_message_that_keeps_failing_ends_the_delivery() -> None:
    destination = FakeDestination(
        lambda numbers: CallResult(failed={n: "busy" for n in numbers if n == 3})
    )
    delivery = run(destination)
    assert delivery.settled_end == 3
    assert delivery.arrived == [0, 1, 2, 4, 5, 6, 7, 8, 9][3:]
    assert delivery.error == "busy"
    assert delivery.exported_messages == 9
    assert 10 not in destination.arrived


def test_stopped_delivery_begins_no_call() -> None:
    clock = ManualClock()

    def take_long(_: Sequence[int]) -> CallResult:
        clock.spend(40)
        return CallResult()

    destination = FakeDestination(take_long)
    delivery = run(destination, clock=clock)
    assert len(destination.calls) == 2
    assert delivery.settled_end == 20
    assert delivery.error == ""


def test_unavailable_destination_ends_the_delivery() -> None:
    error = UnavailableError("connection refused", retry_after=7.0)
    destination = FakeDestination(in_turn(CallResult(), error))
    delivery = run(destination)
    assert delivery.settled_end == 10
    assert (delivery.error, delivery.pause) == ("connection refused", 7.0)
    assert delivery.sent_bytes == 20
    assert delivery.exported_messages == 10


def test_unexpected_error_of_a_destination_does_not_lose_results() -> None:
    destination = FakeDestination(in_turn(CallResult(), OSError(28, "No space left on device")))
    delivering = MessageDelivery(destination, make(range(25)), 25, ManualClock())
    # The job reports it.
    with pytest.raises(OSError, match="No space left on device"):
        delivering.run()
    assert delivering.totals().settled_end == 10


@pytest.mark.parametrize("max_messages", [1, 2, 10, 100])
@pytest.mark.parametrize("guilty", [set(), {0}, {24}, {3, 4}, {0, 9, 10, 24}, set(range(25))])
def test_invalid_messages_of_a_refused_call_are_found_and_skipped(
    guilty: set[int], max_messages: int
) -> None:
    def refuse(numbers: Sequence[int]) -> CallResult | Exception:
        return RefusedError("bad") if guilty & set(numbers) else CallResult()

    destination = FakeDestination(refuse, max_messages)
    delivery = run(destination)
    assert destination.arrived == [number for number in range(25) if number not in guilty]
    assert sorted(delivery.skipped) == [(number, "bad") for number in sorted(guilty)]
    assert delivery.settled_end == 25
    assert delivery.error == ""


def test_one_invalid_message_of_many_costs_few_calls() -> None:
    destination = FakeDestination(
        lambda numbers: RefusedError("bad") if 321 in numbers else CallResult(), max_messages=500
    )
    run(destination, range(5000))
    assert len(destination.calls) < 10 + 2 * 10 + 5


def test_message_that_cannot_be_sent_is_skipped_without_a_call() -> None:
    destination = FakeDestination(
        malformed=dict.fromkeys((0, 4, 20, 21), "not JSON"), max_messages=2
    )
    delivery = run(destination, range(22))
    assert delivery.skipped == [(number, "not JSON") for number in (0, 4, 20, 21)]
    assert destination.calls[-1] == [18, 19]
    assert delivery.settled_end == 22
    assert delivery.exported_messages == 18


def test_refused_messages_are_skipped_and_failed_messages_are_retried() -> None:
    answer = CallResult(failed={1: "busy"}, refused={1: "bad", 2: "bad"})
    delivery = run(FakeDestination(in_turn(answer)), range(4))
    assert delivery.skipped == [(2, "bad")]
    assert delivery.exported_messages == 3


def test_delivery_ends_after_too_many_skipped_messages() -> None:
    destination = FakeDestination(
        lambda numbers: CallResult(refused=dict.fromkeys(numbers, "bad")), max_messages=300
    )
    delivery = run(destination, range(3000))
    assert len(delivery.skipped) == delivery.settled_end == 1200
    assert MAX_SKIPPED_PER_DELIVERY <= 1200 < MAX_SKIPPED
    assert delivery.error == ""


def test_failed_part_of_a_retry_is_retried_first() -> None:
    destination = FakeDestination(
        in_turn(CallResult(failed={2: "a", 5: "a", 7: "a"}), CallResult(failed={5: "b"}))
    )
    delivery = run(destination)
    assert destination.calls[1:4] == [[2, 5, 7], [5], list(range(10, 20))]
    assert (delivery.settled_end, delivery.error) == (25, "")


def test_retries_respect_the_maximum_of_a_call() -> None:
    destination = FakeDestination(
        lambda numbers: (
            CallResult(failed=dict.fromkeys(numbers, "busy"))
            if len(destination.calls) == 1
            else CallResult()
        )
    )
    assert run(destination).settled_end == 25
    assert [len(call) for call in destination.calls] == [10, 10, 10, 5]


def test_destination_may_accept_any_number_at_once() -> None:
    destination = FakeDestination(max_messages=None)
    run(destination, range(5000))
    assert len(destination.calls) == 1


def test_pause_of_a_destination_is_made_between_calls() -> None:
    clock = ManualClock()
    delivery = run(FakeDestination(pause=2.0), clock=clock)
    assert clock.pauses == [2.0, 2.0]
    assert delivery.settled_end == 25
    assert delivery.pause == 2.0


def test_stop_during_a_pause_ends_the_delivery_without_an_error() -> None:
    clock = ManualClock()
    delivery = run(FakeDestination(pause=50.0), clock=clock)
    assert clock.pauses == [50.0, 50.0]
    assert delivery.settled_end == 20
    assert delivery.error == ""


def test_progress_is_announced_after_each_call() -> None:
    ends: list[int] = []
    delivering = MessageDelivery(
        FakeDestination(),
        make(range(25)),
        25,
        StopSignal(),
        lambda: ends.append(delivering.totals().settled_end),
    )
    delivering.run()
    assert ends == [10, 20, 25]


def test_error_after_a_call_does_not_lose_its_result() -> None:
    class Broken(FakeDestination):
        @property
        def pause(self) -> float:
            raise RuntimeError("no idea")

    delivering = MessageDelivery(Broken(), make(range(25)), 25, ManualClock())
    with pytest.raises(RuntimeError, match="no idea"):
        delivering.run()
    assert delivering.totals().settled_end == 10


OUTCOMES = st.sampled_from(["fine", "partly", "partly refused", "unavailable", "unknown"])


@given(data=st.data(), count=st.integers(1, 60), max_messages=st.integers(1, 12))
def test_each_message_arrives_once_or_is_skipped_despite_failures(
    data: st.DataObject, count: int, max_messages: int
) -> None:
    guilty = data.draw(st.sets(st.integers(0, count - 1)), label="guilty")
    malformed = data.draw(st.sets(st.integers(0, count - 1)), label="malformed")
    unsure: set[int] = set()
    troubled: set[int] = set()

    def behave(numbers: Sequence[int]) -> CallResult | Exception:
        if guilty & set(numbers):
            return RefusedError("bad")
        outcome = data.draw(OUTCOMES) if len(troubled) < 200 else "fine"
        some = {n: "reason" for n in numbers if data.draw(st.booleans())} if "p" in outcome else {}
        troubled.update(some)
        if outcome == "partly":
            return CallResult(failed=some)
        if outcome == "partly refused":
            return CallResult(refused=some)
        if outcome == "unavailable":
            troubled.update(numbers)
            return UnavailableError("unavailable")
        if outcome == "unknown":
            # The message arrived, but the answer did not.
            troubled.update(numbers)
            unsure.update(numbers)
            destination.arrived.extend(numbers)
            return UnavailableError("no answer")
        return CallResult()

    destination = FakeDestination(behave, max_messages, dict.fromkeys(malformed, "malformed"))
    first, done, skipped = 0, set[int](), dict[int, str]()
    for _ in range(1000):
        numbers = [number for number in range(first, count) if number not in done]
        clock = ManualClock(data.draw(st.sampled_from([0.01, 1.0, 60.0])))
        delivery = deliver(destination, make(numbers, first), count, clock)
        assert delivery.settled_end >= first
        first, done = delivery.settled_end, done | set(delivery.arrived)
        assert not skipped.keys() & dict(delivery.skipped).keys(), "skipped once"
        skipped.update(delivery.skipped)
        if first == count:
            break
    assert first == count
    assert set(destination.arrived) | skipped.keys() == set(range(count))
    twice = {n for n in destination.arrived if destination.arrived.count(n) > 1}
    assert twice <= unsure
    calm = [number for number in destination.arrived if number not in troubled]
    assert calm == sorted(calm)


# SliceProgress


def make_progress() -> SliceProgress:
    """SliceProgress of the slice [10, 20). The messages 12 and 15 to 19 are missing."""
    return SliceProgress(
        Messages("s", 10, [10, 11, 13, 14], [0] * 4, [b"a", b"bb", b"ccc", b"d"]), 20
    )


def test_end_is_the_first_message_if_none_is_done() -> None:
    assert make_progress().describe() == DeliveryTotals(settled_end=10)


def test_end_advances_with_messages_done_in_order() -> None:
    noted = make_progress()
    noted.note_arrived((0, 1))
    assert noted.describe() == DeliveryTotals(settled_end=13, exported_messages=2, exported_bytes=3)
    assert noted.count_ahead() == 0


def test_messages_done_out_of_order_are_listed() -> None:
    noted = make_progress()
    noted.note_arrived((2,))
    noted.note_skipped(3, "too large")
    assert noted.count_ahead() == 2
    assert noted.skipped_count == 1
    described = noted.describe()
    assert (described.settled_end, described.arrived) == (10, [13, 14])
    assert described.skipped == [(14, "too large")]
    assert (described.exported_messages, described.exported_bytes) == (1, 3)


def test_end_of_the_slice_is_reached_when_all_are_done() -> None:
    noted = make_progress()
    noted.note_skipped(3, "b")
    noted.note_skipped(0, "a")
    noted.note_arrived((1, 2))
    described = noted.describe()
    assert (described.settled_end, described.arrived) == (20, [])
    # In the order in which they were skipped, because a report contains only new ones.
    assert described.skipped == [(14, "b"), (10, "a")]
    assert noted.count_ahead() == 0


# Stop signals


def test_stopped_delivery_may_finish_its_calls() -> None:
    stop = StopSignal()
    assert (stop.is_set, stop.is_lost) == (False, False)
    stop.stop()
    assert (stop.is_set, stop.is_lost) == (True, False)
    stop.check()


def test_lost_lease_ends_calls_that_run() -> None:
    stop = StopSignal()
    stop.stop(is_lost=True)
    # The lease stays lost.
    stop.stop()
    assert (stop.is_set, stop.is_lost) == (True, True)
    with pytest.raises(StoppedError):
        stop.check()


def test_wait_ends_after_its_timeout() -> None:
    stop = StopSignal()
    began = time.monotonic()
    assert stop.wait(0.05)
    assert time.monotonic() - began >= 0.05
    assert stop.wait(-1)


def test_stop_ends_a_wait() -> None:
    stop = StopSignal()
    results: list[bool] = []
    # `running` fails if it takes as long as that.
    with running(lambda: results.append(stop.wait(2 * TIMEOUT_S))):
        stop.stop()
    assert results == [False]
    assert not stop.wait(2 * TIMEOUT_S)
