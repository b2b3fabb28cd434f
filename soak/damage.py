"""Damages the files of a stream, and computes the damaged messages. The broker is stopped.

docs/file-format.md describes the files: `<first>.data` contains payloads, `<first>.index` an entry
of 16 bytes for each.
"""

from __future__ import annotations

import json
import struct
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import NamedTuple

_ENTRY = struct.Struct("<IIq")
# The first bytes of an entry are the end of its payload, which is the start of the next payload.
_END_BYTES = 4


class DamageKind(StrEnum):
    FLIP_DATA = "bit flip in .data"
    FLIP_INDEX = "bit flip in .index"
    ZERO_DATA = "zeros in .data"
    TRUNCATE_DATA = "truncated .data"
    TRUNCATE_INDEX = "truncated .index"
    FLIP_CATALOG = "bit flip in the catalog"
    ZERO_CATALOG = "zeros in the catalog"
    TRUNCATE_CATALOG = "truncated catalog"


SEGMENT_DAMAGE = (
    DamageKind.FLIP_DATA,
    DamageKind.FLIP_INDEX,
    DamageKind.ZERO_DATA,
    DamageKind.TRUNCATE_DATA,
    DamageKind.TRUNCATE_INDEX,
)
# The number of replaced bytes; 0 for a truncation.
_CATALOG_DAMAGE = {
    DamageKind.FLIP_CATALOG: 1,
    DamageKind.ZERO_CATALOG: 4096,
    DamageKind.TRUNCATE_CATALOG: 0,
}


class Damage(NamedTuple):
    kind: DamageKind
    path: Path
    position: int
    # The new bytes at the position; None truncates the file there.
    replacement: bytes | None
    # The sequence numbers of unreadable messages.
    hits: frozenset[int]

    def apply(self) -> None:
        with self.path.open("r+b") as file:
            if self.replacement is None:
                file.truncate(self.position)
            else:
                file.seek(self.position)
                file.write(self.replacement)


def plan_catalog_damage(root: Path, random: Random) -> Damage:
    """Plans damage of the catalog, which makes no message unreadable."""
    catalog = root / "catalog.sqlite"
    size = catalog.stat().st_size
    kind = random.choice(list(_CATALOG_DAMAGE))
    position = random.randrange(size)
    length = _CATALOG_DAMAGE[kind]
    replacement = None
    if length == 1:
        replacement = _flip(catalog, position, random)
    elif length:
        replacement = bytes(min(length, size - position))
    return Damage(kind, catalog, position, replacement, frozenset())


class SegmentPaths(NamedTuple):
    first: int
    data_path: Path
    index_path: Path

    def ends(self) -> list[int]:
        """Returns the end positions of the payloads."""
        return [entry[0] for entry in _ENTRY.iter_unpack(self.index_path.read_bytes())]


def find_stream_directory(root: Path, name: str) -> Path:
    for definition in (root / "streams").glob("*/stream.json"):
        if json.loads(definition.read_bytes())["name"] == name:
            return definition.parent
    raise FileNotFoundError(f"{root} has no stream {name!r}")


def list_segments(directory: Path) -> list[SegmentPaths]:
    """Returns the segments with messages, in order."""
    segments = [
        SegmentPaths(int(path.stem), path, path.with_suffix(".index"))
        for path in sorted(directory.glob("*.data"))
    ]
    return [
        each for each in segments if each.index_path.exists() and each.index_path.stat().st_size
    ]


def plan_damage(segment: SegmentPaths, kind: DamageKind, random: Random) -> Damage:
    """Plans damage of a segment, without changing its files."""
    ends = segment.ends()
    numbers = range(segment.first, segment.first + len(ends))
    if kind is DamageKind.TRUNCATE_INDEX:
        position = random.randrange(len(ends) * _ENTRY.size)
        hits = frozenset(numbers[position // _ENTRY.size :])
        return Damage(kind, segment.index_path, position, None, hits)
    if kind is DamageKind.FLIP_INDEX:
        position = random.randrange(len(ends) * _ENTRY.size)
        flipped = _flip(segment.index_path, position, random)
        place = position // _ENTRY.size
        reach = 2 if position % _ENTRY.size < _END_BYTES else 1
        return Damage(
            kind, segment.index_path, position, flipped, frozenset(numbers[place : place + reach])
        )
    position = random.randrange(ends[-1])
    if kind is DamageKind.TRUNCATE_DATA:
        hits = frozenset(n for n, end in zip(numbers, ends, strict=True) if end > position)
        return Damage(kind, segment.data_path, position, None, hits)
    if kind is DamageKind.FLIP_DATA:
        flipped = _flip(segment.data_path, position, random)
        return Damage(
            kind,
            segment.data_path,
            position,
            flipped,
            _covering(numbers, ends, position, position + 1),
        )
    size = min(random.randint(64, 700), ends[-1] - position)
    before = _read(segment.data_path, position, size)
    # Zeros over zeros are no damage.
    changed = [position + place for place, byte in enumerate(before) if byte]
    hits = frozenset[int]()
    if changed:
        hits = frozenset(
            number
            for number, begin, end in zip(numbers, [0, *ends], ends, strict=False)
            if any(begin <= place < end for place in changed)
        )
    return Damage(kind, segment.data_path, position, bytes(size), hits)


def _covering(numbers: range, ends: list[int], start: int, stop: int) -> frozenset[int]:
    begins = [0, *ends]
    return frozenset(
        number
        for number, begin, end in zip(numbers, begins, ends, strict=False)
        if begin < stop and end > start
    )


def _flip(path: Path, position: int, random: Random) -> bytes:
    return bytes([_read(path, position, 1)[0] ^ 1 << random.randrange(8)])


def _read(path: Path, position: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(size)
