"""Parsing and formatting of sizes, durations and times."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.units import (
    format_duration,
    format_size,
    human_bytes,
    human_duration,
    parse_duration,
    parse_size,
    parse_time,
)
from penstock.model.limits import INT64_MAX, MILLIS_MAX


@given(st.integers(0, INT64_MAX))
def test_formatted_size_can_be_parsed(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_size_is_formatted_in_the_largest_exact_unit() -> None:
    assert format_size(0) == "0 B"
    assert format_size(1000) == "1 KB"
    assert format_size(256 << 20) == "256 MiB"
    assert format_size(2_000_000_000) == "2 GB"
    assert format_size((1 << 30) + 1) == "1073741825 B"


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("90s", 90_000),
        ("500ms", 500),
        ("30min", 1_800_000),
        ("30m", 1_800_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        ("1h30m", 5_400_000),
        ("1 h 30 min", 5_400_000),
        ("1.5H", 5_400_000),
    ],
)
def test_duration_is_parsed_from_numbers_and_units(text: str, millis: int) -> None:
    assert parse_duration(text) == millis


@pytest.mark.parametrize("text", ["", "h", "90", "1h30", "1x", "-1h", "1h,2m", "1" * 60 + "!"])
def test_malformed_duration_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration: expected .* 7d"):
        parse_duration(text)


def test_fraction_of_a_millisecond_is_rejected() -> None:
    with pytest.raises(ValueError, match="not a whole number of milliseconds"):
        parse_duration("0.5ms")


@given(st.integers(0, MILLIS_MAX))
def test_formatted_duration_can_be_parsed(millis: int) -> None:
    assert parse_duration(format_duration(millis)) == millis


def test_formatted_duration_omits_zero_units() -> None:
    assert format_duration(0) == "0 s"
    assert format_duration(5_400_000) == "1 h 30 min"
    assert format_duration(86_400_001) == "1 d 1 ms"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (18_035_507, "17.2 MiB"),
        (999 << 10, "999 KiB"),
        # Not 1e+03 KiB.
        ((1000 << 10) - 1, "0.977 MiB"),
        (1 << 30, "1 GiB"),
        ((1 << 63) - 1, "8 EiB"),
    ],
)
def test_human_bytes_has_three_digits_and_a_unit(count: int, shown: str) -> None:
    assert human_bytes(count) == shown


@pytest.mark.parametrize(
    ("millis", "shown"),
    [
        (0, "0 s"),
        (999, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min 0 s"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h 0 min"),
        (11_520_000, "3 h 12 min"),
        (172_799_999, "47 h 59 min"),
        (172_800_000, "2 d 0 h"),
        (8_640_000_000, "100 d 0 h"),
    ],
)
def test_human_duration_has_the_two_largest_units(millis: int, shown: str) -> None:
    assert human_duration(millis) == shown


NOW = 1_772_352_000_000


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("2h ago", NOW - 7_200_000),
        ("90s ago", NOW - 90_000),
        (" 1h 30min ago ", NOW - 5_400_000),
        ("2026-03-01T08:00:00Z", NOW),
        ("2026-03-01T09:00:00+01:00", NOW),
        ("2026-03-01T08:00:00.123Z", NOW + 123),
        ("1969-12-31T23:59:59Z", -1000),
    ],
)
def test_times_are_relative_or_iso_8601(text: str, millis: int) -> None:
    assert parse_time(text, NOW) == millis


@pytest.mark.parametrize("text", ["2026-03-01T08:00", "2026-03-01 08:00:00", "2026-03-01"])
def test_time_without_a_zone_is_local(text: str) -> None:
    assert parse_time(text, NOW) == int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "ago", "2h", "yesterday", "2026-13-01", "2 ago"])
def test_malformed_time_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time: expected a time such as .* or 2h ago"):
        parse_time(text, NOW)
