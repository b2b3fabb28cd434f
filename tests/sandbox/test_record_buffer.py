"""Buffers of records."""

from __future__ import annotations

from penstock.sandbox.record_buffer import Page, RecordBuffer, RecordBuffers

ROOMY = 1 << 30


def filled(count: int, limit_bytes: int = ROOMY, size: int = 1000) -> RecordBuffer[int]:
    buffer: RecordBuffer[int] = RecordBuffer(limit_bytes)
    for record in range(count):
        assert buffer.add(record, size) == record
    return buffer


def test_records_are_read_in_order_from_any_number() -> None:
    buffer = filled(5)

    assert [number for number, _, _ in buffer.read(0)] == [0, 1, 2, 3, 4]
    assert [(number, record) for number, record, _ in buffer.read(3)] == [(3, 3), (4, 4)]
    assert list(buffer.read(5)) == []


def test_full_buffer_evicts_the_oldest_and_keeps_numbers() -> None:
    buffer = filled(20_000, limit_bytes=1256 * 100)

    assert (buffer.first, buffer.end) == (19_900, 20_000)
    assert [number for number, _, _ in buffer.read(0)] == list(range(19_900, 20_000))


def test_slots_of_evicted_records_are_freed() -> None:
    buffer = filled(100_000, limit_bytes=1256 * 100)

    assert len(buffer._items) < 10_000


def test_oversized_record_stays_until_the_next() -> None:
    buffer = filled(1, limit_bytes=10)

    assert [record for _, record, _ in buffer.read(0)] == [0]
    buffer.add(1, 1)
    assert [record for _, record, _ in buffer.read(0)] == [1]


def test_pages_are_contiguous() -> None:
    buffer = filled(5)

    assert buffer.page(0, 2) == Page(0, 2, 5, [0, 1])
    assert buffer.page(2, 10) == Page(2, 5, 5, [2, 3, 4])
    assert buffer.page(5, 10) == Page(5, 5, 5, [])
    assert buffer.page(7, 10) == Page(5, 5, 5, [])


def test_page_size_is_limited_but_has_at_least_one_record() -> None:
    buffer = filled(3, size=10 << 20)

    assert buffer.page(0, 10).records == [0]


def test_each_name_has_its_own_buffer() -> None:
    buffers: RecordBuffers[str] = RecordBuffers(ROOMY)
    buffers.add("b", "first", 1)
    buffers.add("a", "second", 1)
    buffers.add("b", "third", 1)

    assert buffers.names() == ["a", "b"]
    assert buffers.all("b") == ["first", "third"]
    assert buffers.page("b", 1, 10) == Page(1, 2, 2, ["third"])
    assert buffers.page("c", 0, 10) == Page(0, 0, 0, [])
    assert buffers.all("c") == []
