"""The reserve for a start on a full disk."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.store.files import Disk
from penstock.store.reserve import RESERVE_FILE, keep_reserve, release_reserve_if_full
from penstock.store.store import Store


class FixedSpaceDisk(Disk):
    """A disk with this many free bytes."""

    def __init__(self, free: int) -> None:
        self._free = free

    def free_bytes(self, directory: Path) -> int:
        return self._free


FULL, TIGHT, AMPLE = FixedSpaceDisk(100_000), FixedSpaceDisk(2 << 20), FixedSpaceDisk(1 << 30)


def test_reserve_is_created_with_ample_space_and_released_on_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reserve = tmp_path / RESERVE_FILE
    keep_reserve(TIGHT, tmp_path)
    assert not reserve.exists()
    keep_reserve(AMPLE, tmp_path)
    # The file must not be sparse.
    assert reserve.stat().st_blocks * 512 >= 256 * 1024
    keep_reserve(FULL, tmp_path)
    release_reserve_if_full(TIGHT, tmp_path)
    assert reserve.exists()

    caplog.set_level(logging.WARNING)
    release_reserve_if_full(FULL, tmp_path)

    assert not reserve.exists()
    assert "the disk is full" in caplog.text
    release_reserve_if_full(FULL, tmp_path)


def test_failed_creation_leaves_no_reserve(tmp_path: Path) -> None:
    class UnwritableDisk(FixedSpaceDisk):
        def write(self, descriptor: int, data: bytes, position: int) -> None:
            raise OSError(28, "No space left on device")

    keep_reserve(UnwritableDisk(1 << 30), tmp_path)

    assert not (tmp_path / RESERVE_FILE).exists()


def test_store_releases_the_reserve_on_a_full_disk_and_creates_another(root: Path) -> None:
    Store(root, AMPLE).close()
    assert (root / RESERVE_FILE).exists()
    Store(root, FULL).close()
    assert not (root / RESERVE_FILE).exists()
    Store(root, AMPLE).close()
    assert (root / RESERVE_FILE).exists()


def test_space_is_preallocated_near_the_min_free_space(root: Path) -> None:
    store = Store(root, FixedSpaceDisk(8 << 20), min_free_disk=8 << 20)
    try:
        store.maintain_space()
        assert (root / RESERVE_FILE).exists()
        assert (root / "catalog.sqlite-wal").stat().st_size >= 256 * 1024
    finally:
        store.close()
