from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.exports.pacing import MAX_PAUSE_SECONDS, Due, backoff_seconds, plan_due

NOW = 1_000_000
INTERVAL = 60_000


def due(first: int, end: int, interval: int | None, age: int = 0) -> Due:
    return plan_due(first, end, 4, interval, lambda _: NOW - age, NOW)


def test_without_an_interval_all_messages_may_leave() -> None:
    assert due(3, 5, None) == Due(5, None, 6)


def test_with_an_interval_whole_batches_leave_and_others_wait_for_time_or_more_messages() -> None:
    assert due(0, 11, INTERVAL) == Due(8, NOW + INTERVAL, 12)
    assert due(0, 3, INTERVAL, age=10) == Due(0, NOW - 10 + INTERVAL, 4)


def test_age_does_not_matter_if_all_batches_are_whole() -> None:
    assert due(2, 10, INTERVAL, age=2 * INTERVAL) == Due(10, None, 11)


@pytest.mark.parametrize(("age", "end"), [(INTERVAL - 1, 4), (INTERVAL, 6), (10 * INTERVAL, 6)])
def test_messages_leave_after_their_interval(age: int, end: int) -> None:
    assert due(0, 6, INTERVAL, age).end == end


def test_interval_begins_with_the_first_message_of_the_incomplete_batch() -> None:
    times = {10: NOW - 2 * INTERVAL, 18: NOW - 1}
    assert plan_due(10, 19, 4, INTERVAL, times.__getitem__, NOW) == Due(18, NOW - 1 + INTERVAL, 22)


def test_message_with_a_time_in_the_future_leaves_at_once() -> None:
    assert due(0, 3, INTERVAL, age=-1) == Due(3, None, 4)


@given(
    first=st.integers(0, 100),
    count=st.integers(1, 50),
    size=st.integers(1, 20),
    interval=st.none() | st.integers(60_000, 100_000),
    age=st.integers(-10, 200_000),
)
def test_more_messages_are_due_exactly_at_the_time_or_end_that_is_given(
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


def test_pause_after_failures_doubles_up_to_five_minutes() -> None:
    longest = [backoff_seconds(failures, 0.999999) for failures in range(1, 13)]
    assert longest == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], rel=1e-4)
    assert backoff_seconds(10_000, 0.5) <= MAX_PAUSE_SECONDS == 300


@given(failures=st.integers(1, 50), chance=st.floats(0, 1, exclude_max=True))
def test_pause_is_random_within_a_quarter(failures: int, chance: float) -> None:
    shortest = backoff_seconds(failures, 0.0)
    assert shortest <= backoff_seconds(failures, chance) <= shortest / 0.75 <= 300
