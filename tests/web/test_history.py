"""Counts as they are kept, and the rates that come of them."""

from __future__ import annotations

import pytest

from penstock.web import history
from penstock.web.history import Counts, ExportRates, History

START = 1_700_000_000_000


def beat(past: History, second: float, appended: int, **streams: Counts) -> None:
    totals = Counts(messages_appended=appended, bytes_appended=10 * appended)
    past.add(START + int(second * 1000), totals, streams.items())


def appended(past: History, stream: str | None = None, since: int = 0) -> list[float | None]:
    points = past.points(stream, since)
    assert points is not None
    return points.series["messages_appended"]


def test_nothing_is_known_before_something_was_counted_twice() -> None:
    past = History()
    assert past.points() == ([], {name: [] for name in Counts._fields})
    beat(past, 0, 5)
    assert appended(past) == []
    assert set(past.rates().values()) == {0.0}


def test_rates_are_differences_a_second() -> None:
    past = History()
    for second, count in ((0, 100), (1, 110), (2, 110), (4, 150)):
        beat(past, second, count)

    points = past.points()
    assert points is not None
    assert points.times == [START + 1000, START + 2000, START + 4000]
    assert points.series["messages_appended"] == [10.0, 0.0, 20.0]
    assert points.series["bytes_appended"] == [100.0, 0.0, 200.0]
    assert past.rates()["messages_appended"] == 50 / 4
    assert "messages_behind" not in past.rates()


def test_what_is_to_be_exported_is_told_as_it_is() -> None:
    past = History()
    for second, behind in enumerate((5, 7, 3)):
        past.add(START + 1000 * second, Counts(messages_behind=behind), ())

    points = past.points()
    assert points is not None
    assert points.series["messages_behind"] == [7, 3]


def test_a_rate_is_that_of_the_last_five_seconds() -> None:
    past = History()
    for second in range(20):
        beat(past, second, 1000 if second < 14 else 1000 + 10 * (second - 14))

    assert past.rates()["messages_appended"] == 10.0


def test_only_points_after_a_moment_are_told() -> None:
    past = History()
    for second in range(5):
        beat(past, second, second)

    points = past.points(since=START + 3000)
    assert points is not None
    assert points.times == [START + 4000]
    assert appended(past, since=START + 4000) == []
    assert appended(past, since=2**70) == []


def test_five_minutes_are_kept() -> None:
    past = History()
    for second in range(1000):
        beat(past, second, second**2, s=Counts(messages_appended=second))

    points = past.points()
    assert points is not None
    assert points.times == [START + 1000 * second for second in range(700, 1000)]
    assert points.series["messages_appended"] == [2.0 * second - 1 for second in range(700, 1000)]
    assert appended(past, "s") == [1.0] * 300


def test_a_count_that_begins_anew_gives_no_rate_below_zero() -> None:
    past = History()
    for second, count in enumerate((50, 60, 0, 5)):
        beat(past, second, count)

    assert appended(past) == [10.0, 0.0, 5.0]
    assert past.rates()["messages_appended"] == 0.0


def test_a_clock_that_is_set_back_makes_no_spike() -> None:
    past = History()
    for second, count in ((100, 0), (101, 10), (50, 20), (51, 30)):
        beat(past, second, count)

    assert appended(past) == [10.0, 10.0, 10.0]
    assert past.rates()["messages_appended"] == 30.0


# Streams


def test_a_stream_that_is_unknown_has_no_points() -> None:
    past = History()
    beat(past, 0, 0)

    assert past.points("s") is None
    assert past.rates("s")["messages_appended"] == 0.0


def test_a_stream_that_was_created_began_with_nothing() -> None:
    past = History()
    for second in range(3):
        beat(past, second, second)
    beat(past, 3, 3, s=Counts(messages_appended=7))
    beat(past, 4, 4, s=Counts(messages_appended=9))

    assert appended(past, "s") == [None, None, 7.0, 2.0]
    assert past.rates("s")["messages_appended"] == 4.5


def test_a_stream_that_was_there_at_the_start_did_not_grow_at_once() -> None:
    past = History()
    beat(past, 0, 0, s=Counts(messages_exported=1_000_000))
    beat(past, 1, 0, s=Counts(messages_exported=1_000_001))

    assert past.rates("s")["messages_exported"] == 1.0


def test_a_stream_that_was_deleted_is_forgotten_and_another_one_begins_anew() -> None:
    past = History()
    for second in range(3):
        beat(past, second, 0, s=Counts(messages_appended=100 * second))
    beat(past, 3, 0)
    assert past.points("s") is None
    beat(past, 4, 0, s=Counts(messages_appended=3))

    assert appended(past, "s") == [None, None, None, 3.0]


def test_a_stream_that_was_recreated_between_two_looks_goes_on() -> None:
    past = History()
    for second, count in enumerate((10, 20, 1, 4)):
        beat(past, second, 0, s=Counts(messages_appended=count))

    assert appended(past, "s") == [10.0, 0.0, 3.0]


def test_there_are_only_so_many_streams_with_a_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MAX_STREAMS", 2)
    past = History()
    many = {name: Counts(messages_appended=1000) for name in "abc"}
    beat(past, 0, 0, **many)
    beat(past, 1, 0, **many)
    assert past.points("a") is not None
    assert past.points("c") is None
    assert set(past.rates("c").values()) == {0.0}

    del many["a"]
    beat(past, 2, 0, **many)
    beat(past, 3, 0, **many)
    beat(past, 4, 0, **many)

    # It did not come out of nothing when there was room for it.
    assert appended(past, "c") in ([None, None, 0.0, 0.0], [None, None, None, 0.0])
    assert past.rates("c")["messages_appended"] == 0.0


# Exports


def test_each_export_has_a_rate_of_its_own() -> None:
    rates = ExportRates()
    for second in range(10):
        rates.add(START + 1000 * second, {("s", "slow"): second, ("s", "fast"): 100 * second})

    assert rates.rate("s", "slow") == 1.0
    assert rates.rate("s", "fast") == 100.0


def test_an_export_that_is_unknown_or_new_or_gone_has_no_rate() -> None:
    rates = ExportRates()
    assert rates.rate("s", "e") == 0.0
    rates.add(START, {})
    rates.add(START + 1000, {("s", "e"): 5})
    assert rates.rate("s", "e") == 0.0
    for second in range(2, 8):
        rates.add(START + 1000 * second, {})
    assert rates.rate("s", "e") == 0.0


def test_an_export_that_begins_anew_has_no_rate_below_zero() -> None:
    rates = ExportRates()
    rates.add(START, {("s", "e"): 50})
    rates.add(START + 1000, {("s", "e"): 0})

    assert rates.rate("s", "e") == 0.0
