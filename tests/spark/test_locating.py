from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from penstock.client.internal import InternalClient
from penstock.model.storage import StreamPosition
from penstock.spark.locating import Locator
from penstock.spark.losses import DataLossError
from penstock.spark.times import TimeRange

Create = Callable[..., str]


@pytest.fixture
def stream(create: Create, client: InternalClient) -> StreamPosition:
    """A stream of 1 KiB messages in segments of four, whose oldest messages were removed."""
    name = create("located", stream_segment_size=4096, max_size=20 * 4096)
    for number in range(100):
        client.append_message(name, b"%02d" % number * 512)
    (position,) = client.watch_streams([name])
    assert position.oldest_sequence_number > 0
    return position


def numbers(locator: Locator, stream: StreamPosition, first: int, end: int) -> list[int]:
    pieces = locator.plan(stream, first, end)
    return [number for piece in pieces for number in range(piece.first, piece.end)]


def test_slice_is_planned_completely(client: InternalClient, stream: StreamPosition) -> None:
    locator = Locator(client, fails_on_loss=True)
    assert numbers(locator, stream, 50, 99) == list(range(50, 99))
    assert numbers(locator, stream, 70, 70) == []


def test_segments_of_other_times_are_skipped(
    client: InternalClient, stream: StreamPosition
) -> None:
    locator = Locator(client, fails_on_loss=True)
    segment = locator.plan(stream, 60, 61)[0].segment
    # Other segments may have the same times.
    pieces = locator.plan(stream, 50, 99, TimeRange(segment.oldest_time, segment.newest_time + 1))
    assert any(piece.first <= 60 < piece.end for piece in pieces)
    assert locator.plan(stream, 50, 99, TimeRange(0, 1)) == []


def test_end_is_limited_by_bytes(client: InternalClient, stream: StreamPosition) -> None:
    locator = Locator(client, fails_on_loss=True)
    assert locator.find_end(stream, 50, 99, 10 * 1024) == 60
    assert locator.find_end(stream, 50, 99, 1) == 51
    assert locator.find_end(stream, 50, 99, 1 << 30) == 99


def test_removed_messages_are_a_loss(
    client: InternalClient, stream: StreamPosition, caplog: pytest.LogCaptureFixture
) -> None:
    oldest = stream.oldest_sequence_number
    with pytest.raises(DataLossError, match=f"messages 0 to {oldest - 1} were removed"):
        Locator(client, fails_on_loss=True).plan(stream, 0, 99)
    with caplog.at_level(logging.WARNING):
        found = numbers(Locator(client, fails_on_loss=False), stream, 0, 99)
    assert found == list(range(oldest, 99))
    assert f"messages 0 to {oldest - 1} were removed" in caplog.text


def test_messages_after_the_end_of_a_stream_are_a_loss(
    client: InternalClient, stream: StreamPosition
) -> None:
    with pytest.raises(DataLossError, match="messages 100 to 104 no longer exist"):
        Locator(client, fails_on_loss=True).plan(stream, 90, 105)
    assert numbers(Locator(client, fails_on_loss=False), stream, 90, 105) == list(range(90, 100))


def test_deleted_stream_is_a_loss(client: InternalClient, stream: StreamPosition) -> None:
    client.delete_message_stream(stream.name)
    with pytest.raises(DataLossError, match="it was deleted before it was read"):
        Locator(client, fails_on_loss=True).plan(stream, 90, 99)
    lenient = Locator(client, fails_on_loss=False)
    assert lenient.plan(stream, 90, 99) == []
    assert lenient.find_end(stream, 90, 99, 10) == 90
