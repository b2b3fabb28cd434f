from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from penstock.store.journal import JournalRecord, decode_records, encode_record, journal_paths
from penstock.store.log import FileLog
from penstock.store.segment import WrittenRun
from penstock.store.store import Store
from tests.faulty_disk import FaultyDisk
from tests.store.conftest import Define

RECORD = JournalRecord("0123456789abcdef", 5, WrittenRun(10, 2, b"data", b"entries"))


class CrashStore:
    """A store on a disk that loses power."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = FaultyDisk()
        self.store = Store(root, self.disk)

    def log(self, name: str = "s") -> FileLog:
        log = self.store.streams[name].log
        assert isinstance(log, FileLog)
        return log

    def kill(self) -> None:
        self._abandon_store()
        self.store = Store(self.root, self.disk)

    def cut_power(self, seed: int) -> None:
        self._abandon_store()
        self.disk.power_cut(Random(seed))
        self.store = Store(self.root, self.disk)

    def _abandon_store(self) -> None:
        self.disk.kill()
        self.store.catalog.close()
        os.close(self.store._lock)

    def messages(self, name: str = "s") -> list[bytes]:
        log = self.log(name)
        messages: list[bytes] = []
        while log.oldest + len(messages) < log.end:
            messages += log.read(log.oldest + len(messages), log.end, 1 << 20).payloads
        return messages


@pytest.fixture
def machine(root: Path) -> CrashStore:
    return CrashStore(root)


def test_record_round_trip() -> None:
    records = encode_record(7, RECORD) + encode_record(7, RECORD._replace(segment=6))
    assert list(decode_records(records + bytes(1000))) == [RECORD, RECORD._replace(segment=6)]


def test_record_of_another_epoch_ends_the_journal() -> None:
    assert list(decode_records(encode_record(8, RECORD) + encode_record(7, RECORD))) == [RECORD]


@pytest.mark.parametrize("place", range(0, 60, 3))
def test_a_damaged_record_ends_the_journal(place: int) -> None:
    damaged = bytearray(encode_record(7, RECORD))
    damaged[place] ^= 1
    contents = encode_record(7, RECORD) + bytes(damaged) + encode_record(7, RECORD)
    assert list(decode_records(contents)) == [RECORD]


@pytest.mark.parametrize("seed", range(12))
def test_flushed_messages_survive_a_power_cut(
    machine: CrashStore, define: Define, seed: int
) -> None:
    """Over several segments, followed by appends without a flush."""
    machine.store.create(define(flush_on_write=True))
    wanted = [bytes([number + 1]) * 400 for number in range(10)]
    for number, payload in enumerate(wanted):
        machine.log().append([payload], number)
        if number % 3 == 0:
            machine.log().flush()
    machine.log().flush()
    machine.log().append([b"not flushed"], 1)
    machine.cut_power(seed)
    assert machine.messages()[:10] == wanted
    assert machine.log().append([b"next"], 1) in (10, 11)
    machine.store.close()


@pytest.mark.parametrize("seed", range(6))
def test_sync_between_two_flushes_loses_neither(
    machine: CrashStore, define: Define, seed: int
) -> None:
    machine.store.create(define(flush_on_write=True))
    for number in range(6):
        machine.log().append([bytes([number + 1]) * 300], 1)
        machine.log().flush()
        if number in (1, 3):
            machine.store.sync()
    for again in range(3):
        machine.cut_power(seed + again)
        assert machine.messages() == [bytes([number + 1]) * 300 for number in range(6)]


@pytest.mark.parametrize("seed", range(6))
def test_streams_share_a_commit(machine: CrashStore, define: Define, seed: int) -> None:
    for name in ("a", "b", "plain"):
        machine.store.create(define(name, flush_on_write=name != "plain"))
        machine.log(name).append([name.encode()], 1)
    machine.log("a").flush()
    machine.cut_power(seed)
    assert machine.messages("a") == [b"a"]
    assert machine.messages("b") == [b"b"]


@pytest.mark.parametrize("seed", range(6))
def test_large_commits_sync_the_segments_instead(
    machine: CrashStore, define: Define, seed: int
) -> None:
    machine.store.create(define(flush_on_write=True))
    machine.log().append([bytes([1]) * 200_000], 1)
    machine.log().flush()
    machine.cut_power(seed)
    assert machine.messages() == [bytes([1]) * 200_000]
    assert journal_paths(machine.root) == []


@pytest.mark.parametrize("seed", range(4))
def test_appends_continue_with_a_full_journal(
    machine: CrashStore, define: Define, seed: int
) -> None:
    machine.store.create(define(flush_on_write=True, max_size=1 << 30, stream_segment_size=1 << 23))
    for number in range(90):
        machine.log().append([bytes([number + 1]) * 50_000], 1)
        machine.log().flush()
    machine.cut_power(seed)
    assert machine.messages() == [bytes([number + 1]) * 50_000 for number in range(90)]


@pytest.mark.parametrize("seed", range(4))
def test_segments_are_synced_if_the_journal_cannot_be_written(
    machine: CrashStore, define: Define, seed: int
) -> None:
    machine.store.create(define(flush_on_write=True))
    machine.log().append([b"x"], 1)
    machine.disk.fails = lambda _action, path: path.name.startswith("journal")
    machine.log().flush()
    machine.disk.mend()
    machine.cut_power(seed)
    assert machine.messages() == [b"x"]


def test_flush_fails_until_the_disk_syncs_again(machine: CrashStore, define: Define) -> None:
    machine.store.create(define(flush_on_write=True))
    machine.log().append([b"x"], 1)
    machine.disk.fails = lambda action, _path: action == "sync"
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            machine.log().flush()
    machine.disk.mend()
    machine.log().flush()
    machine.cut_power(1)
    assert machine.messages() == [b"x"]


@pytest.mark.parametrize("seed", range(6))
def test_flush_covers_appends_of_a_killed_broker(
    machine: CrashStore, define: Define, seed: int
) -> None:
    machine.store.create(define(flush_on_write=True))
    machine.log().append([b"before"], 1)
    machine.kill()
    machine.log().append([b"after"], 1)
    machine.log().flush()
    machine.cut_power(seed)
    assert machine.messages() == [b"before", b"after"]


@pytest.mark.parametrize("seed", range(6))
def test_enabling_flush_on_write_covers_earlier_messages(
    machine: CrashStore, define: Define, seed: int
) -> None:
    stream = machine.store.create(define())
    machine.log().append([b"before"], 1)
    machine.store.update(stream, define(flush_on_write=True))
    machine.log().append([b"after"], 1)
    machine.log().flush()
    machine.cut_power(seed)
    assert machine.messages() == [b"before", b"after"]


def test_journal_of_a_deleted_stream_is_not_replayed(machine: CrashStore, define: Define) -> None:
    machine.store.create(define(flush_on_write=True))
    machine.log().append([b"x"], 1)
    machine.log().flush()
    machine.store.delete("s")
    machine.store.create(define(flush_on_write=True))
    machine.cut_power(1)
    assert machine.messages() == []


def test_removed_segments_are_not_replayed(machine: CrashStore, define: Define) -> None:
    machine.store.create(define(flush_on_write=True, max_size=4096))
    for number in range(8):
        machine.log().append([bytes([number + 1]) * 1000], 1)
        machine.log().flush()
    machine.store.work()
    machine.cut_power(1)
    assert machine.messages() == [bytes([number + 1]) * 1000 for number in range(4, 8)]


def test_a_clean_stop_leaves_no_journal(machine: CrashStore, define: Define) -> None:
    machine.store.create(define(flush_on_write=True))
    machine.log().append([b"x"], 1)
    machine.log().flush()
    assert journal_paths(machine.root)
    machine.store.close()
    assert journal_paths(machine.root) == []


def test_no_journal_is_created_without_flush_on_write(machine: CrashStore, define: Define) -> None:
    machine.store.create(define())
    machine.log().append([b"x"], 1)
    machine.store.sync()
    machine.log().flush()
    assert journal_paths(machine.root) == []


def test_sync_works_without_space_for_the_spare_file(machine: CrashStore, define: Define) -> None:
    machine.store.create(define(flush_on_write=True))
    machine.log().append([b"x"], 1)
    machine.log().flush()
    machine.disk.fails = lambda action, path: action == "create" and path.name == "journal.1"
    machine.store.sync()
    assert not machine.log().has_unsynced
    machine.disk.mend()
    machine.store.sync()
    machine.log().append([b"y"], 1)
    machine.log().flush()
    machine.cut_power(1)
    assert machine.messages() == [b"x", b"y"]


def test_journal_is_kept_until_the_next_start_after_a_failed_sync(
    machine: CrashStore, define: Define
) -> None:
    """After a failed sync, the system may drop the pages, and the next sync succeeds."""
    machine.store.create(define(flush_on_write=True))
    machine.log().append([b"x"], 1)
    machine.log().flush()
    machine.disk.fails = lambda action, path: action == "sync" and path.suffix == ".data"
    machine.store.sync()
    machine.disk.mend()
    machine.store.sync()
    records = [
        record.written.data
        for path in journal_paths(machine.root)
        for record in decode_records(path.read_bytes())
    ]
    assert records == [b"x"]
    machine.store.close()
    assert journal_paths(machine.root)


def test_stream_that_cannot_be_replayed_is_unreadable_and_others_are_served(
    machine: CrashStore, define: Define
) -> None:
    for name in ("bad", "good"):
        machine.store.create(define(name, flush_on_write=True))
        machine.log(name).append([name.encode()], 1)
        machine.log(name).flush()
    bad = machine.store.streams["bad"].id
    machine.disk.fails = lambda action, path: action in ("open", "create") and bad in str(path)
    machine.cut_power(3)
    assert list(machine.store.unreadable) == ["bad"]
    assert machine.messages("good") == [b"good"]
    machine.disk.mend()
    machine.cut_power(4)
    assert machine.messages("bad") == [b"bad"]


def test_deleted_failing_stream_does_not_block_the_journal(
    machine: CrashStore, define: Define
) -> None:
    for name in ("bad", "good"):
        machine.store.create(define(name, flush_on_write=True))
    for _ in range(3):
        machine.log("bad").append([bytes(1000)], 1)
    bad = machine.store.streams["bad"].id
    machine.disk.fails = lambda action, path: action == "sync directory" and bad in str(path)
    machine.store.work()
    machine.disk.mend()
    machine.store.delete("bad")
    machine.log("good").append([b"x"], 1)
    machine.log("good").flush()
    machine.store.sync()
    assert machine.store._journal._draining is None


def test_lost_catalog_loses_no_flushed_messages(machine: CrashStore, define: Define) -> None:
    machine.store.create(define(flush_on_write=True))
    machine.log().append([b"x"], 1)
    machine.log().flush()
    machine.store.catalog.close()
    for path in machine.root.glob("catalog.sqlite*"):
        path.unlink()
    machine.cut_power(2)
    assert machine.messages() == [b"x"]
