"""Parsing of names, patterns and positions in options."""

from __future__ import annotations

import pytest

from penstock.errors import ResourceNotFoundException, SettingError
from penstock.model.limits import INT64_MAX
from penstock.model.storage import StreamPosition
from penstock.spark.selection import Positions, parse_streams, require_found

STREAM = StreamPosition("a", "1", 10, 20)


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        (" a , b c ", ["a", "b c"]),
        ("sensor-*", ["sensor-*"]),
        ("[ab]?", ["[ab]?"]),
        ('["a"]', ["a"]),
        (' [ "a,b", " c " ]', ["a,b", " c "]),
        ('["[ab]*", "c"]', ["[ab]*", "c"]),
    ],
)
def test_streams_are_named_singly_or_by_pattern(text: str, streams: list[str]) -> None:
    assert parse_streams(text) == streams


@pytest.mark.parametrize("text", ["", "a,,b", ",", "a,", '["a"', '["a"]]', '["a", 1]', '["a", ""]'])
def test_invalid_list_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(SettingError, match=r"^option stream is") as caught:
        parse_streams(text)
    assert repr(text) in str(caught.value)


def test_named_stream_must_exist() -> None:
    require_found(["a"], [STREAM])
    with pytest.raises(ResourceNotFoundException, match=r"'b' does not exist"):
        require_found(["a", "b"], [STREAM])


@pytest.mark.parametrize("pattern", ["x*", "x?", "[x]"])
def test_pattern_may_match_no_stream(pattern: str) -> None:
    require_found([pattern], [])


@pytest.mark.parametrize(
    ("text", "number"),
    [("earliest", 10), ("latest", 20), ("0", 0), ("15", 15), (" 99 ", 99), (str(INT64_MAX), None)],
)
def test_single_position_applies_to_all_streams(text: str, number: int | None) -> None:
    expected = INT64_MAX if number is None else number
    assert Positions.parse("startingPosition", text, "latest").resolve(STREAM) == expected


@pytest.mark.parametrize(("default", "number"), [("earliest", 10), ("latest", 20), (7, 7)])
def test_default_applies_without_a_position(default: str, number: int) -> None:
    positions = Positions.parse("startingPosition", None, default)  # type: ignore[arg-type]
    assert positions.resolve(STREAM) == number


def test_each_stream_can_have_a_position() -> None:
    text = '{"a": 12, "b": "earliest", "c": "latest", "d": "3"}'
    positions = Positions.parse("startingPosition", text, "latest")
    found = [positions.resolve(StreamPosition(name, "1", 10, 20)) for name in "abcde"]
    assert found == [12, 10, 20, 3, 20]


@pytest.mark.parametrize(
    "text",
    ["", "Earliest", "-1", "1.0", "1_000", "+5", "٣", "first", str(INT64_MAX + 1), "9" * 5000],
)
def test_invalid_position_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"^option endingPosition is .*: expected earliest"):
        Positions.parse("endingPosition", text, "latest")


@pytest.mark.parametrize("value", ["-1", "1.5", "1.0", "true", "false", "null", "[1]", "{}", '"x"'])
def test_invalid_position_of_one_stream_is_refused(value: str) -> None:
    with pytest.raises(SettingError, match=r"^option endingPosition of a is"):
        Positions.parse("endingPosition", f'{{"a": {value}}}', "latest")


def test_invalid_json_is_shown() -> None:
    with pytest.raises(SettingError, match=r"^option startingPosition is '\{\"a\": 1': not JSON"):
        Positions.parse("startingPosition", '{"a": 1', "latest")


def test_position_of_another_stream_is_refused() -> None:
    positions = Positions.parse("startingPosition", '{"a": 1, "b": 2}', "latest")
    positions.require_known([STREAM, StreamPosition("b", "2", 0, 0)])
    with pytest.raises(SettingError, match=r"startingPosition names 'b', .* expected one of a$"):
        positions.require_known([STREAM])
    with pytest.raises(SettingError, match=r"\(no streams exist\)$"):
        positions.require_known([])
