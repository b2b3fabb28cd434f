"""Free space of the disk: the budget of appends, and log messages."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model import Persistence, StrategyOnFull
from penstock.store.files import Disk
from penstock.store.space import NoSpaceError, Space
from penstock.store.store import Store
from tests.store.conftest import Define

MIN_FREE = 1000
MIB = 1024 * 1024


class SampledDisk(Disk):
    """A disk with settable free space that counts samples."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.samples = 0
        self.is_full = False

    def free_bytes(self, directory: Path) -> int:
        self.samples += 1
        return self.free

    def write(self, descriptor: int, data: bytes, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(descriptor, data, position)


@pytest.fixture
def disk() -> SampledDisk:
    return SampledDisk(1 << 30)


@pytest.fixture
def store(disk: SampledDisk, root: Path) -> Iterator[Store]:
    store = Store(root, disk, min_free_disk=MIN_FREE)
    yield store
    disk.is_full = False
    store.close()


def test_budget_is_the_free_space_above_the_minimum(disk: SampledDisk, tmp_path: Path) -> None:
    disk.free = 1500
    space = Space(disk, tmp_path, MIN_FREE)

    assert (space.left, space.is_low) == (500, False)


def test_appends_resume_with_a_margin_above_the_minimum(
    disk: SampledDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    space = Space(disk, tmp_path, MIN_FREE)
    states = []
    for free in (1000, 999, 0, 1100, 1249, 1250, 1100):
        disk.free = free
        space.sample()
        states.append(space.is_low)

    assert states == [False, True, True, True, True, False, False]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_append_samples_the_disk_only_when_it_exceeds_the_budget(
    disk: SampledDisk, store: Store, define: Define
) -> None:
    log = store.create(define()).log
    store.space.left = 100 + 16
    disk.samples = 0
    log.append([b"x" * 100], 1)
    assert disk.samples == 0
    log.append([b"x"], 1)
    log.append([b"x"], 1)

    assert disk.samples == 1


def test_append_that_would_leave_less_than_the_minimum_is_refused(
    disk: SampledDisk, store: Store, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = store.create(define()).log
    disk.free = MIN_FREE + 116
    store.space.sample()

    for _ in range(2):
        with pytest.raises(
            NoSpaceError, match=r"1116 bytes free, and an append of 117 bytes would leave less"
        ):
            log.append([b"x" * 101], 1)
    # Each message also has an entry of 16 bytes in the index.
    with pytest.raises(NoSpaceError, match="an append of 120 bytes"):
        log.append([b"x" * 44] * 2, 1)

    assert (log.end, store.space.refused_messages, store.space.is_low) == (0, 4, False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert log.append([b"x" * 100], 1) == 0


def test_refusal_for_size_is_logged_again_after_there_was_space(
    disk: SampledDisk, store: Store, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    log = store.create(define()).log
    for _ in range(2):
        disk.free = MIN_FREE + 10
        store.space.sample()
        with pytest.raises(NoSpaceError):
            log.append([b"x" * 100], 1)
        disk.free = 1 << 30
        assert log.append([b"x" * 100], 1) >= 0

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_large_append_to_a_full_overwriting_stream_is_accepted_above_the_minimum(
    disk: SampledDisk, store: Store, define: Define
) -> None:
    log = store.create(
        define(
            max_size=2 * MIB,
            stream_segment_size=MIB,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
        )
    ).log
    log.append([b"x" * MIB], 1)
    disk.free = MIN_FREE + 10
    store.space.sample()

    assert log.append([b"x" * MIB], 1) == 1


def test_append_below_the_minimum_is_refused_except_for_the_broker(
    disk: SampledDisk, store: Store, define: Define
) -> None:
    log = store.create(define()).log
    disk.free = MIN_FREE - 1
    store.space.sample()

    with pytest.raises(NoSpaceError, match=r"999 bytes free, less than min_free_disk \(1000\)"):
        log.append([b"x", b"y"], 1)
    with pytest.raises(NoSpaceError):
        store.create(define("another"))

    assert (log.end, store.space.refused_messages) == (0, 2)
    assert log.append([b"x"], 1, keeps_min_free=False) == 0


def test_memory_stream_accepts_messages_below_the_minimum(
    disk: SampledDisk, store: Store, define: Define
) -> None:
    disk.free = 0
    store.space.sample()
    log = store.create(define(persistence=Persistence.Memory)).log

    assert log.append([b"x"], 1) == 0


def test_full_disk_is_logged_once(
    disk: SampledDisk, store: Store, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = store.create(define()).log
    store.space.min_free = 0
    disk.free, disk.is_full = 0, True
    for _ in range(3):
        with pytest.raises(NoSpaceError, match="the disk of the server is full"):
            log.append([b"x"], 1)
    disk.free, disk.is_full = 1 << 30, False
    store.maintain_space()

    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert store.space.refused_messages == 3
    assert log.append([b"x"], 1) == 0


class BoundedDisk(SampledDisk):
    """A disk whose free space changes with writes and removals."""

    def write(self, descriptor: int, data: bytes, position: int) -> None:
        if len(data) > self.free:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.free -= len(data)
        super().write(descriptor, data, position)

    def remove(self, path: Path) -> None:
        if path.exists():
            self.free += path.stat().st_size
        super().remove(path)


def test_append_larger_than_the_free_space_overwrites_the_oldest_data(
    root: Path, define: Define
) -> None:
    disk = BoundedDisk(1 << 30)
    store = Store(root, disk)
    log = store.create(
        define(
            max_size=8 * MIB,
            stream_segment_size=2 * MIB,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
        )
    ).log
    for _ in range(4):
        log.append([b"x" * (2 * MIB - 100)], 1)
    store.work()
    # Enough for small messages, so that the disk does not count as full.
    disk.free = MIB + MIB // 2

    assert log.append([b"y" * 2 * MIB], 1) == 4
    assert log.oldest == 1
    assert not store.space.is_full
    store.close()


def test_lack_of_inodes_or_quota_is_not_a_full_disk(
    disk: SampledDisk, store: Store, define: Define
) -> None:
    log = store.create(define()).log
    # Writes fail although bytes are free.
    disk.is_full = True

    with pytest.raises(OSError, match="No space left"):
        log.append([b"x"], 1)
    assert not store.space.is_full
