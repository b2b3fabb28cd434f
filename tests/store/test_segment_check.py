"""Checks of the files of a segment."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.store.files import Disk
from penstock.store.journal import JournalRecord
from penstock.store.record import ENTRY, data_path, index_path
from penstock.store.segment import ActiveSegment, SegmentFiles
from penstock.store.segment_check import (
    CheckedSpan,
    SegmentSource,
    check_messages,
    matches_checksums,
    raise_unless_damage,
)


def write(directory: Path, sizes: list[int]) -> ActiveSegment:
    segment = ActiveSegment(SegmentFiles.create(Disk(), directory, 5))
    for size in sizes:
        segment.append([b"x" * size], 1000)
    segment.close()
    return segment


def spans(directory: Path, records: list[JournalRecord] | None = None) -> list[CheckedSpan]:
    with SegmentSource(directory, 5, records or ()) as source:
        return list(check_messages(source, 5, source.count))


def test_intact_messages_are_one_span(tmp_path: Path) -> None:
    segment = write(tmp_path, [10] * 9000)
    assert spans(tmp_path) == [CheckedSpan(5, 9005, 0, 90_000)]
    with SegmentSource(tmp_path, 5) as source:
        assert matches_checksums(source, segment.summary(), lambda _: None)


def test_meter_counts_all_bytes(tmp_path: Path) -> None:
    segment = write(tmp_path, [10, 3 << 20, 20])
    counted: list[int] = []
    with SegmentSource(tmp_path, 5) as source:
        assert len(list(check_messages(source, 5, 3, counted.append))) == 1
    assert sum(counted) == segment.size + 3 * ENTRY.size


def test_damage_splits_spans(tmp_path: Path) -> None:
    write(tmp_path, [10] * 4)
    with data_path(tmp_path, 5).open("r+b") as file:
        file.seek(10)
        file.write(b"y")
    assert spans(tmp_path) == [
        CheckedSpan(5, 6, 0, 10),
        CheckedSpan(6, 7, 10, 20, "checksum does not match"),
        CheckedSpan(7, 9, 20, 40),
    ]


def test_wrong_end_position_damages_two_messages(tmp_path: Path) -> None:
    write(tmp_path, [10] * 4)
    with index_path(tmp_path, 5).open("r+b") as file:
        file.seek(ENTRY.size)
        file.write(b"\xff\xff\xff\xff")
    found = [(span.first, span.end, span.reason) for span in spans(tmp_path)]
    assert found == [
        (5, 6, None),
        (6, 7, "payload is missing"),
        (7, 8, "end position in the index is wrong"),
        (8, 9, None),
    ]


def test_journal_records_replace_missing_bytes(tmp_path: Path) -> None:
    segment = ActiveSegment(SegmentFiles.create(Disk(), tmp_path, 5))
    records = [
        JournalRecord("s", 5, segment.append([bytes([65 + number]) * 10], 1)) for number in range(4)
    ]
    segment.close()
    os.truncate(data_path(tmp_path, 5), 15)
    os.truncate(index_path(tmp_path, 5), 0)
    assert spans(tmp_path) == []
    assert spans(tmp_path, records) == [CheckedSpan(5, 9, 0, 40)]
    data_path(tmp_path, 5).unlink()
    assert spans(tmp_path, records) == [CheckedSpan(5, 9, 0, 40)]
    # Without the first record, the file has lost other messages too.
    with pytest.raises(FileNotFoundError):
        spans(tmp_path, records[1:])


def test_lack_of_descriptors_is_not_damage() -> None:
    with pytest.raises(OSError, match="open files"):
        raise_unless_damage(OSError(errno.EMFILE, "Too many open files"))
    raise_unless_damage(OSError(errno.EIO, "Input/output error"))
