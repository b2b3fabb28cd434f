from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.store.files import Disk
from penstock.store.record import crc32, data_path, index_path
from penstock.store.segment import (
    ActiveSegment,
    DamagedError,
    MemorySegment,
    SealedSegment,
    SegmentFiles,
    SegmentSummary,
)


@pytest.fixture
def active(tmp_path: Path) -> ActiveSegment:
    return ActiveSegment(SegmentFiles.create(Disk(), tmp_path, 100))


def test_the_files_hold_the_payloads_and_nothing_else(
    active: ActiveSegment, tmp_path: Path
) -> None:
    active.append([b"one", b"two"], 1)
    active.append([b"three"], 2)
    assert data_path(tmp_path, 100).read_bytes() == b"onetwothree"
    assert index_path(tmp_path, 100).stat().st_size == 3 * 16
    assert (active.first, active.end, active.size) == (100, 103, 11)
    assert (active.oldest_time, active.newest_time) == (1, 2)


def test_reads_begin_anywhere_and_stop_at_the_budget(active: ActiveSegment) -> None:
    active.append([b"one", b"two", b"three"], 7)
    run = active.read(101, 103, 1 << 20)
    assert (run.first_sequence_number, run.ingest_times) == (101, [7, 7])
    assert run.payloads == [b"two", b"three"]
    assert active.read(100, 103, 6).payloads == [b"one", b"two"]
    assert active.read(102, 103, 1).payloads == [b"three"]


def test_a_sealed_segment_reads_the_same(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two"], 7)
    sealed = SealedSegment(Disk(), tmp_path, active.summary())
    assert sealed.read(100, 200, 1 << 20) == active.read(100, 102, 1 << 20)


@pytest.mark.parametrize("place", [0, 1, 4, 5])
def test_a_flipped_bit_of_the_data_is_noticed(
    active: ActiveSegment, tmp_path: Path, place: int
) -> None:
    active.append([b"on", b"two", b"x"], 7)
    flip(data_path(tmp_path, 100), place)
    assert_only_damaged(active, 100 + (0 if place < 2 else 1 if place < 5 else 2))


@pytest.mark.parametrize("place", range(16, 32))
def test_a_flipped_bit_of_the_index_is_noticed(
    active: ActiveSegment, tmp_path: Path, place: int
) -> None:
    """Its end position is also where the next message begins, so that one may be lost as well."""
    active.append([b"one", b"two", b"three", b"four"], 7)
    flip(index_path(tmp_path, 100), place)
    assert active.read(100, 101, 100).payloads == [b"one"]
    with pytest.raises(DamagedError, match="message 101"):
        active.read(101, 104, 100)
    assert active.read(103, 104, 100).payloads == [b"four"]


def test_what_precedes_a_damaged_message_is_served(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two", b"three"], 7)
    flip(data_path(tmp_path, 100), 4)
    assert active.read(100, 103, 1 << 20).payloads == [b"one"]


def test_a_cut_file_loses_only_its_end(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two", b"three"], 7)
    with data_path(tmp_path, 100).open("r+b") as file:
        file.truncate(8)
    assert active.read(100, 103, 100).payloads == [b"one", b"two"]
    with pytest.raises(DamagedError):
        active.read(102, 103, 100)


def test_a_missing_file_is_damage_that_says_where_to_go_on(
    active: ActiveSegment, tmp_path: Path
) -> None:
    active.append([b"one", b"two"], 7)
    sealed = SealedSegment(Disk(), tmp_path, active.summary())
    index_path(tmp_path, 100).unlink()
    with pytest.raises(DamagedError) as caught:
        sealed.read(100, 102, 100)
    assert caught.value.next_number == 102


def test_memory_segments_read_as_file_segments_do(active: ActiveSegment) -> None:
    memory = MemorySegment(100)
    for segment in (active, memory):
        segment.append([b"one", b"two", b"three"], 7)
        segment.append([b"four"], 5)
    for start, stop, max_bytes in [
        (100, 104, 1000),
        (101, 103, 1000),
        (100, 104, 6),
        (102, 104, 1),
    ]:
        assert memory.read(start, stop, max_bytes) == active.read(start, stop, max_bytes)
    assert (memory.end, memory.size) == (active.end, active.size)
    assert (memory.oldest_time, memory.newest_time) == (active.oldest_time, active.newest_time)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(bytes(data))


def assert_only_damaged(segment: ActiveSegment, damaged: int) -> None:
    for number in range(segment.first, segment.end):
        if number == damaged:
            with pytest.raises(DamagedError):
                segment.read(number, number + 1, 100)
        else:
            segment.read(number, number + 1, 100)


def test_a_summary_is_of_one_moment_also_for_another_thread(active: ActiveSegment) -> None:
    torn: list[SegmentSummary] = []
    is_done = threading.Event()

    def look() -> None:
        while not is_done.is_set():
            summary = active.summary()
            count = summary.end - summary.first
            if summary.size != 1000 * count or crc32(bytes(1000 * count)) != summary.data_crc:
                torn.append(summary)

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(300):
        active.append([bytes(1000)] * 5, 7)
    is_done.set()
    watcher.join()
    assert torn == []
