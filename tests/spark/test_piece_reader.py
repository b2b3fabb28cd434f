"""Reads of tasks from a real broker, over files and over the wire, also of damaged messages."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from penstock import MessageStreamDefinition, Persistence, StrategyOnFull
from penstock.client.endpoint import EndpointOptions
from penstock.client.internal import InternalClient
from penstock.spark import piece_reader as reading
from penstock.spark.losses import DataLossError
from penstock.spark.mapped import map_piece
from penstock.spark.options import BrokerOptions, Via
from penstock.spark.piece_reader import PieceReader, read_task
from penstock.spark.place import Place
from penstock.spark.planning import Piece, ReadTask, plan_pieces, plan_tasks
from penstock.spark.times import ALL_TIMES, TimeRange
from penstock.store.record import ENTRY, data_path, index_path
from tests.support import BrokerProcess, running, wait_until

VIAS: list[Via] = ["files", "wire"]


class PieceRow(NamedTuple):
    stream: str
    number: int
    payload: bytes


class QueryReader:
    """Plans and reads like a query, in this process."""

    def __init__(self, broker: BrokerProcess, client: InternalClient) -> None:
        self.broker = broker
        self.client = client
        self.place = Place.find(BrokerOptions(root=str(broker.root)))

    def plan(
        self,
        name: str,
        first: int | None = None,
        end: int | None = None,
        times: TimeRange = ALL_TIMES,
    ) -> list[Piece]:
        (position,) = self.client.watch_streams([name])
        first = position.oldest_sequence_number if first is None else first
        end = position.end_sequence_number if end is None else end
        location = self.client.locate_messages(name, position.stream_id, first, end)
        return plan_pieces(name, position.stream_id, location, first, end, times)

    def batches(
        self, pieces: list[Piece], via: Via = "auto", fails_on_loss: bool = True
    ) -> Iterator[pa.RecordBatch]:
        return read_task(ReadTask(self.place, pieces), via=via, fails_on_loss=fails_on_loss)

    def read(
        self, pieces: list[Piece], via: Via = "auto", fails_on_loss: bool = True
    ) -> list[PieceRow]:
        return [row for b in self.batches(pieces, via, fails_on_loss) for row in rows_of(b)]

    def files(self, piece: Piece) -> tuple[Path, Path]:
        """Returns the data file and the index file of the piece's segment."""
        directory = self.broker.root / "streams" / piece.stream_id
        first = piece.segment.first
        return data_path(directory, first), index_path(directory, first)


def rows_of(batch: pa.RecordBatch) -> list[PieceRow]:
    batch.validate(full=True)
    return [
        PieceRow(row["stream"], row["sequence_number"], row["payload"]) for row in batch.to_pylist()
    ]


@pytest.fixture
def reader(broker: BrokerProcess, client: InternalClient) -> QueryReader:
    return QueryReader(broker, client)


@pytest.fixture
def small_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduces the limits of responses and of the buffer to a few messages."""
    monkeypatch.setattr(reading, "_MAX_RESPONSE_BYTES", 2000)
    monkeypatch.setattr(reading, "_MAX_BUFFERED_BYTES", 6000)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        yield lambda: [r.message for r in caplog.records if r.name == "penstock.spark"]


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [b"%08d" % number + bytes([number % 256]) * (size - 8) for number in range(count)]


def append(client: InternalClient, name: str, payloads: list[bytes]) -> list[PieceRow]:
    """Appends in small batches, as a batch is always in one segment."""
    rows = []
    for place in range(0, len(payloads), 10):
        some = payloads[place : place + 10]
        numbers = client.append_messages(name, some)
        rows += [PieceRow(name, *both) for both in zip(numbers, some, strict=True)]
    return rows


def damage(path: Path, position: int, data: bytes = b"") -> None:
    """Overwrites bytes of a file; without data, flips a bit."""
    with path.open("r+b") as file:
        file.seek(position)
        data = data or bytes([file.read(1)[0] ^ 1])
        file.seek(position)
        file.write(data)


# Rows


@pytest.mark.parametrize("via", [*VIAS, "auto"])
def test_rows_equal_the_appended_messages(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create(stream_segment_size=4096)
    written = append(reader.client, name, numbered(300))
    pieces = reader.plan(name)
    assert len(pieces) > 5
    assert reader.read(pieces, via) == written


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.parametrize("size", [1, 100, 70_000, 7 << 20])
def test_messages_of_any_size_are_read(
    reader: QueryReader, create: Callable[..., str], via: Via, size: int
) -> None:
    name = create()
    written = append(reader.client, name, [os.urandom(size) for _ in range(5)])
    assert reader.read(reader.plan(name), via) == written


@pytest.mark.parametrize("via", VIAS)
def test_tasks_read_each_message_once_and_in_order(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    names = [create(stream_segment_size=4096) for _ in range(2)]
    written = [row for name in names for row in append(reader.client, name, numbered(200))]
    pieces = [piece for name in names for piece in reader.plan(name)]
    tasks = plan_tasks(reader.place, pieces, min_partitions=7)
    assert len(tasks) >= 7
    assert [row for task in tasks for row in reader.read(task.pieces, via)] == written


@pytest.mark.parametrize("via", VIAS)
def test_only_messages_within_bounds_are_read(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create(stream_segment_size=4096)
    written = append(reader.client, name, numbered(200))
    pieces = reader.plan(name, 33, 155)
    assert reader.read(pieces, via) == written[33:155]


@pytest.mark.parametrize("via", VIAS)
def test_only_messages_within_times_are_read(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create()
    while len({message.ingest_time for message in reader.client.read_all(name)}) < 3:
        append(reader.client, name, [b"one", b"two"])
    messages = list(reader.client.read_all(name))
    first, *_ = times = sorted({message.ingest_time or 0 for message in messages})
    for start, end in [(times[1], times[2]), (times[1], times[2] + 1), (0, first + 1), (0, first)]:
        pieces = reader.plan(name, times=TimeRange(start, end))
        wanted = [
            message.sequence_number
            for message in messages
            if start <= (message.ingest_time or 0) < end
        ]
        assert [row.number for row in reader.read(pieces, via)] == wanted
        with PieceReader(reader.place, via=via, fails_on_loss=True) as pieces_reader:
            found = [pieces_reader.find_first(piece) for piece in pieces]
        assert found == wanted[:1]


@pytest.mark.parametrize("via", ["wire", "auto"])
def test_memory_stream_is_read_over_the_wire(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create(persistence=Persistence.Memory, stream_segment_size=4096)
    written = append(reader.client, name, numbered(200))
    pieces = reader.plan(name)
    assert len(pieces) > 3
    assert reader.read(pieces, via) == written


def test_via_files_fails_for_a_memory_stream(
    reader: QueryReader, create: Callable[..., str]
) -> None:
    name = create(persistence=Persistence.Memory)
    append(reader.client, name, [b"one"])
    with pytest.raises(FileNotFoundError, match=f"via is files, but stream '{name}' has no files"):
        reader.read(reader.plan(name), "files")


@pytest.mark.usefixtures("small_responses")
@pytest.mark.parametrize("persistence", list(Persistence))
def test_piece_may_exceed_the_buffer_limit(
    reader: QueryReader, create: Callable[..., str], persistence: Persistence
) -> None:
    name = create(persistence=persistence)
    written = append(reader.client, name, numbered(500))
    written += append(reader.client, name, [b"x" * 50_000, b"y"])
    pieces = reader.plan(name)
    assert len(pieces) == 1
    batches = list(reader.batches(pieces, "wire"))
    assert [row for batch in batches for row in rows_of(batch)] == written
    assert len(batches) >= 500 * 100 // 8000


def test_mapped_files_need_no_connection(reader: QueryReader, create: Callable[..., str]) -> None:
    name = create()
    written = append(reader.client, name, numbered(20))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = EndpointOptions("127.0.0.1", silent.getsockname()[1])
        reader.place = reader.place._replace(nearby=nowhere, remote=nowhere)
        assert reader.read(reader.plan(name), "auto") == written


@pytest.mark.parametrize("via", [*VIAS, "auto"])
def test_messages_appended_after_planning_are_not_read(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create()
    written = append(reader.client, name, numbered(50))
    pieces = reader.plan(name)
    append(reader.client, name, numbered(50))
    assert reader.read(pieces, via) == written


# Removed messages


def overwrite(reader: QueryReader, name: str, pieces: list[Piece]) -> None:
    """Appends until these messages are evicted."""
    while oldest_number(reader.client, name) < pieces[-1].end:
        append(reader.client, name, [b"z" * 1000] * 10)


@pytest.fixture
def overwritten(reader: QueryReader, create: Callable[..., str]) -> list[Piece]:
    """Pieces of messages that were removed together with their files."""
    name = create(stream_segment_size=4096, max_size=16_384)
    append(reader.client, name, numbered(80))
    pieces = reader.plan(name)
    overwrite(reader, name, pieces)
    wait_until(lambda: not any(map(map_piece, pieces)), "the files are removed")
    return pieces


@pytest.mark.parametrize("via", [*VIAS, "auto"])
def test_removed_messages_fail_the_query(
    reader: QueryReader, overwritten: list[Piece], via: Via
) -> None:
    piece = overwritten[0]
    with pytest.raises(
        DataLossError,
        match=f"'{piece.stream}': messages {piece.first} to {piece.end - 1} were removed before",
    ):
        reader.read(overwritten, via)


@pytest.mark.parametrize("via", [*VIAS, "auto"])
def test_removed_messages_can_be_skipped(
    reader: QueryReader, overwritten: list[Piece], via: Via, warnings: Callable[[], list[str]]
) -> None:
    left = reader.plan(overwritten[0].stream)
    read = reader.read([*overwritten, *left], via, fails_on_loss=False)
    assert [row.number for row in read] == list(range(left[0].first, left[-1].end))
    assert len(warnings()) == len(overwritten)
    assert all("were removed before they were read" in warning for warning in warnings())


@pytest.mark.usefixtures("small_responses")
@pytest.mark.parametrize("persistence", list(Persistence))
def test_messages_may_be_removed_during_a_read_over_the_wire(
    reader: QueryReader,
    create: Callable[..., str],
    persistence: Persistence,
    warnings: Callable[[], list[str]],
) -> None:
    name = create(stream_segment_size=20_000, max_size=40_000, persistence=persistence)
    written = append(reader.client, name, numbered(150))
    piece, *_ = pieces = reader.plan(name)
    batches = reader.batches([piece], "wire", fails_on_loss=False)
    read = rows_of(next(batches))
    overwrite(reader, name, pieces)
    read += [row for batch in batches for row in rows_of(batch)]
    assert 0 < len(read) < piece.end
    assert read == written[: len(read)]
    assert warnings() == [
        f"stream {name!r}: messages {len(read)} to {piece.end - 1} were removed before they were "
        "read; the query continues without these messages"
    ]


def test_files_may_be_removed_while_they_are_mapped(
    reader: QueryReader, create: Callable[..., str]
) -> None:
    name = create(stream_segment_size=2 << 20, max_size=8 << 20)
    written = append(reader.client, name, numbered(20_000))
    piece, *_ = reader.plan(name)
    batches = reader.batches([piece], "files")
    read = rows_of(next(batches))
    overwrite(reader, name, [piece])
    wait_until(lambda: not map_piece(piece), "the files are removed")
    read += [row for batch in batches for row in rows_of(batch)]
    assert read == written[: piece.end]


@pytest.mark.parametrize("via", ["wire", "auto"])
def test_deleted_stream_is_a_loss(
    reader: QueryReader, create: Callable[..., str], via: Via, warnings: Callable[[], list[str]]
) -> None:
    name = create(persistence=Persistence.Memory)
    append(reader.client, name, numbered(5))
    pieces = reader.plan(name)
    reader.client.delete_message_stream(name)
    with pytest.raises(DataLossError, match=r"messages 0 to 4 cannot be read: .* does not exist"):
        reader.read(pieces, via)
    assert reader.read(pieces, via, fails_on_loss=False) == []
    assert len(warnings()) == 1


@pytest.mark.parametrize("via", [*VIAS, "auto"])
def test_recreated_stream_is_a_loss(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create()
    append(reader.client, name, numbered(5))
    pieces = reader.plan(name)
    reader.client.delete_message_stream(name)
    reader.client.create_message_stream(
        MessageStreamDefinition(name=name, strategy_on_full=StrategyOnFull.OverwriteOldestData)
    )
    append(reader.client, name, numbered(5))
    wait_until(lambda: not map_piece(pieces[0]), "the files are removed")
    with pytest.raises(DataLossError, match="was deleted and created again"):
        reader.read(pieces, via)


# Damaged messages


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.parametrize("whole", [True, False])
def test_damaged_message_fails_the_query_or_is_skipped(
    reader: QueryReader,
    create: Callable[..., str],
    via: Via,
    whole: bool,
    warnings: Callable[[], list[str]],
) -> None:
    name = create()
    written = append(reader.client, name, numbered(50))
    (piece,) = reader.plan(name) if whole else reader.plan(name, 10, 40)
    data, _ = reader.files(piece)
    for number in (20, 21, 30):
        damage(data, number * 100 + 50)
    with pytest.raises(DataLossError, match="messages 20 to 21 cannot be read: checksum mismatch"):
        reader.read([piece], via)
    read = reader.read([piece], via, fails_on_loss=False)
    wanted = written[piece.first : piece.end]
    assert read == [row for row in wanted if row.number not in (20, 21, 30)]
    assert [warning.partition(" cannot")[0] for warning in warnings()] == [
        f"stream {name!r}: messages 20 to 21",
        f"stream {name!r}: message 30",
    ]


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.parametrize("number", [0, 25, 48, 49])
@pytest.mark.parametrize("end", [0, 3001, 2**32 - 1])
def test_damaged_end_affects_its_message_and_the_next(
    reader: QueryReader, create: Callable[..., str], via: Via, number: int, end: int
) -> None:
    name = create()
    written = append(reader.client, name, numbered(50))
    (piece,) = reader.plan(name)
    _, index = reader.files(piece)
    damage(index, number * ENTRY.size, end.to_bytes(4, "little"))
    read = reader.read([piece], via, fails_on_loss=False)
    assert read == [row for row in written if row.number not in (number, number + 1)]


@pytest.mark.parametrize("via", [*VIAS, "auto"])
def test_rest_of_a_cut_segment_is_read(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create(stream_segment_size=4096)
    written = append(reader.client, name, numbered(100))
    pieces = reader.plan(name)
    data, _ = reader.files(pieces[1])
    os.truncate(data, 1050)
    lost = range(pieces[1].first + 10, pieces[1].end)
    with pytest.raises(DataLossError, match=f"messages {lost[0]} to {lost[-1]} cannot be read"):
        reader.read(pieces, via)
    read = reader.read(pieces, via, fails_on_loss=False)
    assert read == [row for row in written if row.number not in lost]


@pytest.mark.usefixtures("small_responses")
@pytest.mark.parametrize("via", [*VIAS, "auto"])
def test_rest_of_a_cut_index_is_read(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create(stream_segment_size=8192)
    written = append(reader.client, name, numbered(200))
    pieces = reader.plan(name)
    _, index = reader.files(pieces[1])
    os.truncate(index, 45 * ENTRY.size + 3)
    lost = range(pieces[1].first + 45, pieces[1].end)
    read = reader.read(pieces, via, fails_on_loss=False)
    assert read == [row for row in written if row.number not in lost]
    with pytest.raises(DataLossError, match=f"messages {lost[0]} to {lost[-1]} cannot be read"):
        reader.read(pieces, via)


@pytest.mark.parametrize("via", [*VIAS, "auto"])
@pytest.mark.parametrize("name", ["data", "index"])
def test_segment_with_a_missing_file_is_a_loss(
    reader: QueryReader,
    create: Callable[..., str],
    via: Via,
    name: str,
    warnings: Callable[[], list[str]],
) -> None:
    stream = create(stream_segment_size=4096)
    written = append(reader.client, stream, numbered(200))
    pieces = reader.plan(stream)
    lost = pieces[1]
    reader.files(lost)[name == "index"].unlink()
    # The broker keeps the last read segment open; a read of another one closes it.
    reader.read(pieces[2:3], "wire")
    read = reader.read(pieces, via, fails_on_loss=False)
    assert read == [row for row in written if not lost.first <= row.number < lost.end]
    assert [warning.partition(" cannot")[0] for warning in warnings()] == [
        f"stream {stream!r}: messages {lost.first} to {lost.end - 1}"
    ]


# Broker restarts


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[QueryReader]:
    """A reader of a separate broker with a stream `s`, which a test may stop."""
    with (
        BrokerProcess(tmp_path / "root") as process,
        InternalClient(root=process.root) as client,
    ):
        client.create_message_stream(
            MessageStreamDefinition(
                name="s",
                stream_segment_size=1 << 20,
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
            )
        )
        yield QueryReader(process, client)


def test_task_waits_for_an_unavailable_broker(
    restartable: QueryReader, caplog: pytest.LogCaptureFixture
) -> None:
    written = append(restartable.client, "s", numbered(50))
    pieces = restartable.plan("s")
    restartable.broker.stop()

    def start_after_a_retry() -> None:
        wait_until(lambda: "retrying" in caplog.text)
        restartable.broker.start()

    with running(start_after_a_retry):
        assert restartable.read(pieces, "wire") == written


def test_task_fails_after_reconnect_timeout(restartable: QueryReader) -> None:
    append(restartable.client, "s", numbered(50))
    pieces = restartable.plan("s")
    restartable.broker.stop()
    restartable.place = restartable.place._replace(reconnect_timeout=0)
    with pytest.raises(ConnectionError, match="no stream manager"):
        restartable.read(pieces, "wire")
    restartable.broker.start()


@pytest.mark.usefixtures("small_responses")
@pytest.mark.parametrize("killed", [False, True])
def test_task_continues_after_a_broker_restart(restartable: QueryReader, killed: bool) -> None:
    written = append(restartable.client, "s", numbered(500))
    batches = restartable.batches(restartable.plan("s"), "wire")
    read = rows_of(next(batches))
    if killed:
        restartable.broker.kill()
    else:
        restartable.broker.stop()
    restartable.broker.start()
    read += [row for batch in batches for row in rows_of(batch)]
    assert read == written


def test_piece_is_read_from_a_restarted_broker(restartable: QueryReader) -> None:
    written = append(restartable.client, "s", numbered(50))
    pieces = restartable.plan("s")
    restartable.broker.stop()
    restartable.broker.start()
    assert restartable.read(pieces, "auto") == written
    with pytest.raises(FileNotFoundError, match="has no files on this machine"):
        restartable.read(pieces, "files")


def test_restored_older_stream_is_a_loss(
    restartable: QueryReader, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    written = append(restartable.client, "s", numbered(20))
    restartable.broker.stop()
    shutil.copytree(restartable.broker.root, tmp_path / "copy")
    restartable.broker.start()
    append(restartable.client, "s", numbered(20))
    pieces = restartable.plan("s")
    restartable.broker.stop()
    shutil.rmtree(restartable.broker.root)
    shutil.move(tmp_path / "copy", restartable.broker.root)
    restartable.broker.start()
    with pytest.raises(DataLossError, match="messages 20 to 39 cannot be read: the stream ends"):
        restartable.read(pieces)
    assert restartable.read(pieces, fails_on_loss=False) == written
    assert (
        restartable.read([piece._replace(first=25) for piece in pieces], fails_on_loss=False) == []
    )
    assert [warning.partition(" cannot")[0] for warning in warnings()] == [
        "stream 's': messages 20 to 39",
        "stream 's': messages 25 to 39",
    ]


@pytest.mark.parametrize("via", VIAS)
def test_damage_found_at_broker_start_is_a_loss(restartable: QueryReader, via: Via) -> None:
    written = append(restartable.client, "s", numbered(50))
    (piece,) = restartable.plan("s")
    restartable.broker.kill()
    data, index = restartable.files(piece)
    damage(data, 20 * 100 + 50)
    damage(index, 30 * ENTRY.size, bytes(4))
    restartable.broker.start()
    pieces = restartable.plan("s")
    with pytest.raises(DataLossError, match="message 20 cannot be read"):
        restartable.read(pieces, via)
    read = restartable.read(pieces, via, fails_on_loss=False)
    assert read == [row for row in written if row.number not in (20, 30, 31)]


# Concurrent changes


@pytest.mark.parametrize("via", ["auto", "wire"])
def test_rows_are_correct_while_messages_are_appended_and_removed(
    reader: QueryReader, create: Callable[..., str], via: Via
) -> None:
    name = create(stream_segment_size=8192, max_size=65_536)
    is_over = threading.Event()

    def fill() -> None:
        number = 0
        while not is_over.is_set():
            some = [b"%d " % n + bytes(n % 300) for n in range(number, number + 20)]
            assert reader.client.append_messages(name, some)[0] == number
            number += 20

    with running(fill):
        try:
            wait_until(lambda: oldest_number(reader.client, name) > 0)
            reads = total = 0
            while reads < 15 or total <= 100:
                pieces = reader.plan(name)
                read = reader.read(pieces, via, fails_on_loss=False)
                numbers = [row.number for row in read]
                # All messages may be evicted before the plan, which is then empty.
                planned = {number for piece in pieces for number in range(piece.first, piece.end)}
                assert numbers == sorted({*numbers} & planned)
                for row in read:
                    assert row.payload == b"%d " % row.number + bytes(row.number % 300)
                reads += 1
                total += len(read)
        finally:
            is_over.set()


def oldest_number(client: InternalClient, name: str) -> int:
    (position,) = client.watch_streams([name])
    return position.oldest_sequence_number
