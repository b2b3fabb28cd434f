"""Where messages are: what a store knows of its segments, and tells those who read in bulk."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class SegmentSummary(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What is known of a segment without looking into it."""

    first: int
    end: int
    size: int
    oldest_time: int
    newest_time: int
    # CRC-32 of each of its files, as far as `end`; 0 where there are no files.
    data_crc: int
    index_crc: int


class StoredRun(NamedTuple):
    """Consecutive messages of one stream as a segment holds them: index entries and payloads.

    Nothing is checked yet; the entries have what it takes. The first payload begins at `position`
    of the data file, to which the end positions in the entries refer.
    """

    first_sequence_number: int
    position: int
    entries: bytes
    payloads: bytes


class StreamPosition(msgspec.Struct, frozen=True, rename="camel"):
    """A stream and the messages it has: those of [oldest, end)."""

    name: str
    # Another one once the stream was deleted and created again.
    stream_id: str
    oldest_sequence_number: int
    end_sequence_number: int


class Location(msgspec.Struct, frozen=True, rename="camel"):
    """Where the messages of a slice are, as of one moment."""

    # The broker's directory, and by what a program on the same machine knows that it is.
    root: str
    instance: str
    has_files: bool
    oldest_sequence_number: int
    end_sequence_number: int
    # Up to here the payloads fit the bytes that were asked for.
    limit_sequence_number: int
    segments: list[SegmentSummary]
