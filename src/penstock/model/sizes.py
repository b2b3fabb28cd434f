"""Parses sizes in bytes with units."""

from __future__ import annotations

import re
from fractions import Fraction

PREFIXES = "KMGTPE"
SIZE_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(PREFIXES, 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(PREFIXES, 1)},
}
_SIZE_OF = {"": 1, **{unit.lower(): size for unit, size in SIZE_UNITS.items()}}
NUMBER = r"(\d+(?:\.\d+)?)\s*"


def parse_size(text: str) -> int:
    """The bytes of a size such as `1024`, `256MiB` (256 x 1024 x 1024) or `1GB` (1000**3)."""
    match = re.fullmatch(rf"{NUMBER}([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in _SIZE_OF:
        raise ValueError(
            f"{text!r} is not a size: expected a number and a unit, such as 1024, 64KiB, 256MiB "
            "or 1GB"
        )
    return whole_number(Fraction(match[1]) * _SIZE_OF[match[2]], text, "bytes")


def whole_number(amount: Fraction, text: str, unit: str) -> int:
    if amount.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of {unit}")
    return int(amount)
