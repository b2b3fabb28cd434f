"""The layout of a segment: two append-only files, named after their first sequence number.

`<first>.data`   the payloads, without separators
`<first>.index`  an entry of 16 bytes for each message, little-endian:

    end position  uint32  where the payload ends in the data file; it begins at the end of the
                          previous payload, the first at 0
    checksum      uint32  CRC-32 of the payload, seeded with the ingest time (its two halves
                          XORed), so that one check covers all three fields
    ingest time   int64   milliseconds since 1970

So a segment has the layout of an Arrow binary column: offsets from the index, values from the data.
The file name gives the sequence numbers of its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, repeat
from pathlib import Path
from struct import Struct

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # the same values, three times slower
    from zlib import crc32

__all__ = [
    "ENTRY",
    "checksum",
    "checksum_seed",
    "count_intact",
    "crc32",
    "data_path",
    "first_of_name",
    "index_path",
    "pack_entries",
    "segment_names",
]

ENTRY = Struct("<IIq")

# The width of the largest sequence number, so that names sort like numbers.
_DIGITS = 20


def segment_names(first: int) -> tuple[str, str]:
    """The names of a segment's two files, as text: Paths are slow for thousands of segments."""
    stem = f"{first:0{_DIGITS}d}"
    return f"{stem}.data", f"{stem}.index"


def data_path(directory: Path, first: int) -> Path:
    return directory / f"{first:0{_DIGITS}d}.data"


def index_path(directory: Path, first: int) -> Path:
    return directory / f"{first:0{_DIGITS}d}.index"


def first_of_name(name: str) -> int | None:
    """The first sequence number of a segment file, or None for any other file."""
    stem, _, suffix = name.partition(".")
    if suffix in ("data", "index") and len(stem) == _DIGITS and stem.isascii() and stem.isdigit():
        return int(stem)
    return None


def checksum(payload: bytes, ingest_time: int) -> int:
    return crc32(payload, checksum_seed(ingest_time))


def checksum_seed(ingest_time: int) -> int:
    """The initial value for the CRC-32 of a payload."""
    return (ingest_time ^ (ingest_time >> 32)) & 0xFFFFFFFF


def count_intact(
    payloads: Sequence[bytes], ingest_times: Sequence[int], checksums: Sequence[int]
) -> int:
    """The number of payloads before the first damaged one. An empty payload is damaged."""
    seeds = {ingest_time: checksum_seed(ingest_time) for ingest_time in set(ingest_times)}
    found = tuple(map(crc32, payloads, map(seeds.__getitem__, ingest_times)))
    if found == tuple(checksums) and all(payloads):
        return len(payloads)
    for count, payload in enumerate(payloads):
        if not payload or found[count] != checksums[count]:
            return count
    return len(payloads)


def pack_entries(payloads: Sequence[bytes], position: int, ingest_time: int) -> bytes:
    """Index entries of consecutive payloads from `position` on."""
    if len(payloads) == 1:
        payload = payloads[0]
        seed = (ingest_time ^ (ingest_time >> 32)) & 0xFFFFFFFF
        return ENTRY.pack(position + len(payload), crc32(payload, seed), ingest_time)
    ends = accumulate(map(len, payloads), initial=position)
    next(ends)
    checksums = map(crc32, payloads, repeat(checksum_seed(ingest_time)))
    return b"".join(map(ENTRY.pack, ends, checksums, repeat(ingest_time)))
