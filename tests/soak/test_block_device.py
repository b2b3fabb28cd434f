"""The recorded block device: contents after a power cut."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from soak.block_device import Ext4Disk, RecordedImage, find_obstacle

SIZE = 1 << 16
SECTOR = 512


def test_flushed_writes_survive_every_cut() -> None:
    image = RecordedImage(bytearray(SIZE))
    image.write(SECTOR, b"x" * SECTOR)
    image.flush()
    for seed in range(20):
        survivor, writes, lost = image.cut(Random(seed), 0)
        assert survivor[SECTOR : 2 * SECTOR] == b"x" * SECTOR
        assert (writes, lost) == (0, 0)


def test_unflushed_writes_survive_in_whole_sectors_or_not_at_all() -> None:
    image = RecordedImage(bytearray(SIZE))
    image.write(0, b"old!" * 1024)
    image.flush()
    image.write(0, b"new!" * 1024)
    assert image.read(0, 4) == b"new!"
    seen = set()
    for seed in range(50):
        survivor, writes, lost = image.cut(Random(seed), 0)
        assert writes == 1
        sectors = [bytes(survivor[at : at + SECTOR]) for at in range(0, 4096, SECTOR)]
        assert set(sectors) <= {b"old!" * 128, b"new!" * 128}
        assert sectors.count(b"old!" * 128) == lost
        seen.add(lost)
    assert {0, 8} <= seen
    assert len(seen) > 2


def test_ext4_keeps_synced_data(tmp_path: Path) -> None:
    if reason := find_obstacle(tmp_path / "try"):
        pytest.skip(f"ext4 on a recorded block device is not possible: {reason}")
    disk = Ext4Disk(tmp_path / "disk", 8 << 20)
    disk.create()
    try:
        kept = disk.directory / "kept"
        kept.write_bytes(b"synced")
        with kept.open("ab") as file:
            os.fsync(file.fileno())
        (disk.directory / "other").write_bytes(b"never synced" * 1000)
        disk.cut(1)
        (disk.directory / "later").write_bytes(b"after the cut")
        os.sync()
        disk.unmount()
        disk.mount()
        assert kept.read_bytes() == b"synced"
        assert not (disk.directory / "later").exists()
    finally:
        disk.unmount()
