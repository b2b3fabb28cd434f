"""Room for a start on a full disk."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.store.files import Disk
from penstock.store.reserve import RESERVE_FILE, keep_reserve, release_reserve_if_full
from penstock.store.store import Store


class DiskWith(Disk):
    """One with so much room."""

    def __init__(self, free: int) -> None:
        self._free = free

    def free_bytes(self, directory: Path) -> int:
        return self._free


FULL, TIGHT, AMPLE = DiskWith(100_000), DiskWith(2 << 20), DiskWith(1 << 30)


def test_room_is_kept_where_there_is_plenty_and_given_up_where_there_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reserve = tmp_path / RESERVE_FILE
    keep_reserve(TIGHT, tmp_path)
    assert not reserve.exists()
    keep_reserve(AMPLE, tmp_path)
    # Not a hole in a file: it has to take up room.
    assert reserve.stat().st_blocks * 512 >= 256 * 1024
    keep_reserve(FULL, tmp_path)
    release_reserve_if_full(TIGHT, tmp_path)
    assert reserve.exists()

    caplog.set_level(logging.WARNING)
    release_reserve_if_full(FULL, tmp_path)

    assert not reserve.exists()
    assert "the disk is full" in caplog.text
    release_reserve_if_full(FULL, tmp_path)


def test_one_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    class Broken(DiskWith):
        def write(self, descriptor: int, data: bytes, position: int) -> None:
            raise OSError(28, "No space left on device")

    keep_reserve(Broken(1 << 30), tmp_path)

    assert not (tmp_path / RESERVE_FILE).exists()


def test_a_store_opens_with_its_reserve_and_keeps_another(root: Path) -> None:
    Store(root, AMPLE).close()
    assert (root / RESERVE_FILE).exists()
    Store(root, FULL).close()
    assert not (root / RESERVE_FILE).exists()
    Store(root, AMPLE).close()
    assert (root / RESERVE_FILE).exists()


def test_space_is_taken_in_advance_on_a_disk_near_the_minimum(root: Path) -> None:
    store = Store(root, DiskWith(8 << 20), min_free_disk=8 << 20)
    try:
        store.maintain_space()
        assert (root / RESERVE_FILE).exists()
        assert (root / "catalog.sqlite-wal").stat().st_size >= 256 * 1024
    finally:
        store.close()
