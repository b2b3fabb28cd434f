"""Tests on a small file system. `test_full_disk.py` runs them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConnectFailedException, UnknownFailureException
from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.store.catalog import Catalog
from penstock.store.reserve import RESERVE_FILE
from penstock.store.rows import ExportProgress, TokenRow
from penstock.store.space import NoSpaceError
from penstock.store.store import Store
from penstock.store.stored_stream import StoredStream
from penstock.wire.operations import Operation
from tests.broker.exports.test_export_handlers import commit, exported, plan, report
from tests.broker.exports.workbench import to_http
from tests.cli.command import penstock_process
from tests.support import MEBIBYTE, LocalBroker, append, create, read, wait_until

# Enough for the reserve and for the space that the catalog preallocates.
DISK_BYTES = 24 * MEBIBYTE
SEGMENT_BYTES = 64 * 1024
PAYLOAD = b"x" * 4096


class MountedDisk:
    """A small file system that `fill` fills to the last byte."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self._filler = directory / "filler"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.root.parent)
        return found.f_bavail * found.f_frsize

    def fill(self, left: int = 0) -> None:
        size = self.free_bytes - left
        with self._filler.open("ab", buffering=0) as file:
            while size > 0:
                try:
                    size -= file.write(bytes(min(size, MEBIBYTE)))
                except OSError:
                    break
        assert self.free_bytes <= left

    def empty(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[MountedDisk]:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(tmp_path)]
    subprocess.run(mount, check=True)
    yield MountedDisk(tmp_path)
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.fixture(params=["preallocated", "reserve"])
def store(request: pytest.FixtureRequest, disk: MountedDisk) -> Iterator[Store]:
    """A store with a preallocated catalog, or with the reserve alone."""
    store = Store(disk.root)
    if request.param == "preallocated":
        store.maintain_space()
        (disk.root / RESERVE_FILE).unlink()
    yield store
    store.close()


def define(name: str = "s", **fields: object) -> MessageStreamDefinition:
    fields = {
        "strategy_on_full": StrategyOnFull.OverwriteOldestData,
        "stream_segment_size": SEGMENT_BYTES,
        "max_size": MEBIBYTE,
    } | fields
    return MessageStreamDefinition(name=name, **fields)  # type: ignore[arg-type] # by name


def fill_stream(store: Store, name: str = "s", **fields: object) -> StoredStream:
    stream = store.create(define(name, **fields))
    for _ in range(200):
        stream.log.append([PAYLOAD], 1)
    store.work()
    return stream


def test_deleted_stream_frees_its_space(disk: MountedDisk, store: Store) -> None:
    fill_stream(store)
    disk.fill()

    store.delete("s")
    store.work()

    assert disk.free_bytes > 700_000
    assert store.catalog.removed_directories() == []


def test_expired_messages_free_their_space(disk: MountedDisk, store: Store) -> None:
    stream = fill_stream(store, time_to_live_millis=60_000)
    disk.fill()

    stream.log.trim(now=100_000)
    store.work()

    assert disk.free_bytes > 700_000
    assert (stream.log.oldest, stream.log.end) == (200, 200)
    assert store.catalog.streams()[0].oldest == 200


@pytest.mark.parametrize("flush_on_write", [False, True])
def test_overwriting_stream_at_its_max_size_accepts_appends(
    disk: MountedDisk, store: Store, flush_on_write: bool
) -> None:
    stream = fill_stream(store, flush_on_write=flush_on_write)
    for _ in range(100):
        stream.log.append([PAYLOAD], 1)
    store.work()
    disk.fill()

    for number in range(300, 700):
        assert stream.log.append([b"%d" % number + PAYLOAD], 1) == number
        if flush_on_write:
            stream.log.flush()

    log = stream.log
    run = log.read(log.end - 1, log.end, 1 << 20)
    assert run.payloads == [b"699" + PAYLOAD]
    assert log.total_bytes > MEBIBYTE - 3 * SEGMENT_BYTES


def test_overwriting_stream_below_its_max_size_keeps_its_messages(disk: MountedDisk) -> None:
    store = Store(disk.root)
    stream = fill_stream(store, max_size=16 * MEBIBYTE)
    disk.fill()

    with pytest.raises(NoSpaceError, match="the disk of the server is full"):  # noqa: PT012
        while True:
            stream.log.append([PAYLOAD], 1)

    assert stream.log.oldest == 0
    end = stream.log.end
    disk.empty()
    assert stream.log.append([PAYLOAD], 1) == end
    store.close()


def test_progress_is_stored_on_a_full_disk(disk: MountedDisk) -> None:
    store = Store(disk.root)
    stream = store.create(define())
    store.catalog.update_stream(stream.id, b"{}", [], [ExportProgress("k")])
    store.maintain_space()
    disk.fill()

    # Far more than fits the WAL.
    for number in range(500):
        store.catalog.commit_progress([(stream.id, ExportProgress("k", number))])

    assert disk.free_bytes == 0
    assert store.catalog.progress(stream.id)["k"].last_exported == 499
    store.close()


def test_store_opens_and_commits_on_a_full_disk(disk: MountedDisk) -> None:
    store = Store(disk.root)
    stream = fill_stream(store)
    store.catalog.update_stream(stream.id, b"{}", [], [ExportProgress("k")])
    store.close()
    disk.fill()

    store = Store(disk.root)
    disk.fill()
    for number in range(500):
        store.catalog.commit_progress([(stream.id, ExportProgress("k", number))])
    store.catalog.remove_stream(stream.id)

    store.catalog.close()
    os.close(store._lock)


def test_tokens_can_be_revoked_and_creation_fails_without_a_traceback(disk: MountedDisk) -> None:
    root = ("--root", str(disk.root))
    with LocalBroker(disk.root) as broker:
        secret = "s" * 43
        broker.run(
            lambda: broker.broker._store.catalog.add_token(
                TokenRow("phone", "admin", ("*",), 1), secret
            )
        )
        # Otherwise the change uses the reserve, which is logged.
        broker.run(broker.broker._store.maintain_space)
        with broker.connect(secret) as client:
            disk.fill()
            revoked = penstock_process("tokens", "revoke", "phone", *root)
            assert (revoked.code, revoked.error) == (0, "")
            # The broker closes the connection of the token.
            wait_until(lambda: not _is_connected(client))
        with pytest.raises(ConnectFailedException):
            broker.connect(secret)
    # Without a broker, SQLite must create files first, and has no space for them.
    (disk.root / RESERVE_FILE).unlink(missing_ok=True)
    disk.fill()
    created = penstock_process("tokens", "create", "tablet", "--role", "admin", *root)
    assert created.code == 1
    assert "disk" in created.error
    assert "Traceback" not in created.error


def _is_connected(client: object) -> bool:
    with contextlib.suppress(Exception):
        client.call(Operation.ListStreams)  # type: ignore[attr-defined] # a Connection
        return True
    return False


def test_revoking_a_token_without_a_broker_uses_the_reserve(disk: MountedDisk) -> None:
    store = Store(disk.root)
    store.catalog.add_token(TokenRow("phone", "admin", ("*",), 1), "s" * 43)
    store.close()
    disk.fill()

    revoked = penstock_process("tokens", "revoke", "phone", "--root", str(disk.root))

    assert (revoked.code, revoked.error_lines[1:]) == (0, [])
    catalog = Catalog(disk.root / "catalog.sqlite")
    assert catalog.tokens() == []
    catalog.close()


def test_exports_deliver_each_message_once(disk: MountedDisk) -> None:
    with LocalBroker(disk.root) as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        wal = disk.root / "catalog.sqlite-wal"
        wait_until(lambda: wal.stat().st_size >= 256 * 1024)
        for _ in range(50):
            append(client, name, PAYLOAD)
        disk.fill()
        (found,) = plan(client)
        assert commit(client, report(found)) == [found["lease"]]
        assert plan(client) == []
        assert exported(client, name) == 49


def test_appends_are_refused_before_the_disk_is_full(disk: MountedDisk) -> None:
    min_free = 4 * MEBIBYTE
    with LocalBroker(disk.root, min_free_disk=min_free) as broker, broker.connect() as client:
        name = create(client, "s", maxSize=64 * MEBIBYTE)
        memory = create(client, "m", persistence=1)
        small = create(client, "o", maxSize=2 * SEGMENT_BYTES, strategyOnFull=1)
        for _ in range(40):
            append(client, small, PAYLOAD)
        stored = 0
        with pytest.raises(UnknownFailureException, match="less than min_free_disk"):  # noqa: PT012
            while True:
                append(client, name, PAYLOAD * 16)
                stored += 1
        assert min_free - MEBIBYTE < disk.free_bytes < min_free + MEBIBYTE
        # Overwriting streams and memory streams accept appends.
        for _ in range(100):
            append(client, small, PAYLOAD)
            append(client, memory, PAYLOAD)
        with pytest.raises(UnknownFailureException, match="less than min_free_disk"):
            create(client, "another")
        statistics = client.call(Operation.Statistics)["statistics"]
        assert statistics["disk"]["isLow"]
        assert statistics["disk"]["refusedMessages"] == 1

        client.call(Operation.DeleteMessageStream, name=name)
        wait_until(lambda: not broker.run(broker.broker.statistics_of_disk).is_low)
        again = create(client, "again")
        append(client, again, PAYLOAD)
        assert len(read(client, again)) == 1
        assert stored > 100
