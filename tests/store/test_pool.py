"""Segment files share a bounded number of descriptors, and eviction loses no data."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from penstock.store.files import Disk
from penstock.store.segment import ActiveSegment, SealedSegment, SegmentFiles
from tests.faulty_disk import FaultyDisk
from tests.support import TIMEOUT_S


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk()
    disk.pool.capacity = 2
    return disk


def make_segments(disk: Disk, directory: Path, count: int) -> list[ActiveSegment]:
    return [
        ActiveSegment(SegmentFiles.create(disk, directory, first * 1000)) for first in range(count)
    ]


def is_open(segment: ActiveSegment) -> bool:
    return segment.files.data >= 0


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Lowers the limit of this process so that only `count` more files can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_open_files_are_bounded_and_all_segments_work(disk: FaultyDisk, tmp_path: Path) -> None:
    segments = make_segments(disk, tmp_path, 10)
    for text in (b"one", b"two"):
        for segment in segments:
            segment.append([text], 1)
            assert len(disk._open_files) <= 4
    for segment in segments:
        assert segment.read(segment.first, segment.end, 100).payloads == [b"one", b"two"]
        assert len(disk._open_files) <= 4
    for segment in segments:
        segment.close()
    assert not disk._open_files
    assert not len(disk.pool)


def test_recently_used_files_stay_open(disk: FaultyDisk, tmp_path: Path) -> None:
    busy, *others = make_segments(disk, tmp_path, 8)
    busy.append([b"x"], 1)
    descriptor = busy.files.data
    for segment in others:
        busy.append([b"x"], 1)
        segment.append([b"x"], 1)
        assert busy.files.data == descriptor


def test_unsynced_bytes_of_a_closed_file_are_synced(disk: FaultyDisk, tmp_path: Path) -> None:
    segments = make_segments(disk, tmp_path, 5)
    for segment in segments:
        segment.append([b"kept"], 1)
    assert not is_open(segments[0])
    for segment in segments:
        segment.files.sync()
    assert len(disk._open_files) <= 4
    disk.power_cut(Random(1))
    for segment in segments:
        sealed = SealedSegment(disk, tmp_path, segment.summary())
        assert sealed.read(segment.first, segment.end, 100).payloads == [b"kept"]


def test_files_are_not_closed_during_a_sync(tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Disk):
        def sync(self, descriptor: int) -> None:
            begun.set()
            assert may_end.wait(TIMEOUT_S)
            super().sync(descriptor)

    disk = Slow()
    disk.pool.capacity = 1
    disk.pool.bind()
    (first,) = make_segments(disk, tmp_path, 1)
    descriptor = first.files.data
    thread = threading.Thread(target=first.files.sync)
    thread.start()
    assert begun.wait(TIMEOUT_S)
    others = [ActiveSegment(SegmentFiles.create(disk, tmp_path, 5000 + n)) for n in range(3)]
    assert first.files.data == descriptor
    may_end.set()
    thread.join()
    others[0].append([b"x"], 1)
    assert not is_open(first)


def test_a_file_opens_while_another_thread_syncs_it(tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Disk):
        def sync(self, descriptor: int) -> None:
            begun.set()
            assert may_end.wait(TIMEOUT_S)
            super().sync(descriptor)

    disk = Slow()
    disk.pool.capacity = 1
    disk.pool.bind()
    first, _second = make_segments(disk, tmp_path, 2)
    assert not is_open(first)
    thread = threading.Thread(target=first.files.sync)
    thread.start()
    assert begun.wait(TIMEOUT_S)
    first.append([b"x"], 1)
    may_end.set()
    thread.join()
    first.append([b"y"], 1)
    assert first.read(0, 2, 100).payloads == [b"x", b"y"]


def test_only_the_owner_evicts_files(disk: FaultyDisk, tmp_path: Path) -> None:
    disk.pool.bind()
    segments = make_segments(disk, tmp_path, 2)
    with ThreadPoolExecutor(1) as other:
        created = other.submit(SegmentFiles.create, disk, tmp_path, 5000).result()
    assert all(map(is_open, segments))
    assert len(disk._open_files) == 4
    created.sync()
    assert len(disk._open_files) == 4
    segment = ActiveSegment(created)
    segment.append([b"x"], 1)
    assert segment.read(5000, 5001, 10).payloads == [b"x"]
    assert len(disk._open_files) == 4


def test_an_error_on_closing_is_reported_by_the_next_sync(tmp_path: Path) -> None:
    class NetworkDisk(Disk):
        fails = False

        def close(self, descriptor: int) -> None:
            super().close(descriptor)
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")

    disk = NetworkDisk()
    disk.pool.capacity = 1
    first, second = make_segments(disk, tmp_path, 2)
    first.append([b"x"], 1)
    disk.fails = True
    second.append([b"x"], 1)
    disk.fails = False
    with pytest.raises(OSError, match="Input/output"):
        first.files.sync()
    first.files.sync()


def test_pool_evicts_files_when_no_descriptors_are_left(tmp_path: Path) -> None:
    disk = Disk()
    segments = make_segments(disk, tmp_path, 4)
    with descriptors_left(0):
        extra = ActiveSegment(SegmentFiles.create(disk, tmp_path, 9000))
        extra.append([b"x"], 1)
        for segment in segments:
            segment.append([b"x"], 1)
            assert segment.read(segment.first, segment.end, 10).payloads == [b"x"]
    for segment in (*segments, extra):
        segment.close()


def test_lack_of_descriptors_is_not_damage(tmp_path: Path) -> None:
    disk = Disk()
    (active,) = make_segments(disk, tmp_path, 1)
    active.append([b"x"], 1)
    active.files.sync()
    active.close()
    sealed = SealedSegment(disk, tmp_path, active.summary())
    with descriptors_left(0):
        for use in (
            lambda: sealed.read(0, 1, 10),
            lambda: sealed.read_stored(0, 1, 10),
            lambda: sealed.time_of(0),
        ):
            with pytest.raises(OSError, match="Too many open files"):
                use()
    assert sealed.read(0, 1, 10).payloads == [b"x"]
    sealed.close()
