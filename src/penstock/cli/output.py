"""How commands say things: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import click

_NUMBER, _UNIT = r"\d[\d,]*(?:\.\d+)?", "[A-Za-z]+"
# `-` stands for none. A unit stands apart, as in `17.2 MiB` or `3 h 12 min`: `2nd` is a name.
_NUMERIC = re.compile(rf"-|[-<]?{_NUMBER}(?:%|\.\.{_NUMBER}| {_UNIT}(?: {_NUMBER} {_UNIT})*)?")
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def echo_json(value: Any) -> None:
    """One line: a program reads it as it stands, and line by line where there are several."""
    click.echo(json.dumps(value))


def echo_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    for line in format_table(headings, rows):
        click.echo(line)


def format_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as what is in them; those of numbers are flush right."""
    cells = [[str(cell) for cell in row] for row in rows]
    numeric = [
        bool(cells) and all(_is_numeric(row[column]) for row in cells)
        for column in range(len(headings))
    ]
    table = [[heading.upper() for heading in headings], *cells]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in table
    ]


def _is_numeric(cell: str) -> bool:
    return _NUMERIC.fullmatch(cell) is not None


def printable(text: str) -> str:
    """In one line: what comes from elsewhere may hold anything, also what steers a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def human_bytes(count: int) -> str:
    """Three digits and a unit, such as `17.2 MiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in _UNITS:
        size /= 1024
        if size < 999.5 or unit == _UNITS[-1]:
            break
    return f"{size:.3g} {unit}"


def human_duration(millis: int) -> str:
    """The two largest units, such as `3 h 12 min`."""
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
