"""Locations of messages on the wire."""

from __future__ import annotations

import msgspec

from penstock.model import to_wire
from penstock.model.storage import Location, SegmentSummary, StoredRun, StreamPosition

SEGMENT = SegmentSummary(100, 103, 11, 5, 7, 2**32 - 1, 0)


def test_location_survives_a_round_trip() -> None:
    location = Location("/root", "instance", True, 0, 103, 101, [SEGMENT])
    position = StreamPosition("s", "id", 0, 103)

    assert msgspec.convert(to_wire(location), Location) == location
    assert msgspec.convert(to_wire(position), StreamPosition) == position


def test_segment_has_wire_names() -> None:
    assert to_wire(SEGMENT) == {
        "first": 100,
        "end": 103,
        "size": 11,
        "oldestTime": 5,
        "newestTime": 7,
        "dataCrc": 2**32 - 1,
        "indexCrc": 0,
    }


def test_order_of_segment_fields_is_that_of_the_catalog() -> None:
    """The catalog stores the fields as columns, without their names."""
    assert SegmentSummary(*msgspec.structs.astuple(SEGMENT)) == SEGMENT
    assert msgspec.structs.astuple(SEGMENT) == (100, 103, 11, 5, 7, 2**32 - 1, 0)


def test_stored_run_has_two_buffers_and_their_start() -> None:
    run = StoredRun(first_sequence_number=5, position=40, entries=b"e", payloads=b"p")

    assert run == (5, 40, b"e", b"p")
