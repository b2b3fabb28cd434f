"""Mapped segments: a piece is mapped completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import MessageStreamDefinition, Persistence, StrategyOnFull
from penstock.client.internal import InternalClient
from penstock.discovery import ADDRESS_FILE, Address, write_address
from penstock.spark.mapped import has_files, map_piece
from penstock.spark.planning import Piece, plan_pieces
from penstock.spark.stored import StoredMessages
from penstock.spark.times import ALL_TIMES
from penstock.store.files import Disk
from penstock.store.record import ENTRY, data_path, index_path
from penstock.store.segment import ActiveSegment, SegmentFiles
from tests.support import BrokerProcess, wait_until

FIRST = 100


class SegmentRoot:
    """The root directory of a broker with instance `here`, with one segment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "streams" / "id"
        self.directory.mkdir(parents=True)
        self.data = data_path(self.directory, FIRST)
        self.index = index_path(self.directory, FIRST)
        self.segment = ActiveSegment(SegmentFiles.create(Disk(), self.directory, FIRST))
        self.start("here")

    def start(self, instance: str) -> None:
        write_address(self.root, Address(pid=1, instance=instance, host="127.0.0.1", port=1))

    def piece(self, first: int = FIRST, end: int | None = None) -> Piece:
        summary = self.segment.summary()
        return Piece(
            "s",
            "id",
            summary,
            first,
            summary.end if end is None else end,
            str(self.root),
            "here",
            ALL_TIMES,
        )


@pytest.fixture
def segment_root(tmp_path: Path) -> Iterator[SegmentRoot]:
    segment_root = SegmentRoot(tmp_path / "root")
    yield segment_root
    segment_root.segment.close()


def payloads(stored: StoredMessages | None) -> list[bytes]:
    assert stored is not None
    return [row["payload"] for batch in stored.batches("s") for row in batch.to_pylist()]


def test_whole_segment_is_mapped(segment_root: SegmentRoot) -> None:
    segment_root.segment.append([b"one", b"two", b"three"], 7)
    piece = segment_root.piece()
    stored = map_piece(piece)
    assert payloads(stored) == [b"one", b"two", b"three"]
    assert stored is not None
    assert (stored.first, stored.end) == (FIRST, FIRST + 3)
    assert stored.is_intact(piece.segment)


@pytest.mark.parametrize(("first", "end"), [(0, 1), (0, 3), (1, 2), (1, 4), (3, 4)])
def test_part_of_a_segment_is_mapped(segment_root: SegmentRoot, first: int, end: int) -> None:
    written = [b"one", b"two", b"three", b"four"]
    segment_root.segment.append(written, 7)
    stored = map_piece(segment_root.piece(FIRST + first, FIRST + end))
    assert payloads(stored) == written[first:end]
    assert stored is not None
    assert stored.intact_parts() == [stored]


def test_later_appends_are_not_mapped(segment_root: SegmentRoot) -> None:
    segment_root.segment.append([b"one", b"two"], 7)
    piece = segment_root.piece()
    early = map_piece(piece)
    segment_root.segment.append([b"three" * 10_000] * 10, 8)
    late = map_piece(piece)
    for stored in (early, late):
        assert payloads(stored) == [b"one", b"two"]
        assert stored is not None
        assert stored.is_intact(piece.segment)


def test_mapped_files_stay_readable_after_removal(segment_root: SegmentRoot) -> None:
    written = [os.urandom(1000) for _ in range(1000)]
    segment_root.segment.append(written, 7)
    piece = segment_root.piece()
    stored = map_piece(piece)
    segment_root.segment.files.remove()
    segment_root.directory.rmdir()
    assert payloads(stored) == written
    assert map_piece(piece) is None


def test_batches_keep_their_mapping_alive(segment_root: SegmentRoot) -> None:
    segment_root.segment.append([b"one", b"two"], 7)

    def batch() -> pa.RecordBatch:
        stored = map_piece(segment_root.piece())
        assert stored is not None
        return next(stored.batches("s"))

    kept = batch()
    segment_root.segment.files.remove()
    assert kept["payload"].to_pylist() == [b"one", b"two"]


@pytest.mark.parametrize("name", ["data", "index"])
def test_missing_file_is_not_mapped(segment_root: SegmentRoot, name: str) -> None:
    segment_root.segment.append([b"one", b"two"], 7)
    getattr(segment_root, name).unlink()
    assert map_piece(segment_root.piece()) is None
    # The broker is on this machine nevertheless.
    assert has_files(segment_root.piece())


@pytest.mark.parametrize(("name", "size"), [("data", 5), ("data", 0), ("index", 31), ("index", 0)])
def test_cut_file_is_not_mapped(segment_root: SegmentRoot, name: str, size: int) -> None:
    segment_root.segment.append([b"one", b"two"], 7)
    os.truncate(getattr(segment_root, name), size)
    assert map_piece(segment_root.piece()) is None


@pytest.mark.parametrize("end", [0, 1, 2**31, 2**32 - 1])
def test_damaged_last_entry_affects_no_other_message(segment_root: SegmentRoot, end: int) -> None:
    segment_root.segment.append([b"one", b"two", b"three"], 7)
    with segment_root.index.open("r+b") as file:
        file.seek(2 * ENTRY.size)
        file.write(end.to_bytes(4, "little"))
    stored = map_piece(segment_root.piece())
    assert stored is not None
    (part,) = stored.intact_parts()
    assert payloads(part) == [b"one", b"two"]


def test_files_of_another_broker_instance_are_not_mapped(segment_root: SegmentRoot) -> None:
    segment_root.segment.append([b"one"], 7)
    piece = segment_root.piece()
    segment_root.start("there")
    assert not has_files(piece)
    assert map_piece(piece) is None


@pytest.mark.parametrize("address", [None, b"", b"{}", b"\xff\xfe", b'{"instance": "here"}'])
def test_files_are_not_mapped_without_a_valid_address_file(
    segment_root: SegmentRoot, address: bytes | None
) -> None:
    segment_root.segment.append([b"one"], 7)
    path = segment_root.root / ADDRESS_FILE
    if address is None:
        path.unlink()
    else:
        path.write_bytes(address)
    assert map_piece(segment_root.piece()) is None


def test_missing_root_has_no_files(segment_root: SegmentRoot) -> None:
    segment_root.segment.append([b"one"], 7)
    elsewhere = segment_root.piece()._replace(root=str(segment_root.root / "nowhere"))
    assert map_piece(elsewhere) is None
    assert map_piece(segment_root.piece()._replace(root=None)) is None


# With a broker


def pieces_of(client: InternalClient, name: str) -> list[Piece]:
    (position,) = client.watch_streams([name])
    first, end = position.oldest_sequence_number, position.end_sequence_number
    location = client.locate_messages(name, position.stream_id, first, end)
    return plan_pieces(name, position.stream_id, location, first, end)


def test_all_segments_of_a_stream_are_mapped(
    client: InternalClient, create: Callable[..., str]
) -> None:
    name = create(stream_segment_size=2048)
    written = [b"%05d" % number * 20 for number in range(200)]
    for place in range(0, 200, 10):
        client.append_messages(name, written[place : place + 10])
    pieces = pieces_of(client, name)
    assert len(pieces) > 5
    found = [map_piece(piece) for piece in pieces]
    for stored, piece in zip(found, pieces, strict=True):
        assert stored is not None
        assert stored.is_intact(piece.segment)
    assert [payload for stored in found for payload in payloads(stored)] == written


def test_active_segment_is_mapped_up_to_the_planned_end(
    client: InternalClient, create: Callable[..., str]
) -> None:
    name = create()
    client.append_messages(name, [b"one", b"two"])
    (piece,) = pieces_of(client, name)
    client.append_messages(name, [b"three"] * 1000)
    assert payloads(map_piece(piece)) == [b"one", b"two"]


def test_memory_stream_has_no_files(client: InternalClient, create: Callable[..., str]) -> None:
    name = create(persistence=Persistence.Memory)
    client.append_message(name, b"one")
    (piece,) = pieces_of(client, name)
    assert not has_files(piece)
    assert map_piece(piece) is None


def test_recreated_stream_is_not_mapped_for_the_deleted_one(
    client: InternalClient, create: Callable[..., str]
) -> None:
    name = create()
    client.append_message(name, b"old")
    (piece,) = pieces_of(client, name)
    client.delete_message_stream(name)
    client.create_message_stream(
        MessageStreamDefinition(name=name, strategy_on_full=StrategyOnFull.OverwriteOldestData)
    )
    client.append_message(name, b"new")
    wait_until(lambda: map_piece(piece) is None)
    (piece,) = pieces_of(client, name)
    assert payloads(map_piece(piece)) == [b"new"]


def test_restarted_broker_is_another_instance(tmp_path: Path) -> None:
    definition = MessageStreamDefinition(
        name="s", strategy_on_full=StrategyOnFull.OverwriteOldestData
    )
    with (
        BrokerProcess(tmp_path / "root") as broker,
        InternalClient(root=broker.root) as client,
    ):
        client.create_message_stream(definition)
        client.append_message("s", b"one")
        (piece,) = pieces_of(client, "s")
        assert payloads(map_piece(piece)) == [b"one"]
        broker.stop()
        broker.start()
        assert map_piece(piece) is None
        (piece,) = pieces_of(client, "s")
        assert payloads(map_piece(piece)) == [b"one"]
