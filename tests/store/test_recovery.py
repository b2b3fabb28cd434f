from __future__ import annotations

from pathlib import Path

import pytest

from penstock.store.files import Disk
from penstock.store.record import data_path, index_path
from penstock.store.recovery import Recovered, recover_segment
from penstock.store.segment import ActiveSegment, SegmentFiles


@pytest.fixture
def active(tmp_path: Path) -> ActiveSegment:
    active = ActiveSegment(SegmentFiles.create(Disk(), tmp_path, 0))
    for number in range(10):
        active.append([b"message %d" % number], 1000 + number)
    return active


def test_intact_segment_is_unchanged(active: ActiveSegment) -> None:
    assert recover_segment(active.files, None) == Recovered(active.summary(), [])


@pytest.mark.parametrize("cut", range(1, 16))
def test_torn_index_entry_and_its_data_stay_in_the_files(
    active: ActiveSegment, tmp_path: Path, cut: int
) -> None:
    with index_path(tmp_path, 0).open("r+b") as file:
        file.truncate(16 * 10 - cut)
    recovered = recover_segment(active.files, None)
    assert (recovered.summary.end, recovered.summary.size) == (9, 9 * 9)
    assert recovered.kept_bytes[0] == 9
    assert not recovered.is_appendable
    assert data_path(tmp_path, 0).stat().st_size == 9 * 10
    assert index_path(tmp_path, 0).stat().st_size in (16 * 10 - cut, 16 * 9)


def test_data_without_an_entry_is_not_a_message_and_stays(
    active: ActiveSegment, tmp_path: Path
) -> None:
    with data_path(tmp_path, 0).open("ab") as file:
        file.write(b"half a mess")
    recovered = recover_segment(active.files, None)
    assert recovered == Recovered(active.summary(), [], kept_bytes=(11, 0))
    assert data_path(tmp_path, 0).stat().st_size == active.size + 11


def test_entries_without_data_are_not_messages_and_stay(
    active: ActiveSegment, tmp_path: Path
) -> None:
    with data_path(tmp_path, 0).open("r+b") as file:
        file.truncate(9 * 7 + 3)
    recovered = recover_segment(active.files, None)
    assert (recovered.summary.end, recovered.kept_bytes) == (7, (3, 3 * 16))
    assert index_path(tmp_path, 0).stat().st_size == 16 * 10


def test_damage_before_intact_messages_stays(active: ActiveSegment, tmp_path: Path) -> None:
    contents = bytearray(data_path(tmp_path, 0).read_bytes())
    contents[9 * 4] ^= 1
    data_path(tmp_path, 0).write_bytes(bytes(contents))
    recovered = recover_segment(active.files, None)
    assert recovered.damaged == [range(4, 5)]
    assert recovered.summary.end == 10
    assert recovered.is_appendable


def test_messages_below_the_checkpoint_are_not_verified(
    active: ActiveSegment, tmp_path: Path
) -> None:
    checkpoint = active.summary()
    active.append([b"later"], 2000)
    contents = bytearray(data_path(tmp_path, 0).read_bytes())
    contents[0] ^= 1
    data_path(tmp_path, 0).write_bytes(bytes(contents))
    recovered = recover_segment(active.files, checkpoint)
    assert recovered.damaged == []
    assert recovered.summary == active.summary()


def test_data_truncated_below_the_checkpoint_is_damage(
    active: ActiveSegment, tmp_path: Path
) -> None:
    checkpoint = active.summary()
    active.append([b"after the checkpoint!"], 2000)
    with data_path(tmp_path, 0).open("r+b") as file:
        file.truncate(20)
    recovered = recover_segment(active.files, checkpoint)
    assert (recovered.summary.end, recovered.damaged) == (11, [range(2, 11)])
    assert not recovered.is_appendable
    assert index_path(tmp_path, 0).stat().st_size == 16 * 11


@pytest.mark.parametrize("size", [0, 15, 16 * 7, 16 * 10 - 1])
def test_index_truncated_below_the_checkpoint_is_damage(
    active: ActiveSegment, tmp_path: Path, size: int
) -> None:
    checkpoint = active.summary()
    active.append([b"behind", b"it"], 2000)
    with index_path(tmp_path, 0).open("r+b") as file:
        file.truncate(size)
    recovered = recover_segment(active.files, checkpoint)
    assert (recovered.summary.end, recovered.damaged) == (10, [range(size // 16, 10)])
    # Eight bytes after the checkpoint are at most eight messages. Their numbers are not used again.
    assert recovered.lowest_end == 18
    assert not recovered.is_appendable
    assert data_path(tmp_path, 0).stat().st_size == active.size


def test_zeros_at_the_end_are_not_messages(active: ActiveSegment, tmp_path: Path) -> None:
    for path in (data_path(tmp_path, 0), index_path(tmp_path, 0)):
        with path.open("ab") as file:
            file.write(bytes(160))
    recovered = recover_segment(active.files, None)
    assert recovered.summary == active.summary()


@pytest.mark.parametrize("byte", range(4))
def test_wrong_end_position_damages_two_messages(
    active: ActiveSegment, tmp_path: Path, byte: int
) -> None:
    contents = bytearray(index_path(tmp_path, 0).read_bytes())
    contents[16 * 4 + byte] ^= 0x04
    index_path(tmp_path, 0).write_bytes(bytes(contents))
    recovered = recover_segment(active.files, None)
    assert recovered.damaged == [range(4, 6)]
    assert recovered.summary.end == 10
