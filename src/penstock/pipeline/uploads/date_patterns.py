"""Java's date patterns, as used in the keys of S3 objects.

A pattern has the same result as with `DateTimeFormatter.ofPattern` of Java 17 and the locale en_US:
weeks begin on Sunday, and the first week of a year is that of January 1. A pattern is refused if
Java refuses it, or fails to format it.

Only the names of zones differ. The ids and offsets of all zones (`VV X x Z O`) and the names of UTC
and of fixed offsets are exact. For other zones `z` is the abbreviation of the tz database, which
today is also Java's, except for Windhoek, Adak and Johnston. Names that need Java's own tables
(`zzzz v vvvv`, and `z` for zones without an abbreviation) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timezone
from zoneinfo import ZoneInfo

_NANOS_PER_SECOND = 10**9
_FIRST_MODIFIED_JULIAN_DAY = date(1858, 11, 17).toordinal()

# Not from the calendar module, whose names follow the locale of the process.
_MONTHS = ["January", "February", "March", "April", "May", "June", "July"]
_MONTHS += ["August", "September", "October", "November", "December"]
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
# By hour.
_DAY_PERIODS = [*["at night"] * 6, *["in the morning"] * 6, *["in the afternoon"] * 6]
_DAY_PERIODS += [*["in the evening"] * 3, *["at night"] * 3]

# How often the letter of a year may be repeated. Java fails for 11 to 18. From 20 on it accepts
# only Y, which we refuse too.
_YEAR_COUNTS = (*range(1, 11), 19)
_LONG_COUNTS = range(1, 20)

_PART = re.compile(
    r"(?P<padding>p*)(?P<letters>(?P<letter>[A-Za-z])(?P=letter)*)"
    r"|'(?P<quoted>(?:[^']|'')*+)'"
    r"|(?P<other>.)",
    re.DOTALL,
)


class PatternError(ValueError):
    """A pattern that Java would refuse, or that cannot be formatted for this moment and zone."""


def format_moment(pattern: str, epoch_nanos: int, zone: ZoneInfo | timezone) -> str:
    """Formats a moment of the years 1 to 9999. A `timezone` without an offset is the zone UTC."""
    seconds, nanos = divmod(epoch_nanos, _NANOS_PER_SECOND)
    local = datetime.fromtimestamp(seconds, zone)
    numbers = _format_numbers(local, nanos)
    written: list[str] = []
    open_sections = 0
    follows_padded_number = False
    for part in _PART.finditer(pattern):
        letters, padding, other = part["letters"], part["padding"], part["other"]
        is_number = False
        if letters:
            forms = numbers.get(letters[0], {})
            is_number = len(letters) in forms
            if is_number and not padding and follows_padded_number:
                raise PatternError(
                    f"Java fails where a number follows a padded number, as {letters} does here; "
                    "pad both, or write a text between them"
                )
            text = forms[len(letters)] if is_number else _find_text(letters, local, forms)
            if padding and len(text) > len(padding):
                raise PatternError(
                    f"{padding}{letters} pads to {len(padding)} characters, but {text!r} is longer"
                )
            written.append(text.rjust(len(padding)))
        elif other is None:
            written.append(part["quoted"].replace("''", "'") or "'")
        elif other == "'":
            raise PatternError("a text that begins with ' has no ' at its end")
        elif other in "{}#":
            raise PatternError(f"{other} is reserved by Java; write '{other}' in quotes")
        elif other in "[]":
            # Optional sections are always written: all fields of a moment are known.
            open_sections += 1 if other == "[" else -1
            if open_sections < 0:
                raise PatternError("] ends an optional section, but no [ begins it")
        else:
            written.append(other)
        follows_padded_number = is_number and bool(padding)
    return "".join(written)


def _find_text(letters: str, local: datetime, numbers: Mapping[int, str]) -> str:
    """The text of a letter by how often it is repeated. `numbers` are its numeric forms."""
    letter, count = letters[0], len(letters)
    if letter == "p":
        raise PatternError("p pads the letter that follows it, but no letter follows")
    forms = {**_format_texts(local).get(letter, {}), **numbers}
    if not forms:
        raise PatternError(
            f"the letter {letter} has no meaning; write '{letter}' in quotes if it is a text"
        )
    if count not in forms:
        allowed = ", ".join(map(str, sorted(forms)))
        raise PatternError(f"{count} times the letter {letter} has no meaning; allowed: {allowed}")
    text = forms[count]
    if text is None:
        raise PatternError(
            f"only Java has the name {letters} of the zone {local.tzinfo}; "
            "use VV for its id, or XXX for its offset"
        )
    return text


def _format_numbers(local: datetime, nanos: int) -> dict[str, dict[int, str]]:
    """The numbers of a moment, by their letters and how often a letter is repeated."""
    day_of_year = local.timetuple().tm_yday
    # From 1, Sunday, to 7.
    day_of_week = local.isoweekday() % 7 + 1
    to_saturday = 7 - day_of_week
    is_in_first_week_of_next_year = local.month == 12 and local.day + to_saturday > 31
    week_of_year = 1 if is_in_first_week_of_next_year else (day_of_year + to_saturday + 6) // 7
    seconds = (local.hour * 60 + local.minute) * 60 + local.second
    nanos_of_day = seconds * _NANOS_PER_SECOND + nanos
    return {
        **dict.fromkeys("uy", _format_year(local.year)),
        "Y": _format_year(local.year + is_in_first_week_of_next_year),
        **dict.fromkeys("Qq", _pad((local.month + 2) // 3)),
        **dict.fromkeys("ML", _pad(local.month)),
        "w": _pad(week_of_year),
        "W": _pad((local.day + to_saturday + 6) // 7, (1,)),
        "D": _pad(day_of_year, (1, 2, 3)),
        "d": _pad(local.day),
        # Java 17 formats the day. Later versions format the week, as documented.
        "F": _pad((local.day - 1) % 7 + 1, (1,)),
        "g": _pad(local.toordinal() - _FIRST_MODIFIED_JULIAN_DAY, _LONG_COUNTS),
        "e": _pad(day_of_week),
        "c": _pad(day_of_week, (1,)),
        "H": _pad(local.hour),
        "k": _pad(local.hour or 24),
        "K": _pad(local.hour % 12),
        "h": _pad(local.hour % 12 or 12),
        "m": _pad(local.minute),
        "s": _pad(local.second),
        "S": {count: f"{nanos:09}"[:count] for count in range(1, 10)},
        "n": _pad(nanos, _LONG_COUNTS),
        "A": _pad(nanos_of_day // 10**6, _LONG_COUNTS),
        "N": _pad(nanos_of_day, _LONG_COUNTS),
    }


def _format_year(year: int) -> dict[int, str]:
    return {**_pad(year, _YEAR_COUNTS), 2: f"{year % 100:02}"}


def _pad(value: int, counts: Iterable[int] = (1, 2)) -> dict[int, str]:
    """A number with at least `count` digits; a sign comes before them."""
    return {count: str(value).zfill(count + (value < 0)) for count in counts}


def _format_texts(local: datetime) -> Mapping[str, Mapping[int, str | None]]:
    """The texts of a moment, as `_format_numbers`; None for names that only Java has."""
    quarter = (local.month + 2) // 3
    ordinal = ["1st", "2nd", "3rd", "4th"][quarter - 1]
    quarters = {3: f"Q{quarter}", 4: f"{ordinal} quarter", 5: f"{quarter}"}
    month = _MONTHS[local.month - 1]
    months = {3: month[:3], 4: month, 5: month[:1]}
    day = _DAYS[local.isoweekday() % 7]
    days = {3: day[:3], 4: day, 5: day[:1]}
    period = narrow_period = _DAY_PERIODS[local.hour]
    if not local.minute and local.hour in (0, 12):
        period, narrow_period = ("noon", "n") if local.hour else ("midnight", "mi")
    offsets = {count: _format_offset(local, count) for count in range(1, 6)}
    utc_offsets = {count: _format_offset(local, count, "Z") for count in range(1, 6)}
    gmt = "GMT" + (offsets[5] if local.utcoffset() else "")
    is_fixed = isinstance(local.tzinfo, timezone)
    abbreviation = local.tzname() or ""
    is_known = is_fixed or abbreviation == "UTC"
    generic_name = _format_offset(local, 5, "UTC") if is_known else None
    long_name = _format_offset(local, 5, "Coordinated Universal Time") if is_known else None
    # For zones without an abbreviation the tz database has an offset instead.
    name = generic_name or (abbreviation if abbreviation.isalpha() else None)
    return {
        "G": {**dict.fromkeys((1, 2, 3), "AD"), 4: "Anno Domini", 5: "A"},
        **dict.fromkeys("Qq", quarters),
        **dict.fromkeys("ML", months),
        **dict.fromkeys("ec", days),
        "E": {1: day[:3], 2: day[:3], **days},
        "a": {1: "AM" if local.hour < 12 else "PM"},
        "B": {1: period, 4: period, 5: narrow_period},
        "V": {2: name if is_fixed else str(local.tzinfo)},
        "z": {**dict.fromkeys((1, 2, 3), name), 4: long_name},
        "v": {1: generic_name, 4: long_name},
        # +05:00 becomes +5.
        "O": {1: re.sub(r"(?<=[+-])0|:00$", "", gmt), 4: gmt},
        "X": utc_offsets,
        "x": offsets,
        "Z": {**dict.fromkeys((1, 2, 3), offsets[2]), 4: gmt, 5: utc_offsets[5]},
    }


def _format_offset(local: datetime, count: int, zero: str = "") -> str:
    """The offset as `x` repeated `count` times. If given, `zero` replaces a zero offset."""
    # Hours and minutes, and seconds if there are any.
    sign, *shown = re.findall(r"[+-]|\d\d", local.strftime("%z"))
    if count <= 3:
        del shown[2:]
    if count == 1 and shown[1] == "00":
        del shown[1]
    if set(shown) == {"00"}:
        if zero:
            return zero
        # Seconds that are not shown may have been negative.
        sign = "+"
    return str(sign) + (":" if count in (3, 5) else "").join(shown)
