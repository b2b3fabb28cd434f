from __future__ import annotations

import zlib
from pathlib import Path

from penstock.store.record import (
    ENTRY,
    checksum,
    crc32,
    data_path,
    first_of_name,
    index_path,
    pack_entries,
)


def test_an_entry_is_sixteen_bytes_of_end_checksum_and_time() -> None:
    (packed,) = [pack_entries([b"hello"], 7, 0x0102030405)]
    assert packed[:4] == b"\x0c\x00\x00\x00"
    assert packed[4:8] == zlib.crc32(b"hello", 0x02030405 ^ 0x01).to_bytes(4, "little")
    assert packed[8:] == b"\x05\x04\x03\x02\x01\x00\x00\x00"
    assert len(packed) == ENTRY.size == 16


def test_entries_follow_one_another() -> None:
    packed = pack_entries([b"a", b"bc", b"def"], 0, 5)
    assert [end for end, _, _ in ENTRY.iter_unpack(packed)] == [1, 3, 6]


def test_the_checksum_covers_the_time() -> None:
    assert checksum(b"x", 1) != checksum(b"x", 2)


def test_checksums_are_those_of_zlib() -> None:
    assert crc32(b"Penstock" * 100, 3) == zlib.crc32(b"Penstock" * 100, 3)


def test_names_sort_like_numbers_and_round_trip() -> None:
    directory = Path("d")
    firsts = [0, 9, 10, 2**63 - 1]
    names = [data_path(directory, first).name for first in firsts]
    assert names == sorted(names)
    assert [first_of_name(name) for name in names] == firsts
    assert first_of_name(index_path(directory, 5).name) == 5


def test_foreign_names_are_not_segments() -> None:
    for name in ("stream.json", "5.data", "0" * 20, "0" * 20 + ".log", "٣" * 20 + ".data"):
        assert first_of_name(name) is None
