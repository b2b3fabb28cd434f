"""How commands say things: columns, amounts for people, and JSON."""

from __future__ import annotations

import json

import pytest

from penstock.cli.output import (
    echo_json,
    echo_table,
    format_table,
    human_bytes,
    human_duration,
    printable,
)


def is_flush_right(*cells: str) -> bool:
    heading = format_table(["x", "last"], [(cell, "") for cell in (*cells, "-")])[0]
    return heading.startswith(" ")


# Tables


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    rows = [("turbine", 12, "0..11", ""), ("a", 3, "-", "a longer one")]

    assert format_table(["name", "messages", "numbers", "note"], rows) == [
        "NAME     MESSAGES  NUMBERS  NOTE",
        "turbine        12    0..11",
        "a               3        -  a longer one",
    ]


@pytest.mark.parametrize(
    "cell",
    ["1024", "-55", "17.2", "17.2 MiB", "10,000", "50%", "<1%", "0..99", "3 h 12 min", "1000 B"],
)
def test_a_column_of_numbers_is_flush_right(cell: str) -> None:
    assert is_flush_right(cell)
    assert is_flush_right(cell, "1")


@pytest.mark.parametrize(
    "cell",
    ["t1", "t12", "a", "2nd", "1-2", "10.0.0.1", "127.0.0.1:80", "--", "-a", "<a", "1 min ago"],
)
def test_a_column_of_words_is_flush_left(cell: str) -> None:
    assert not is_flush_right(cell)
    assert not is_flush_right(cell, "1000")


def test_a_table_without_rows_is_its_headings() -> None:
    assert format_table(["name", "size"], []) == ["NAME  SIZE"]


def test_a_table_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    echo_table(["name", "size"], [("a", 100_000)])

    assert capsys.readouterr().out == "NAME    SIZE\na     100000\n"


# JSON


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "two\nlines \u2028 and a \x1b", "list": [1, None, True]}

    echo_json(value)

    printed = capsys.readouterr().out
    assert printed.endswith("\n")
    assert len(printed.splitlines()) == 1
    assert json.loads(printed) == value


# Texts and amounts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("as it is", "as it is"),
        ("straße ⚡", "straße ⚡"),
        ("two\r\nlines", "two lines"),
        ("\x1b[2J gone \x07", "[2J gone"),
        ("\u202eback", "back"),
    ],
)
def test_a_text_from_elsewhere_is_one_line_that_steers_nothing(text: str, shown: str) -> None:
    assert printable(text) == shown


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
def test_bytes_are_three_digits_and_a_unit(count: int, shown: str) -> None:
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
def test_a_duration_is_its_two_largest_units(millis: int, shown: str) -> None:
    assert human_duration(millis) == shown
