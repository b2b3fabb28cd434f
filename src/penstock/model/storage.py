"""Locations of messages in segments, for bulk readers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class SegmentSummary(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The summary of a segment in the catalog."""

    first: int
    end: int
    size: int
    oldest_time: int
    newest_time: int
    # The CRC-32 of each file up to `end`; 0 without files.
    data_crc: int
    index_crc: int


class StoredRun(NamedTuple):
    """Consecutive messages of one stream as a segment stores them: index entries and payloads.

    They are not verified; the entries have the checksums. The first payload begins at `position` of
    the data file. The end positions in the entries are positions in the data file too.
    """

    first_sequence_number: int
    position: int
    entries: bytes
    payloads: bytes


class StreamPosition(msgspec.Struct, frozen=True, rename="camel"):
    """A stream and the range [oldest, end) of its messages."""

    name: str
    # A stream that is deleted and created again gets a new id.
    stream_id: str
    oldest_sequence_number: int
    end_sequence_number: int


class Location(msgspec.Struct, frozen=True, rename="camel"):
    """The location of the messages of a slice at one time."""

    # The broker's directory, and an id to verify that it is on the same machine.
    root: str
    instance: str
    has_files: bool
    oldest_sequence_number: int
    end_sequence_number: int
    # The payloads up to this number fit into the requested size.
    limit_sequence_number: int
    segments: list[SegmentSummary]
