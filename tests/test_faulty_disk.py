"""The faulty disk must lose what a real one may lose, and never what was synced."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faulty_disk import FaultyDisk


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def test_what_was_synced_survives_a_power_cut(disk: FaultyDisk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f")
    disk.write(file, b"kept", 0)
    disk.sync(file)
    disk.sync_directory(tmp_path)
    for seed in range(10):
        disk.power_cut(Random(seed))
        assert (tmp_path / "f").read_bytes() == b"kept"


def fates(write: bytes, tmp_path: Path) -> set[bytes]:
    """What a file can be after a power cut that follows an unsynced write."""
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


def test_what_was_not_synced_may_be_there_missing_or_zeros(tmp_path: Path) -> None:
    assert fates(b"data", tmp_path) == {b"data", b"", bytes(4)}


def test_pieces_of_a_large_write_have_fates_of_their_own(tmp_path: Path) -> None:
    assert bytes(512) + b"x" * 512 in fates(b"x" * 1024, tmp_path)


def test_a_file_whose_name_was_not_synced_may_vanish(tmp_path: Path) -> None:
    found = set()
    for seed in range(20):
        disk = FaultyDisk()
        path = tmp_path / str(seed)
        disk.sync(disk.create(path))
        disk.power_cut(Random(seed))
        found.add(path.exists())
    assert found == {True, False}


def test_a_removal_that_was_not_synced_may_not_have_happened(tmp_path: Path) -> None:
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


def test_a_full_disk_writes_what_fits_and_then_fails(disk: FaultyDisk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f")
    disk.fill(6)
    disk.write(file, b"four", 0)
    with pytest.raises(OSError, match="No space left"):
        disk.write(file, b"five!", 4)
    assert (tmp_path / "f").read_bytes() == b"fourfi"
    disk.write(file, b"over", 0)
    disk.mend()
    disk.write(file, b"more", 6)
