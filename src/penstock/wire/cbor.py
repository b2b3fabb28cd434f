"""CBOR as this protocol uses it: maps, arrays, texts, byte strings, numbers, booleans.

The bytes are untrusted, so their structure is checked before the library decodes them. Tags are
rejected, because they construct dates, regular expressions and shared references. Deep nesting, too
many items, and truncated or trailing bytes are also rejected.
"""

from __future__ import annotations

from typing import Any

import cbor2

MAX_DEPTH = 16
MAX_ITEMS = 100_000
# Larger byte strings are copied: the library takes 20 times as long.
_LARGE_BYTES = 4096
# For maps with more fields the library is faster.
_MAX_FLAT_FIELDS = 32

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_BREAK = 0xFF
_INDEFINITE = 31
_SIMPLE_VALUES = frozenset((20, 21, 22, 23))  # false, true, null, undefined
_FLOAT_SIZES = {25: 2, 26: 4, 27: 8}


def _size_of(head: int) -> int:
    """Returns the size of an item if its first byte determines it, otherwise 0."""
    major, info = head >> 5, head & 31
    if info < 24:
        sizes = {_UNSIGNED: 1, _NEGATIVE: 1, _BYTES: 1 + info, _TEXT: 1 + info}
        return sizes.get(major, 1 if major == _SIMPLE and info in _SIMPLE_VALUES else 0)
    if major in (_UNSIGNED, _NEGATIVE) and info <= 27:
        return 1 + (1 << (info - 24))
    return 1 + _FLOAT_SIZES[info] if major == _SIMPLE and info in _FLOAT_SIZES else 0


_SIZES = [_size_of(head) for head in range(256)]
# The first byte of a byte string and of a text whose length is the second byte.
_ONE_BYTE_LENGTH = (_BYTES << 5 | 24, _TEXT << 5 | 24)


class MalformedError(ValueError):
    """The bytes are not one CBOR item of the allowed types."""


def encode(value: Any) -> bytes:
    return cbor2.dumps(value)


def encode_parts(fields: dict[str, Any]) -> list[bytes]:
    """Encodes a map in parts; large byte strings are separate parts, which are copied once."""
    if not any(type(item) is bytes and len(item) >= _LARGE_BYTES for item in fields.values()):
        return [cbor2.dumps(fields)]
    parts = [_head(_MAP, len(fields))]
    for key, item in fields.items():
        parts.append(cbor2.dumps(key))
        if type(item) is bytes:
            parts += (_head(_BYTES, len(item)), item)
        else:
            parts.append(cbor2.dumps(item))
    return parts


def _head(major: int, length: int) -> bytes:
    head = bytearray(cbor2.dumps(length))
    head[0] |= major << 5
    return bytes(head)


def decode_map(data: bytes) -> dict[str, Any]:
    """Decodes bytes that are exactly one map."""
    end = _skip(data, 0, 0, [MAX_ITEMS])
    if end != len(data):
        raise MalformedError(f"{len(data) - end} bytes after the end of the map")
    try:
        value = _load(data)
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError) as error:
        raise MalformedError(f"not valid CBOR: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise MalformedError("not a map with text keys")
    return value


def decode_answer(data: bytes) -> dict[str, Any]:
    """Decodes a server's answer, which may have more items than any request."""
    value: dict[str, Any] = _load(data)
    return value


def _load(data: bytes) -> Any:
    if len(data) >= _LARGE_BYTES:
        try:
            fields = _load_flat(data)
        except (ValueError, IndexError):
            fields = None  # the library raises the error
        if fields is not None:
            return fields
    return cbor2.loads(data)


def _load_flat(data: bytes) -> dict[str, Any] | None:
    """Decodes a map without nested values, copying byte strings once; None for other items."""
    if data[0] >> 5 != _MAP or data[0] & 31 == _INDEFINITE:
        return None
    count, position = _argument(data, 0)
    if count > _MAX_FLAT_FIELDS:
        return None
    fields: dict[str, Any] = {}
    for _ in range(count):
        if data[position] >> 5 != _TEXT or data[position] & 31 == _INDEFINITE:
            return None
        length, start = _argument(data, position)
        key = data[start : start + length].decode()
        position = start + length
        major, info = data[position] >> 5, data[position] & 31
        if major in (_ARRAY, _MAP, _TAG) or info == _INDEFINITE:
            return None
        end = _skip(data, position, 0, [1])
        if major == _BYTES:
            fields[key] = data[_argument(data, position)[1] : end]
        else:
            fields[key] = cbor2.loads(data[position:end])
        position = end
    return fields if position == len(data) else None


def peek_request_id(data: bytes) -> str | None:
    """Returns the request id of a map whose other fields may be truncated or malformed.

    All clients send the id first, so most malformed requests can be answered.
    """
    if not data or data[0] >> 5 != _MAP:
        return None
    try:
        position = 1 if data[0] & 31 == _INDEFINITE else _argument(data, 0)[1]
        if not data.startswith(b"irequestId", position):
            return None
        position += 10
        if data[position] >> 5 != _TEXT or data[position] & 31 == _INDEFINITE:
            return None
        length, start = _argument(data, position)
        if length == 0 or start + length > len(data):
            return None
        return data[start : start + length].decode()
    except (MalformedError, IndexError, UnicodeDecodeError):
        return None


def _argument(data: bytes, position: int) -> tuple[int, int]:
    """Returns the number in an item's head, and the position after the head."""
    info = data[position] & 31
    if info < 24:
        return info, position + 1
    if info > 27:
        raise MalformedError(f"reserved length at {position}")
    end = position + 1 + (1 << (info - 24))
    if end > len(data):
        raise MalformedError("truncated")
    return int.from_bytes(data[position + 1 : end], "big"), end


def _skip(data: bytes, position: int, depth: int, items_left: list[int]) -> int:
    """Returns the position after the item; raises MalformedError if it is not allowed."""
    if position >= len(data):
        raise MalformedError("truncated")
    items_left[0] -= 1
    if items_left[0] < 0:
        raise MalformedError(f"more than {MAX_ITEMS} items")
    if depth > MAX_DEPTH:
        raise MalformedError(f"nested deeper than {MAX_DEPTH}")
    major, info = data[position] >> 5, data[position] & 31
    if major == _TAG:
        raise MalformedError(f"a tag at {position}: tags are not allowed")
    if major == _SIMPLE:
        return _skip_simple(data, position, info)
    if info == _INDEFINITE:
        return _skip_indefinite(data, position, major, depth, items_left)
    length, position = _argument(data, position)
    if major in (_UNSIGNED, _NEGATIVE):
        return position
    if major in (_BYTES, _TEXT):
        if position + length > len(data):
            raise MalformedError("truncated")
        return position + length
    # Each item has at least one byte, so a larger count is rejected without a loop.
    count = length if major == _ARRAY else 2 * length
    if count > len(data) - position:
        raise MalformedError("truncated")
    return _skip_items(data, position, count, depth + 1, items_left)


def _skip_items(data: bytes, position: int, count: int, depth: int, items_left: list[int]) -> int:
    """Returns the position after `count` items. A table has the sizes of small ones."""
    end = len(data)
    small = 0
    for _ in range(count):
        head = data[position] if position < end else -1
        if head >= 0 and _SIZES[head]:
            position += _SIZES[head]
            small += 1
        elif head in _ONE_BYTE_LENGTH and position + 1 < end:
            position += 2 + data[position + 1]
            small += 1
        else:
            position = _skip(data, position, depth, items_left)
    items_left[0] -= small
    if position > end:
        raise MalformedError("truncated")
    if small and depth > MAX_DEPTH:
        raise MalformedError(f"nested deeper than {MAX_DEPTH}")
    if items_left[0] < 0:
        raise MalformedError(f"more than {MAX_ITEMS} items")
    return position


def _skip_simple(data: bytes, position: int, info: int) -> int:
    if info in _SIMPLE_VALUES:
        return position + 1
    if info not in _FLOAT_SIZES:
        raise MalformedError(f"an unknown simple value at {position}")
    end = position + 1 + _FLOAT_SIZES[info]
    if end > len(data):
        raise MalformedError("truncated")
    return end


def _skip_indefinite(
    data: bytes, position: int, major: int, depth: int, items_left: list[int]
) -> int:
    if major in (_UNSIGNED, _NEGATIVE):
        raise MalformedError(f"reserved length at {position}")
    position += 1
    count = 0
    while position < len(data) and data[position] != _BREAK:
        if major in (_BYTES, _TEXT) and (
            data[position] >> 5 != major or data[position] & 31 == _INDEFINITE
        ):
            raise MalformedError(f"a chunk of another type in a string at {position}")
        position = _skip(data, position, depth + 1, items_left)
        count += 1
    if position >= len(data):
        raise MalformedError("truncated")
    if major == _MAP and count % 2:
        raise MalformedError("a key without a value")
    return position + 1
