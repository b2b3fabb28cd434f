"""Parses and formats sizes, durations and times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from penstock.model.sizes import NUMBER, PREFIXES, SIZE_UNITS, parse_size, whole_number

__all__ = [
    "format_duration",
    "format_size",
    "human_bytes",
    "human_duration",
    "parse_duration",
    "parse_size",
    "parse_time",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION_UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000, "ms": 1}
_MILLIS_OF = {**_DURATION_UNITS, "m": 60_000, "w": 7 * 86_400_000}
_DURATION = rf"{NUMBER}([a-z]+)\s*"


def format_size(size: int) -> str:
    """The exact size, in the largest unit that divides it."""
    units = ((unit, factor) for unit, factor in SIZE_UNITS.items() if size and size % factor == 0)
    unit, factor = max(units, key=lambda found: found[1], default=("B", 1))
    return f"{size // factor} {unit}"


def parse_duration(text: str) -> int:
    """Milliseconds, from `90s`, `2h`, `7d` or `1h 30min`. A number needs a unit."""
    lowered = text.strip().lower()
    amounts = re.findall(_DURATION, lowered, re.ASCII)
    is_all = re.fullmatch(f"(?:{_DURATION})+", lowered, re.ASCII)
    if not is_all or any(unit not in _MILLIS_OF for _, unit in amounts):
        raise ValueError(
            f"{text!r} is not a duration: expected numbers with units, such as 90s, 30min, 2h, 7d"
        )
    millis = sum(Fraction(number) * _MILLIS_OF[unit] for number, unit in amounts)
    return whole_number(Fraction(millis), text, "milliseconds")


def parse_time(text: str, now_millis: int) -> int:
    """Milliseconds since 1970, from `2h ago` or an ISO 8601 time. Without a zone it is local."""
    lowered = text.strip().lower()
    try:
        if lowered.endswith("ago"):
            return now_millis - parse_duration(lowered.removesuffix("ago"))
        moment = datetime.fromisoformat(text.strip()).astimezone(UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is not a time: expected a time such as 2026-03-01T08:00, "
            "2026-03-01T08:00:00Z or 2h ago"
        ) from None


def format_duration(millis: int) -> str:
    """The exact duration, such as `1 h 30 min`."""
    parts = []
    for unit, factor in _DURATION_UNITS.items():
        count, millis = divmod(millis, factor)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def human_bytes(count: int) -> str:
    """The size rounded to three digits, such as `17.2 MiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for prefix in PREFIXES:
        size /= 1024
        if size < 999.5 or prefix == PREFIXES[-1]:
            break
    return f"{size:.3g} {prefix}iB"


def human_duration(millis: int) -> str:
    """The duration in its two largest units, such as `3 h 12 min`."""
    seconds = millis // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
