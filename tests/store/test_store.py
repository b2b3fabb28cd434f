"""The whole store, also with damage."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.discovery import is_served
from penstock.errors import StoreError
from penstock.model import (
    ExportDefinition,
    KinesisConfig,
    Persistence,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
)
from penstock.model.exporting import Upload
from penstock.store.files import Disk
from penstock.store.known_damage import DamagedSpan
from penstock.store.log import Log
from penstock.store.retention import Limits
from penstock.store.rows import ExportProgress, UploadChange, UploadProgress
from penstock.store.segment import DamagedError
from penstock.store.store import Store
from penstock.store.stored_stream import StoredStream
from tests.store.conftest import Define, Restartable


def read_all(log: Log) -> list[bytes]:
    payloads: list[bytes] = []
    while log.oldest + len(payloads) < log.end:
        payloads += log.read(log.oldest + len(payloads), log.end, 1 << 20).payloads
    return payloads


@pytest.mark.parametrize("name", ["..", ".", "a b,c", "x.log", "-", " ", "a" * 255])
def test_any_name_is_stored_below_the_root(
    restartable: Restartable, define: Define, name: str
) -> None:
    restartable.store.create(define(name)).log.append([b"x"], 1)
    assert len(list((restartable.root / "streams").iterdir())) == 1
    assert read_all(restartable.restart().streams[name].log) == [b"x"]


def without_ids(stream: StoredStream) -> dict[str, ExportProgress]:
    return {name: export._replace(export_id="") for name, export in stream.progress.items()}


def test_definitions_and_progress_survive_a_restart(
    restartable: Restartable, define: Define
) -> None:
    definition = define(
        export_definition=ExportDefinition(kinesis=[KinesisConfig("k", "stream", batch_size=7)]),
        time_to_live_millis=70_000,
        flush_on_write=True,
    )
    restartable.store.create(definition)
    restartable.store.commit_progress({"s": [ExportProgress("k", 41, 5, "", 6, 7)]})
    stored = restartable.restart().streams["s"]
    assert stored.definition == definition
    assert without_ids(stored) == {"k": ExportProgress("k", 41, 5, "", 6, 7)}


def test_dropped_messages_stay_dropped_after_a_kill(
    restartable: Restartable, define: Define
) -> None:
    log = restartable.store.create(define(max_size=4096)).log
    for number in range(20):
        log.append([b"x" * 500], number)
    before = (log.oldest, log.end, log.total_bytes)
    assert log.oldest > 0

    # As after a kill before the pending work is done.
    killed = shutil.copytree(restartable.root, restartable.root.with_name("killed"))
    store = Store(killed)

    again = store.streams["s"].log
    again.trim(0)
    assert (again.oldest, again.end, again.total_bytes) == before
    store.close()


def test_rejecting_stream_above_its_max_size_drops_nothing(
    restartable: Restartable, define: Define
) -> None:
    reject = StrategyOnFull.RejectNewData
    stream = restartable.store.create(define(strategy_on_full=reject))
    for number in range(20):
        stream.log.append([b"x" * 500], number)
    restartable.store.update(stream, define(strategy_on_full=reject, max_size=4096))

    again = restartable.restart().streams["s"].log
    again.trim(0)
    assert again.total_bytes == 10_000


def test_progress_of_unknown_streams_and_exports_is_ignored(
    restartable: Restartable, define: Define
) -> None:
    restartable.store.create(define())
    restartable.store.commit_progress(
        {"s": [ExportProgress("gone", 1)], "nowhere": [ExportProgress("k", 1)]}
    )
    assert restartable.store.streams["s"].progress == {}


def test_exported_end_is_the_minimum_of_enabled_exports(
    restartable: Restartable, define: Define
) -> None:
    exports = [
        KinesisConfig("a", "x"),
        KinesisConfig("b", "x", start_sequence_number=20),
        KinesisConfig("paused", "x", disabled=True),
    ]
    definition = define(export_definition=ExportDefinition(kinesis=exports))
    stream = restartable.store.create(definition)
    assert stream.exported_end() == 0
    restartable.store.commit_progress({"s": [ExportProgress("a", 29)]})
    assert stream.exported_end() == 20
    assert restartable.store.create(define("t")).exported_end() == 0


def test_deletion_removes_the_directory(restartable: Restartable, define: Define) -> None:
    stream = restartable.store.create(define())
    stream.log.append([b"x"], 1)
    restartable.store.delete("s")
    restartable.store.work()
    assert list((restartable.root / "streams").iterdir()) == []
    assert restartable.restart().streams == {}


def test_interrupted_deletion_is_finished_at_the_next_start(
    restartable: Restartable, define: Define
) -> None:
    restartable.store.create(define()).log.append([b"x"], 1)
    restartable.store.delete("s")
    store = restartable.restart()
    assert store.streams == {}
    assert list((restartable.root / "streams").iterdir()) == []


def test_recreated_stream_starts_at_zero(restartable: Restartable, define: Define) -> None:
    restartable.store.create(define()).log.append([b"x"] * 5, 1)
    restartable.store.delete("s")
    assert restartable.store.create(define()).log.append([b"y"], 1) == 0


def test_a_memory_stream_keeps_its_definition_and_its_numbers(
    restartable: Restartable, define: Define
) -> None:
    definition = define(persistence=Persistence.Memory)
    restartable.store.create(definition).log.append([b"x"] * 5, 1)
    stored = restartable.restart().streams["s"]
    assert stored.definition == definition
    assert (stored.log.oldest, stored.log.end) == (5, 5)
    assert list((restartable.root / "streams").iterdir()) == []


def test_second_store_on_a_root_is_refused(restartable: Restartable) -> None:
    with pytest.raises(StoreError, match="another broker"):
        Store(restartable.root)


def test_is_served_detects_an_open_store(restartable: Restartable, tmp_path: Path) -> None:
    assert is_served(restartable.root)
    assert not is_served(tmp_path / "nowhere")
    restartable.stop()
    assert not is_served(restartable.root)
    restartable.start()


def test_foreign_file_is_kept_and_logged(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    stream = restartable.store.create(define())
    stream.log.append([b"x"], 1)
    directory = restartable.root / "streams" / stream.id
    (directory / "notes.txt").write_text("mine")
    (restartable.root / "streams" / "a file").write_text("mine")
    store = restartable.restart()
    assert read_all(store.streams["s"].log) == [b"x"]
    assert (directory / "notes.txt").read_text() == "mine"
    assert "notes.txt" in caplog.text


def test_a_stream_without_its_directory_does_not_stop_the_others(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    lost = restartable.store.create(define("lost"))
    lost.log.append([b"x"] * 5, 1)
    restartable.store.create(define("kept")).log.append([b"y"], 1)
    restartable.stop()
    shutil.rmtree(restartable.root / "streams" / lost.id)
    store = restartable.start()
    assert read_all(store.streams["kept"].log) == [b"y"]
    assert "is missing" in caplog.text
    assert store.streams["lost"].log.append([b"z"], 1) >= 5


def test_unlisted_directory_is_restored(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    stream = restartable.store.create(define())
    for number in range(4):
        stream.log.append([bytes([number]) * 1000], 1)
    restartable.stop()
    with sqlite3.connect(restartable.root / "catalog.sqlite") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM stream")
    connection.close()
    store = restartable.start()
    assert read_all(store.streams["s"].log) == [bytes([n]) * 1000 for n in range(4)]
    assert "not in the catalog" in caplog.text


def test_destroyed_catalog_loses_no_messages(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("s", "t"):
        stream = restartable.store.create(define(name))
        for number in range(4):
            stream.log.append([name.encode() + bytes([number]) * 1000], 1)
    restartable.stop()
    path = restartable.root / "catalog.sqlite"
    path.write_bytes(b"\xff" * path.stat().st_size)
    store = restartable.start()
    for name in ("s", "t"):
        log = store.streams[name].log
        assert read_all(log) == [name.encode() + bytes([n]) * 1000 for n in range(4)]
        assert log.append([b"x"], 1) == 4
    assert "catalog is damaged" in caplog.text


def test_deleted_stream_whose_directory_cannot_be_removed_is_not_restored(
    restartable: Restartable, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    restartable.store.create(define()).log.append([b"x"], 1)
    restartable.store.delete("s")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        assert restartable.restart().streams == {}
    restartable.store.work()
    assert list((restartable.root / "streams").iterdir()) == []


def test_restored_directory_may_have_any_name(restartable: Restartable, define: Define) -> None:
    stream = restartable.store.create(define(flush_on_write=True))
    stream.log.append([b"x"], 1)
    restartable.stop()
    (restartable.root / "catalog.sqlite").unlink()
    streams = restartable.root / "streams"
    (streams / stream.id).rename(streams / "restored from a backup")
    adopted = restartable.start().streams["s"]
    assert read_all(adopted.log) == [b"x"]
    assert len(adopted.id) == 16


def test_unfinished_creation_leaves_no_stream(restartable: Restartable, define: Define) -> None:
    restartable.stop()
    directory = restartable.root / "streams" / "half"
    directory.mkdir()
    (directory / f"{0:020d}.data").touch()
    assert restartable.start().streams == {}
    assert not directory.exists()


def test_data_without_a_definition_is_kept_and_logged(
    restartable: Restartable, caplog: pytest.LogCaptureFixture
) -> None:
    restartable.stop()
    directory = restartable.root / "streams" / "unknown"
    directory.mkdir()
    (directory / f"{0:020d}.data").write_bytes(b"data")
    assert restartable.start().streams == {}
    assert directory.exists()
    assert "has no definition" in caplog.text


def test_damaged_definition_is_read_from_its_copy(restartable: Restartable, define: Define) -> None:
    restartable.store.create(define()).log.append([b"x"], 1)
    restartable.stop()
    with sqlite3.connect(restartable.root / "catalog.sqlite") as connection:
        connection.execute("UPDATE stream SET definition = CAST('{' AS BLOB)")
    connection.close()
    assert read_all(restartable.start().streams["s"].log) == [b"x"]


def test_unreadable_stream_can_be_deleted(restartable: Restartable, define: Define) -> None:
    stream = restartable.store.create(define("broken"))
    restartable.store.create(define("kept")).log.append([b"y"], 1)
    restartable.stop()
    with sqlite3.connect(restartable.root / "catalog.sqlite") as connection:
        connection.execute("UPDATE stream SET definition = CAST('{' AS BLOB) WHERE name='broken'")
    connection.close()
    (restartable.root / "streams" / stream.id / "stream.json").unlink()
    (restartable.root / "catalog.backup.sqlite").unlink()
    store = restartable.start()
    assert list(store.unreadable) == ["broken"]
    assert read_all(store.streams["kept"].log) == [b"y"]
    store.delete("broken")
    store.work()
    store.create(define("broken"))


def test_definition_that_is_not_utf8_affects_no_other_stream(
    restartable: Restartable, define: Define
) -> None:
    stream = restartable.store.create(define("broken"))
    stream.log.append([b"x"], 1)
    restartable.store.create(define("kept")).log.append([b"y"], 1)
    restartable.stop()
    path = restartable.root / "streams" / stream.id / "stream.json"
    path.write_bytes(b'{"name": "\xff"}')
    (restartable.root / "catalog.sqlite").unlink()
    (restartable.root / "catalog.backup.sqlite").unlink()
    store = restartable.start()
    assert set(store.streams) == {"kept"}
    assert read_all(store.streams["kept"].log) == [b"y"]
    assert len(list(path.parent.iterdir())) == 3


def test_flipped_bit_damages_one_message_after_a_restart(
    restartable: Restartable, define: Define
) -> None:
    stream = restartable.store.create(define())
    for number in range(3):
        stream.log.append([bytes([number + 1]) * 100], 1)
    restartable.stop()
    path = restartable.root / "streams" / stream.id / f"{0:020d}.data"
    contents = bytearray(path.read_bytes())
    contents[150] ^= 4
    path.write_bytes(bytes(contents))
    log = restartable.start().streams["s"].log
    assert log.read(0, 3, 1000).payloads == [bytes([1]) * 100]
    with pytest.raises(DamagedError):
        log.read(1, 3, 1000)
    assert log.read(2, 3, 1000).payloads == [bytes([3]) * 100]


def test_the_definition_beside_the_segments_is_readable_json(
    restartable: Restartable, define: Define
) -> None:
    stream = restartable.store.create(define())
    path = restartable.root / "streams" / stream.id / "stream.json"
    assert json.loads(path.read_text())["name"] == "s"
    restartable.store.update(stream, define(max_size=5000))
    assert json.loads(path.read_text())["maxSize"] == 5000


def test_a_full_disk_leaves_no_half_created_stream(
    root: Path, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk(Disk):
        def create(self, path: Path) -> int:
            raise OSError(28, "No space left on device")

    store = Store(root, FullDisk())
    with pytest.raises(OSError, match="No space"):
        store.create(define())
    assert store.streams == {}
    assert list((root / "streams").iterdir()) == []
    store.close()


def test_update_keeps_the_progress_of_kept_exports(
    restartable: Restartable, define: Define
) -> None:
    stream = restartable.store.create(define(export_definition=_kinesis("a", "b")))
    restartable.store.commit_progress({"s": [ExportProgress("a", 1), ExportProgress("b", 2)]})
    restartable.store.update(stream, define(export_definition=_kinesis("b", "c")))
    expected = {"b": ExportProgress("b", 2), "c": ExportProgress("c")}
    assert without_ids(stream) == expected
    before = stream.progress
    assert restartable.restart().streams["s"].progress == before


def test_stored_progress_takes_effect_when_applied(
    restartable: Restartable, define: Define
) -> None:
    store = restartable.store
    stream = store.create(define(export_definition=_kinesis("k")))
    change = store.change_progress({"s": [ExportProgress("k", 5)]})
    assert stream.progress["k"].last_exported == -1
    change.store()
    assert stream.progress["k"].last_exported == -1
    change.apply()
    assert stream.progress["k"].last_exported == 5
    assert restartable.restart().streams["s"].progress["k"].last_exported == 5


def test_update_keeps_progress_in_flight(restartable: Restartable, define: Define) -> None:
    store = restartable.store
    stream = store.create(define(export_definition=_kinesis("k")))
    change = store.change_progress({"s": [ExportProgress("k", 5)]})
    store.update(stream, define(export_definition=_kinesis("k", "l")))
    change.store()
    change.apply()
    assert stream.progress["k"].last_exported == 5
    assert restartable.restart().streams["s"].progress["k"].last_exported == 5


@pytest.mark.parametrize("is_stored_first", [True, False])
def test_progress_in_flight_is_not_applied_to_a_replaced_export(
    restartable: Restartable, define: Define, is_stored_first: bool
) -> None:
    store = restartable.store
    definition = define(export_definition=_kinesis("k"))
    stream = store.create(definition)
    change = store.change_progress({"s": [ExportProgress("k", 5)]})
    if is_stored_first:
        change.store()
    store.update(stream, define())
    store.update(stream, definition)
    change.store()
    change.apply()
    assert stream.progress["k"].last_exported == -1
    assert restartable.restart().streams["s"].progress["k"].last_exported == -1


def test_progress_in_flight_is_not_applied_to_a_recreated_stream(
    restartable: Restartable, define: Define
) -> None:
    store = restartable.store
    definition = define(export_definition=_kinesis("k"))
    store.create(definition)
    change = store.change_progress({"s": [ExportProgress("k", 5)]})
    store.delete("s")
    stream = store.create(definition)
    change.store()
    change.apply()
    assert stream.progress["k"].last_exported == -1


def _upload(export_id: str) -> UploadProgress:
    upload = Upload(
        sequence_number=1, bucket="b", key="k", began=1, fingerprint="f", size=2, part_size=3
    )
    return UploadProgress(export_id=export_id, stream="s", identifier="e", upload=upload)


def _s3(*names: str) -> ExportDefinition:
    return ExportDefinition(s3_task_executor=[S3ExportTaskExecutorConfig(name) for name in names])


def _abandoned(store: Store) -> dict[str, bool]:
    return {upload.export_id: upload.is_abandoned for upload in store.uploads()}


def test_uploads_of_removed_exports_are_abandoned(restartable: Restartable, define: Define) -> None:
    store = restartable.store
    stream = store.create(define(export_definition=_s3("a", "b")))
    kept, other = (stream.progress[name].export_id for name in "ab")
    uploads = UploadChange([_upload(kept), _upload(other), _upload("of a deleted stream")])
    store.change_progress({}, uploads).store()
    assert _abandoned(store) == {kept: False, other: False, "of a deleted stream": True}
    # An export of another kind keeps its progress, but not its uploads.
    both = ExportDefinition(
        kinesis=_kinesis("b").kinesis, s3_task_executor=_s3("a").s3_task_executor
    )
    store.update(stream, define(export_definition=both))
    assert stream.progress["b"].export_id == other
    store = restartable.restart()
    assert _abandoned(store) == {kept: False, other: True, "of a deleted stream": True}


def test_uploads_of_an_unreadable_stream_are_not_abandoned(
    restartable: Restartable, define: Define
) -> None:
    stream = restartable.store.create(define(export_definition=_s3("a")))
    export_id = stream.progress["a"].export_id
    restartable.store.change_progress({}, UploadChange([_upload(export_id)])).store()
    restartable.store.catalog._connection.execute("UPDATE stream SET definition = x'00'")
    (restartable.root / "streams" / stream.id / "stream.json").write_text("no definition")
    store = restartable.restart()
    assert list(store.unreadable) == ["s"]
    assert _abandoned(store) == {export_id: False}


def _kinesis(*names: str) -> ExportDefinition:
    return ExportDefinition(kinesis=[KinesisConfig(name, "x") for name in names])


def test_an_update_that_fails_changes_nothing(restartable: Restartable, define: Define) -> None:
    stream = restartable.store.create(define())
    stream.log.append([b"x"], 1)
    with sqlite3.connect(restartable.root / "catalog.sqlite") as other:
        other.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON stream BEGIN SELECT RAISE(FAIL, 'no'); END"
        )
    with pytest.raises(sqlite3.Error, match="no"):
        restartable.store.update(stream, define(max_size=5000, stream_segment_size=2048))
    with sqlite3.connect(restartable.root / "catalog.sqlite") as other:
        other.execute("DROP TRIGGER full")
    other.close()
    assert stream.definition == define()
    assert stream.log.limits == Limits.of(define())
    assert restartable.restart().streams["s"].definition == define()


def test_start_after_a_clean_stop_verifies_nothing(
    restartable: Restartable, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = define(strategy_on_full=StrategyOnFull.RejectNewData)
    restartable.store.create(definition).log.append([b"x"] * 100, 1)
    restartable.stop()
    reads: list[int] = []

    class CountingDisk(Disk):
        def read(self, descriptor: int, size: int, position: int) -> bytes:
            reads.append(size)
            return super().read(descriptor, size, position)

    restartable.store = Store(restartable.root, CountingDisk())
    assert restartable.store.streams["s"].log.end == 100
    assert reads == []


@pytest.mark.parametrize(
    ("suffix", "cut", "readable"), [("index", 16_000, 0), ("index", 16, 999), ("data", 1, 999)]
)
def test_truncated_file_loses_no_numbers_and_no_bytes(
    restartable: Restartable,
    define: Define,
    caplog: pytest.LogCaptureFixture,
    suffix: str,
    cut: int,
    readable: int,
) -> None:
    stream = restartable.store.create(define(stream_segment_size=1 << 18, flush_on_write=True))
    stream.log.append([b"message %03d" % number for number in range(1000)], 1)
    stream.log.flush()
    restartable.stop()
    directory = restartable.root / "streams" / stream.id
    path = directory / f"{0:020d}.{suffix}"
    os.truncate(path, path.stat().st_size - cut)
    sizes = {each.name: each.stat().st_size for each in directory.iterdir()}

    log = restartable.start().streams["s"].log
    (damage,) = log.damage.ranges()
    assert damage.reason.startswith("the files are shorter than at the last sync")
    assert log.append([b"next"], 1) == 1000
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"stream 's': messages {readable} to 999 are damaged"
    ]
    for _ in range(2):
        for number in range(readable):
            assert log.read(number, number + 1, 1).payloads == [b"message %03d" % number]
        for number in range(readable, 1000):
            with pytest.raises(DamagedError):
                log.read(number, 1000, 1)
        assert log.read(1000, 1001, 1).payloads == [b"next"]
        assert (
            sizes.items()
            <= {each.name: each.stat().st_size for each in directory.iterdir()}.items()
        )
        log = restartable.restart().streams["s"].log


@pytest.mark.parametrize("suffix", ["index", "data"])
def test_missing_file_of_the_active_segment_can_be_restored(
    restartable: Restartable, define: Define, suffix: str
) -> None:
    stream = restartable.store.create(define())
    stream.log.append([b"one", b"two"], 1)
    restartable.stop()
    path = restartable.root / "streams" / stream.id / f"{0:020d}.{suffix}"
    path.rename(path.with_suffix(".away"))

    log = restartable.start().streams["s"].log
    assert log.append([b"three"], 1) == 2
    with pytest.raises(DamagedError):
        log.read(0, 2, 1000)
    restartable.stop()
    path.with_suffix(".away").rename(path)
    assert read_all(restartable.start().streams["s"].log) == [b"one", b"two", b"three"]


def test_data_without_any_index_entry_is_renamed(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a kill before the first checkpoint. The numbers of such messages are unknown."""
    stream = restartable.store.create(define())
    stream.log.append([b"one", b"two"], 1)
    killed = shutil.copytree(restartable.root, restartable.root.with_name("killed"))
    index = killed / "streams" / stream.id / f"{0:020d}.index"
    os.truncate(index, 0)
    store = Store(killed)
    assert index.with_suffix(".data.lost").read_bytes() == b"onetwo"
    assert "6 bytes at the end of the data" in caplog.text
    store.close()


def test_every_sync_moves_the_checkpoint(restartable: Restartable, define: Define) -> None:
    stream = restartable.store.create(define())
    for end in (1, 2):
        stream.log.append([b"x"], 1)
        restartable.store.sync()
        checkpoint = restartable.store.catalog.checkpoint(stream.id)
        assert checkpoint is not None
        assert checkpoint.end == end


def test_replay_reports_a_truncated_index_and_restores_journaled_messages(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    store = restartable.store
    stream = store.create(define(flush_on_write=True))
    stream.log.append([b"one", b"two"], 1)
    stream.log.flush()
    store.sync()
    stream.log.append([b"three"], 1)
    stream.log.flush()
    killed = shutil.copytree(restartable.root, restartable.root.with_name("killed"))
    os.truncate(killed / "streams" / stream.id / f"{0:020d}.index", 0)
    # The first journal file is no longer needed, but still exists.
    (killed / "journal.0").unlink()
    store = Store(killed)
    log = store.streams["s"].log
    assert log.damage.ranges() == [DamagedSpan(0, 2, "missing in files and journal")]
    assert log.end == 3
    assert log.read(2, 3, 10).payloads == [b"three"]
    for number in (0, 1):
        with pytest.raises(DamagedError):
            log.read(number, 3, 10)
    assert "stream 's': damaged messages 0 to 1: missing in files and journal" in caplog.text
    store.close()
