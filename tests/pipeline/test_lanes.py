"""Lanes: how long what they deliver may keep others waiting."""

from __future__ import annotations

import pytest

from penstock.model.exporting import Lane
from penstock.pipeline.lanes import LIMITS


def test_an_urgent_message_waits_for_a_batch_of_its_lane_for_less_than_two_seconds() -> None:
    assert LIMITS[Lane.steady].longest < 2


def test_one_that_takes_longer_has_the_time_where_nobody_waits_for_it() -> None:
    assert LIMITS[Lane.recovering].patience > 10 * LIMITS[Lane.steady].patience


@pytest.mark.parametrize("lane", LIMITS)
def test_a_slice_is_not_given_to_somebody_else_while_it_is_delivered(lane: Lane) -> None:
    assert LIMITS[lane].lease_millis > 1000 * LIMITS[lane].longest
