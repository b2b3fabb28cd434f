from __future__ import annotations

from typing import NamedTuple

import pytest

from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.store.retention import Limits, count_expired, plan_room


class Span(NamedTuple):
    first: int
    end: int
    size: int
    newest_time: int = 0


SPANS = [Span(0, 10, 100, 1_000), Span(10, 20, 100, 2_000), Span(20, 25, 50, 3_000)]
OVERWRITES = Limits(300, 100, overwrites=True, time_to_live_millis=None)
REJECTS = OVERWRITES._replace(overwrites=False)


@pytest.mark.parametrize(
    ("needed", "dropped"), [(50, 0), (51, 1), (150, 1), (151, 2), (250, 2), (251, 3), (300, 3)]
)
def test_oldest_segments_are_dropped_until_the_append_fits(needed: int, dropped: int) -> None:
    assert plan_room(SPANS, 250, needed, OVERWRITES, exported_end=0) == dropped


def test_append_larger_than_the_max_size_never_fits() -> None:
    assert plan_room(SPANS, 250, 301, OVERWRITES, exported_end=0) is None


@pytest.mark.parametrize(
    ("exported_end", "dropped"), [(0, None), (9, None), (10, 1), (19, 1), (25, 1)]
)
def test_rejecting_stream_drops_only_exported_segments(
    exported_end: int, dropped: int | None
) -> None:
    assert plan_room(SPANS, 250, 60, REJECTS, exported_end) == dropped


def test_segments_expire_by_their_newest_message_and_in_order() -> None:
    limits = OVERWRITES._replace(time_to_live_millis=60_000)
    assert count_expired(SPANS, limits, 61_000) == 0
    assert count_expired(SPANS, limits, 61_001) == 1
    assert count_expired(SPANS, limits, 63_001) == 3
    assert count_expired(SPANS, OVERWRITES, 10**15) == 0


def test_an_empty_segment_does_not_expire() -> None:
    limits = OVERWRITES._replace(time_to_live_millis=60_000)
    assert count_expired([Span(5, 5, 0)], limits, 10**15) == 0


def test_segment_size_is_reduced_below_the_max_size() -> None:
    definition = MessageStreamDefinition(
        name="s", strategy_on_full=StrategyOnFull.OverwriteOldestData, max_size=1 << 20
    )
    assert Limits.of(definition).segment_size == 1 << 18
    definition.stream_segment_size = 1 << 19
    assert Limits.of(definition).segment_size == 1 << 19
