from __future__ import annotations

import pytest

from penstock.errors import SettingError
from penstock.model.limits import INT64_MAX
from penstock.spark.times import ALL_TIMES, TimeRange, parse_timestamp

NOON = 1_767_268_800_000


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("0", 0),
        (" 1767268800000 ", NOON),
        (str(INT64_MAX), INT64_MAX),
        ("2026-01-01T12:00:00Z", NOON),
        ("2026-01-01T12:00Z", NOON),
        ("2026-01-01 12:00:00+00:00", NOON),
        ("2026-01-01T13:00:00+01:00", NOON),
        ("2026-01-01T02:30:00-09:30", NOON),
        ("20260101T120000Z", NOON),
        ("2026-01-01T12:00:00.007Z", NOON + 7),
        ("1969-12-31T23:59:59Z", -1000),
    ],
)
def test_timestamp_is_milliseconds_or_iso_8601(text: str, millis: int) -> None:
    assert parse_timestamp("startingTimestamp", text) == millis


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("2026-01-01T12:00:00.000001Z", NOON + 1),
        ("2026-01-01T12:00:00.007999Z", NOON + 8),
        ("1969-12-31T23:59:59.9995Z", 0),
    ],
)
def test_fraction_of_a_millisecond_is_rounded_up(text: str, millis: int) -> None:
    assert parse_timestamp("endingTimestamp", text) == millis


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1.5",
        "1e3",
        "٣",
        "now",
        "latest",
        "2026-01-01",
        "2026-01-01T12:00:00",
        "2026-02-30T12:00:00Z",
        "2026-01-01T12:00:00 Europe/Berlin",
        str(INT64_MAX + 1),
        "9" * 5000,
        '{"a": 1}',
    ],
)
def test_invalid_timestamp_is_refused_with_allowed_forms(text: str) -> None:
    with pytest.raises(SettingError, match=r"^option startingTimestamp is .*: expected millis"):
        parse_timestamp("startingTimestamp", text)


def test_range_is_parsed_from_both_options() -> None:
    assert TimeRange.parse(None, None) == ALL_TIMES
    assert TimeRange.parse("5", None) == TimeRange(start=5)
    assert TimeRange.parse(None, "7") == TimeRange(end=7)
    assert TimeRange.parse("5", "7") == TimeRange(5, 7)
    assert TimeRange.parse("5", "5") == TimeRange(5, 5)


def test_start_after_the_end_is_an_error() -> None:
    with pytest.raises(SettingError, match="is '8', and endingTimestamp is '7'"):
        TimeRange.parse("8", "7")
