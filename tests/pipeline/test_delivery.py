from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.delivery import MAX_SKIPPED, MessageDelivery
from penstock.pipeline.destinations.destination import (
    Answer,
    Call,
    Destination,
    Messages,
    RefusedError,
    UnavailableError,
)
from penstock.pipeline.settlements import Delivery
from penstock.pipeline.stopping import StopSignal

# What becomes of a call with these numbers: an answer, or an error that is raised.
Behaviour = Callable[[Sequence[int]], Answer | Exception]


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
        behave: Behaviour = lambda _: Answer(),
        most: int = 10,
        malformed: Mapping[int, str] | None = None,
        pause: float = 0.0,
    ) -> None:
        self.behave = behave
        self.most = most
        self.malformed = malformed or {}
        self.calls: list[list[int]] = []
        self.arrived: list[int] = []
        self._pause = pause

    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        stop = min(start + min(limit, self.most), len(messages.numbers))
        numbers = list(messages.numbers[start:stop])
        skipped = {number: self.malformed[number] for number in numbers if number in self.malformed}
        sent = [number for number in numbers if number not in skipped]
        return Call(start, stop, skipped, sent, None, len(sent))

    def send(self, call: Call) -> Answer:
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

    def close(self) -> None:
        pass


def in_turn(*outcomes: Answer | Exception) -> Behaviour:
    """These one after the other, and success from then on."""
    remaining = iter(outcomes)
    return lambda _: next(remaining, Answer())


def make(numbers: Sequence[int], first: int | None = None) -> Messages:
    first = first if first is not None else (numbers[0] if numbers else 0)
    return Messages("s", first, numbers, numbers, [bytes(number + 1) for number in numbers])


def run(
    destination: Destination,
    numbers: Sequence[int] = range(25),
    clock: ManualClock | None = None,
    **options: Any,
) -> Delivery:
    end = numbers[-1] + 1 if numbers else 0
    return deliver(destination, make(numbers), end, clock, **options)


def deliver(
    destination: Destination,
    messages: Messages,
    end: int,
    clock: ManualClock | None = None,
    **options: Any,
) -> Delivery:
    clock = clock or ManualClock()
    delivery = MessageDelivery(destination, messages, end, clock, clock=clock, **options)
    delivery.run()
    return delivery.delivery()


def test_messages_are_sent_in_order_in_full_calls() -> None:
    destination = FakeDestination()
    delivery = run(destination)
    assert destination.arrived == list(range(25))
    assert [len(call) for call in destination.calls] == [10, 10, 5]
    assert delivery == Delivery(
        settled_end=25, exported_messages=25, exported_bytes=sum(range(26)), sent_bytes=25
    )


def test_slice_without_messages_is_settled() -> None:
    delivery = deliver(FakeDestination(), make([], first=3), 9)
    assert delivery == Delivery(settled_end=9)


def test_missing_messages_at_the_end_of_a_slice_are_settled() -> None:
    delivery = deliver(FakeDestination(), make([5, 7], first=3), 20)
    assert delivery.settled_end == 20


def test_failed_messages_are_retried_before_others_are_sent() -> None:
    clock = ManualClock()
    destination = FakeDestination(in_turn(Answer(failed={3: "busy", 7: "busy"})))
    delivery = run(destination, clock=clock)
    assert destination.calls[1:3] == [[3, 7], list(range(10, 20))]
    assert sorted(destination.arrived) == list(range(25))
    assert delivery.error == ""
    assert delivery.settled_end == 25
    assert len(clock.pauses) == 1


def test_pauses_between_retries_are_doubled() -> None:
    clock = ManualClock()
    failure = Answer(failed={0: "busy"})
    destination = FakeDestination(in_turn(*[failure] * 8))
    delivery = run(destination, range(1), clock)
    assert (delivery.error, len(destination.calls)) == ("busy", 6)
    for pause, longest in zip(clock.pauses, (0.05, 0.1, 0.2, 0.4, 0.8), strict=True):
        assert longest / 2 <= pause <= longest


def test_message_that_keeps_failing_ends_the_delivery() -> None:
    destination = FakeDestination(
        lambda numbers: Answer(failed={n: "busy" for n in numbers if n == 3})
    )
    delivery = run(destination)
    assert delivery.settled_end == 3
    assert delivery.arrived == [0, 1, 2, 4, 5, 6, 7, 8, 9][3:]
    assert delivery.error == "busy"
    assert delivery.exported_messages == 9
    assert 10 not in destination.arrived


def test_stopped_delivery_begins_no_call() -> None:
    clock = ManualClock()

    def take_long(_: Sequence[int]) -> Answer:
        clock.spend(40)
        return Answer()

    destination = FakeDestination(take_long)
    delivery = run(destination, clock=clock)
    assert len(destination.calls) == 2
    assert delivery.settled_end == 20
    assert delivery.error == ""


def test_unavailable_destination_ends_the_delivery() -> None:
    error = UnavailableError("connection refused", retry_after=7.0)
    destination = FakeDestination(in_turn(Answer(), error))
    delivery = run(destination)
    assert delivery.settled_end == 10
    assert (delivery.error, delivery.pause) == ("connection refused", 7.0)
    assert delivery.sent_bytes == 20
    assert delivery.exported_messages == 10


def test_unexpected_error_of_a_destination_is_reported() -> None:
    delivery = run(FakeDestination(in_turn(Answer(), OSError(28, "No space left on device"))))
    assert delivery.error == "OSError: [Errno 28] No space left on device"
    assert delivery.settled_end == 10


@pytest.mark.parametrize("most", [1, 2, 10, 100])
@pytest.mark.parametrize("guilty", [set(), {0}, {24}, {3, 4}, {0, 9, 10, 24}, set(range(25))])
def test_invalid_messages_of_a_refused_call_are_found_and_skipped(
    guilty: set[int], most: int
) -> None:
    def refuse(numbers: Sequence[int]) -> Answer | Exception:
        return RefusedError("bad") if guilty & set(numbers) else Answer()

    destination = FakeDestination(refuse, most)
    delivery = run(destination)
    assert destination.arrived == [number for number in range(25) if number not in guilty]
    assert sorted(delivery.skipped) == [(number, "bad") for number in sorted(guilty)]
    assert delivery.settled_end == 25
    assert delivery.error == ""


def test_one_invalid_message_of_many_costs_few_calls() -> None:
    destination = FakeDestination(
        lambda numbers: RefusedError("bad") if 321 in numbers else Answer(), most=500
    )
    run(destination, range(5000))
    assert len(destination.calls) < 10 + 2 * 10 + 5


def test_message_that_cannot_be_sent_is_skipped_without_a_call() -> None:
    destination = FakeDestination(malformed=dict.fromkeys((0, 4, 20, 21), "not JSON"), most=2)
    delivery = run(destination, range(22))
    assert delivery.skipped == [(number, "not JSON") for number in (0, 4, 20, 21)]
    assert destination.calls[-1] == [18, 19]
    assert delivery.settled_end == 22
    assert delivery.exported_messages == 18


def test_refused_messages_are_skipped_and_failed_messages_are_retried() -> None:
    answer = Answer(failed={1: "busy"}, refused={1: "bad", 2: "bad"})
    delivery = run(FakeDestination(in_turn(answer)), range(4))
    assert delivery.skipped == [(2, "bad")]
    assert delivery.exported_messages == 3


def test_delivery_ends_after_too_many_skipped_messages() -> None:
    destination = FakeDestination(
        lambda numbers: Answer(refused=dict.fromkeys(numbers, "bad")), most=300
    )
    delivery = run(destination, range(3000))
    assert len(delivery.skipped) == MAX_SKIPPED
    assert delivery.settled_end == MAX_SKIPPED
    assert delivery.error == ""


def test_destination_may_accept_any_number_at_once() -> None:
    destination = FakeDestination(most=10**9)
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
        lambda: ends.append(delivering.delivery().settled_end),
    )
    delivering.run()
    assert ends == [10, 20, 25]


def test_error_after_a_call_does_not_lose_its_result() -> None:
    class Broken(FakeDestination):
        @property
        def pause(self) -> float:
            raise RuntimeError("no idea")

    delivery = run(Broken())
    assert delivery.settled_end == 10
    assert delivery.error == "RuntimeError: no idea"


OUTCOMES = st.sampled_from(["fine", "partly", "partly refused", "away", "unknown"])


@given(data=st.data(), count=st.integers(1, 60), most=st.integers(1, 12))
def test_each_message_arrives_once_or_is_skipped_despite_failures(
    data: st.DataObject, count: int, most: int
) -> None:
    guilty = data.draw(st.sets(st.integers(0, count - 1)), label="guilty")
    malformed = data.draw(st.sets(st.integers(0, count - 1)), label="malformed")
    unsure: set[int] = set()
    troubled: set[int] = set()

    def behave(numbers: Sequence[int]) -> Answer | Exception:
        if guilty & set(numbers):
            return RefusedError("bad")
        outcome = data.draw(OUTCOMES) if len(troubled) < 200 else "fine"
        some = {n: "reason" for n in numbers if data.draw(st.booleans())} if "p" in outcome else {}
        troubled.update(some)
        if outcome == "partly":
            return Answer(failed=some)
        if outcome == "partly refused":
            return Answer(refused=some)
        if outcome == "away":
            troubled.update(numbers)
            return UnavailableError("away")
        if outcome == "unknown":
            # It arrived, and the answer did not.
            troubled.update(numbers)
            unsure.update(numbers)
            destination.arrived.extend(numbers)
            return UnavailableError("no answer")
        return Answer()

    destination = FakeDestination(behave, most, dict.fromkeys(malformed, "malformed"))
    first, settled, skipped = 0, set[int](), dict[int, str]()
    for _ in range(1000):
        numbers = [number for number in range(first, count) if number not in settled]
        clock = ManualClock(data.draw(st.sampled_from([0.01, 1.0, 60.0])))
        delivery = deliver(destination, make(numbers, first), count, clock)
        assert delivery.settled_end >= first
        first, settled = delivery.settled_end, settled | set(delivery.arrived)
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
