"""The bandwidth that exports share by priority, on a clock that tests set."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.exports.bandwidth import Bandwidth


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.is_canceled = False

    def cancel(self) -> None:
        self.is_canceled = True


class Bench:
    """1000 bytes per second, unless another rate is given."""

    def __init__(self, kilobits_per_second: int | None = 8) -> None:
        self.seconds = 0.0
        self.timers: list[Timer] = []
        # Answered reservations, by name: whether they were granted.
        self.answers: dict[str, bool] = {}
        # Reservations whose leases have ended.
        self.lost: set[str] = set()
        self.changes = 0
        self.bandwidth = Bandwidth(kilobits_per_second, lambda: self.seconds, self._call_later)
        self.bandwidth.on_change = self._note_change

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.seconds + seconds, call)
        self.timers.append(timer)
        return timer

    def _note_change(self) -> None:
        self.changes += 1

    def reserve(
        self, name: str, priority: int = 5, size: int = 100, timeout: float = math.inf
    ) -> Callable[[], None] | None:
        def answer(is_granted: bool) -> None:
            self.answers[name] = is_granted

        return self.bandwidth.reserve(
            priority, size, timeout, lambda: name not in self.lost, answer
        )

    @property
    def granted(self) -> list[str]:
        return [name for name, is_granted in self.answers.items() if is_granted]

    @property
    def active(self) -> list[Timer]:
        """Timers that will fire, the next one first."""
        active = [each for each in self.timers if not each.is_canceled and each.at < math.inf]
        return sorted(active, key=lambda each: each.at)

    def run(self, until: float) -> None:
        while self.active and self.active[0].at <= until:
            timer = self.active[0]
            self.seconds = timer.at
            timer.cancel()
            timer.call()
        self.seconds = until

    def room(self, priority: int = 5) -> float:
        return self.bandwidth.room(priority)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_without_a_limit_there_is_always_room() -> None:
    bench = Bench(None)
    bench.bandwidth.charge(5, 1e12)
    assert not bench.bandwidth.is_limited
    assert bench.bandwidth.grant(5, 10**12)
    assert bench.room() == math.inf
    assert bench.bandwidth.seconds_until_room(5) == 0.0
    assert not bench.bandwidth.has_debt(5)


# Messages


def test_burst_is_one_second_and_never_more(bench: Bench) -> None:
    assert bench.bandwidth.is_limited
    assert bench.room() == 1000
    bench.seconds = 500.0
    assert bench.room() == 1000


def test_overdrawn_bucket_delays_messages(bench: Bench) -> None:
    bench.bandwidth.charge(5, 3000)
    assert bench.room() == 0.0
    assert bench.bandwidth.seconds_until_room(5) == pytest.approx(2.2)
    bench.seconds = 2.1
    assert bench.room() == 0.0
    bench.seconds = 2.3
    assert bench.room() == pytest.approx(300)


def test_unsent_bytes_are_refunded(bench: Bench) -> None:
    bench.bandwidth.charge(5, 900)
    bench.bandwidth.charge(5, 100 - 900)
    assert bench.room() == 900


def test_refund_does_not_fill_the_bucket_above_one_second(bench: Bench) -> None:
    bench.bandwidth.charge(5, -5000)
    assert bench.room() == 1000


def test_idle_time_does_not_fill_the_bucket_above_the_burst(bench: Bench) -> None:
    bench.seconds = 100.0
    bench.bandwidth.charge(5, 700)
    assert bench.room() == pytest.approx(300)


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_average_of_messages_stays_below_the_limit(sizes: list[int]) -> None:
    bench = Bench()
    sent = 0.0
    for size in sizes:
        bench.seconds += bench.bandwidth.seconds_until_room(5) + 1e-6
        assert bench.room() > 0
        bench.bandwidth.charge(5, size)
        sent += size
        # The burst, and the last batch, whose size is known afterwards.
        assert sent <= 1000 * (bench.seconds + 1) + size + 1


# Files


def test_part_larger_than_the_bucket_leaves_a_debt(bench: Bench) -> None:
    assert bench.bandwidth.grant(5, 6000)
    assert bench.bandwidth.has_debt(5)
    assert not bench.bandwidth.grant(5, 1)
    # Nothing else is sent: the bucket fills at half the rate for two seconds.
    bench.seconds = 5.9
    assert bench.bandwidth.has_debt(5)
    bench.seconds = 6.0
    assert not bench.bandwidth.has_debt(5)
    assert bench.bandwidth.grant(5, 1)


def test_part_that_fits_leaves_no_debt(bench: Bench) -> None:
    assert bench.bandwidth.grant(5, 600)
    assert not bench.bandwidth.has_debt(5)
    assert bench.room() == 400


def test_part_is_not_granted_without_room(bench: Bench) -> None:
    bench.bandwidth.charge(5, 900)
    assert not bench.bandwidth.grant(5, 1)
    assert bench.bandwidth.seconds_until_grant(5) == pytest.approx(0.1)


@pytest.mark.parametrize("priority", [1, 5])
def test_equally_and_more_urgent_work_gets_half_of_the_income_while_there_is_a_debt(
    bench: Bench, priority: int
) -> None:
    bench.bandwidth.grant(5, 1_000_000)
    assert bench.bandwidth.seconds_until_room(priority) == pytest.approx(0.4)
    bench.seconds = 0.39
    assert bench.room(priority) == 0.0
    bench.seconds = 1.0
    assert bench.room(priority) == pytest.approx(500)


def test_less_urgent_work_waits_until_the_debt_is_paid(bench: Bench) -> None:
    bench.bandwidth.grant(1, 4000)
    # Three seconds for the debt, and the minimum of the bucket.
    assert bench.bandwidth.seconds_until_room(10) == pytest.approx(3.2)
    bench.seconds = 3.1
    assert bench.room(10) == 0.0
    bench.seconds = 3.3
    assert bench.room(10) == pytest.approx(300)


def test_less_urgent_part_waits_for_more_urgent_debts(bench: Bench) -> None:
    bench.bandwidth.grant(1, 4000)
    assert not bench.bandwidth.grant(10, 1)
    bench.seconds = 3.3
    assert bench.bandwidth.grant(10, 1)


def test_more_urgent_debts_are_paid_first(bench: Bench) -> None:
    bench.bandwidth.grant(5, 4000)
    bench.seconds = 0.5
    assert bench.bandwidth.grant(1, 4000)
    while bench.bandwidth.has_debt(1):
        assert bench.bandwidth.has_debt(5)
        bench.seconds += 0.1
    assert bench.bandwidth.has_debt(5)


@given(
    debts=st.dictionaries(st.integers(1, 11), st.integers(1, 20_000), max_size=3),
    charge=st.integers(0, 5000),
    priority=st.integers(1, 11),
)
def test_wait_is_long_enough_and_at_most_twice_too_long(
    debts: dict[int, int], charge: int, priority: int
) -> None:
    bench = Bench()
    for debtor, size in sorted(debts.items(), reverse=True):
        bench.seconds += bench.bandwidth.seconds_until_room(debtor) + 1e-6
        bench.bandwidth.grant(debtor, size)
    bench.bandwidth.charge(5, charge)
    wait = bench.bandwidth.seconds_until_room(priority)
    began = bench.seconds
    if wait > 0.1:
        bench.seconds = began + 0.4 * wait
        assert bench.room(priority) == 0.0
    bench.seconds = began + wait + 0.001
    assert bench.room(priority) > 0


@given(
    steps=st.lists(
        st.tuples(
            st.booleans(), st.sampled_from([1, 5, 11]), st.integers(1, 20_000), st.floats(0, 3)
        ),
        min_size=1,
        max_size=60,
    )
)
def test_average_of_files_and_messages_stays_below_the_limit(
    steps: list[tuple[bool, int, int, float]],
) -> None:
    bench = Bench()
    sent, largest = 0.0, 0
    for is_file, priority, size, pause in steps:
        bench.seconds += pause
        if is_file:
            while not bench.bandwidth.grant(priority, size):
                bench.seconds += max(bench.bandwidth.seconds_until_grant(priority), 0.01)
        else:
            bench.seconds += bench.bandwidth.seconds_until_room(priority) + 1e-6
            bench.bandwidth.charge(5, size)
        sent += size
        largest = max(largest, size)
        # The last of each kind and priority may be larger than there was room for.
        assert sent <= 1000 * (bench.seconds + 1) + 4 * largest + 1


def test_equally_urgent_files_and_messages_share_the_bandwidth() -> None:
    bench = Bench()
    sent = {"files": 0, "messages": 0}
    for step in range(50_000):
        bench.seconds = step / 50
        if bench.bandwidth.grant(5, 50_000):
            sent["files"] += 50_000
        elif bench.room():
            bench.bandwidth.charge(5, 200)
            sent["messages"] += 200
    # A thousand seconds of a thousand bytes.
    assert 400_000 <= sent["messages"] <= 600_000
    assert 400_000 <= sent["files"] <= 600_000


def test_room_of_less_urgent_messages_takes_nothing_from_urgent_ones(bench: Bench) -> None:
    assert bench.bandwidth.grant(5, 10_000)
    for step in range(50):
        bench.seconds = step / 100
        assert not bench.room(11)
        assert bench.bandwidth.seconds_until_room(11) > 1
    assert bench.room(1) >= 200


def test_urgent_file_gets_the_bandwidth_before_less_urgent_messages() -> None:
    bench = Bench()
    sent = {"file": 0, "messages": 0}
    for step in range(5000):
        bench.seconds = step / 50
        if bench.bandwidth.grant(1, 10_000):
            sent["file"] += 10_000
        elif bench.room(10):
            bench.bandwidth.charge(10, 200)
            sent["messages"] += 200
    assert sent["file"] >= 95_000
    assert sent["messages"] <= 5_000


# Reservations


def test_available_bandwidth_is_granted_at_once(bench: Bench) -> None:
    assert bench.reserve("a") is None
    assert bench.granted == ["a"]
    assert (bench.active, bench.changes) == ([], 1)
    assert bench.bandwidth.message_room(11) == bench.room(11) > 0


def test_without_a_limit_everything_is_granted_at_once() -> None:
    bench = Bench(None)
    assert bench.reserve("a", size=1) is bench.reserve("b", size=10**12) is None
    assert bench.granted == ["a", "b"]


def test_request_waits_until_there_is_bandwidth(bench: Bench) -> None:
    bench.bandwidth.charge(5, 1000)
    assert bench.reserve("a") is not None
    bench.run(until=0.19)
    assert bench.granted == []
    bench.run(until=0.21)
    assert bench.granted == ["a"]
    assert (bench.active, bench.changes) == ([], 1)


def test_most_urgent_request_comes_first_and_equals_in_their_order(bench: Bench) -> None:
    bench.bandwidth.charge(5, 1000)
    for name, priority in (("a", 5), ("b", 11), ("c", 5), ("d", 1)):
        bench.reserve(name, priority)
    bench.run(until=10)
    assert bench.granted == ["d", "a", "c", "b"]


def test_large_parts_are_granted_one_after_the_other(bench: Bench) -> None:
    for name in "abc":
        bench.reserve(name, size=10_000)
    assert bench.granted == ["a"]
    bench.run(until=8.9)
    assert bench.granted == ["a"]
    # The part has the bytes of ten seconds, and the bucket had those of one.
    bench.run(until=11)
    assert bench.granted == ["a", "b"]
    bench.run(until=25)
    assert bench.granted == ["a", "b", "c"]


def test_more_urgent_part_does_not_wait_for_the_debt_of_others(bench: Bench) -> None:
    bench.reserve("large", 5, size=100_000)
    bench.reserve("next", 5)
    bench.reserve("urgent", 1)
    bench.run(until=0.5)
    assert bench.granted == ["large", "urgent"]


def test_canceled_request_is_not_granted_and_others_follow(bench: Bench) -> None:
    bench.bandwidth.charge(5, 1000)
    cancel = bench.reserve("a", 1)
    bench.reserve("b", 5)
    assert bench.bandwidth.seconds_until_message_room(4) == math.inf
    assert cancel is not None
    cancel()
    assert bench.bandwidth.seconds_until_message_room(4) == pytest.approx(0.2)
    # Less urgent messages need not wait for it any longer.
    assert bench.changes == 1
    bench.run(until=1)
    assert bench.granted == ["b"]
    cancel()
    assert bench.changes == 2


def test_no_timer_is_left_when_the_last_request_is_canceled(bench: Bench) -> None:
    bench.bandwidth.charge(5, 1000)
    cancel = bench.reserve("a", timeout=5)
    assert cancel is not None
    cancel()
    assert bench.active == []


def test_request_whose_lease_has_ended_is_answered_without_a_charge(bench: Bench) -> None:
    bench.bandwidth.charge(5, 1000)
    bench.reserve("lost", 1, size=10**9)
    bench.reserve("other", 5)
    bench.lost.add("lost")
    bench.run(until=0.3)
    assert bench.granted == ["lost", "other"]
    assert not bench.bandwidth.has_debt(1)


def test_reservation_ends_with_its_timeout(bench: Bench) -> None:
    bench.bandwidth.charge(5, 2000)
    cancel = bench.reserve("a", timeout=1)
    bench.run(until=0.9)
    assert bench.answers == {}
    bench.run(until=5)
    assert bench.answers == {"a": False}
    assert (bench.active, bench.changes) == ([], 1)
    assert cancel is not None
    cancel()
    assert bench.changes == 1


def test_granted_reservation_does_not_time_out(bench: Bench) -> None:
    bench.bandwidth.charge(5, 1000)
    bench.reserve("a", timeout=1)
    bench.run(until=5)
    assert bench.answers == {"a": True}
    assert bench.active == []
