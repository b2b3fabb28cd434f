"""The history of counts, and the rates computed from it."""

from __future__ import annotations

import pytest

from penstock.web import history
from penstock.web.history import Counts, ExportRates, History

START = 1_700_000_000_000


def add_sample(past: History, second: float, appended: int, **streams: Counts) -> None:
    totals = Counts(messages_appended=appended, bytes_appended=10 * appended)
    past.add(START + int(second * 1000), totals, streams.items())


def appended(past: History, stream: str | None = None, since: int = 0) -> list[float | None]:
    points = past.points(stream, since)
    assert points is not None
    return points.series["messages_appended"]


def test_history_has_no_points_before_the_second_sample() -> None:
    past = History()
    assert past.points() == ([], {name: [] for name in Counts._fields})
    add_sample(past, 0, 5)
    assert appended(past) == []
    assert set(past.rates().values()) == {0.0}


def test_rates_are_differences_per_second() -> None:
    past = History()
    for second, count in ((0, 100), (1, 110), (2, 110), (4, 150)):
        add_sample(past, second, count)

    points = past.points()
    assert points is not None
    assert points.times == [START + 1000, START + 2000, START + 4000]
    assert points.series["messages_appended"] == [10.0, 0.0, 20.0]
    assert points.series["bytes_appended"] == [100.0, 0.0, 200.0]
    assert past.rates()["messages_appended"] == 50 / 4
    assert "messages_behind" not in past.rates()


def test_messages_behind_is_not_a_rate() -> None:
    past = History()
    for second, behind in enumerate((5, 7, 3)):
        past.add(START + 1000 * second, Counts(messages_behind=behind), ())

    points = past.points()
    assert points is not None
    assert points.series["messages_behind"] == [7, 3]


def test_rate_is_the_mean_of_the_last_five_seconds() -> None:
    past = History()
    for second in range(20):
        add_sample(past, second, 1000 if second < 14 else 1000 + 10 * (second - 14))

    assert past.rates()["messages_appended"] == 10.0


def test_points_after_a_time() -> None:
    past = History()
    for second in range(5):
        add_sample(past, second, second)

    points = past.points(since=START + 3000)
    assert points is not None
    assert points.times == [START + 4000]
    assert appended(past, since=START + 4000) == []
    assert appended(past, since=2**70) == []


def test_five_minutes_are_kept() -> None:
    past = History()
    for second in range(1000):
        add_sample(past, second, second**2, s=Counts(messages_appended=second))

    points = past.points()
    assert points is not None
    assert points.times == [START + 1000 * second for second in range(700, 1000)]
    assert points.series["messages_appended"] == [2.0 * second - 1 for second in range(700, 1000)]
    assert appended(past, "s") == [1.0] * 300


def test_reset_count_gives_no_negative_rate() -> None:
    past = History()
    for second, count in enumerate((50, 60, 0, 5)):
        add_sample(past, second, count)

    assert appended(past) == [10.0, 0.0, 5.0]
    assert past.rates()["messages_appended"] == 0.0


def test_clock_set_back_makes_no_spike() -> None:
    past = History()
    for second, count in ((100, 0), (101, 10), (50, 20), (51, 30)):
        add_sample(past, second, count)

    assert appended(past) == [10.0, 10.0, 10.0]
    assert past.rates()["messages_appended"] == 30.0


# Streams


def test_unknown_stream_has_no_points() -> None:
    past = History()
    add_sample(past, 0, 0)

    assert past.points("s") is None
    assert past.rates("s")["messages_appended"] == 0.0


def test_created_stream_starts_with_zero_counts() -> None:
    past = History()
    for second in range(3):
        add_sample(past, second, second)
    add_sample(past, 3, 3, s=Counts(messages_appended=7))
    add_sample(past, 4, 4, s=Counts(messages_appended=9))

    assert appended(past, "s") == [None, None, 7.0, 2.0]
    assert past.rates("s")["messages_appended"] == 4.5


def test_counts_before_the_first_sample_give_no_rate() -> None:
    past = History()
    add_sample(past, 0, 0, s=Counts(messages_exported=1_000_000))
    add_sample(past, 1, 0, s=Counts(messages_exported=1_000_001))

    assert past.rates("s")["messages_exported"] == 1.0


def test_deleted_stream_is_removed_and_a_new_one_starts_empty() -> None:
    past = History()
    for second in range(3):
        add_sample(past, second, 0, s=Counts(messages_appended=100 * second))
    add_sample(past, 3, 0)
    assert past.points("s") is None
    add_sample(past, 4, 0, s=Counts(messages_appended=3))

    assert appended(past, "s") == [None, None, None, 3.0]


def test_stream_recreated_between_two_samples_continues() -> None:
    past = History()
    for second, count in enumerate((10, 20, 1, 4)):
        add_sample(past, second, 0, s=Counts(messages_appended=count))

    assert appended(past, "s") == [10.0, 0.0, 3.0]


def test_number_of_streams_with_history_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MAX_STREAMS", 2)
    past = History()
    many = {name: Counts(messages_appended=1000) for name in "abc"}
    add_sample(past, 0, 0, **many)
    add_sample(past, 1, 0, **many)
    assert past.points("a") is not None
    assert past.points("c") is None
    assert set(past.rates("c").values()) == {0.0}

    del many["a"]
    add_sample(past, 2, 0, **many)
    add_sample(past, 3, 0, **many)
    add_sample(past, 4, 0, **many)

    # Its count from before it had a history gives no rate.
    assert appended(past, "c") in ([None, None, 0.0, 0.0], [None, None, None, 0.0])
    assert past.rates("c")["messages_appended"] == 0.0


# Exports


def test_each_export_has_its_own_rate() -> None:
    rates = ExportRates()
    for second in range(10):
        rates.add(START + 1000 * second, {("s", "slow"): second, ("s", "fast"): 100 * second})

    assert rates.rate("s", "slow") == 1.0
    assert rates.rate("s", "fast") == 100.0


def test_unknown_new_or_deleted_export_has_no_rate() -> None:
    rates = ExportRates()
    assert rates.rate("s", "e") == 0.0
    rates.add(START, {})
    rates.add(START + 1000, {("s", "e"): 5})
    assert rates.rate("s", "e") == 0.0
    for second in range(2, 8):
        rates.add(START + 1000 * second, {})
    assert rates.rate("s", "e") == 0.0


def test_reset_export_has_no_negative_rate() -> None:
    rates = ExportRates()
    rates.add(START, {("s", "e"): 50})
    rates.add(START + 1000, {("s", "e"): 0})

    assert rates.rate("s", "e") == 0.0
