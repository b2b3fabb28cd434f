"""Streams: definitions, statistics, waits, listeners, and unreadable streams."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.broker.streams import Stream, Streams
from penstock.broker.waiting import Waiter
from penstock.errors import (
    InvalidRequestException,
    MessageStoreReadErrorException,
    RequestPayloadTooLargeException,
    ResourceNotFoundException,
    ServerOutOfMemoryException,
    UnknownFailureException,
)
from penstock.model import MessageStreamDefinition, from_wire, to_wire
from penstock.settings import Settings
from penstock.store.record import index_path, pack_entries
from penstock.store.rows import ExportProgress
from penstock.store.store import Store
from tests.model.samples import EXPORTS, NO_EXPORTS


def definition(name: str = "s", **fields: Any) -> MessageStreamDefinition:
    return from_wire({"name": name, "strategyOnFull": 0, **fields}, MessageStreamDefinition)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def streams(store: Store, executor: ThreadPoolExecutor) -> Streams:
    return Streams(store, Settings(root=str(store.root)), executor)


def create(streams: Streams, name: str = "s", **fields: Any) -> Stream:
    asyncio.run(streams.create(definition(name, **fields)))
    return streams.find(name)


def test_create_above_max_streams_is_rejected(store: Store, executor: ThreadPoolExecutor) -> None:
    streams = Streams(store, Settings(root=str(store.root), max_streams=2), executor)
    create(streams, "a")
    create(streams, "b")

    with pytest.raises(InvalidRequestException) as caught:
        create(streams, "c")

    assert caught.value.message == (
        "the server has 2 message streams, and max_streams is 2: delete a stream, or raise "
        "max_streams (PENSTOCK_MAX_STREAMS)"
    )
    asyncio.run(streams.delete("a"))

    async def create_both() -> list[BaseException | None]:
        both = (streams.create(definition(name)) for name in ("c", "d"))
        return await asyncio.gather(*both, return_exceptions=True)

    # Pending creations count too.
    assert [type(error) for error in asyncio.run(create_both())] == [
        type(None),
        InvalidRequestException,
    ]


def test_read_without_descriptors_can_be_retried(streams: Streams) -> None:
    stream = create(streams, streamSegmentSize=1024)
    stream.append([bytes(1000)], 1)
    stream.append([bytes(1000)], 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # All lower numbers are in use: no file can be opened, even if the pool closes files.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(
            UnknownFailureException, match=r"no file descriptors left .* limit is 3"
        ):
            stream.read(0, 1, 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert stream.read(0, 1, 2000).payloads == [bytes(1000)]


def test_streams_are_listed_in_order(streams: Streams) -> None:
    for name in ("b", "..", "a b", "B"):
        create(streams, name)

    assert streams.names() == ["..", "B", "a b", "b"]
    assert [stream.name for stream in streams] == ["b", "..", "a b", "B"]


@pytest.mark.parametrize("name", ["nowhere", "..", "x" * 255])
def test_unknown_stream_is_not_found(streams: Streams, name: str) -> None:
    with pytest.raises(ResourceNotFoundException, match="does not exist"):
        streams.find(name)
    with pytest.raises(ResourceNotFoundException, match="does not exist"):
        asyncio.run(streams.delete(name))


@pytest.mark.parametrize("name", ["", "a/b", "ü", "a\n", "x" * 256])
def test_invalid_name_is_rejected(streams: Streams, name: str) -> None:
    with pytest.raises(InvalidRequestException, match="expected 1 to 255"):
        streams.find(name)


def test_deleted_stream_is_not_served(streams: Streams) -> None:
    old = create(streams)
    assert streams.is_served(old)

    asyncio.run(streams.delete("s"))
    assert not streams.is_served(old)

    new = create(streams)
    assert streams.is_served(new)
    assert not streams.is_served(old)


def test_description_has_the_exports_of_every_kind(streams: Streams) -> None:
    exports = {group: [export] for group, export in EXPORTS.items()}
    stream = create(streams, exportDefinition=exports)
    plain = create(streams, "plain")

    assert to_wire(stream.describe().definition.export_definition) == exports
    # Programs index and assign into the lists.
    assert to_wire(plain.describe().definition.export_definition) == NO_EXPORTS


def test_description_has_the_progress_of_exports(store: Store, streams: Streams) -> None:
    kinesis = [{"identifier": "k", "kinesisStreamName": "n"}]
    stream = create(streams, exportDefinition={"kinesis": kinesis})
    before = stream.describe().export_statuses
    assert [(s.export_config_identifier, s.last_exported_sequence_number) for s in before] == [
        ("k", -1)
    ]

    store.commit_progress({"s": [ExportProgress("k", 4, 1000, "slow", 50, 5)]})

    (status,) = stream.describe().export_statuses
    assert status.last_exported_sequence_number == 4
    assert (status.last_export_time, status.error_message) == (1000, "slow")
    assert (status.exported_bytes_from_stream, status.exported_messages_count) == (50, 5)


def test_full_stream_evicts_messages_that_all_exports_exported(
    store: Store, streams: Streams
) -> None:
    kinesis = [{"identifier": "k", "kinesisStreamName": "n"}]
    stream = create(
        streams, maxSize=4096, streamSegmentSize=1024, exportDefinition={"kinesis": kinesis}
    )
    for _ in range(4):
        stream.append([b"x" * 1024], 1)
    with pytest.raises(InvalidRequestException, match="is full and rejects new data"):
        stream.append([b"x" * 1024], 1)

    store.commit_progress({"s": [ExportProgress("k", 1)]})

    assert stream.append([b"x" * 1024], 1) == 4
    assert stream.log.oldest >= 1


def test_full_stream_keeps_exported_messages_without_reclaim_exported(
    store: Store, executor: ThreadPoolExecutor
) -> None:
    streams = Streams(store, Settings(root=str(store.root), reclaim_exported=False), executor)
    kinesis = [{"identifier": "k", "kinesisStreamName": "n"}]
    stream = create(
        streams, maxSize=1024, streamSegmentSize=1024, exportDefinition={"kinesis": kinesis}
    )
    stream.append([b"x" * 1024], 1)
    store.commit_progress({"s": [ExportProgress("k", 0)]})

    with pytest.raises(InvalidRequestException, match="full"):
        stream.append([b"x"], 1)


def _sqlite_full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@pytest.mark.parametrize(
    ("error", "told", "text"),
    [
        (OSError(errno.ENOSPC, "no space"), UnknownFailureException, "disk of the server is full"),
        (OSError(errno.EDQUOT, "quota"), UnknownFailureException, "disk of the server is full"),
        (OSError(errno.EIO, "broken"), UnknownFailureException, "disk of the server failed"),
        (_sqlite_full(), UnknownFailureException, "disk of the server is full"),
        (sqlite3.OperationalError("locked"), UnknownFailureException, "failed: locked"),
        (MemoryError(), ServerOutOfMemoryException, "no memory left"),
    ],
)
def test_errors_of_the_store_are_translated_for_clients(
    streams: Streams,
    error: Exception,
    told: type[Exception],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = create(streams)

    def fail(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(stream.log, "append", fail)

    with pytest.raises(told, match=text):
        stream.append([b"x"], 1)


def test_message_larger_than_the_stream_is_rejected(streams: Streams) -> None:
    stream = create(streams, maxSize=1024, streamSegmentSize=1024)

    with pytest.raises(RequestPayloadTooLargeException, match="larger than the maxSize"):
        stream.append([b"x" * 1025], 1)


def test_unreadable_stream_is_listed_and_can_only_be_deleted(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    store = Store(tmp_path)
    store.create(definition("broken"))
    store.create(definition("sound"))
    store.close()
    with sqlite3.connect(tmp_path / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE stream SET definition = x'00' WHERE name = 'broken'")
    for copy in tmp_path.glob("streams/*/stream.json"):
        if b'"broken"' in copy.read_bytes():
            copy.write_text("no definition")
    (tmp_path / "catalog.backup.sqlite").unlink()
    store = Store(tmp_path)
    streams = Streams(store, Settings(root=str(tmp_path)), executor)

    assert streams.names() == ["broken", "sound"]
    with pytest.raises(MessageStoreReadErrorException, match="'broken' cannot be read"):
        streams.find("broken")
    with pytest.raises(InvalidRequestException, match="already exists"):
        asyncio.run(streams.create(definition("broken")))
    assert streams.find("sound").append([b"x"], 1) == 0

    asyncio.run(streams.delete("broken"))
    assert streams.names() == ["sound"]
    asyncio.run(streams.create(definition("broken")))
    assert streams.find("broken").append([b"x"], 1) == 0
    store.close()


def test_failed_eviction_of_one_stream_does_not_stop_others(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = [create(streams, name, timeToLiveMillis=60_000) for name in ("bad", "good")]
    for stream in old:
        stream.append([b"x"], 1)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(old[0].log, "trim", fail)

    streams.trim(10_000_000)

    assert old[1].log.oldest == 1
    assert "cannot evict messages of stream 'bad'" in caplog.text


# Waits and stored reads


def test_creation_wakes_change_waiters(streams: Streams) -> None:
    woken: list[bool] = []
    streams.change_waiters.add(Waiter(streams.change_count + 2, woken.append))

    create(streams, "a")
    with pytest.raises(InvalidRequestException):
        create(streams, "a")
    assert woken == []
    create(streams, "b")

    assert woken == [True]


def test_updates_and_deletions_wake_change_waiters(
    streams: Streams,
) -> None:
    create(streams, "a")
    woken: list[bool] = []
    for wanted in (1, 2):
        streams.change_waiters.add(Waiter(streams.change_count + wanted, woken.append))

    asyncio.run(streams.update(definition("a", maxSize=4096, streamSegmentSize=1024)))
    assert woken == [True]
    asyncio.run(streams.delete("a"))

    assert woken == [True, True]


def test_finish_waits_ends_all_waits(streams: Streams) -> None:
    woken: list[bool] = []
    waiters = [create(streams, "a").waiters, create(streams, "b").waiters, streams.change_waiters]
    for some in waiters:
        some.add(Waiter(1 << 40, woken.append))

    streams.finish_waits()

    assert woken == [False, False, False]


def test_stored_read_of_an_empty_slice_is_empty(streams: Streams) -> None:
    stream = create(streams)
    stream.append([b"one", b"two"], 7)

    assert stream.read_stored(1, 2, 100)[1:] == (3, pack_entries([b"two"], 3, 7), b"two")
    for start, stop in ((1, 1), (2, 1), (9, 5)):
        assert stream.read_stored(start, stop, 100) == (start, 0, b"", b"")


def test_stored_read_of_a_damaged_message_fails_with_the_next_number(
    store: Store, streams: Streams
) -> None:
    stream = create(streams)
    stream.append([b"one", b"two"], 7)
    index = index_path(store.root / "streams" / stream.stored.id, 0)
    os.truncate(index, 16)

    with pytest.raises(
        MessageStoreReadErrorException,
        match="stream 's': message 1 is damaged: its index entry is missing; continue reading "
        "from 2",
    ):
        stream.read_stored(1, 2, 100)


# Retention listeners


class RecordingListener:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.moves: list[dict[str, int]] = []

    def before_drop(self, stream: Stream, end: int, are_expired: bool) -> None:
        self.seen.append((stream.name, end, are_expired))

    def before_change(
        self,
        stream: Stream,
        definition: MessageStreamDefinition | None,
        moves: Mapping[str, int],
    ) -> Callable[[], None]:
        assert stream.definition is not definition
        self.seen.append((stream.name, definition, stream.log.end))
        self.moves.append(dict(moves))
        return lambda: self.seen.append("done")


@pytest.fixture
def listener(streams: Streams) -> RecordingListener:
    listener = RecordingListener()
    streams.set_listener(listener)
    return listener


class FailingListener(RecordingListener):
    """A listener that fails."""

    def before_change(
        self,
        stream: Stream,
        definition: MessageStreamDefinition | None,
        moves: Mapping[str, int],
    ) -> Callable[[], None]:
        raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize("deletes", [False, True])
def test_change_is_notified_although_its_listener_fails(streams: Streams, deletes: bool) -> None:
    stream = create(streams)
    streams.set_listener(FailingListener())
    before = streams.change_count
    wanted = definition(flushOnWrite=True)
    with pytest.raises(OSError, match="too many open files"):
        asyncio.run(streams.delete(stream.name) if deletes else streams.update(wanted))
    # The change is stored.
    assert streams.is_served(stream) is not deletes
    assert streams.change_count == before + 1


def test_listener_is_called_before_and_after_a_change(
    streams: Streams, listener: RecordingListener
) -> None:
    create(streams).append([b"x"], 1)
    assert listener.seen == []
    wanted = definition(flushOnWrite=True)
    asyncio.run(streams.update(wanted))
    assert listener.seen == [("s", wanted, 1), "done"]
    asyncio.run(streams.delete("s"))
    assert listener.seen[2:] == [("s", None, 1), "done"]


def test_listener_is_notified_of_moves(streams: Streams, listener: RecordingListener) -> None:
    def exports(start: int) -> dict[str, object]:
        return {"http": [{"identifier": "e", "uri": "http://x", "startSequenceNumber": start}]}

    create(streams, exportDefinition=exports(0)).append([b"x"] * 5, 1)
    asyncio.run(streams.update(definition(exportDefinition=exports(2))))
    asyncio.run(streams.update(definition(exportDefinition=exports(2), flushOnWrite=True)))
    asyncio.run(streams.rewind("s", "e", 2))
    asyncio.run(streams.delete("s"))
    assert listener.moves == [{"e": 2}, {}, {"e": 2}, {}]


def test_rewind_does_not_check_the_stored_definition(streams: Streams, store: Store) -> None:
    asyncio.run(streams.create(definition("status")))
    executor = {"identifier": "e", "statusConfig": {"statusStreamName": "status"}}
    create(streams, exportDefinition={"s3TaskExecutor": [executor]}).append([b"x"], 1)
    asyncio.run(streams.delete("status"))
    asyncio.run(streams.rewind("s", "e", 1))
    assert store.streams["s"].progress["e"].last_exported == 0


def test_listener_is_not_notified_of_failed_changes(
    streams: Streams, store: Store, listener: RecordingListener
) -> None:
    create(streams)
    for event in ("UPDATE", "DELETE"):
        store.catalog._connection.execute(
            f"CREATE TEMP TRIGGER no_{event} BEFORE {event} ON stream "
            "BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    with pytest.raises(UnknownFailureException):
        asyncio.run(streams.update(definition(flushOnWrite=True)))
    with pytest.raises(UnknownFailureException):
        asyncio.run(streams.delete("s"))
    assert "done" not in listener.seen
    assert streams.find("s").append([b"x"], 1) == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_listener_is_called_before_an_eviction(
    streams: Streams, store: Store, executor: ThreadPoolExecutor, is_restarted: bool
) -> None:
    create(streams, timeToLiveMillis=60_000)
    if is_restarted:
        streams = Streams(store, Settings(root=str(store.root)), executor)
    listener = RecordingListener()
    streams.set_listener(listener)
    streams.find("s").append([b"x"], 1)
    streams.trim(100_000)
    assert listener.seen == [("s", 1, True)]


# Status streams


def with_status_stream(status_stream: str) -> dict[str, Any]:
    config = {"identifier": "e", "statusConfig": {"statusStreamName": status_stream}}
    return {"exportDefinition": {"s3TaskExecutor": [config]}}


def test_status_stream_must_exist_on_create_and_update(
    streams: Streams,
) -> None:
    create(streams)
    for change in (streams.create, streams.update):
        with pytest.raises(InvalidRequestException, match="'status' does not exist"):
            asyncio.run(
                change(
                    definition(
                        "t" if change == streams.create else "s", **with_status_stream("status")
                    )
                )
            )
    create(streams, "status")
    create(streams, "t", **with_status_stream("status"))
    asyncio.run(streams.update(definition(**with_status_stream("status"))))


def test_cycle_of_status_streams_is_rejected(streams: Streams) -> None:
    with pytest.raises(InvalidRequestException, match="is the stream itself"):
        create(streams, **with_status_stream("s"))
    create(streams)
    with pytest.raises(InvalidRequestException, match="is the stream itself"):
        asyncio.run(streams.update(definition(**with_status_stream("s"))))
    create(streams, "t", **with_status_stream("s"))
    with pytest.raises(InvalidRequestException, match="lead back to 's'"):
        asyncio.run(streams.update(definition(**with_status_stream("t"))))
    asyncio.run(streams.delete("s"))
    with pytest.raises(InvalidRequestException, match="lead back to 's'"):
        create(streams, **with_status_stream("t"))


def test_concurrent_updates_cannot_create_a_cycle_of_status_streams(streams: Streams) -> None:
    create(streams, "a")
    create(streams, "b")

    async def update_both() -> list[BaseException | None]:
        updates = [
            streams.update(definition("a", **with_status_stream("b"))),
            streams.update(definition("b", **with_status_stream("a"))),
        ]
        return await asyncio.gather(*updates, return_exceptions=True)

    first, second = asyncio.run(update_both())
    assert first is None
    assert isinstance(second, InvalidRequestException)


# Concurrent changes


def test_edit_is_based_on_the_preceding_update(streams: Streams) -> None:
    create(streams)

    async def change_both() -> None:
        await asyncio.gather(
            streams.update(definition(timeToLiveMillis=60_000)),
            streams.edit("s", lambda now: msgspec.structs.replace(now, flush_on_write=True)),
        )

    asyncio.run(change_both())
    changed = streams.find("s").definition
    assert (changed.time_to_live_millis, changed.flush_on_write) == (60_000, True)


def test_changes_of_one_name_are_made_in_order(streams: Streams) -> None:
    async def change() -> list[BaseException | None]:
        changes = [
            streams.create(definition()),
            streams.create(definition()),
            streams.delete("s"),
            streams.update(definition()),
            streams.create(definition(timeToLiveMillis=60_000)),
        ]
        return await asyncio.gather(*changes, return_exceptions=True)

    results = [type(result) for result in asyncio.run(change())]
    none = type(None)
    assert results == [
        none,
        InvalidRequestException,
        none,
        ResourceNotFoundException,
        none,
    ]
    assert streams.find("s").definition.time_to_live_millis == 60_000


def test_canceled_caller_does_not_cancel_the_change(streams: Streams) -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(streams.create(definition()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await streams.finish_changes()

    asyncio.run(cancel())
    assert streams.find("s").append([b"x"], 1) == 0


def test_change_that_cannot_be_stored_is_undone(streams: Streams, store: Store) -> None:
    create(streams, maxSize=4096, streamSegmentSize=1024)
    for event in ("INSERT", "UPDATE", "DELETE"):
        store.catalog._connection.execute(
            f"CREATE TEMP TRIGGER no_{event} BEFORE {event} ON stream "
            "BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    smaller = definition(maxSize=2048, streamSegmentSize=1024)
    for change in (streams.create(definition("t")), streams.update(smaller), streams.delete("s")):
        with pytest.raises(UnknownFailureException):
            asyncio.run(change)
    assert streams.names() == ["s"]
    assert len(list((store.root / "streams").iterdir())) == 1
    stream = streams.find("s")
    assert stream.definition.max_size == 4096
    for number in range(4):
        assert stream.append([bytes(1024)], 1) == number
