"""The bandwidth that exports share by priority, on a clock that tests set."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.exports.bandwidth import Bandwidth


class Bench:
    """1000 bytes per second, unless another rate is given."""

    def __init__(self, kilobits_per_second: int | None = 8) -> None:
        self.seconds = 0.0
        self.bandwidth = Bandwidth(kilobits_per_second, lambda: self.seconds)

    def room(self, priority: int = 5) -> float:
        return self.bandwidth.room(priority)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_without_a_limit_there_is_always_room() -> None:
    bench = Bench(None)
    bench.bandwidth.charge(1e12)
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


def test_overdrawn_bucket_is_waited_for(bench: Bench) -> None:
    bench.bandwidth.charge(3000)
    assert bench.room() == 0.0
    assert bench.bandwidth.seconds_until_room(5) == pytest.approx(2.2)
    bench.seconds = 2.1
    assert bench.room() == 0.0
    bench.seconds = 2.3
    assert bench.room() == pytest.approx(300)


def test_unsent_bytes_are_refunded(bench: Bench) -> None:
    bench.bandwidth.charge(900)
    bench.bandwidth.charge(100 - 900)
    assert bench.room() == 900


def test_refund_does_not_fill_the_bucket_above_one_second(bench: Bench) -> None:
    bench.bandwidth.charge(-5000)
    assert bench.room() == 1000


def test_time_before_a_charge_does_not_pay_for_it(bench: Bench) -> None:
    bench.seconds = 100.0
    bench.bandwidth.charge(700)
    assert bench.room() == pytest.approx(300)


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_average_of_messages_stays_below_the_limit(sizes: list[int]) -> None:
    bench = Bench()
    sent = 0.0
    for size in sizes:
        bench.seconds += bench.bandwidth.seconds_until_room(5) + 1e-6
        assert bench.room() > 0
        bench.bandwidth.charge(size)
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
    bench.bandwidth.charge(900)
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
    bench.bandwidth.charge(charge)
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
            bench.bandwidth.charge(size)
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
            bench.bandwidth.charge(200)
            sent["messages"] += 200
    # A thousand seconds of a thousand bytes.
    assert 400_000 <= sent["messages"] <= 600_000
    assert 400_000 <= sent["files"] <= 600_000


def test_urgent_file_gets_the_bandwidth_before_less_urgent_messages() -> None:
    bench = Bench()
    sent = {"file": 0, "messages": 0}
    for step in range(5000):
        bench.seconds = step / 50
        if bench.bandwidth.grant(1, 10_000):
            sent["file"] += 10_000
        elif bench.room(10):
            bench.bandwidth.charge(200)
            sent["messages"] += 200
    assert sent["file"] >= 95_000
    assert sent["messages"] <= 5_000
