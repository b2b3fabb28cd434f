"""Output of commands: tables, colored lines, JSON."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click

_NUMBER, _UNIT = r"\d[\d,]*(?:\.\d+)?", "[A-Za-z]+"
# `-` means none. A space precedes a unit, as in `17.2 MiB` or `3 h 12 min`: `2nd` is a name.
_NUMERIC = re.compile(rf"-|[-<]?{_NUMBER}(?:%|\.\.{_NUMBER}| {_UNIT}(?: {_NUMBER} {_UNIT})*)?")


def try_echo(line: str, *, err: bool = False) -> None:
    """Prints a line. A closed pipe or a full disk does not end the command."""
    try:
        click.echo(line, err=err)
    except BrokenPipeError:
        # The buffered rest would be written at exit, and fail again.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (sys.stderr if err else sys.stdout).fileno())
        os.close(null)
    except OSError:
        pass


def echo_json(value: Any) -> None:
    """Prints JSON on one line, so that programs can read several documents line by line."""
    click.echo(json.dumps(value))


def echo_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    for line in format_table(headings, rows):
        click.echo(line)


def format_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Formats columns that fit their cells. Columns of numbers are aligned to the right."""
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
    """The text on one line, without control characters: they could control the terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class Line(NamedTuple):
    """A line of text with a style: keywords of `click.style`, used on color terminals."""

    text: str
    style: Mapping[str, Any] = {}

    def paint(self, is_colored: bool, width: int | None = None) -> str:
        text = self.text[:width]
        return click.style(text, **self.style) if is_colored and self.style and text else text


def echo_lines(lines: Iterable[Line]) -> None:
    is_colored = uses_color()
    click.echo("\n".join(line.paint(is_colored) for line in lines))


def uses_color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
