"""CBOR from outside: plain items are decoded, everything else is refused before it is built."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
def test_every_plain_map_comes_back(value: dict[str, Any]) -> None:
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
def test_every_way_to_write_a_plain_item_is_read(data: str, value: dict[str, Any]) -> None:
    assert decode_map(bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "cut off"),
        ("a1", "cut off"),
        ("a1 61", "cut off"),
        ("a1 61 61", "cut off"),
        ("a1 61 61 19 01", "cut off"),
        ("a1 61 61 fb 00", "cut off"),
        ("a1 61 61 42 01", "cut off"),
        ("bf 61 61 01", "cut off"),
        ("a1 61 61 9f 01", "cut off"),
        ("a1 61 61 5f 41 01", "cut off"),
        ("bb ffffffffffffffff", "cut off"),
        ("a1 61 61 9b 7fffffffffffffff", "cut off"),
        ("a1 61 61 5b ffffffffffffffff", "cut off"),
        ("a0 00", "1 bytes behind"),
        ("a0 a0", "1 bytes behind"),
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
        ("a1 61 61 7f 41 61 ff", "foreign chunk"),
        ("a1 61 61 7f 7f 61 61 ff ff", "foreign chunk"),
        ("a1 61 61 62 fffe", "not valid CBOR"),
    ],
)
def test_what_is_not_one_plain_map_is_refused_with_the_reason(data: str, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        decode_map(bytes.fromhex(data))


@pytest.mark.parametrize("opening", [b"\x81", b"\x9f", b"\xa1\x61\x61", b"\xbf\x61\x61"])
def test_deep_nesting_is_refused_at_once(opening: bytes) -> None:
    for depth in (MAX_DEPTH + 1, 200, 100_000):
        with pytest.raises(MalformedError, match="nested deeper"):
            decode_map(b"\xa1\x61\x61" + opening * depth)


def test_nesting_as_deep_as_allowed_is_read() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]

    assert decode_map(cbor2.dumps({"a": value})) == {"a": value}


def test_too_many_items_are_refused() -> None:
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


@given(st.text(min_size=1, max_size=40), st.binary(max_size=20))
def test_a_request_id_in_front_is_found_whatever_follows(request_id: str, rest: bytes) -> None:
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
def test_no_request_id_is_found_where_none_is_whole(data: str) -> None:
    assert peek_request_id(bytes.fromhex(data)) is None


@given(st.binary(max_size=64))
def test_looking_for_a_request_id_never_fails(data: bytes) -> None:
    peek_request_id(data)
    peek_request_id(b"\xa1irequestId" + data)
