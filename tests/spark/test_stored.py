"""Stored messages as Arrow columns, compared with an implementation in plain Python."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.limits import INT32_MAX
from penstock.model.storage import SegmentSummary
from penstock.spark import stored as stored_module
from penstock.spark.stored import ARROW_SCHEMA, ENTRY_TYPE, StoredMessages
from penstock.spark.times import ALL_TIMES, TimeRange
from penstock.store.files import Disk
from penstock.store.record import ENTRY, checksum, crc32, data_path, index_path, pack_entries
from penstock.store.segment import ActiveSegment, SegmentFiles

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = 1_700_000_000_123


class StoredRow(NamedTuple):
    number: int
    millis: int
    payload: bytes


@dataclass(frozen=True)
class SegmentBytes:
    """The two files of a segment, as bytes."""

    first: int
    index: bytes
    data: bytes

    def stored(self) -> StoredMessages:
        entries = np.frombuffer(self.index, ENTRY_TYPE)
        return StoredMessages(self.first, entries, pa.py_buffer(self.data), 0)

    def with_flipped_bit(self, bit: int) -> SegmentBytes:
        both = bytearray(self.index + self.data)
        both[bit // 8] ^= 1 << bit % 8
        return SegmentBytes(
            self.first, bytes(both[: len(self.index)]), bytes(both[len(self.index) :])
        )

    @property
    def bits(self) -> int:
        return 8 * (len(self.index) + len(self.data))

    def intact(self) -> list[StoredRow]:
        """Returns the messages whose checksums match."""
        found = []
        begin = 0
        for number, (end, crc, millis) in enumerate(ENTRY.iter_unpack(self.index), self.first):
            payload = self.data[begin:end] if begin < end <= len(self.data) else b""
            if payload and checksum(payload, millis) == crc:
                found.append(StoredRow(number, millis, payload))
            begin = end
        return found


def make_files(messages: Sequence[StoredRow], first: int = 0) -> SegmentBytes:
    index = bytearray()
    data = b""
    for message in messages:
        index += pack_entries([message.payload], len(data), message.millis)
        data += message.payload
    return SegmentBytes(first, bytes(index), data)


def rows(batches: Iterable[pa.RecordBatch], stream: str = "s") -> list[StoredRow]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == ARROW_SCHEMA
        assert batch.num_rows > 0
        for row in batch.to_pylist():
            assert row["stream"] == stream
            millis = (row["ingest_time"] - EPOCH) // timedelta(milliseconds=1)
            found.append(StoredRow(row["sequence_number"], millis, row["payload"]))
    return found


@st.composite
def segments(draw: st.DrawFn, min_size: int = 0) -> list[StoredRow]:
    first = draw(st.sampled_from([0, 7, 2**40]))
    payloads = draw(st.lists(st.binary(min_size=1, max_size=9), min_size=min_size, max_size=12))
    times = st.integers(-3, 3) | st.integers(NOW, NOW + 3)
    return [
        StoredRow(first + place, draw(times), payload) for place, payload in enumerate(payloads)
    ]


@pytest.fixture
def active(tmp_path: Path) -> Iterator[ActiveSegment]:
    segment = ActiveSegment(SegmentFiles.create(Disk(), tmp_path, 100))
    yield segment
    segment.close()


def read_files(directory: Path, first: int) -> SegmentBytes:
    index, data = index_path(directory, first), data_path(directory, first)
    return SegmentBytes(first, index.read_bytes(), data.read_bytes())


# Rows


@settings(deadline=None)
@given(segments())
def test_rows_equal_the_messages(messages: list[StoredRow]) -> None:
    first = messages[0].number if messages else 0
    assert rows(make_files(messages, first).stored().batches("s")) == messages


def test_rows_equal_the_messages_of_a_segment(active: ActiveSegment, tmp_path: Path) -> None:
    active.append([b"one", b"two"], NOW)
    active.append([b"drei" * 1000], NOW + 5)
    stored = read_files(tmp_path, 100).stored()
    assert (stored.first, stored.end) == (100, 103)
    assert stored.is_intact(active.summary())
    assert rows(stored.batches("a stream, too"), "a stream, too") == [
        StoredRow(100, NOW, b"one"),
        StoredRow(101, NOW, b"two"),
        StoredRow(102, NOW + 5, b"drei" * 1000),
    ]


def test_empty_segment_has_no_rows(active: ActiveSegment, tmp_path: Path) -> None:
    stored = read_files(tmp_path, 100).stored()
    assert list(stored.batches("s")) == []
    assert rows(batch for part in stored.intact_parts() for batch in part.batches("s")) == []
    runs = stored.between(TimeRange(0, NOW))
    assert rows(batch for run in runs for batch in run.batches("s")) == []


@settings(deadline=None)
@given(segments(), st.data())
def test_part_has_only_its_rows(messages: list[StoredRow], data: st.DataObject) -> None:
    first = messages[0].number if messages else 0
    start = data.draw(st.integers(0, len(messages)))
    stop = data.draw(st.integers(start, len(messages)))
    part = make_files(messages, first).stored().part(first + start, first + stop)
    assert (part.first, part.end) == (first + start, first + stop)
    assert rows(part.batches("s")) == messages[start:stop]
    again = data.draw(st.integers(start, stop))
    assert rows(part.part(first + again, first + stop).batches("s")) == messages[again:stop]


@settings(deadline=None)
@given(segments(min_size=1), st.data())
def test_payloads_may_begin_anywhere_in_the_data_file(
    messages: list[StoredRow], data: st.DataObject
) -> None:
    """Over the wire, messages have entries of the index and only the payloads of these entries."""
    files = make_files(messages, messages[0].number)
    skipped = data.draw(st.integers(0, len(messages) - 1))
    position = sum(len(message.payload) for message in messages[:skipped])
    entries = np.frombuffer(files.index[skipped * ENTRY.size :], ENTRY_TYPE)
    payloads = pa.py_buffer(files.data[position:])
    stored = StoredMessages(files.first + skipped, entries, payloads, position)
    assert stored.intact_parts() == [stored]
    assert rows(stored.batches("s")) == messages[skipped:]


@settings(deadline=None)
@given(segments(), st.integers(-4, 4), st.integers(-4, NOW + 4))
def test_only_messages_within_times_are_rows_in_any_order(
    messages: list[StoredRow], start: int, end: int
) -> None:
    first = messages[0].number if messages else 0
    runs = make_files(messages, first).stored().between(TimeRange(start, end))
    found = rows(batch for run in runs for batch in run.batches("s"))
    assert found == [message for message in messages if start <= message.millis < end]


def test_all_times_select_all_messages() -> None:
    stored = make_files([StoredRow(5, NOW, b"a"), StoredRow(6, NOW - 1, b"b")], 5).stored()
    assert stored.between(ALL_TIMES) == [stored]


# Batches


@settings(deadline=None)
@given(segments(), st.integers(1, 30), st.integers(1, 5))
def test_batches_are_as_large_as_their_limits_allow(
    messages: list[StoredRow], max_bytes: int, max_messages: int
) -> None:
    first = messages[0].number if messages else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_module, "_MAX_BATCH_BYTES", max_bytes)
        patch.setattr(stored_module, "_MAX_BATCH_MESSAGES", max_messages)
        batches = list(make_files(messages, first).stored().batches("s"))
    assert rows(batches) == messages
    sizes = [[len(message.payload) for message in rows([batch])] for batch in batches]
    for size, following in zip_longest(sizes, sizes[1:]):
        assert len(size) <= max_messages
        assert len(size) == 1 or sum(size) <= max_bytes
        # Each batch is full.
        assert (
            following is None or len(size) == max_messages or sum(size) + following[0] > max_bytes
        )


def test_many_small_messages_are_few_batches() -> None:
    payloads = [b"%d" % number for number in range(40_000)]
    stored = SegmentBytes(0, pack_entries(payloads, 0, NOW), b"".join(payloads)).stored()
    batches = list(stored.batches("s"))
    assert [batch.num_rows for batch in batches] == [16_384, 16_384, 7232]
    assert [row for batch in batches for row in batch["payload"].to_pylist()] == payloads


def test_large_message_is_a_separate_batch() -> None:
    payloads = [b"a" * 100, b"b" * (9 << 20), b"c" * (9 << 20), b"d" * 100]
    stored = SegmentBytes(0, pack_entries(payloads, 0, NOW), b"".join(payloads)).stored()
    assert stored.intact_parts() == [stored]
    batches = list(stored.batches("s"))
    assert [batch["payload"].to_pylist() for batch in batches] == [[item] for item in payloads]


def test_batch_is_serialized_without_other_messages() -> None:
    payloads = [b"x" * 1000] * 10_000
    stored = SegmentBytes(0, pack_entries(payloads, 0, NOW), b"".join(payloads)).stored()
    (batch,) = stored.part(5000, 5010).batches("s")
    assert batch.serialize().size < 20_000


def test_payloads_are_not_copied() -> None:
    payloads = [b"x" * 1000] * 100
    stored = SegmentBytes(0, pack_entries(payloads, 0, NOW), b"".join(payloads)).stored()
    (batch,) = stored.part(10, 20).batches("s")
    *_, values = batch["payload"].buffers()
    assert values is not None
    assert values.address == stored.payloads.address


def test_segment_of_maximum_size_is_read(tmp_path: Path) -> None:
    payloads = [bytes([n]) * 100_000 for n in range(1, 100)]
    position = INT32_MAX - 9_900_000
    path = tmp_path / "data"
    with path.open("w+b") as file:
        # The first message is a hole in the file, which takes no disk space.
        file.truncate(position)
        file.seek(position)
        file.write(b"".join(payloads))
        file.flush()
        data = mmap.mmap(file.fileno(), INT32_MAX, prot=mmap.PROT_READ)
    index = ENTRY.pack(position, 0, 0) + pack_entries(payloads, position, NOW)
    stored = StoredMessages(0, np.frombuffer(index, ENTRY_TYPE), pa.py_buffer(data), 0).part(1, 100)
    assert stored.intact_parts() == [stored]
    batches = list(stored.batches("s"))
    assert [batch.num_rows for batch in batches] == [41, 41, 17]
    assert rows(batches) == [StoredRow(n, NOW, payloads[n - 1]) for n in range(1, 100)]


# Damage


@settings(deadline=None)
@given(segments(min_size=1), st.data())
def test_flipped_bit_affects_only_its_messages(
    messages: list[StoredRow], data: st.DataObject
) -> None:
    files = make_files(messages, messages[0].number)
    damaged = files.with_flipped_bit(data.draw(st.integers(0, files.bits - 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_module, "_MAX_CHECKED_MESSAGES", data.draw(st.integers(1, 15)))
        parts = damaged.stored().intact_parts()
    found = [row for part in parts for row in rows(part.batches("s"))]
    assert found == damaged.intact()
    missing = [message.number for message in messages if message not in found]
    # A damaged end also affects the next message.
    assert 1 <= len(missing) <= 2
    assert missing[-1] - missing[0] < 2
    # Runs are as long as possible.
    assert all(one.end < other.first for one, other in pairwise(parts))


@settings(deadline=None)
@given(segments(min_size=1), st.data())
def test_arbitrary_damage_yields_only_intact_messages(
    messages: list[StoredRow], data: st.DataObject
) -> None:
    files = make_files(messages, messages[0].number)
    index = bytearray(files.index)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(messages) - 1)) * ENTRY.size
        index[place : place + 4] = data.draw(
            st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 120)
        ).to_bytes(4, "little")
    cut = files.data[: data.draw(st.integers(0, len(files.data)))]
    damaged = SegmentBytes(files.first, bytes(index), cut)
    found = [row for part in damaged.stored().intact_parts() for row in rows(part.batches("s"))]
    assert found == damaged.intact()


@settings(deadline=None)
@given(segments(min_size=1), st.data())
def test_segment_checksums_detect_every_flipped_bit(
    messages: list[StoredRow], data: st.DataObject
) -> None:
    files = make_files(messages, messages[0].number)
    summary = summarize(files)
    assert files.stored().is_intact(summary)
    damaged = files.with_flipped_bit(data.draw(st.integers(0, files.bits - 1)))
    assert not damaged.stored().is_intact(summary)


def test_part_of_a_segment_is_not_a_whole_segment() -> None:
    files = make_files([StoredRow(n, NOW, b"abc") for n in range(5)])
    stored, summary = files.stored(), summarize(files)
    assert not stored.part(0, 4).is_intact(summary)
    assert not stored.part(1, 5).is_intact(summary)
    longer = make_files([StoredRow(n, NOW, b"abc") for n in range(6)])
    assert not longer.stored().is_intact(summary)
    assert not longer.stored().part(0, 5).is_intact(summary)


def test_memory_stream_is_checked_by_message() -> None:
    files = make_files([StoredRow(0, NOW, b"abc")])
    unknown = SegmentSummary(0, 1, 3, NOW, NOW, 0, 0)
    assert not files.stored().is_intact(unknown)
    (part,) = files.stored().intact_parts()
    assert rows(part.batches("s")) == [StoredRow(0, NOW, b"abc")]


def summarize(files: SegmentBytes) -> SegmentSummary:
    messages = files.intact()
    times = [message.millis for message in messages]
    return SegmentSummary(
        files.first,
        files.first + len(messages),
        len(files.data),
        min(times),
        max(times),
        crc32(files.data),
        crc32(files.index),
    )
