"""The log of export progress, which survives a killed broker."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.model import ExportDefinition, KinesisConfig
from penstock.store.files import Disk
from penstock.store.progress_log import ProgressLog, read_progress
from penstock.store.record import crc32
from penstock.store.rows import ExportProgress
from tests.faulty_disk import FaultyDisk
from tests.store.conftest import Define, Restartable

DISK = Disk()


def positions(root: Path) -> list[int]:
    return [progress.last_exported for _, progress in read_progress(DISK, root)]


def advance(log: ProgressLog, *numbers: int) -> None:
    log.append([("stream", ExportProgress("e", number)) for number in numbers])


def test_records_are_read_in_their_order(tmp_path: Path) -> None:
    log = ProgressLog(DISK, tmp_path)
    progress = ExportProgress("e", 7, 1000, "slow", 20, 8, 1, "id")
    log.append([("one", progress)])
    log.append([("two", progress)])
    assert list(read_progress(DISK, tmp_path)) == [("one", progress), ("two", progress)]


def test_rotated_records_are_cleared_and_later_ones_kept(tmp_path: Path) -> None:
    log = ProgressLog(DISK, tmp_path)
    advance(log, 1)
    log.rotate()
    advance(log, 2)
    log.clear_rotated()
    assert positions(tmp_path) == [2]


def test_records_are_kept_while_the_catalog_fails(tmp_path: Path) -> None:
    log = ProgressLog(DISK, tmp_path)
    for number in range(3):
        advance(log, number)
        log.rotate()
    assert sorted(positions(tmp_path)) == [0, 1, 2]


def test_torn_record_ends_the_log(tmp_path: Path) -> None:
    log = ProgressLog(DISK, tmp_path)
    advance(log, 1, 2)
    path = tmp_path / "progress.0"
    data = path.read_bytes()
    for size in range(len(data) // 2, len(data)):
        path.write_bytes(data[:size])
        assert positions(tmp_path) == [1], size


def test_damaged_record_ends_the_log(tmp_path: Path) -> None:
    log = ProgressLog(DISK, tmp_path)
    advance(log, 1, 2)
    path = tmp_path / "progress.0"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data + bytes(100))
    assert positions(tmp_path) == [1]


def test_record_with_other_fields_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contents = msgspec.msgpack.encode(("stream", {"of": "a later version"}))
    record = len(contents).to_bytes(4, "little") + crc32(contents).to_bytes(4, "little") + contents
    log = ProgressLog(DISK, tmp_path)
    advance(log, 1)
    path = tmp_path / "progress.0"
    path.write_bytes(record + path.read_bytes())
    assert positions(tmp_path) == [1]
    assert "is not export progress" in caplog.text


def test_file_that_cannot_be_read_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "progress.0").mkdir()
    assert positions(tmp_path) == []
    assert "cannot read export progress" in caplog.text


def test_record_that_did_not_fit_is_overwritten(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = ProgressLog(disk, tmp_path)
    advance(log, 1)
    disk.fill(5)
    with pytest.raises(OSError, match="space"):
        advance(log, 2)
    disk.mend()
    advance(log, 3)
    assert positions(tmp_path) == [1, 3]


def test_log_after_a_power_cut_has_only_written_records(tmp_path: Path) -> None:
    for seed in range(50):
        root = tmp_path / str(seed)
        root.mkdir()
        disk = FaultyDisk()
        log = ProgressLog(disk, root)
        for number in range(20):
            advance(log, number)
        disk.power_cut(Random(seed))
        found = positions(root)
        assert found == list(range(len(found)))


class ExportingStore:
    """A store with one stream and one export."""

    def __init__(self, restartable: Restartable, define: Define) -> None:
        self._restartable = restartable
        exports = ExportDefinition(kinesis=[KinesisConfig("e", "stream")])
        restartable.store.create(define(export_definition=exports))

    @property
    def progress(self) -> ExportProgress:
        return self._restartable.store.streams["s"].progress["e"]

    def log(self, **fields: Any) -> None:
        store = self._restartable.store
        store.progress_log.append([(store.streams["s"].id, self.progress._replace(**fields))])

    def restart(self) -> None:
        self._restartable.store.progress_log.close(is_stored=False)
        self._restartable.restart()


@pytest.fixture
def exporter(restartable: Restartable, define: Define) -> ExportingStore:
    return ExportingStore(restartable, define)


def test_store_recovers_logged_progress(exporter: ExportingStore, restartable: Restartable) -> None:
    exporter.log(last_exported=3, processed_messages=4)
    exporter.log(last_exported=8, processed_messages=9, last_time=5)
    exporter.restart()
    assert (
        exporter.progress.last_exported,
        exporter.progress.processed_messages,
    ) == (8, 9)
    assert not list(restartable.root.glob("progress.*"))
    exporter.restart()
    assert exporter.progress.last_exported == 8


def test_numbers_of_recovered_progress_are_not_used_again(
    exporter: ExportingStore, restartable: Restartable
) -> None:
    exporter.log(last_exported=8)
    exporter.restart()
    assert restartable.store.streams["s"].log.end == 9


def test_logged_progress_behind_the_catalog_is_ignored(
    exporter: ExportingStore, restartable: Restartable
) -> None:
    exporter.log(last_exported=3)
    restartable.store.commit_progress({"s": [exporter.progress._replace(last_exported=8)]})
    exporter.restart()
    assert exporter.progress.last_exported == 8


def test_logged_progress_of_a_replaced_export_is_ignored(exporter: ExportingStore) -> None:
    exporter.log(last_exported=3, export_id="of an export that was moved")
    exporter.restart()
    assert exporter.progress.last_exported == -1
