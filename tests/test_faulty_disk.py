"""The faulty disk may lose unsynced data like a real disk, and never synced data."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faulty_disk import FaultyDisk


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def test_synced_bytes_survive_a_power_cut(disk: FaultyDisk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f")
    disk.write(file, b"kept", 0)
    disk.sync(file)
    disk.sync_directory(tmp_path)
    for seed in range(10):
        disk.power_cut(Random(seed))
        assert (tmp_path / "f").read_bytes() == b"kept"


def outcomes(write: bytes, tmp_path: Path) -> set[bytes]:
    """All contents that a file can have after an unsynced write and a power cut."""
    found = set()
    for seed in range(60):
        disk = FaultyDisk()
        path = tmp_path / str(seed)
        file = disk.create(path)
        disk.sync_directory(tmp_path)
        disk.write(file, write, 0)
        disk.power_cut(Random(seed))
        found.add(path.read_bytes())
    return found


def test_unsynced_bytes_may_be_present_missing_or_zeros(tmp_path: Path) -> None:
    assert outcomes(b"data", tmp_path) == {b"data", b"", bytes(4)}


def test_pieces_of_a_large_write_are_lost_independently(tmp_path: Path) -> None:
    assert bytes(512) + b"x" * 512 in outcomes(b"x" * 1024, tmp_path)


def test_file_with_an_unsynced_name_may_vanish(tmp_path: Path) -> None:
    found = set()
    for seed in range(20):
        disk = FaultyDisk()
        path = tmp_path / str(seed)
        disk.sync(disk.create(path))
        disk.power_cut(Random(seed))
        found.add(path.exists())
    assert found == {True, False}


def test_unsynced_removal_may_be_lost(tmp_path: Path) -> None:
    found = set()
    for seed in range(20):
        disk = FaultyDisk()
        path = tmp_path / str(seed)
        disk.create(path)
        disk.sync_directory(tmp_path)
        disk.remove(path)
        disk.power_cut(Random(seed))
        found.add(path.exists())
    assert found == {True, False}


def test_full_disk_fails_after_a_partial_write(disk: FaultyDisk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f")
    disk.fill(6)
    disk.write(file, b"four", 0)
    with pytest.raises(OSError, match="No space left"):
        disk.write(file, b"five!", 4)
    assert (tmp_path / "f").read_bytes() == b"fourfi"
    disk.write(file, b"over", 0)
    disk.mend()
    disk.write(file, b"more", 6)
