from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.exports.pacing import Bandwidth, Due, backoff_seconds, plan_due

NOW = 1_000_000
INTERVAL = 60_000


def due(first: int, end: int, interval: int | None, age: int = 0) -> Due:
    return plan_due(first, end, 4, interval, lambda _: NOW - age, NOW)


def test_without_an_interval_everything_may_leave_at_once() -> None:
    assert due(3, 5, None) == Due(5, None, 6)


def test_with_an_interval_whole_batches_leave_and_the_rest_waits_for_time_or_more() -> None:
    assert due(0, 11, INTERVAL) == Due(8, NOW + INTERVAL, 12)
    assert due(0, 3, INTERVAL, age=10) == Due(0, NOW - 10 + INTERVAL, 4)


def test_where_batches_are_whole_time_changes_nothing() -> None:
    assert due(2, 10, INTERVAL, age=2 * INTERVAL) == Due(10, None, 11)


@pytest.mark.parametrize(("age", "end"), [(INTERVAL - 1, 4), (INTERVAL, 6), (10 * INTERVAL, 6)])
def test_what_has_waited_for_an_interval_leaves(age: int, end: int) -> None:
    assert due(0, 6, INTERVAL, age).end == end


def test_the_time_that_counts_is_that_of_the_first_message_that_would_stay() -> None:
    times = {10: NOW - 2 * INTERVAL, 18: NOW - 1}
    assert plan_due(10, 19, 4, INTERVAL, times.__getitem__, NOW) == Due(18, NOW - 1 + INTERVAL, 22)


def test_a_message_from_the_future_does_not_wait_for_it() -> None:
    assert due(0, 3, INTERVAL, age=-1) == Due(3, None, 4)


@given(
    first=st.integers(0, 100),
    count=st.integers(1, 50),
    size=st.integers(1, 20),
    interval=st.none() | st.integers(60_000, 100_000),
    age=st.integers(-10, 200_000),
)
def test_whoever_waits_for_what_is_said_does_not_wait_in_vain(
    first: int, count: int, size: int, interval: int | None, age: int
) -> None:
    def plan(end: int, now: int) -> Due:
        return plan_due(first, end, size, interval, lambda _: NOW - age, now)

    end = first + count
    found = plan(end, NOW)
    assert first <= found.end <= end < found.needed_end
    if found.at is not None:
        assert plan(end, found.at).end == end
        assert plan(end, found.at - 1).end == found.end
        assert plan(found.needed_end, NOW).end == found.needed_end
        assert plan(found.needed_end - 1, NOW).end == found.end
    else:
        assert found.end == end


def test_the_pause_after_a_failure_doubles_up_to_five_minutes() -> None:
    longest = [backoff_seconds(failures, 0.999999) for failures in range(1, 13)]
    assert longest == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], rel=1e-4)
    assert backoff_seconds(10_000, 0.5) <= 300


@given(failures=st.integers(1, 50), chance=st.floats(0, 1, exclude_max=True))
def test_a_pause_has_some_chance_in_it(failures: int, chance: float) -> None:
    shortest = backoff_seconds(failures, 0.0)
    assert shortest <= backoff_seconds(failures, chance) <= shortest / 0.75 <= 300


# The budget


def test_without_a_limit_there_is_always_room() -> None:
    bandwidth = Bandwidth(None)
    bandwidth.messages.take(1e12)
    assert bandwidth.messages.room(1.0) == float("inf")
    assert bandwidth.messages.seconds_until_room(1.0) == 0.0


def test_a_second_is_allowed_at_once_and_never_more() -> None:
    bandwidth = Bandwidth(8)
    assert bandwidth.messages.room(5.0) == 1000
    assert bandwidth.messages.room(500.0) == 1000


def test_an_overdrawn_budget_is_waited_for() -> None:
    bandwidth = Bandwidth(8)
    assert bandwidth.messages.room(0.0) == 1000
    bandwidth.messages.take(3000)
    assert bandwidth.messages.room(0.0) == 0.0
    assert bandwidth.messages.seconds_until_room(0.0) == pytest.approx(2.2)
    assert bandwidth.messages.room(2.1) == 0.0
    assert bandwidth.messages.room(2.3) == pytest.approx(300)


def test_what_was_charged_too_much_is_given_back() -> None:
    bandwidth = Bandwidth(8)
    bandwidth.messages.room(0.0)
    bandwidth.messages.take(900)
    bandwidth.messages.take(100 - 900)
    assert bandwidth.messages.room(0.0) == 900


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_on_average_no_more_leaves_than_is_allowed(sizes: list[int]) -> None:
    bandwidth = Bandwidth(8)
    now, taken = 0.0, 0.0
    for size in sizes:
        now += bandwidth.messages.seconds_until_room(now) + 1e-6
        assert bandwidth.messages.room(now) > 0
        bandwidth.messages.take(size)
        taken += size
        # A second's worth to begin with, and the last batch, whose size is known afterwards.
        assert taken <= 1000 * (now + 1) + size + 1


# Files


def test_without_a_limit_files_leave_at_any_time() -> None:
    bandwidth = Bandwidth(None)
    bandwidth.files.take(1e12)
    assert bandwidth.files.room(1.0) == bandwidth.messages.room(1.0) == float("inf")
    assert bandwidth.files.seconds_until_room(1.0) == 0.0


def test_a_file_leaves_when_those_before_it_are_made_up_for() -> None:
    bandwidth = Bandwidth(8)
    assert bandwidth.files.room(0.0) == 1000
    bandwidth.files.take(5000)
    assert bandwidth.files.room(0.0) == 0.0
    # Nobody else wants to send anything.
    assert bandwidth.files.seconds_until_room(0.0) == pytest.approx(5)
    assert bandwidth.files.room(4.9) == 0.0
    assert bandwidth.files.room(5.0) == 1000


def test_messages_have_half_of_it_while_files_have_a_debt() -> None:
    bandwidth = Bandwidth(8)
    bandwidth.messages.room(0.0)
    bandwidth.files.take(1e6)
    bandwidth.messages.take(1000)
    assert bandwidth.messages.seconds_until_room(0.0) == pytest.approx(0.4)
    assert bandwidth.messages.room(0.39) == 0.0
    assert bandwidth.messages.room(1.0) == pytest.approx(500)


def test_files_have_the_other_half_and_what_messages_leave() -> None:
    bandwidth = Bandwidth(8)
    bandwidth.messages.room(0.0)
    bandwidth.messages.take(1000)
    bandwidth.files.take(3000)
    # Two seconds at half, until messages have all that they can keep, and two at full speed.
    assert bandwidth.files.seconds_until_room(0.0) == pytest.approx(4)
    assert bandwidth.files.seconds_until_room(1.0) == pytest.approx(3)
    assert bandwidth.files.room(3.9) == 0.0
    assert bandwidth.files.room(4.0) > 0
    assert bandwidth.messages.room(4.0) == 1000


def test_what_files_were_charged_too_much_is_given_back() -> None:
    bandwidth = Bandwidth(8)
    bandwidth.messages.room(0.0)
    bandwidth.messages.take(1000)
    bandwidth.files.take(1000)
    # Half a second's worth is paid by now, and nothing was sent.
    assert bandwidth.messages.room(1.0) == pytest.approx(500)
    bandwidth.files.take(0 - 1000)
    assert bandwidth.files.room(1.0) == 1000
    assert bandwidth.messages.room(1.0) == pytest.approx(1000)


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(1, 20_000), st.floats(0, 3)), min_size=1, max_size=60
    )
)
def test_on_average_files_and_messages_together_are_no_more_than_is_allowed(
    steps: list[tuple[bool, int, float]],
) -> None:
    bandwidth = Bandwidth(8)
    now, taken, overdrawn = 0.0, 0.0, 0.0
    for is_file, size, pause in steps:
        account = bandwidth.files if is_file else bandwidth.messages
        now += pause
        if not account.room(now):
            now += account.seconds_until_room(now) + 1e-6
        assert account.room(now) > 0
        account.take(size)
        taken += size
        overdrawn = max(overdrawn, size)
        # The last of each kind may be larger than there was room for.
        assert taken <= 1000 * (now + 1) + 2 * overdrawn + 1


def test_files_are_not_starved_by_messages_nor_messages_by_files() -> None:
    bandwidth = Bandwidth(8)
    sent = {"files": 0, "messages": 0}
    for step in range(100_000):
        now = step / 100
        if bandwidth.messages.room(now):
            bandwidth.messages.take(200)
            sent["messages"] += 200
        if bandwidth.files.room(now):
            bandwidth.files.take(50_000)
            sent["files"] += 50_000
    # A thousand seconds, a thousand bytes each.
    assert 450_000 <= sent["messages"] <= 560_000
    assert 450_000 <= sent["files"] <= 560_000
