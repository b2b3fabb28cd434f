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
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone, tzinfo

_NANOS_PER_SECOND = 10**9
_FIRST_MODIFIED_JULIAN_DAY = date(1858, 11, 17).toordinal()

# Not from the calendar module, whose names follow the locale of the process.
_MONTHS = ["January", "February", "March", "April", "May", "June", "July"]
_MONTHS += ["August", "September", "October", "November", "December"]
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
_ORDINALS = ["1st", "2nd", "3rd", "4th"]
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


_PART = re.compile(
    r"(?P<padding>p*)(?P<letters>(?P<letter>[A-Za-z])(?P=letter)*)"
    r"|'(?P<quoted>(?:[^']|'')*+)'"
    r"|(?P<other>.)",
    re.DOTALL,
)


def format_moment(pattern: str, epoch_nanos: int, zone: tzinfo) -> str:
    """A moment of the years 1 to 9999 as the pattern has it, in a zone.

    The zone is a ZoneInfo or a fixed `timezone`, of which the one without an offset counts as the
    zone UTC.
    """
    seconds, nanos = divmod(epoch_nanos, _NANOS_PER_SECOND)
    local = datetime.fromtimestamp(seconds, zone)
    numbers = _find_numbers(local, nanos)
    texts: list[str] = []
    open_sections = 0
    follows_padded_number = False
    for part in _PART.finditer(pattern):
        letters, padding, other = part["letters"], part["padding"], part["other"]
        is_number = False
        if letters:
            letter, count = letters[0], len(letters)
            _check_count(letter, count)
            is_number = count in _NUMBERS.get(letter, ())
            if is_number and not padding and follows_padded_number:
                raise PatternError(
                    f"Java fails where a number follows a padded number, as {letters} does here; "
                    "pad both, or write something between them"
                )
            text = (
                _write_number(letter, count, numbers[letter])
                if is_number
                else _TEXTS[letter][1](local, count)
            )
            if padding and len(text) > len(padding):
                raise PatternError(
                    f"{padding}{letters} pads to {len(padding)} characters, and {text!r} is longer"
                )
            texts.append(text.rjust(len(padding)))
        elif other is None:
            texts.append(part["quoted"].replace("''", "'") or "'")
        elif other == "'":
            raise PatternError("a text that begins with ' has no ' at its end")
        elif other in "{}#":
            raise PatternError(f"{other} is reserved by Java; write '{other}' in quotes")
        elif other in "[]":
            # An optional section is left out when it asks for what is not known, and here all of
            # a moment is known. One may stay open.
            open_sections += 1 if other == "[" else -1
            if open_sections < 0:
                raise PatternError("] ends an optional section that no [ began")
        else:
            texts.append(other)
        follows_padded_number = is_number and bool(padding)
    return "".join(texts)


def _check_count(letter: str, count: int) -> None:
    if letter == "p":
        raise PatternError("p pads the letter that follows it, and none does")
    allowed = {*_NUMBERS.get(letter, ()), *_TEXTS.get(letter, ((), None))[0]}
    if not allowed:
        raise PatternError(
            f"the letter {letter} has no meaning; write '{letter}' in quotes if it is a text"
        )
    if count not in allowed:
        raise PatternError(
            f"{count} times the letter {letter} has no meaning; "
            f"allowed: {', '.join(map(str, sorted(allowed)))}"
        )


# Numbers

# By letter: how many of it may stand in a row for a number, which has as many digits at least. For
# 11 to 18 letters of a year Java fails, with an index out of bounds. From 20 on it takes only Y,
# which is not worth a rule of its own.
_NUMBERS: dict[str, Sequence[int]] = {
    **dict.fromkeys("uyY", (*range(1, 11), 19)),
    **dict.fromkeys("QqMLewdHkKhms", (1, 2)),
    **dict.fromkeys("WFc", (1,)),
    **dict.fromkeys("gAnN", range(1, 20)),
    "D": (1, 2, 3),
    "S": range(1, 10),
}


def _find_numbers(local: datetime, nanos: int) -> dict[str, int]:
    """The numbers of a moment by their letters."""
    day_of_year = local.timetuple().tm_yday
    # From 1, Sunday, to 7.
    day_of_week = local.isoweekday() % 7 + 1
    to_saturday = 7 - day_of_week
    is_in_first_week_of_next_year = local.month == 12 and local.day + to_saturday > 31
    week_of_year = 1 if is_in_first_week_of_next_year else (day_of_year + to_saturday + 6) // 7
    seconds = (local.hour * 60 + local.minute) * 60 + local.second
    nanos_of_day = seconds * _NANOS_PER_SECOND + nanos
    return {
        **dict.fromkeys("uy", local.year),
        "Y": local.year + is_in_first_week_of_next_year,
        **dict.fromkeys("Qq", (local.month + 2) // 3),
        **dict.fromkeys("ML", local.month),
        "w": week_of_year,
        "W": (local.day + to_saturday + 6) // 7,
        "D": day_of_year,
        "d": local.day,
        # In later Javas this is the week, as their documentation says. In Java 17 it is the day.
        "F": (local.day - 1) % 7 + 1,
        "g": local.toordinal() - _FIRST_MODIFIED_JULIAN_DAY,
        **dict.fromkeys("ec", day_of_week),
        "H": local.hour,
        "k": local.hour or 24,
        "K": local.hour % 12,
        "h": local.hour % 12 or 12,
        "m": local.minute,
        "s": local.second,
        **dict.fromkeys("Sn", nanos),
        "A": nanos_of_day // 10**6,
        "N": nanos_of_day,
    }


def _write_number(letter: str, count: int, value: int) -> str:
    if letter in "uyY" and count == 2:
        value %= 100
    if letter == "S":
        value //= 10 ** (9 - count)
    # A sign comes before as many digits.
    return str(value).zfill(count + (value < 0))


# Texts


def _era(_: datetime, count: int) -> str:
    return {4: "Anno Domini", 5: "A"}.get(count, "AD")


def _quarter_name(local: datetime, count: int) -> str:
    quarter = (local.month + 2) // 3
    return {3: f"Q{quarter}", 4: f"{_ORDINALS[quarter - 1]} quarter", 5: f"{quarter}"}[count]


def _month_name(local: datetime, count: int) -> str:
    return _shorten(_MONTHS[local.month - 1], count)


def _day_name(local: datetime, count: int) -> str:
    return _shorten(_DAYS[local.isoweekday() % 7], count)


def _shorten(name: str, count: int) -> str:
    return {4: name, 5: name[:1]}.get(count, name[:3])


def _half_of_day(local: datetime, _: int) -> str:
    return "AM" if local.hour < 12 else "PM"


def _day_period(local: datetime, count: int) -> str:
    if not local.minute and local.hour in (0, 12):
        # No other period has a narrow name.
        midnight, noon = ("mi", "n") if count == 5 else ("midnight", "noon")
        return noon if local.hour else midnight
    return next(name for end, name in _DAY_PERIODS if local.hour < end)


def _offset(local: datetime, count: int, zero: str = "") -> str:
    """The offset as so many `x` write it, and as `X` does with a text in place of a zero."""
    # Hours and minutes; seconds only where there are any.
    sign, *shown = re.findall(r"[+-]|\d\d", local.strftime("%z"))
    if count <= 3:
        del shown[2:]
    if count == 1 and shown[1] == "00":
        del shown[1]
    if set(shown) == {"00"}:
        if zero:
            return zero
        # The minus of seconds that are not shown is not shown either.
        sign = "+"
    return str(sign) + (":" if count in (3, 5) else "").join(shown)


def _gmt_offset(local: datetime, count: int) -> str:
    if not local.utcoffset():
        return "GMT"
    offset = _offset(local, 5)
    # +05:00 becomes +5.
    return "GMT" + (offset if count == 4 else re.sub(r"(?<=[+-])0|:00$", "", offset))


def _rfc_offset(local: datetime, count: int) -> str:
    if count == 4:
        return _gmt_offset(local, count)
    return _offset(local, 5, "Z") if count == 5 else _offset(local, 2)


def _zone_id(local: datetime, _: int) -> str:
    zone = local.tzinfo
    if isinstance(zone, timezone):
        return _offset(local, 5, "UTC")
    if key := getattr(zone, "key", None):
        return str(key)
    raise PatternError(f"VV writes the id of a zone, and {zone!r} has none")


def _zone_name(local: datetime, letters: str) -> str:
    zone, abbreviation = local.tzinfo, local.tzname() or ""
    utc = "Coordinated Universal Time" if len(letters) == 4 else "UTC"
    if isinstance(zone, timezone):
        return _offset(local, 5, utc)
    if abbreviation == "UTC":
        return utc
    # Where no abbreviation is in use, the tz database has an offset in its place.
    if letters == "z" and abbreviation.isalpha():
        return abbreviation
    raise PatternError(
        f"{letters} writes a name that only Java knows for the zone {zone}; "
        "VV writes its id, and XXX its offset"
    )


# By letter: how many of it may stand in a row for a text, and what writes it.
_TEXTS: dict[str, tuple[Sequence[int], Callable[[datetime, int], str]]] = {
    "G": (range(1, 6), _era),
    **dict.fromkeys("Qq", ((3, 4, 5), _quarter_name)),
    **dict.fromkeys("ML", ((3, 4, 5), _month_name)),
    **dict.fromkeys("ec", ((3, 4, 5), _day_name)),
    "E": (range(1, 6), _day_name),
    "a": ((1,), _half_of_day),
    "B": ((1, 4, 5), _day_period),
    "V": ((2,), _zone_id),
    "v": ((1, 4), lambda local, count: _zone_name(local, "v" * count)),
    "z": (range(1, 5), lambda local, count: _zone_name(local, "zzzz" if count == 4 else "z")),
    "O": ((1, 4), _gmt_offset),
    "X": (range(1, 6), lambda local, count: _offset(local, count, "Z")),
    "x": (range(1, 6), _offset),
    "Z": (range(1, 6), _rfc_offset),
}
