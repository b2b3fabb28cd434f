from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.storage import SegmentSummary
from penstock.store.files import Disk
from penstock.store.record import ENTRY, crc32, data_path, index_path
from penstock.store.segment import (
    ActiveSegment,
    DamagedError,
    LostError,
    MemorySegment,
    SealedSegment,
    SegmentFiles,
)
from tests.faulty_disk import FaultyDisk
from tests.support import MEMORY


@pytest.fixture
def active(tmp_path: Path) -> ActiveSegment:
    return ActiveSegment(SegmentFiles.create(Disk(), tmp_path, 100))


def test_data_file_holds_only_payloads(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two"], 1)
    active.append([b"three"], 2)
    assert data_path(tmp_path, 100).read_bytes() == b"onetwothree"
    assert index_path(tmp_path, 100).stat().st_size == 3 * 16
    assert (active.first, active.end, active.size) == (100, 103, 11)
    assert (active.oldest_time, active.newest_time) == (1, 2)


def test_reads_start_at_any_message_and_stop_at_max_bytes(active: ActiveSegment) -> None:
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
def test_flipped_bit_of_the_data_is_detected(
    active: ActiveSegment, tmp_path: Path, place: int
) -> None:
    active.append([b"on", b"two", b"x"], 7)
    flip(data_path(tmp_path, 100), place)
    assert_only_damaged(active, 100 + (0 if place < 2 else 1 if place < 5 else 2))


@pytest.mark.parametrize("place", range(16, 32))
def test_flipped_bit_of_the_index_is_detected(
    active: ActiveSegment, tmp_path: Path, place: int
) -> None:
    """The end position is also the start of the next message, which may be lost too."""
    active.append([b"one", b"two", b"three", b"four"], 7)
    flip(index_path(tmp_path, 100), place)
    assert active.read(100, 101, 100).payloads == [b"one"]
    with pytest.raises(DamagedError, match="message 101"):
        active.read(101, 104, 100)
    assert active.read(103, 104, 100).payloads == [b"four"]


def test_messages_before_a_damaged_one_are_returned(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two", b"three"], 7)
    flip(data_path(tmp_path, 100), 4)
    assert active.read(100, 103, 1 << 20).payloads == [b"one"]


def test_truncated_file_loses_only_its_end(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two", b"three"], 7)
    with data_path(tmp_path, 100).open("r+b") as file:
        file.truncate(8)
    assert active.read(100, 103, 100).payloads == [b"one", b"two"]
    with pytest.raises(DamagedError):
        active.read(102, 103, 100)


def test_missing_file_is_damage_with_a_next_number(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two"], 7)
    sealed = SealedSegment(Disk(), tmp_path, active.summary())
    index_path(tmp_path, 100).unlink()
    with pytest.raises(DamagedError) as caught:
        sealed.read(100, 102, 100)
    assert caught.value.next_number == 102


def test_memory_segments_read_like_file_segments(active: ActiveSegment) -> None:
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


def test_damaged_entry_does_not_hide_a_large_message_before_it(
    active: ActiveSegment, tmp_path: Path
) -> None:
    active.append([b"first", b"second", b"third"], 7)
    # The end of the second message is now within the first.
    set_end(index_path(tmp_path, 100), 1, 3)
    for max_bytes in (1, 4, 5, 100):
        assert active.read(100, 103, max_bytes).payloads == [b"first"]


# Stored bytes


def test_read_stored_gives_the_bytes_of_the_files(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two"], 1)
    active.append([b"three", b"four"], 2)
    data = data_path(tmp_path, 100).read_bytes()
    index = index_path(tmp_path, 100).read_bytes()
    assert active.read_stored(100, 104, 1000) == (100, 0, index, data)
    assert active.read_stored(102, 103, 1000) == (102, 6, index[32:48], b"three")
    assert active.read_stored(103, 104, 1000) == (103, 11, index[48:], b"four")


def test_read_stored_stops_at_max_bytes_after_at_least_one_message(active: ActiveSegment) -> None:
    active.append([b"one", b"two", b"three"], 7)
    for max_bytes, expected in [(1, b"one"), (5, b"one"), (6, b"onetwo"), (10, b"onetwo")]:
        run = active.read_stored(100, 103, max_bytes)
        assert run.payloads == expected
        assert len(run.entries) == len(expected) // 3 * ENTRY.size
    assert active.read_stored(101, 103, 7).payloads == b"two"
    assert active.read_stored(101, 103, 8).payloads == b"twothree"
    assert active.read_stored(102, 103, 1).payloads == b"three"


def test_read_stored_is_the_same_for_sealed_and_memory_segments(
    active: ActiveSegment, tmp_path: Path
) -> None:
    memory = MemorySegment(100)
    for segment in (active, memory):
        segment.append([b"one", b"two", b"three"], 7)
        segment.append([b"four"], 2**40 + 5)
    sealed = SealedSegment(Disk(), tmp_path, active.summary())
    for start in range(100, 104):
        for stop in range(start + 1, 105):
            for max_bytes in (1, 6, 7, 8, 1000):
                expected = active.read_stored(start, stop, max_bytes)
                assert sealed.read_stored(start, stop, max_bytes) == expected
                assert memory.read_stored(start, stop, max_bytes) == expected
    for number in range(100, 105):
        assert sealed.position_of(number) == active.position_of(number)
        assert memory.position_of(number) == active.position_of(number)
    assert [active.position_of(number) for number in range(100, 105)] == [0, 3, 6, 11, 15]


def test_every_kind_of_segment_gives_a_summary(active: ActiveSegment, tmp_path: Path) -> None:
    memory = MemorySegment(100)
    for segment in (active, memory):
        segment.append([b"one", b"two"], 7)
        segment.append([b"three"], 5)
    data = data_path(tmp_path, 100).read_bytes()
    index = index_path(tmp_path, 100).read_bytes()
    summary = SegmentSummary(100, 103, 11, 5, 7, crc32(data), crc32(index))
    assert active.summary() == summary
    assert SealedSegment(Disk(), tmp_path, summary).summary() == summary
    assert memory.summary() == SegmentSummary(100, 103, 11, 5, 7, 0, 0)


def test_failed_append_does_not_change_the_checksums(tmp_path: Path) -> None:
    disk = FaultyDisk()
    active = ActiveSegment(SegmentFiles.create(disk, tmp_path, 100))
    active.append([b"before"], 7)
    before = active.summary()
    disk.fill(3)
    with pytest.raises(OSError, match="No space left"):
        active.append([b"too much"], 7)
    assert active.summary() == before
    disk.mend()
    active.append([b"after"], 7)
    assert active.summary().data_crc == crc32(data_path(tmp_path, 100).read_bytes())
    assert active.summary().index_crc == crc32(index_path(tmp_path, 100).read_bytes())


def test_read_stored_does_not_check_the_bytes(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two", b"three"], 7)
    flip(data_path(tmp_path, 100), 4)
    assert active.read_stored(100, 103, 100).payloads == b"onetgothree"
    with data_path(tmp_path, 100).open("r+b") as file:
        file.truncate(8)
    truncated = active.read_stored(100, 103, 100)
    assert (truncated.payloads, len(truncated.entries)) == (b"onetgoth", 3 * ENTRY.size)
    assert active.read_stored(102, 103, 100).payloads == b"th"


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.dictionaries(st.integers(0, 11), st.integers(0, 120) | st.integers(0, 2**32 - 1)),
    st.integers(1, 80),
)
def test_wrong_end_positions_affect_only_their_messages_and_the_next_ones(
    sizes: list[int], wrong_ends: dict[int, int], max_bytes: int
) -> None:
    """Consecutive reads return all other messages unchanged."""
    payloads = [bytes((place,)) * size for place, size in enumerate(sizes)]
    with TemporaryDirectory(dir=MEMORY) as directory:
        active = ActiveSegment(SegmentFiles.create(Disk(), Path(directory), 100))
        active.append(payloads, 7)
        for place, end in wrong_ends.items():
            if place < len(sizes):
                set_end(index_path(Path(directory), 100), place, end)
        found_payloads: list[bytes] = []
        while len(found_payloads) < len(sizes):
            run = active.read_stored(100 + len(found_payloads), active.end, max_bytes)
            assert len(run.payloads) <= max_bytes or len(run.entries) == ENTRY.size
            ends = [end - run.position for end, _, _ in ENTRY.iter_unpack(run.entries)]
            found_payloads += [run.payloads[max(a, 0) : max(b, 0)] for a, b in pairwise([0, *ends])]
        active.close()
    for place, payload in enumerate(payloads):
        if place not in wrong_ends and place - 1 not in wrong_ends:
            assert found_payloads[place] == payload


@pytest.mark.parametrize("bit", range(32))
def test_flipped_end_position_hides_no_other_message(
    active: ActiveSegment, tmp_path: Path, bit: int
) -> None:
    payloads = [b"%03d" % number for number in range(40)]
    active.append(payloads, 1)
    place = 39 * ENTRY.size
    index = bytearray(index_path(tmp_path, 100).read_bytes())
    index[place + bit // 8] ^= 1 << bit % 8
    index_path(tmp_path, 100).write_bytes(index)

    found: list[bytes] = []
    while len(found) < 39:
        found += active.read(100 + len(found), 140, 1 << 20).payloads

    # The last message is still correct if its end is beyond the end of the file.
    assert found in (payloads[:39], payloads)


def test_wrong_end_position_reads_no_more_than_the_file_has(tmp_path: Path) -> None:
    sizes: list[int] = []

    class ReadSizeDisk(Disk):
        def read(self, descriptor: int, size: int, position: int) -> bytes:
            sizes.append(size)
            return super().read(descriptor, size, position)

    active = ActiveSegment(SegmentFiles.create(ReadSizeDisk(), tmp_path, 100))
    active.append([b"one", b"two"], 7)
    set_end(index_path(tmp_path, 100), 0, 2**32 - 1)
    assert active.read_stored(100, 102, 1).payloads == b"onetwo"
    with pytest.raises(DamagedError, match="checksum"):
        active.read(100, 102, 1)
    # The next message starts beyond the end of the file.
    assert active.read_stored(101, 102, 1).payloads == b""
    assert max(sizes) < 100


@pytest.mark.parametrize("size", [0, 5, 16, 20, 32, 47])
def test_truncated_entries_are_missing(active: ActiveSegment, tmp_path: Path, size: int) -> None:
    active.append([b"one", b"two", b"three"], 7)
    with index_path(tmp_path, 100).open("r+b") as file:
        file.truncate(size)
    left = size // ENTRY.size
    if left:
        run = active.read_stored(100, 103, 100)
        assert len(run.entries) == left * ENTRY.size
    for number in range(100 + left, 103):
        with pytest.raises(DamagedError, match=f"message {number} is damaged: its index entry"):
            active.read_stored(number, 103, 100)
    # The end is known without the index.
    assert active.position_of(103) == 11
    for number in range(100, 103):
        if number <= 100 + left:
            assert active.position_of(number) == [0, 3, 6][number - 100]
        else:
            with pytest.raises(DamagedError, match="its index entry is missing"):
                active.position_of(number)


@pytest.mark.parametrize("missing", [data_path, index_path])
def test_a_sealed_segment_without_its_files_is_lost(
    active: ActiveSegment, tmp_path: Path, missing: Callable[[Path, int], Path]
) -> None:
    active.append([b"one", b"two"], 7)
    sealed = SealedSegment(Disk(), tmp_path, active.summary())
    missing(tmp_path, 100).unlink()
    for read in (lambda: sealed.read_stored(101, 102, 1), lambda: sealed.position_of(101)):
        with pytest.raises(LostError, match="is missing") as caught:
            read()
        assert caught.value.next_number == 102


def test_read_error_of_the_disk_is_reported_as_damage(tmp_path: Path) -> None:
    class UnreadableDisk(Disk):
        def read(self, descriptor: int, size: int, position: int) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    active = ActiveSegment(SegmentFiles.create(UnreadableDisk(), tmp_path, 100))
    active.append([b"one", b"two"], 7)
    for read in (lambda: active.read_stored(100, 102, 1), lambda: active.position_of(101)):
        with pytest.raises(DamagedError, match=r"the disk reports .*Input/output error"):
            read()


def set_end(path: Path, place: int, end: int) -> None:
    """Changes the end position of an index entry."""
    with path.open("r+b") as file:
        file.seek(place * ENTRY.size)
        file.write(end.to_bytes(4, "little"))


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


def test_summary_is_consistent_in_another_thread(active: ActiveSegment) -> None:
    torn: list[SegmentSummary] = []
    is_done = threading.Event()

    def read_summaries() -> None:
        while not is_done.is_set():
            summary = active.summary()
            count = summary.end - summary.first
            if summary.size != 1000 * count or crc32(bytes(1000 * count)) != summary.data_crc:
                torn.append(summary)

    watcher = threading.Thread(target=read_summaries)
    watcher.start()
    for _ in range(300):
        active.append([bytes(1000)] * 5, 7)
    is_done.set()
    watcher.join()
    assert torn == []
