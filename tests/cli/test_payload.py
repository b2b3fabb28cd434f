"""Rendering and decoding of payloads, without a broker."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.payload import (
    FIELDS,
    SHOW,
    WRITE,
    Encoding,
    Format,
    compact_json,
    decode_payload,
    escape_controls,
)

TURN_RED = b"\x1b[31m"
# The same with CSI as one character of the second block of control characters.
TURN_RED_IN_UTF8 = "\x9b31m".encode()
SHOWN = [Format.AUTO, Format.TEXT, Format.JSON, Format.HEX, Format.BASE64]


def fields(payload: bytes, form: Format) -> dict[str, object]:
    parsed: dict[str, object] = json.loads("{" + FIELDS[form](payload) + "}")
    return parsed


@pytest.mark.parametrize(
    ("text", "encoding", "payload"),
    [
        (b"as it \xff is ", Encoding.TEXT, b"as it \xff is "),
        (b"00fF10", Encoding.HEX, b"\x00\xff\x10"),
        (b" de ad\tbe ef\r", Encoding.HEX, b"\xde\xad\xbe\xef"),
        (b"0xdead", Encoding.HEX, b"\xde\xad"),
        (b"AP8Q", Encoding.BASE64, b"\x00\xff\x10"),
        (b"AP8Q\r\nAP8=\r\n", Encoding.BASE64, b"\x00\xff\x10\x00\xff"),
        (b" \r", Encoding.HEX, b""),
    ],
)
def test_decode_payload(text: bytes, encoding: Encoding, payload: bytes) -> None:
    assert decode_payload(text, encoding) == payload


@pytest.mark.parametrize(
    ("text", "encoding", "problem"),
    [
        (b"abc", Encoding.HEX, "not hex (odd-length string)"),
        (b"xy", Encoding.HEX, "not hex (non-hexadecimal digit found)"),
        (b"d\xc3\xa9", Encoding.HEX, "not hex (odd-length string)"),
        (b"AP8", Encoding.BASE64, "not base64 (incorrect padding)"),
        (b"AP8*", Encoding.BASE64, "not base64 (only base64 data is allowed)"),
        (b"AP8=AP8=", Encoding.BASE64, "not base64 ("),
        (b"A-_A", Encoding.BASE64, "not base64 ("),
    ],
)
def test_malformed_payload_is_rejected(text: bytes, encoding: Encoding, problem: str) -> None:
    with pytest.raises(ValueError, match="not") as caught:
        decode_payload(text, encoding)

    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("payload", "form", "shown"),
    [
        ("Grüße, 世界 👩‍🔧".encode(), Format.AUTO, "Grüße, 世界 👩‍🔧"),
        (b"two\nlines\tand a tab\r\n", Format.AUTO, r"two\nlines\tand a tab\r\n"),
        (b'{"path": "C:\\\\n"}', Format.AUTO, r'{"path": "C:\\n"}'),
        (b"\xff\x00", Format.AUTO, "0xff00"),
        (b"cut off \xc3", Format.AUTO, "0x" + b"cut off \xc3".hex()),
        (TURN_RED, Format.AUTO, "0x1b5b33316d"),
        (TURN_RED_IN_UTF8, Format.AUTO, "0xc29b33316d"),
        (b"bell\x07", Format.TEXT, r"bell\x07"),
        (TURN_RED + b"\x7f\xff", Format.TEXT, r"\x1b[31m\x7f\xff"),
        (TURN_RED_IN_UTF8, Format.TEXT, r"\x9b31m"),
        ("a\u202eb\u2028c".encode(), Format.TEXT, r"a\u202eb\u2028c"),
        (b'{"a" : [1,\n 2.50]}', Format.JSON, '{"a":[1,2.50]}'),
        (b"no json\x1b", Format.JSON, "0x" + b"no json\x1b".hex()),
        (b"deadbeef", Format.HEX, b"deadbeef".hex()),
        (b"\x00\xff\x10", Format.BASE64, "AP8Q"),
    ],
)
def test_show_renders_one_line(payload: bytes, form: Format, shown: str) -> None:
    assert SHOW[form](payload, False) == shown


@given(payload=st.one_of(st.binary(min_size=1), st.text(min_size=1).map(str.encode)))
@pytest.mark.parametrize("form", SHOWN)
def test_shown_payload_cannot_control_the_terminal(form: Format, payload: bytes) -> None:
    for keep_layout in (False, True):
        shown = SHOW[form](payload, keep_layout)
        if keep_layout:
            shown = shown.replace("\n", "").replace("\t", "")
        assert not [c for c in shown if unicodedata.category(c) == "Cc"]
        assert len(shown.splitlines()) <= 1


def test_keep_layout_keeps_line_breaks_and_tabs() -> None:
    assert escape_controls("a\tb\nc\r\x1b", keep_layout=True) == "a\tb\nc\\r\\x1b"
    assert SHOW[Format.TEXT](b"a\n\x1b", True) == "a\n\\x1b"


@pytest.mark.parametrize(
    ("payload", "form", "written"),
    [
        (b"a\tb\nc", Format.AUTO, b"a\tb\nc"),
        (TURN_RED, Format.AUTO, b"0x1b5b33316d"),
        (TURN_RED + b"\xff", Format.TEXT, TURN_RED + b"\xff"),
        (b"\x00\xff\n", Format.RAW, b"\x00\xff\n"),
        (b"[1,\n2]", Format.JSON, b"[1,2]"),
        (b"two\nlines", Format.JSON, b"two\nlines"),
        (b"\x00\xff", Format.HEX, b"00ff"),
        (b"\x00\xff", Format.BASE64, b"AP8="),
    ],
)
def test_write_for_a_pipe(payload: bytes, form: Format, written: bytes) -> None:
    assert WRITE[form](payload) == written


@pytest.mark.parametrize("form", [Format.HEX, Format.BASE64])
@given(payload=st.binary(min_size=1))
def test_hex_and_base64_round_trip(form: Format, payload: bytes) -> None:
    assert decode_payload(WRITE[form](payload), Encoding(form)) == payload
    assert decode_payload(SHOW[form](payload, False).encode(), Encoding(form)) == payload


@pytest.mark.parametrize(
    ("payload", "form", "expected"),
    [
        (b"text\x1b\n", Format.AUTO, {"payload": "text\x1b\n"}),
        ("ü".encode(), Format.TEXT, {"payload": "ü"}),
        (b"\xff", Format.AUTO, {"payload": "/w==", "encoding": "base64"}),
        (b"\xff", Format.TEXT, {"payload": "/w==", "encoding": "base64"}),
        (b'{"a": [1]}', Format.AUTO, {"payload": '{"a": [1]}'}),
        (b'{"a": [1]}', Format.JSON, {"payload": {"a": [1]}, "encoding": "json"}),
        (b'"text"', Format.JSON, {"payload": "text", "encoding": "json"}),
        (b"text", Format.JSON, {"payload": "text"}),
        (b"NaN", Format.JSON, {"payload": "NaN"}),
        (b"\xff", Format.JSON, {"payload": "/w==", "encoding": "base64"}),
        (b'"\xff"', Format.JSON, {"payload": "Iv8i", "encoding": "base64"}),
        (b"text", Format.HEX, {"payload": "74657874", "encoding": "hex"}),
        (b"text", Format.BASE64, {"payload": "dGV4dA==", "encoding": "base64"}),
    ],
)
def test_json_fields(payload: bytes, form: Format, expected: dict[str, object]) -> None:
    assert fields(payload, form) == expected


@given(payload=st.one_of(st.binary(min_size=1), st.text(min_size=1).map(str.encode)))
@pytest.mark.parametrize("form", SHOWN)
def test_json_fields_are_one_line_without_control_characters(form: Format, payload: bytes) -> None:
    line = FIELDS[form](payload)

    fields(payload, form)
    assert not [c for c in line if unicodedata.category(c) == "Cc" and c != "\x7f"]
    assert len(line.splitlines()) == 1


def test_compact_json_keeps_numbers_and_names() -> None:
    written = b' {"b": 1.10, "a": 123456789012345678901234567890,\n "b": 1e999} '

    assert compact_json(written) == '{"b":1.10,"a":123456789012345678901234567890,"b":1e999}'
    assert compact_json('["\x9b"]'.encode()) == r'["\u009b"]'
    assert compact_json(b'"\x7f"') == r'"\u007f"'
    assert compact_json(b"[" * 100_000 + b"]" * 100_000) is None
