"""Moments written by the date patterns of Java, as they stand in the keys of S3 objects.

A pattern means here what `DateTimeFormatter.ofPattern` of Java 17 makes of it for the locale en_US:
weeks begin on Sunday, and the first one of a year is that of January 1. What Java refuses, or fails
to write, is refused here.

What a zone is called is the one thing that Python does not know as well as Java. The ids and
offsets of all zones are exact (`VV X x Z O`), and so are the names of UTC and of fixed offsets. Of
other zones `z` writes the abbreviation of the tz database, if it has one; in our days it is also
Java's for all but Windhoek, Adak and Johnston. The other names (`zzzz v vvvv`, and abbreviations
of Java's own) would need Java's tables: they are refused, for no name is better than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple

_NANOS_PER_SECOND = 10**9
_FIRST_MODIFIED_JULIAN_DAY = date(1858, 11, 17).toordinal()

# Not from the calendar module, whose names follow the locale of the process.
_MONTHS = ["January", "February", "March", "April", "May", "June", "July"]
_MONTHS += ["August", "September", "October", "November", "December"]
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
_QUARTERS = ["1st quarter", "2nd quarter", "3rd quarter", "4th quarter"]
# Each with the hour at which it ends.
_DAY_PERIODS = (
    (6, "at night"),
    (12, "in the morning"),
    (18, "in the afternoon"),
    (21, "in the evening"),
    (24, "at night"),
)


class PatternError(ValueError):
    """A pattern that Java would refuse, or that cannot be written for this moment and zone."""


def format_moment(pattern: str, epoch_nanos: int, zone: tzinfo) -> str:
    """A moment of the years 1 to 9999 as the pattern has it, in a zone.

    The zone is a ZoneInfo or a fixed `timezone`, of which the one without an offset counts as the
    zone UTC.
    """
    writers = _compile(pattern)
    seconds, nanos = divmod(epoch_nanos, _NANOS_PER_SECOND)
    moment = _Moment(datetime.fromtimestamp(seconds, zone), nanos)
    return "".join(write(moment) for write in writers)


class _Moment(NamedTuple):
    local: datetime
    nanos: int  # of its second

    @property
    def day_of_year(self) -> int:
        return self.local.timetuple().tm_yday

    @property
    def day_of_week(self) -> int:
        """From 1, Sunday, to 7."""
        return self.local.isoweekday() % 7 + 1

    @property
    def quarter(self) -> int:
        return (self.local.month + 2) // 3

    @property
    def week_belongs_to_next_year(self) -> bool:
        return self.local.month == 12 and self.local.day + 7 - self.day_of_week > 31

    @property
    def week_of_year(self) -> int:
        return 1 if self.week_belongs_to_next_year else self.week_of(self.day_of_year)

    def week_of(self, day: int) -> int:
        """The number of its week in a month or year, of which this is the given day."""
        saturday = day + 7 - self.day_of_week
        return (saturday + 6) // 7

    @property
    def nanos_of_day(self) -> int:
        minutes = self.local.hour * 60 + self.local.minute
        return (minutes * 60 + self.local.second) * _NANOS_PER_SECOND + self.nanos


_Writer = Callable[[_Moment], str]
# What a letter writes, by how many of it stand in a row.
_Forms = dict[int, _Writer]


@dataclass(frozen=True)
class _Number:
    value: Callable[[_Moment], int]
    width: int

    def __call__(self, moment: _Moment) -> str:
        value = self.value(moment)
        # The width is that of the digits, without the sign.
        return str(value).zfill(self.width + (value < 0))


def _numbers(value: Callable[[_Moment], int], widths: Iterable[int] = (1, 2)) -> _Forms:
    return {width: _Number(value, width) for width in widths}


def _years(year: Callable[[_Moment], int]) -> _Forms:
    # For 11 to 18 letters Java fails, with an index out of bounds. From 20 on it takes only Y,
    # which is not worth a rule of its own.
    forms = _numbers(year, (*range(1, 11), 19))
    return forms | {2: _Number(lambda moment: year(moment) % 100, 2)}


def _fraction(digits: int) -> _Number:
    return _Number(lambda moment: moment.nanos // 10 ** (9 - digits), digits)


def _names(number: Callable[[_Moment], int], names: list[str]) -> _Forms:
    """Short, full and narrow names of what is counted from 1."""

    def name(moment: _Moment) -> str:
        return names[number(moment) - 1]

    return {3: lambda moment: name(moment)[:3], 4: name, 5: lambda moment: name(moment)[:1]}


def _literal(text: str) -> _Writer:
    return lambda _: text


def _pad(letters: str, write: _Writer, width: int) -> _Writer:
    def write_padded(moment: _Moment) -> str:
        text = write(moment)
        if len(text) > width:
            raise PatternError(f"{letters} pads to {width} characters, and {text!r} is longer")
        return text.rjust(width)

    return write_padded


def _day_period(moment: _Moment, midnight: str = "midnight", noon: str = "noon") -> str:
    hour = moment.local.hour
    if not moment.local.minute and hour in (0, 12):
        return noon if hour else midnight
    return next(name for end, name in _DAY_PERIODS if hour < end)


def _offset(count: int, zero: str = "") -> _Writer:
    """The offset as so many `x` write it, and as `X` does with a text in place of a zero."""
    separator = ":" if count in (3, 5) else ""

    def write(moment: _Moment) -> str:
        # Hours and minutes; seconds only where there are any.
        sign, *shown = re.findall(r"[+-]|\d\d", moment.local.strftime("%z"))
        if count <= 3:
            del shown[2:]
        if count == 1 and shown[1] == "00":
            del shown[1]
        if set(shown) == {"00"}:
            # The minus of seconds that are not shown is not shown either.
            return zero or "+" + separator.join(shown)
        return str(sign) + separator.join(shown)

    return write


def _long_gmt_offset(moment: _Moment) -> str:
    return f"GMT{_offset(5)(moment)}" if moment.local.utcoffset() else "GMT"


def _short_gmt_offset(moment: _Moment) -> str:
    # GMT+05:00 becomes GMT+5.
    return re.sub(r"(?<=[+-])0|:00$", "", _long_gmt_offset(moment))


def _zone_id(moment: _Moment) -> str:
    zone = moment.local.tzinfo
    if isinstance(zone, timezone):
        return _offset(5, "UTC")(moment)
    if key := getattr(zone, "key", None):
        return str(key)
    raise PatternError(f"VV writes the id of a zone, and {zone!r} has none")


def _zone_name(letters: str, utc: str) -> _Writer:
    def write(moment: _Moment) -> str:
        zone, abbreviation = moment.local.tzinfo, moment.local.tzname() or ""
        if isinstance(zone, timezone):
            return _offset(5, utc)(moment)
        if abbreviation == "UTC":
            return utc
        # Where no abbreviation is in use, the tz database has an offset in its place.
        if letters == "z" and abbreviation.isalpha():
            return abbreviation
        raise PatternError(
            f"{letters} writes a name that only Java knows for the zone {zone}; "
            "VV writes its id, and XXX its offset"
        )

    return write


_YEAR = _years(lambda moment: moment.local.year)
_QUARTER = _numbers(lambda moment: moment.quarter) | {
    3: lambda moment: f"Q{moment.quarter}",
    4: lambda moment: _QUARTERS[moment.quarter - 1],
    5: lambda moment: f"{moment.quarter}",
}
_MONTH_NAMES = _names(lambda moment: moment.local.month, _MONTHS)
_MONTH = _numbers(lambda moment: moment.local.month) | _MONTH_NAMES
_DAY_NAMES = _names(lambda moment: moment.day_of_week, _DAYS)
_DAY_NUMBERS = _numbers(lambda moment: moment.day_of_week)
_ANY_WIDTH = range(1, 20)
_LONG_UTC = "Coordinated Universal Time"

_LETTERS: dict[str, _Forms] = {
    "G": dict.fromkeys((1, 2, 3), _literal("AD")) | {4: _literal("Anno Domini"), 5: _literal("A")},
    "u": _YEAR,
    "y": _YEAR,
    "Y": _years(lambda moment: moment.local.year + moment.week_belongs_to_next_year),
    "Q": _QUARTER,
    "q": _QUARTER,
    "M": _MONTH,
    "L": _MONTH,
    "w": _numbers(lambda moment: moment.week_of_year),
    "W": _numbers(lambda moment: moment.week_of(moment.local.day), [1]),
    "D": _numbers(lambda moment: moment.day_of_year, [1, 2, 3]),
    "d": _numbers(lambda moment: moment.local.day),
    # In later Javas this is the week, as the documentation always had it. In Java 17 it is the day.
    "F": _numbers(lambda moment: (moment.local.day - 1) % 7 + 1, [1]),
    "g": _numbers(lambda moment: moment.local.toordinal() - _FIRST_MODIFIED_JULIAN_DAY, _ANY_WIDTH),
    "E": _DAY_NAMES | dict.fromkeys((1, 2), _DAY_NAMES[3]),
    "e": _DAY_NAMES | _DAY_NUMBERS,
    "c": _DAY_NAMES | {1: _DAY_NUMBERS[1]},
    "a": {1: lambda moment: "AM" if moment.local.hour < 12 else "PM"},
    # No other period has a narrow name.
    "B": {1: _day_period, 4: _day_period, 5: lambda moment: _day_period(moment, "mi", "n")},
    "H": _numbers(lambda moment: moment.local.hour),
    "k": _numbers(lambda moment: moment.local.hour or 24),
    "K": _numbers(lambda moment: moment.local.hour % 12),
    "h": _numbers(lambda moment: moment.local.hour % 12 or 12),
    "m": _numbers(lambda moment: moment.local.minute),
    "s": _numbers(lambda moment: moment.local.second),
    "S": {digits: _fraction(digits) for digits in range(1, 10)},
    "A": _numbers(lambda moment: moment.nanos_of_day // 10**6, _ANY_WIDTH),
    "n": _numbers(lambda moment: moment.nanos, _ANY_WIDTH),
    "N": _numbers(lambda moment: moment.nanos_of_day, _ANY_WIDTH),
    "V": {2: _zone_id},
    "v": {1: _zone_name("v", "UTC"), 4: _zone_name("vvvv", _LONG_UTC)},
    "z": dict.fromkeys((1, 2, 3), _zone_name("z", "UTC")) | {4: _zone_name("zzzz", _LONG_UTC)},
    "O": {1: _short_gmt_offset, 4: _long_gmt_offset},
    "X": {count: _offset(count, "Z") for count in range(1, 6)},
    "x": {count: _offset(count) for count in range(1, 6)},
    "Z": dict.fromkeys((1, 2, 3), _offset(2)) | {4: _long_gmt_offset, 5: _offset(5, "Z")},
}

_PART = re.compile(
    r"(?P<padding>p*)(?P<letters>(?P<letter>[A-Za-z])(?P=letter)*)"
    r"|'(?P<quoted>(?:[^']|'')*+)'"
    r"|(?P<other>.)",
    re.DOTALL,
)
_REFUSED = {char: f"{char} is reserved by Java; write '{char}' in quotes" for char in "{}#"} | {
    "'": "a text that begins with ' has no ' at its end"
}


@lru_cache
def _compile(pattern: str) -> tuple[_Writer, ...]:
    writers: list[_Writer] = []
    open_sections = 0
    follows_padded_number = False
    for part in _PART.finditer(pattern):
        letters, padding, other = part["letters"], part["padding"], part["other"]
        is_number = False
        if letters:
            writer = _find_writer(letters)
            is_number = isinstance(writer, _Number)
            if padding:
                writer = _pad(padding + letters, writer, len(padding))
            elif is_number and follows_padded_number:
                raise PatternError(
                    f"Java fails where a number follows a padded number, as {letters} does here; "
                    "pad both, or write something between them"
                )
        elif other is None:
            writer = _literal(part["quoted"].replace("''", "'") or "'")
        elif other in _REFUSED:
            raise PatternError(_REFUSED[other])
        else:
            # An optional section is left out when it asks for what is not known, and here all of
            # a moment is known. One may stay open.
            open_sections += (other == "[") - (other == "]")
            if open_sections < 0:
                raise PatternError("] ends an optional section that no [ began")
            writer = _literal("" if other in "[]" else other)
        writers.append(writer)
        follows_padded_number = is_number and bool(padding)
    return tuple(writers)


def _find_writer(letters: str) -> _Writer:
    letter, count = letters[0], len(letters)
    if letter == "p":
        raise PatternError("p pads the letter that follows it, and none does")
    if letter not in _LETTERS:
        raise PatternError(
            f"the letter {letter} has no meaning; write '{letter}' in quotes if it is a text"
        )
    forms = _LETTERS[letter]
    if count not in forms:
        raise PatternError(
            f"{count} times the letter {letter} has no meaning; "
            f"allowed: {', '.join(map(str, sorted(forms)))}"
        )
    return forms[count]
