"""Definition changes step by step: planned, stored, applied."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.model import ExportDefinition, KinesisConfig, Persistence
from penstock.store.rows import ExportProgress
from penstock.store.store import Store
from tests.faulty_disk import FaultyDisk
from tests.store.conftest import Define, Restartable


def test_failed_change_does_not_affect_others(restartable: Restartable, define: Define) -> None:
    store = restartable.store
    # The caller checks for duplicate names, not the store.
    changes = [store.plan_creation(define(name)) for name in ("a", "a", "b")]
    first, second, third = store.store_changes(changes)
    assert (first, third) == (None, None)
    assert isinstance(second, sqlite3.IntegrityError)
    assert len(list((restartable.root / "streams").iterdir())) == 2
    assert store.streams == {}
    changes[0].apply()
    changes[2].apply()
    assert sorted(store.streams) == sorted(restartable.restart().streams) == ["a", "b"]


def test_creation_with_a_failed_sync_leaves_no_stream(tmp_path: Path, define: Define) -> None:
    disk = FaultyDisk()
    store = Store(tmp_path, disk)
    disk.fails = lambda action, _: action == "sync directory"
    with pytest.raises(OSError, match="Input/output error"):
        store.create(define("s"))
    assert list((tmp_path / "streams").iterdir()) == []
    assert store.catalog.streams() == []
    disk.mend()
    store.create(define("s"))
    store.close()


def test_files_of_a_stream_stay_until_its_deletion_applies(
    restartable: Restartable, define: Define
) -> None:
    store = restartable.store
    log = store.create(define("s")).log
    log.append([b"x"], 1)
    deletion = store.plan_deletion("s")
    assert store.store_changes([deletion]) == [None]
    store.work()
    assert log.read(0, 1, 100).payloads == [b"x"]
    deletion.apply()
    store.work()
    assert list((restartable.root / "streams").iterdir()) == []
    assert store.catalog.removed_directories() == []


def test_deleted_stream_is_not_restored_after_a_power_cut(tmp_path: Path, define: Define) -> None:
    disk = FaultyDisk()
    store = Store(tmp_path, disk)
    stream = store.create(define("s"))
    stream.log.append([b"x"], 1)
    directory = tmp_path / "streams" / stream.id
    copy = shutil.copytree(directory, tmp_path / "copy")
    store.delete("s")
    # The sync of the removal fails: a power cut restores the directory.
    disk.fails = lambda action, _: action == "sync directory"
    store.work()
    disk.mend()
    store.close()
    shutil.rmtree(directory, ignore_errors=True)
    copy.rename(directory)
    store = Store(tmp_path, disk)
    assert store.streams == {}
    assert not directory.exists()
    assert store.catalog.removed_directories() == []
    store.close()


def test_progress_made_during_an_update_stays(restartable: Restartable, define: Define) -> None:
    store = restartable.store
    exports = ExportDefinition(kinesis=[KinesisConfig("k", "stream")])
    stream = store.create(define("s", export_definition=exports))
    update = store.plan_update(stream, define("s", export_definition=exports, flush_on_write=True))
    store.commit_progress({"s": [ExportProgress("k", 5)]})
    assert store.store_changes([update]) == [None]
    store.commit_progress({"s": [ExportProgress("k", 7)]})
    update.apply()
    assert stream.progress["k"].last_exported == 7
    assert restartable.restart().streams["s"].progress["k"].last_exported == 7


def test_a_new_memory_stream_takes_appends_without_the_catalog(
    restartable: Restartable, define: Define
) -> None:
    stream = restartable.store.create(define("m", persistence=Persistence.Memory))
    with sqlite3.connect(restartable.root / "catalog.sqlite", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert stream.log.append([b"x"], 1) == 0
        other.execute("ROLLBACK")
    other.close()
    restartable.restart()
    restartable.store.work()
    assert restartable.store.catalog.streams()[0].reserved > 1


def test_removal_of_a_large_stream_does_not_block_other_work(
    restartable: Restartable, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = restartable.store
    store.create(define("s")).log.append([b"x"], 1)
    store.delete("s")
    (directory,) = (restartable.root / "streams").iterdir()
    with monkeypatch.context() as no_time:
        no_time.setattr("penstock.store.store._REMOVAL_SECONDS", 0.0)
        assert store.wait_for_work(0)
        store.work()
        assert directory.exists()
        # The rest is removed without delay.
        assert store.wait_for_work(0)
    store.work()
    assert not directory.exists()
    assert not store.wait_for_work(0)


def _exported(store: Store, define: Define, *configs: KinesisConfig) -> None:
    """A stream whose exports have exported ten messages each."""
    store.create(define("s", export_definition=ExportDefinition(kinesis=list(configs))))
    progress = [ExportProgress(each.identifier, 9, 5, "it failed", 100, 11, 1) for each in configs]
    store.commit_progress({"s": progress})


def test_moved_export_keeps_counters_and_gets_another_id(
    restartable: Restartable, define: Define
) -> None:
    store = restartable.store
    _exported(store, define, KinesisConfig("a", "x"), KinesisConfig("b", "x"))
    stream = store.streams["s"]
    before = stream.progress["a"], stream.progress["b"]
    update = store.plan_update(stream, stream.definition, {"a": 3})
    assert store.store_changes([update]) == [None]
    assert stream.progress["a"] == before[0]
    update.apply()

    moved = stream.progress["a"]
    assert moved == ExportProgress("a", 2, 5, "", 100, 11, 1, moved.export_id)
    assert moved.export_id != before[0].export_id
    assert stream.progress["b"] == before[1]
    assert restartable.restart().streams["s"].progress == {"a": moved, "b": before[1]}


@pytest.mark.parametrize("report_is_first", [False, True])
def test_report_stored_during_a_move_does_not_undo_it(
    restartable: Restartable, define: Define, report_is_first: bool
) -> None:
    store = restartable.store
    _exported(store, define, KinesisConfig("a", "x"))
    stream = store.streams["s"]
    report = store.change_progress({"s": [stream.progress["a"]._replace(last_exported=20)]})
    update = store.plan_update(stream, stream.definition, {"a": 3})
    if report_is_first:
        report.store()
    assert store.store_changes([update]) == [None]
    if not report_is_first:
        report.store()
    update.apply()
    report.apply()

    assert stream.progress["a"].last_exported == 2
    assert restartable.restart().streams["s"].progress["a"].last_exported == 2


def test_report_applied_before_a_move_is_counted(restartable: Restartable, define: Define) -> None:
    store = restartable.store
    _exported(store, define, KinesisConfig("a", "x"))
    stream = store.streams["s"]
    progress = stream.progress["a"]._replace(last_exported=20, processed_messages=22)
    report = store.change_progress({"s": [progress]})
    update = store.plan_update(stream, stream.definition, {"a": 3})
    report.store()
    report.apply()
    assert store.store_changes([update]) == [None]
    update.apply()

    expected = 2, 22
    for found in (stream, restartable.restart().streams["s"]):
        moved = found.progress["a"]
        assert (moved.last_exported, moved.processed_messages) == expected


def test_move_that_cannot_be_stored_changes_nothing(
    restartable: Restartable, define: Define
) -> None:
    store = restartable.store
    _exported(store, define, KinesisConfig("a", "x"))
    stream = store.streams["s"]
    before = stream.progress["a"]
    store.catalog._connection.execute(
        "CREATE TEMP TRIGGER no BEFORE UPDATE ON export_progress "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    definition = define("s", export_definition=ExportDefinition(kinesis=[KinesisConfig("a", "y")]))
    (error,) = store.store_changes([store.plan_update(stream, definition, {"a": 3})])
    assert isinstance(error, sqlite3.Error)
    again = restartable.restart().streams["s"]
    assert again.progress["a"] == before
    assert again.definition == stream.definition
