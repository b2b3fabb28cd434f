"""Java's date patterns. Every expected text is a result of Java 17 with the locale en_US."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from penstock.pipeline.uploads.date_patterns import PatternError, format_moment

_GOLDEN = Path(__file__).with_name("golden") / "java-date-patterns.tsv"
_OFFSETS = "z|VV|O|OOOO|X|XX|XXX|XXXX|XXXXX|x|xx|xxx|xxxx|xxxxx|Z|ZZZZ|ZZZZZ"


def nanos(text: str) -> int:
    """The nanoseconds of a moment of UTC in whole seconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


_MORNING = nanos("2024-02-09T05:07:03") + 45_000_000
_BEFORE_MIDNIGHT = nanos("2024-02-29T23:59:59") + 7_000_009
_JULY = nanos("2024-07-01")


def golden_rows() -> Iterator[tuple[str, int, str]]:
    # The csv module would interpret the quotes of a pattern.
    _header, *lines = _GOLDEN.read_text(encoding="utf-8").splitlines()
    for line in lines:
        pattern, epoch_seconds, expected = line.split("\t")
        seconds, fraction = epoch_seconds.split(".")
        yield pattern, int(seconds) * 10**9 + int(fraction), expected


def test_results_equal_recorded_results_of_java() -> None:
    rows = list(golden_rows())

    different = [
        (pattern, moment, expected, found)
        for pattern, moment, expected in rows
        if (found := format_moment(pattern, moment, UTC)) != expected
    ]

    assert len(rows) == 2794
    assert different[:10] == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("G GGGG GGGGG", "AD Anno Domini A"),
        ("u uu uuu uuuuu yyyyyyyyyy", "2024 24 2024 02024 0000002024"),
        ("yyyyyyyyyyyyyyyyyyy", "0000000000000002024"),
        ("M MM MMM MMMM MMMMM", "2 02 Feb February F"),
        ("L LL LLL LLLL LLLLL", "2 02 Feb February F"),
        ("Q QQ QQQ QQQQ QQQQQ", "1 01 Q1 1st quarter 1"),
        ("q qq qqq qqqq qqqqq", "1 01 Q1 1st quarter 1"),
        ("E EE EEE EEEE EEEEE", "Fri Fri Fri Friday F"),
        ("e ee eee eeee eeeee", "6 06 Fri Friday F"),
        ("c ccc cccc ccccc", "6 Fri Friday F"),
        ("D DD DDD", "40 40 040"),
        ("", ""),
    ],
)
def test_number_of_letters_chooses_the_form(pattern: str, expected: str) -> None:
    assert format_moment(pattern, _MORNING, UTC) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("'a''b' '''' ''a''", "a'b ' 'AM'"),
        ("'{#}'", "{#}"),
        ('Å~!*<>"', 'Å~!*<>"'),
        ("'two\nlines'\nHH", "two\nlines\n05"),
        ("[HH[:mm]:ss", "05:07:03"),
        ("[][[]]", ""),
    ],
)
def test_quoted_texts_and_optional_sections_are_written(pattern: str, expected: str) -> None:
    assert format_moment(pattern, _MORNING, UTC) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ppppd|pppMMM|pppppppppEEEE|ppppSS", "   9|Feb|   Friday|  04"),
        ("ppHppm", " 5 7"),
        ("yyyyMMddppH", "20240209 5"),
        ("ppH'h'mm", " 5h07"),
        ("ppH[mm]", " 507"),
        ("pppMMMdd", "Feb09"),
    ],
)
def test_p_pads_with_blanks(pattern: str, expected: str) -> None:
    assert format_moment(pattern, _MORNING, UTC) == expected


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        ("2016-12-31", "2016-W53-7 5 3"),
        ("2017-01-01", "2017-W01-1 1 1"),
        ("2022-12-31", "2022-W53-7 5 3"),
        ("2023-12-30", "2023-W52-7 5 2"),
        ("2023-12-31", "2024-W01-1 6 3"),
        ("2024-02-29", "2024-W09-5 5 1"),
        ("2024-12-28", "2024-W52-7 4 7"),
        ("2024-12-29", "2025-W01-1 5 1"),
        ("2024-12-31", "2025-W01-3 5 3"),
        ("2025-01-01", "2025-W01-4 1 1"),
        ("2025-03-01", "2025-W09-7 1 1"),
    ],
)
def test_weeks_begin_on_sunday_and_the_first_has_january_1(day: str, expected: str) -> None:
    assert format_moment("YYYY-'W'ww-e W F", nanos(day), UTC) == expected


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        ("2000-02-29", "60 060 51603 2-29"),
        ("2024-02-29", "60 060 60369 2-29"),
        ("2024-12-31", "366 366 60675 12-31"),
        ("2023-12-31", "365 365 60309 12-31"),
        ("2100-03-01", "60 060 88128 3-1"),
    ],
)
def test_leap_days_count(day: str, expected: str) -> None:
    assert format_moment("D DDD g M-d", nanos(day), UTC) == expected


def test_days_before_the_first_modified_julian_day_are_negative() -> None:
    assert format_moment("g gggg", nanos("1858-11-12"), UTC) == "-5 -0005"


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("00:00:59", "midnight|mi|AM|12|0|24"),
        ("00:01:00", "at night|at night|AM|12|0|24"),
        ("05:59:59", "at night|at night|AM|5|5|5"),
        ("06:00:00", "in the morning|in the morning|AM|6|6|6"),
        ("11:59:59", "in the morning|in the morning|AM|11|11|11"),
        ("12:00:59", "noon|n|PM|12|0|12"),
        ("12:01:00", "in the afternoon|in the afternoon|PM|12|0|12"),
        ("17:59:59", "in the afternoon|in the afternoon|PM|5|5|17"),
        ("18:00:00", "in the evening|in the evening|PM|6|6|18"),
        ("20:59:59", "in the evening|in the evening|PM|8|8|20"),
        ("21:00:00", "at night|at night|PM|9|9|21"),
    ],
)
def test_hours_and_parts_of_a_day(time: str, expected: str) -> None:
    assert format_moment("B|BBBBB|a|h|K|k", nanos(f"2024-02-29T{time}"), UTC) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("S SSS SSSSSS SSSSSSSSS", "0 007 007000 007000009"),
        ("n nnnnnnnnnnnn", "7000009 000007000009"),
        ("A AAAAAAAAAA", "86399007 0086399007"),
        ("N NNNNNNNNNNNNNNNN", "86399007000009 0086399007000009"),
    ],
)
def test_nanoseconds_are_truncated(pattern: str, expected: str) -> None:
    assert format_moment(pattern, _BEFORE_MIDNIGHT, UTC) == expected


def test_moment_before_1970_is_formatted() -> None:
    assert (
        format_moment("uuuu-MM-dd HH:mm:ss.SSSSSSSSS A", -1, UTC)
        == "1969-12-31 23:59:59.999999999 86399999"
    )


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        (
            UTC,
            "UTC|UTC|GMT|GMT|Z|Z|Z|Z|Z|+00|+0000|+00:00|+0000|+00:00|+0000|GMT|Z",
        ),
        (
            ZoneInfo("Europe/Berlin"),
            "CEST|Europe/Berlin|GMT+2|GMT+02:00|+02|+0200|+02:00|+0200|+02:00"
            "|+02|+0200|+02:00|+0200|+02:00|+0200|GMT+02:00|+02:00",
        ),
        (
            ZoneInfo("America/New_York"),
            "EDT|America/New_York|GMT-4|GMT-04:00|-04|-0400|-04:00|-0400|-04:00"
            "|-04|-0400|-04:00|-0400|-04:00|-0400|GMT-04:00|-04:00",
        ),
        (
            ZoneInfo("Asia/Kolkata"),
            "IST|Asia/Kolkata|GMT+5:30|GMT+05:30|+0530|+0530|+05:30|+0530|+05:30"
            "|+0530|+0530|+05:30|+0530|+05:30|+0530|GMT+05:30|+05:30",
        ),
        (
            timezone(timedelta(hours=-3)),
            "-03:00|-03:00|GMT-3|GMT-03:00|-03|-0300|-03:00|-0300|-03:00"
            "|-03|-0300|-03:00|-0300|-03:00|-0300|GMT-03:00|-03:00",
        ),
        (
            timezone(-timedelta(hours=1, minutes=15, seconds=20)),
            "-01:15:20|-01:15:20|GMT-1:15:20|GMT-01:15:20|-0115|-0115|-01:15|-011520|-01:15:20"
            "|-0115|-0115|-01:15|-011520|-01:15:20|-0115|GMT-01:15:20|-01:15:20",
        ),
        (
            timezone(timedelta(seconds=-30)),
            "-00:00:30|-00:00:30|GMT-0:00:30|GMT-00:00:30|Z|Z|Z|-000030|-00:00:30"
            "|+00|+0000|+00:00|-000030|-00:00:30|+0000|GMT-00:00:30|-00:00:30",
        ),
    ],
    ids=str,
)
def test_zones_and_offsets(zone: ZoneInfo | timezone, expected: str) -> None:
    assert format_moment(_OFFSETS, _JULY, zone) == expected


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        (UTC, "Coordinated Universal Time|UTC|Coordinated Universal Time"),
        (ZoneInfo("Etc/UTC"), "Coordinated Universal Time|UTC|Coordinated Universal Time"),
        (timezone(timedelta(hours=5.5)), "+05:30|+05:30|+05:30"),
    ],
    ids=str,
)
def test_utc_and_fixed_offsets_have_all_names(zone: ZoneInfo | timezone, expected: str) -> None:
    assert format_moment("zzzz|v|vvvv", _JULY, zone) == expected


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2024-03-31T00:59:59", "2024-03-31T01:59:59+01:00 CET"),
        ("2024-03-31T01:00:00", "2024-03-31T03:00:00+02:00 CEST"),
        ("2024-10-27T00:30:00", "2024-10-27T02:30:00+02:00 CEST"),
        ("2024-10-27T01:30:00", "2024-10-27T02:30:00+01:00 CET"),
    ],
)
def test_summer_time_begins_and_ends(moment: str, expected: str) -> None:
    berlin = ZoneInfo("Europe/Berlin")

    assert format_moment("yyyy-MM-dd'T'HH:mm:ssXXX z", nanos(moment), berlin) == expected


def test_day_is_that_of_the_zone() -> None:
    kolkata = ZoneInfo("Asia/Kolkata")

    assert format_moment("yyyy-MM-dd HH", nanos("2024-12-31T23:30:00"), kolkata) == "2025-01-01 05"
    assert format_moment("YYYY-ww", nanos("2023-12-30T20:00:00"), kolkata) == "2024-01"


@pytest.mark.parametrize(
    ("zone", "pattern"),
    [
        ("Europe/Berlin", "zzzz"),
        ("Europe/Berlin", "v"),
        ("Europe/Berlin", "vvvv"),
        ("America/Sao_Paulo", "z"),  # Java has BRT, and the tz database has -03
    ],
)
def test_names_that_only_java_knows_are_refused(zone: str, pattern: str) -> None:
    with pytest.raises(
        PatternError, match=f"^only Java has the name {pattern} of the zone {zone};"
    ):
        format_moment(pattern, _JULY, ZoneInfo(zone))


@pytest.mark.parametrize(
    "letters",
    [
        *["G" * 6, "u" * 11, "y" * 18, "y" * 20, "Y" * 11, "D" * 4, "M" * 6, "L" * 6, "d" * 3],
        *["Q" * 6, "q" * 6, "w" * 3, "WW", "E" * 6, "e" * 6, "cc", "c" * 6, "FF", "aa", "BB"],
        *["B" * 3, "B" * 6, "hhh", "KKK", "kkk", "HHH", "mmm", "sss", "S" * 10, "A" * 20],
        *["n" * 20, "N" * 20, "g" * 20, "V", "VVV", "vv", "z" * 5, "OO", "X" * 6, "x" * 6, "Z" * 6],
    ],
)
def test_invalid_number_of_letters_is_refused(letters: str) -> None:
    with pytest.raises(PatternError, match=f"^{len(letters)} times the letter {letters[0]} "):
        format_moment(f"yyyy-{letters}", _JULY, UTC)


@pytest.mark.parametrize("letter", "CIJPRTUbfijlort")
def test_unknown_letter_is_refused(letter: str) -> None:
    with pytest.raises(PatternError, match=f"^the letter {letter} has no meaning"):
        format_moment(f"yyyy-MM-dd{letter}HH", _JULY, UTC)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("yyyy'", "no ' at its end"),
        ("'''", "no ' at its end"),
        ("HH]", "] ends an optional section"),
        ("[HH]]", "] ends an optional section"),
        ("{HH", "{ is reserved"),
        ("HH}", "} is reserved"),
        ("#", "# is reserved"),
        ("pp", "p pads the letter that follows it"),
        ("pp[HH]", "p pads the letter that follows it"),
        ("pp'x'", "p pads the letter that follows it"),
        ("ppyyyy", "ppyyyy pads to 2 characters, but '2024' is longer"),
        ("ppHmm", "a number follows a padded number, as mm does"),
        ("ppHSSS", "a number follows a padded number, as SSS does"),
    ],
)
def test_other_invalid_patterns_are_refused(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError) as refusal:
        format_moment(pattern, _JULY, UTC)

    assert reason in str(refusal.value)
