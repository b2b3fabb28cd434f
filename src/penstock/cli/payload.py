"""Payloads as people and programs see them: text, JSON, hex, base64, and back from these.

Whatever is shown to people is one line that no terminal takes for a command: control characters
stand there as they would in source code. A backslash stays as it is; who needs to tell `\\n` from a
line break asks for JSON, hex or base64, which are exact.
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
    """What arguments and lines hold, when messages are taken."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


class Format(StrEnum):
    """How payloads are shown."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"
    RAW = "raw"


# The two blocks of control characters, both of which steer terminals, and those that end lines or
# turn the direction of writing, with which a text can pretend to be another one.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# The same without line breaks and tabs: they are part of what people call text.
_CONTROLS_IN_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_encode_json = json.JSONEncoder().encode


# Taking


def decode_payload(text: bytes, encoding: Encoding) -> bytes:
    """The bytes that a line or an argument stands for; ValueError says what is wrong with it."""
    if encoding is Encoding.TEXT:
        return text
    # Dumps are wrapped, and their bytes apart.
    packed = b"".join(text.split())
    try:
        if encoding is Encoding.HEX:
            return binascii.unhexlify(packed.removeprefix(b"0x"))
        return base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        problem = str(error)
        raise ValueError(f"not {encoding} ({problem[0].lower()}{problem[1:]})") from None


# Showing to people


def escape_controls(text: str, keep_layout: bool = False) -> str:
    """The text with its control characters spelled out; line breaks and tabs may stay."""
    # Nothing else is as fast, and most texts have none.
    if text.isprintable():
        return text
    return (_CONTROLS_IN_TEXT if keep_layout else _CONTROLS).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT_ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def readable_text(payload: bytes) -> str | None:
    """The text of a payload if it has no control characters, but for line breaks and tabs."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    if text.isprintable():
        return text
    # Text that was written on Windows is text.
    return None if _CONTROLS_IN_TEXT.search(text.replace("\r\n", "\n")) else text


def compact_json(payload: bytes) -> str | None:
    """The payload in one line if it is JSON; its numbers and names are not touched."""
    try:
        text = msgspec.json.format(payload, indent=-1).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # JSON has control characters in strings alone, where these escapes say the same.
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


# One line for a terminal, unless the layout of a text is to be kept. `auto` is text if the payload
# is UTF-8 that people can read, else hex after `0x`; `json` is as `auto` for what is no JSON.
SHOW: dict[Format, Callable[[bytes, bool], str]] = {
    Format.AUTO: _show_auto,
    Format.TEXT: _show_text,
    Format.JSON: _show_json,
    Format.HEX: _show_hex,
    Format.BASE64: _show_base64,
}


# Showing to programs


def _write_auto(payload: bytes) -> bytes:
    return b"0x" + payload.hex().encode() if readable_text(payload) is None else payload


def _write_json(payload: bytes) -> bytes:
    compact = compact_json(payload)
    return _write_auto(payload) if compact is None else compact.encode()


# The same for a pipe or a file, where text is as it was appended.
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


# The members of a JSON object that hold the payload. Without `encoding`, `payload` is a string with
# its text. Else `encoding` names what stands there: `json`, the value itself; `hex` or `base64`, a
# string. `json` falls back to text, and text to base64 where the payload is not UTF-8.
FIELDS: dict[Format, Callable[[bytes], str]] = {
    Format.AUTO: _text_fields,
    Format.TEXT: _text_fields,
    Format.JSON: _json_fields,
    Format.HEX: _hex_fields,
    Format.BASE64: _base64_fields,
}
