"""Messages of slices: from the broker's files, over the wire, and after damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import HTTPConfig, Persistence
from penstock.client.internal import InternalClient
from penstock.errors import MessageStoreReadErrorException
from penstock.model.exporting import MessageSlice
from penstock.model.storage import StoredRun
from penstock.pipeline import slice_reader as reading
from penstock.pipeline.destinations.destination import Messages
from penstock.pipeline.slice_reader import read_slice
from penstock.store.record import ENTRY, data_path, index_path
from tests.pipeline.slices import create, plan_slice
from tests.support import LocalBroker

SIZE = 100
# A segment has ten messages.
SEGMENT = 10


@pytest.fixture(params=["files", "wire"])
def root(request: pytest.FixtureRequest, broker: LocalBroker) -> str | None:
    """The broker's directory; None as on another machine."""
    return str(broker.root) if request.param == "files" else None


def payload(number: int) -> bytes:
    return b"%d" % number * (SIZE // len(b"%d" % number)) + b"x" * (SIZE % len(b"%d" % number))


def fill(client: InternalClient, count: int = 25, **fields: Any) -> MessageSlice:
    """A slice of a stream with `count` messages of 100 bytes, ten in each segment."""
    config = HTTPConfig("to-http", "http://127.0.0.1:1")
    name = create(client, config, stream_segment_size=1024, **fields)
    for first in range(0, count, SEGMENT):
        client.append_messages(name, map(payload, range(first, min(first + SEGMENT, count))))
    return plan_slice(client)


def check(messages: Messages, numbers: list[int]) -> None:
    assert messages.numbers == numbers
    assert messages.payloads == [payload(number) for number in numbers]
    assert messages.ingest_times == sorted(messages.ingest_times)
    assert len(messages.ingest_times) == len(numbers)


def directory_of(broker: LocalBroker, found: MessageSlice) -> Path:
    return broker.root / "streams" / found.stream_id


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_slice_has_several_segments(client: InternalClient, root: str | None) -> None:
    found = fill(client)
    assert [segment.first for segment in found.segments] == [0, 10, 20]
    assert (found.first, found.end, found.size) == (0, 25, 25 * SIZE)
    messages = read_slice(found, root, client)
    assert (messages.stream, messages.first) == (found.stream, 0)
    check(messages, list(range(25)))


@pytest.mark.parametrize("bounds", [(0, 1), (3, 7), (9, 11), (10, 20), (19, 25), (24, 25)])
def test_slice_begins_and_ends_anywhere(
    client: InternalClient, root: str | None, bounds: tuple[int, int]
) -> None:
    first, end = bounds
    found = msgspec.structs.replace(fill(client), first=first, end=end)
    messages = read_slice(found, root, client)
    assert messages.first == first
    check(messages, list(range(first, end)))


def test_arrived_messages_are_excluded(client: InternalClient, root: str | None) -> None:
    found = msgspec.structs.replace(fill(client), first=5, arrived=[6, 9, 10, 24])
    messages = read_slice(found, root, client)
    assert messages.first == 5
    check(messages, [number for number in range(5, 24) if number not in (6, 9, 10)])


def test_files_are_read_without_the_broker(client: InternalClient, broker: LocalBroker) -> None:
    with InternalClient(root=broker.root) as closed:
        pass
    found = fill(client)
    check(read_slice(found, str(broker.root), closed), list(range(25)))


def test_memory_stream_is_read_over_the_wire(client: InternalClient, root: str | None) -> None:
    found = fill(client, persistence=Persistence.Memory)
    assert not found.has_files
    check(read_slice(found, root, client), list(range(25)))


def test_wire_answers_are_limited(client: InternalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_ANSWER_BYTES", 3 * SIZE)
    check(read_slice(fill(client), None, client), list(range(25)))


def test_messages_beside_unreadable_ones_are_read(broker: LocalBroker) -> None:
    unreadable = {7, 8, 13}

    class Client(InternalClient):
        def read_stored(
            self, name: str, stream_id: str, first: int, end: int, max_bytes: int
        ) -> StoredRun:
            if not unreadable.isdisjoint(range(first, end)):
                raise MessageStoreReadErrorException("message 7 cannot be read: EIO")
            return super().read_stored(name, stream_id, first, end, max_bytes)

    with Client(root=broker.root) as client:
        messages = read_slice(fill(client), None, client)
    check(messages, sorted({*range(25)} - unreadable))


def test_damaged_messages_are_excluded(
    client: InternalClient, broker: LocalBroker, root: str | None
) -> None:
    found = fill(client)
    data = data_path(directory_of(broker, found), 10)
    for number in (10, 13, 14, 19):
        overwrite(data, (number - 10) * SIZE + 50, b"?")
    messages = read_slice(found, root, client)
    check(messages, [number for number in range(25) if number not in (10, 13, 14, 19)])


def test_arrived_messages_are_excluded_beside_damaged_ones(
    client: InternalClient, broker: LocalBroker, root: str | None
) -> None:
    found = msgspec.structs.replace(fill(client), arrived=[11])
    overwrite(data_path(directory_of(broker, found), 10), 50, b"?")
    messages = read_slice(found, root, client)
    check(messages, [number for number in range(25) if number not in (10, 11)])


@pytest.mark.parametrize("end", [0, 1, 150, 350, 999, 5000, 2**32 - 1])
def test_wrong_position_in_the_index_affects_no_other_message(
    client: InternalClient, broker: LocalBroker, root: str | None, end: int
) -> None:
    found = fill(client)
    index = index_path(directory_of(broker, found), 10)
    # The end of message 12, where message 13 begins.
    overwrite(index, 2 * ENTRY.size, end.to_bytes(4, "little"))
    messages = read_slice(found, root, client)
    check(messages, [number for number in range(25) if number not in (12, 13)])


def test_many_damaged_messages_take_no_longer(
    client: InternalClient, broker: LocalBroker, root: str | None
) -> None:
    config = HTTPConfig("to-http", "http://127.0.0.1:1")
    name = create(client, config)
    client.append_messages(name, [b"0123456789"] * 16_000)
    found = plan_slice(client)
    overwrite(data_path(directory_of(broker, found), 0), 10, b"?" * 159_980)
    # Reading the rest of the segment once for each message would take minutes.
    messages = read_slice(found, root, client)
    assert messages.numbers == [0, 15_999]


def test_messages_of_removed_files_are_excluded(
    client: InternalClient, broker: LocalBroker, root: str | None
) -> None:
    found = fill(client)
    directory = directory_of(broker, found)
    index_path(directory, 0).unlink()
    data_path(directory, 0).unlink()
    check(read_slice(found, root, client), list(range(10, 25)))


def test_messages_of_truncated_files_are_excluded(
    client: InternalClient, broker: LocalBroker, root: str | None
) -> None:
    found = fill(client)
    with data_path(directory_of(broker, found), 0).open("r+b") as file:
        file.truncate(4 * SIZE + 10)
    check(read_slice(found, root, client), [0, 1, 2, 3, *range(10, 25)])


def test_dropped_messages_are_excluded(client: InternalClient, root: str | None) -> None:
    found = fill(client, max_size=4096)
    client.append_messages(found.stream, [bytes(SIZE)] * 20)
    (position,) = client.watch_streams([found.stream])
    assert 0 < position.oldest_sequence_number < 25
    messages = read_slice(found, root, client)
    assert messages.numbers[-1] == 24
    assert messages.numbers[0] <= position.oldest_sequence_number
    check(messages, list(range(messages.numbers[0], 25)))


def test_deleted_stream_has_no_messages(client: InternalClient) -> None:
    found = fill(client)
    client.delete_message_stream(found.stream)
    assert read_slice(found, None, client).numbers == []
