"""Output of commands: tables, printable text, styled lines, and JSON."""

from __future__ import annotations

import json

import pytest

from penstock.cli.output import Line, echo_json, echo_lines, echo_table, format_table, printable


def is_aligned_right(*cells: str) -> bool:
    heading = format_table(["x", "last"], [(cell, "") for cell in (*cells, "-")])[0]
    return heading.startswith(" ")


# Tables


def test_columns_fit_their_cells() -> None:
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
def test_column_of_numbers_is_aligned_right(cell: str) -> None:
    assert is_aligned_right(cell)
    assert is_aligned_right(cell, "1")


@pytest.mark.parametrize(
    "cell",
    ["t1", "t12", "a", "2nd", "1-2", "10.0.0.1", "127.0.0.1:80", "--", "-a", "<a", "1 min ago"],
)
def test_column_of_words_is_aligned_left(cell: str) -> None:
    assert not is_aligned_right(cell)
    assert not is_aligned_right(cell, "1000")


def test_table_without_rows_has_headings_only() -> None:
    assert format_table(["name", "size"], []) == ["NAME  SIZE"]


def test_table_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
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


# Texts


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
def test_printable_is_one_line_without_control_characters(text: str, shown: str) -> None:
    assert printable(text) == shown


# Lines


def test_line_is_cut_before_it_is_styled() -> None:
    line = Line("danger", {"fg": "red"})

    assert line.paint(is_colored=True, width=4) == "\x1b[31mdang\x1b[0m"
    assert line.paint(is_colored=True, width=0) == ""
    assert line.paint(is_colored=False) == "danger"
    assert Line("calm").paint(is_colored=True) == "calm"


def test_lines_have_no_colors_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    echo_lines([Line("danger", {"fg": "red"}), Line(""), Line("calm")])

    assert capsys.readouterr().out == "danger\n\ncalm\n"
