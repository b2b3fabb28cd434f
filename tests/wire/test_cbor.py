"""Untrusted CBOR: allowed items are decoded, all others are rejected before decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import cbor
from penstock.wire.cbor import (
    MAX_DEPTH,
    MAX_ITEMS,
    MalformedError,
    decode_answer,
    decode_map,
    encode,
    peek_request_id,
)

scalars = (
    st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
)
maps = st.dictionaries(
    st.text(max_size=10),
    st.recursive(
        scalars,
        lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=5), items),
        max_leaves=10,
    ),
)


@given(maps)
def test_every_allowed_map_round_trips(value: dict[str, Any]) -> None:
    assert decode_map(encode(value)) == value
    assert decode_answer(encode(value)) == value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("a0", {}),
        ("bf ff", {}),
        ("bf 61 61 01 ff", {"a": 1}),
        ("a1 61 61 9f 01 02 ff", {"a": [1, 2]}),
        ("a1 61 61 7f 62 6162 61 63 ff", {"a": "abc"}),
        ("a1 61 61 5f 42 0102 41 03 ff", {"a": b"\1\2\3"}),
        ("a1 61 61 1b 7fffffffffffffff", {"a": 2**63 - 1}),
        ("a1 61 61 3b 7fffffffffffffff", {"a": -(2**63)}),
        ("a1 61 61 1b 0000000000000001", {"a": 1}),
        ("a1 61 61 f6", {"a": None}),
        ("a1 61 61 f9 3c00", {"a": 1.0}),
        ("a1 61 61 fa 5d800000", {"a": 2.0**60}),
        ("a1 61 61 fb 4340000000000001", {"a": 2.0**53 + 2}),
        ("b8 01 61 61 01", {"a": 1}),
    ],
)
def test_every_encoding_of_an_allowed_item_is_decoded(data: str, value: dict[str, Any]) -> None:
    assert decode_map(bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "truncated"),
        ("a1", "truncated"),
        ("a1 61", "truncated"),
        ("a1 61 61", "truncated"),
        ("a1 61 61 19 01", "truncated"),
        ("a1 61 61 fb 00", "truncated"),
        ("a1 61 61 42 01", "truncated"),
        ("bf 61 61 01", "truncated"),
        ("a1 61 61 9f 01", "truncated"),
        ("a1 61 61 5f 41 01", "truncated"),
        ("bb ffffffffffffffff", "truncated"),
        ("a1 61 61 9b 7fffffffffffffff", "truncated"),
        ("a1 61 61 5b ffffffffffffffff", "truncated"),
        ("a0 00", "1 bytes after"),
        ("a0 a0", "1 bytes after"),
        ("01", "not a map"),
        ("80", "not a map"),
        ("61 61", "not a map"),
        ("a1 01 02", "text keys"),
        ("a1 41 61 02", "text keys"),
        ("a1 80 02", "text keys"),
        ("bf 61 61 ff", "a key without a value"),
        ("c0 a0", "a tag"),
        ("a1 61 61 c1 00", "a tag"),
        ("a1 61 61 d8 1c 80", "a tag"),
        ("a1 61 61 d9 d9f7 a0", "a tag"),
        ("a1 61 61 1c", "reserved length"),
        ("a1 61 61 1f", "reserved length"),
        ("a1 61 61 3f", "reserved length"),
        ("a1 61 61 5c", "reserved length"),
        ("a1 61 61 f8 20", "simple value"),
        ("a1 61 61 e0", "simple value"),
        ("a1 61 61 fc", "simple value"),
        ("ff", "simple value"),
        ("a1 61 61 ff", "simple value"),
        ("a1 61 61 7f 41 61 ff", "chunk of another type"),
        ("a1 61 61 7f 7f 61 61 ff ff", "chunk of another type"),
        ("a1 61 61 62 fffe", "not valid CBOR"),
    ],
)
def test_disallowed_bytes_are_rejected_with_the_reason(data: str, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        decode_map(bytes.fromhex(data))


@pytest.mark.parametrize("opening", [b"\x81", b"\x9f", b"\xa1\x61\x61", b"\xbf\x61\x61"])
def test_deep_nesting_is_rejected(opening: bytes) -> None:
    for depth in (MAX_DEPTH + 1, 200, 100_000):
        with pytest.raises(MalformedError, match="nested deeper"):
            decode_map(b"\xa1\x61\x61" + opening * depth)


def test_nesting_up_to_the_max_depth_is_decoded() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]

    assert decode_map(cbor2.dumps({"a": value})) == {"a": value}


def test_too_many_items_are_rejected() -> None:
    assert len(decode_map(cbor2.dumps({"a": [0] * (MAX_ITEMS - 3)}))["a"]) == MAX_ITEMS - 3
    for many in (cbor2.dumps({"a": [0] * MAX_ITEMS}), b"\xa1\x61\x61\x9f" + b"\0" * MAX_ITEMS):
        with pytest.raises(MalformedError, match=f"more than {MAX_ITEMS}"):
            decode_map(many)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_map_or_malformed(data: bytes) -> None:
    try:
        value = decode_map(data)
    except MalformedError:
        return
    assert cbor2.loads(data) == value


# Large byte strings, which the library does not decode


@contextmanager
def large_from(size: int) -> Iterator[None]:
    """Sets the size from which maps count as large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cbor, "_LARGE_BYTES", size)
        yield


def outcome(decode: Callable[[bytes], Any], data: bytes) -> tuple[type, Any]:
    """Returns the decoded value with its types and its order, or the error's class."""
    try:
        value = decode(data)
    except Exception as error:  # noqa: BLE001 - any error is compared
        return type(error), str(error)
    return type(value), repr(value)


def check_like_library(data: bytes) -> None:
    with large_from(1 << 40):
        by_library = outcome(decode_map, data)
    with large_from(0):
        assert outcome(decode_map, data) == by_library
        if data:
            assert outcome(decode_answer, data) == outcome(cbor2.loads, data)


large = st.integers(4096, 5000).map(lambda size: bytes(range(256)) * (size // 256))
maps_of_bytes = st.dictionaries(
    st.text(max_size=30),
    scalars | st.binary(min_size=20, max_size=300) | large | st.lists(scalars, max_size=2),
    max_size=40,
)


@given(maps_of_bytes, st.sampled_from([0, 1, 20, 4096]))
def test_byte_strings_are_encoded_and_decoded_like_the_library(
    value: dict[str, Any], size: int
) -> None:
    expected = cbor2.dumps(value)
    with large_from(size):
        assert encode(value) == expected
        for decode in (decode_map, decode_answer):
            decoded = decode(expected)
            assert repr(decoded) == repr(value)
            assert {type(item) for item in decoded.values()} == {
                type(item) for item in value.values()
            }


@pytest.mark.parametrize("size", [0, 23, 24, 255, 256, 4095, 4096, 65_535, 65_536, 1 << 20])
def test_byte_strings_of_every_size_round_trip(size: int) -> None:
    value = {"requestId": "r", "a": bytes(size), "number": 5, "b": b"x" * size, "none": None}
    assert encode(value) == cbor2.dumps(value)
    assert decode_map(encode(value)) == decode_answer(encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        {"a": bytearray(5000)},
        {"a": memoryview(bytes(5000)).tobytes()},
        {"a": bytes(5000), "b": {"c": bytes(5000)}, "d": [bytes(5000)]},
        {"a": bytes(5000), 5: 6, b"key": None, None: 1.5},
        [bytes(5000)],
        bytes(5000),
        {},
    ],
)
def test_other_values_are_encoded_by_the_library(value: Any) -> None:
    assert encode(value) == cbor2.dumps(value)


# Items in any encoding: with longer heads than necessary, of indefinite length, and of types that
# this protocol does not use.


def head(major: int, argument: int, width: int = 0) -> bytes:
    """Encodes the head of an item with an argument of at least this width."""
    if width == 0 and argument < 24:
        return bytes((major << 5 | argument,))
    size = next(size for size in (1, 2, 4, 8) if width <= size and argument < 1 << 8 * size)
    return bytes((major << 5 | 23 + size.bit_length(),)) + argument.to_bytes(size, "big")


widths = st.integers(0, 8)


def strings(major: int, contents: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda content, width: head(major, len(content), width) + content, contents, widths
    )


texts = strings(3, st.text(max_size=30).map(str.encode) | st.binary(max_size=4))
byte_strings = strings(2, st.binary(max_size=80))
plain_items = (
    texts
    | byte_strings
    | st.builds(head, st.sampled_from([0, 1]), st.integers(0, 2**64 - 1), widths)
    | st.integers(0, 255).map(lambda byte: bytes((byte,)))
    | st.builds(lambda size: b"\xfb" + size, st.binary(min_size=8, max_size=8))
)
any_items = plain_items | st.recursive(
    plain_items,
    lambda items: (
        st.lists(items, max_size=3).map(lambda some: bytes((0x80 | len(some),)) + b"".join(some))
        | st.lists(items, max_size=3).map(lambda some: b"\x9f" + b"".join(some) + b"\xff")
        | items.map(lambda item: b"\xc1" + item)
        | st.lists(byte_strings, max_size=3).map(lambda some: b"\x5f" + b"".join(some) + b"\xff")
        | st.lists(texts, max_size=3).map(lambda some: b"\x7f" + b"".join(some) + b"\xff")
    ),
    max_leaves=4,
)


@st.composite
def written_maps(draw: st.DrawFn) -> bytes:
    pairs = draw(
        st.lists(st.tuples(texts | plain_items, any_items) | st.tuples(texts, plain_items))
    )
    count = max(len(pairs) + draw(st.sampled_from([0, 0, 0, 0, 1, -1])), 0)
    opening = draw(st.sampled_from([head(5, count), head(5, count, 1), head(5, count, 8), b"\xbf"]))
    body = opening + b"".join(key + item for key, item in pairs)
    return body + draw(st.sampled_from([b"", b"", b"", b"\xff", b"\0"]))


@given(written_maps())
def test_any_encoding_of_a_map_is_decoded_like_the_library(data: bytes) -> None:
    check_like_library(data)


@given(maps_of_bytes, st.data())
def test_truncated_and_modified_bytes_are_decoded_like_the_library(
    value: dict[str, Any], data: st.DataObject
) -> None:
    whole = cbor2.dumps(value)
    size = data.draw(st.integers(0, len(whole)), "size")
    check_like_library(whole[:size])
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        # Most heads are near the beginning.
        place = data.draw(st.integers(0, min(len(whole), 100) - 1), "place")
        changed[place] = data.draw(st.integers(0, 255), "byte")
    check_like_library(bytes(changed))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_like_the_library(data: bytes) -> None:
    check_like_library(data)
    check_like_library(b"\xa1\x61a" + data)


PADDING = bytes(5000)


@pytest.mark.parametrize(
    "rest",
    [
        "61 62 c1 00",
        "61 62 d8 1c 80",
        "61 62 f8 20",
        "61 62 e0",
        "61 62 ff",
        "61 62 1c",
        "61 62 5b ffffffffffffffff",
        "61 62 7b ffffffffffffffff",
        "7b ffffffffffffffff",
        "61 62 62 fffe",
        "62 fffe 01",
        "61 62 7f 41 61 ff",
        "61 62",
        "61",
        "",
        "01 02",
        "41 62 02",
        "61 62 01 00",
    ],
)
def test_disallowed_items_are_rejected_beside_a_large_byte_string(rest: str) -> None:
    for data in (
        b"\xa2\x61a" + head(2, len(PADDING)) + PADDING + bytes.fromhex(rest),
        b"\xa2" + bytes.fromhex(rest) + b"\x61a" + head(2, len(PADDING)) + PADDING,
    ):
        with pytest.raises(MalformedError):
            decode_map(data)
        assert outcome(decode_answer, data) == outcome(cbor2.loads, data)


def test_last_of_two_equal_keys_wins() -> None:
    data = b"\xa3\x61a" + head(2, len(PADDING)) + PADDING + b"\x61b\x01\x61a\x02"
    assert decode_map(data) == decode_answer(data) == cbor2.loads(data) == {"a": 2, "b": 1}


def test_map_of_many_fields_is_decoded_by_the_library() -> None:
    """The Python decoder needs ten times as long for each field, and blocks the event loop."""
    few = {"payload": PADDING, **{str(number): number for number in range(31)}}
    many = few | {"one more": 1}
    assert cbor._load_flat(cbor2.dumps(few)) == few
    assert cbor._load_flat(cbor2.dumps(many)) is None
    assert decode_map(cbor2.dumps(many)) == many


@given(st.text(min_size=1, max_size=40), st.binary(max_size=20))
def test_leading_request_id_is_found(request_id: str, rest: bytes) -> None:
    encoded = cbor2.dumps(request_id)

    for opening in (b"\xa3", b"\xbf", b"\xb8\x03"):
        assert peek_request_id(opening + b"irequestId" + encoded + rest) == request_id


@pytest.mark.parametrize(
    "data",
    [
        "",
        "a1",
        "80",
        "a1 64 6e616d65 61 61",
        "a1 69 726571756573744964",
        "a1 69 726571756573744964 01",
        "a1 69 726571756573744964 60",
        "a1 69 726571756573744964 64 6162",
        "a1 69 726571756573744964 7f 61 61 ff",
        "a1 69 726571756573744964 62 fffe",
        "a1 69 726571756573744964 7c",
        "bb ff",
    ],
)
def test_incomplete_request_id_is_not_found(data: str) -> None:
    assert peek_request_id(bytes.fromhex(data)) is None


@given(st.binary(max_size=64))
def test_peek_request_id_never_raises(data: bytes) -> None:
    peek_request_id(data)
    peek_request_id(b"\xa1irequestId" + data)
