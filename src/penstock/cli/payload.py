"""Converts payloads to text, JSON, hex and base64, and hex and base64 to payloads.

A payload on a terminal is one line without control characters: they are escaped as in source code.
A backslash is not escaped. To distinguish `\\n` from a line break, use JSON, hex or base64, which
are exact.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from enum import StrEnum

import msgspec


class Encoding(StrEnum):
    """The encoding of messages in arguments, files and standard input."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


class Format(StrEnum):
    """The format in which payloads are printed."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"
    RAW = "raw"


# Both blocks of control characters, line separators, and characters that change the direction of
# text, which can make a text look like another.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# All of these except line breaks and tabs, which are part of text.
_CONTROLS_IN_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_encode_json = json.JSONEncoder().encode


# Decoding


def decode_payload(text: bytes, encoding: Encoding) -> bytes:
    """Decodes a line or an argument; ValueError if it is malformed."""
    if encoding is Encoding.TEXT:
        return text
    # Dumps have line breaks and spaces between bytes.
    packed = b"".join(text.split())
    try:
        if encoding is Encoding.HEX:
            return binascii.unhexlify(packed.removeprefix(b"0x"))
        return base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        problem = str(error)
        raise ValueError(f"not {encoding} ({problem[0].lower()}{problem[1:]})") from None


# For terminals


def escape_controls(text: str, keep_layout: bool = False) -> str:
    """Escapes control characters. `keep_layout` keeps line breaks and tabs."""
    # The fast path: most texts have no control characters.
    if text.isprintable():
        return text
    return (_CONTROLS_IN_TEXT if keep_layout else _CONTROLS).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT_ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def readable_text(payload: bytes) -> str | None:
    """The payload as text; None if it is not UTF-8 or has control characters other than line breaks
    and tabs."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    if text.isprintable():
        return text
    # Line breaks of Windows are allowed.
    return None if _CONTROLS_IN_TEXT.search(text.replace("\r\n", "\n")) else text


def compact_json(payload: bytes) -> str | None:
    """The payload as JSON on one line, with numbers and names unchanged; None if it is not JSON."""
    try:
        text = msgspec.json.format(payload, indent=-1).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # JSON allows control characters in strings only, where these escapes are equivalent.
    return text if text.isprintable() else _CONTROLS.sub(_escape_in_json, text)


def _escape_in_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _show_auto(payload: bytes, keep_layout: bool) -> str:
    text = readable_text(payload)
    return f"0x{payload.hex()}" if text is None else escape_controls(text, keep_layout)


def _show_text(payload: bytes, keep_layout: bool) -> str:
    return escape_controls(payload.decode(errors="backslashreplace"), keep_layout)


def _show_json(payload: bytes, keep_layout: bool) -> str:
    return compact_json(payload) or _show_auto(payload, keep_layout)


def _show_hex(payload: bytes, _keep_layout: bool) -> str:
    return payload.hex()


def _show_base64(payload: bytes, _keep_layout: bool) -> str:
    return base64.b64encode(payload).decode()


# One line for a terminal, unless the layout is kept. `auto` is text if the payload is readable
# UTF-8, else hex after `0x`. `json` is like `auto` if the payload is not JSON.
SHOW: dict[Format, Callable[[bytes, bool], str]] = {
    Format.AUTO: _show_auto,
    Format.TEXT: _show_text,
    Format.JSON: _show_json,
    Format.HEX: _show_hex,
    Format.BASE64: _show_base64,
}


# For programs


def _write_auto(payload: bytes) -> bytes:
    return b"0x" + payload.hex().encode() if readable_text(payload) is None else payload


def _write_json(payload: bytes) -> bytes:
    compact = compact_json(payload)
    return _write_auto(payload) if compact is None else compact.encode()


# The formats for a pipe or a file, in which text is not changed.
WRITE: dict[Format, Callable[[bytes], bytes]] = {
    Format.AUTO: _write_auto,
    Format.TEXT: bytes,
    Format.JSON: _write_json,
    Format.HEX: binascii.hexlify,
    Format.BASE64: base64.b64encode,
    Format.RAW: bytes,
}


def _text_fields(payload: bytes) -> str:
    try:
        return f'"payload": {_encode_json(payload.decode())}'
    except UnicodeDecodeError:
        return _base64_fields(payload)


def _json_fields(payload: bytes) -> str:
    compact = compact_json(payload)
    return _text_fields(payload) if compact is None else f'"payload": {compact}, "encoding": "json"'


def _hex_fields(payload: bytes) -> str:
    return f'"payload": "{payload.hex()}", "encoding": "hex"'


def _base64_fields(payload: bytes) -> str:
    return f'"payload": "{base64.b64encode(payload).decode()}", "encoding": "base64"'


# The members of a JSON object that hold the payload. Without `encoding`, `payload` is the text.
# Otherwise `encoding` is `json` for a JSON value, or `hex` or `base64` for an encoded string.
# `json` falls back to text, and text falls back to base64 if the payload is not UTF-8.
FIELDS: dict[Format, Callable[[bytes], str]] = {
    Format.AUTO: _text_fields,
    Format.TEXT: _text_fields,
    Format.JSON: _json_fields,
    Format.HEX: _hex_fields,
    Format.BASE64: _base64_fields,
}
