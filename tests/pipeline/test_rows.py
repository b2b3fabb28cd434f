"""Slices as rows: what went in comes out, wherever Spark cuts the batches."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.exporting import SliceHeader
from penstock.pipeline.destinations.destination import Messages
from penstock.pipeline.rows import header_batch, message_batch, slices_in
from penstock.pipeline.source import SCHEMA
from tests.pipeline.slices import header_for, nothing_large

_MICROS = 1_790_000_000_000_123


def stream_batch(stream: str, numbers: list[int], payloads: list[bytes]) -> pa.RecordBatch:
    """Messages as a stream's DataFrame has them."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([stream] * len(numbers), pa.string()),
            pa.array(numbers, pa.int64()),
            pa.array([_MICROS + number for number in numbers], pa.timestamp("us", "UTC")),
            pa.array(payloads, pa.binary()),
        ],
        names=["stream", "sequence_number", "ingest_time", "payload"],
    )


def rows_of(header: SliceHeader, payloads: list[bytes]) -> list[pa.RecordBatch]:
    first = header.slice.first
    numbers = list(range(first, first + len(payloads)))
    batch = stream_batch(header.slice.stream, numbers, payloads)
    return [header_batch(header), message_batch(batch)]


def cut(batches: list[pa.RecordBatch], cuts: list[int]) -> list[pa.RecordBatch]:
    """The same rows in other batches, some of them empty, as Spark may hand them on."""
    whole = pa.Table.from_batches(batches).combine_chunks()
    places = sorted(min(place, len(whole)) for place in cuts)
    pieces = [
        whole.slice(start, stop - start) for start, stop in pairwise([0, *places, len(whole)])
    ]
    return [
        pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in piece.columns], schema=whole.schema
        )
        for piece in pieces
    ]


def columns(messages: Messages) -> tuple[str, int, list[int], list[int], list[bytes]]:
    return (
        messages.stream,
        messages.first,
        list(messages.numbers),
        list(messages.ingest_times),
        list(messages.payloads),
    )


_slices = st.lists(
    st.tuples(st.integers(0, 2**62), st.lists(st.binary(min_size=1, max_size=5), max_size=6)),
    max_size=6,
)


@given(_slices, st.lists(st.integers(0, 50), max_size=8))
def test_slices_come_out_as_they_went_in_however_they_are_cut(
    slices: list[tuple[int, list[bytes]]], cuts: list[int]
) -> None:
    headers = [
        header_for("http://127.0.0.1", f"stream-{place}", first, first + len(payloads))
        for place, (first, payloads) in enumerate(slices)
    ]
    batches = [
        batch
        for header, (_, payloads) in zip(headers, slices, strict=True)
        for batch in rows_of(header, payloads)
    ]

    found = list(slices_in(cut(batches, cuts) if batches else [], nothing_large))

    assert [header for header, _ in found] == headers
    for header, messages in found:
        payloads = slices[headers.index(header)][1]
        numbers = list(range(header.slice.first, header.slice.end))
        times = [(_MICROS + number) // 1000 for number in numbers]
        assert columns(messages) == (
            header.slice.stream,
            header.slice.first,
            numbers,
            times,
            payloads,
        )


def test_a_slice_comes_out_as_soon_as_the_next_one_begins() -> None:
    first, second = header_for("http://a", "a", 0, 2), header_for("http://b", "b", 0, 1)
    rows = iter([*rows_of(first, [b"1", b"2"]), *rows_of(second, [b"3"])])

    header, messages = next(slices_in(rows, nothing_large))

    assert (header, list(messages.payloads)) == (first, [b"1", b"2"])
    assert len(list(rows)) == 1


def test_messages_that_have_arrived_before_are_left_out() -> None:
    header = header_for("http://a", first=10, end=14, arrived=(11, 13))

    ((_, messages),) = slices_in(rows_of(header, [b"a", b"b", b"c", b"d"]), nothing_large)

    assert (messages.first, messages.numbers, messages.payloads) == (10, [10, 12], [b"a", b"c"])


def test_messages_that_are_gone_are_missing() -> None:
    header = header_for("http://a", first=5, end=9)
    batch = message_batch(stream_batch("s", [6, 8], [b"x", b"y"]))

    ((_, messages),) = slices_in([header_batch(header), batch], nothing_large)

    assert (messages.first, messages.numbers) == (5, [6, 8])


def test_rows_are_what_spark_is_told_that_they_are() -> None:
    batch = header_batch(header_for("http://a"))

    assert batch.schema.names == SCHEMA.names
    assert batch.schema == message_batch(stream_batch("s", [1], [b"x"])).schema


def test_large_messages_stay_where_they_are_until_they_are_delivered() -> None:
    header = header_for("http://a", first=3, end=7)
    large = bytes(4 * 1024 * 1024 + 1)
    rows = rows_of(header, [b"a", large, large, b"d"])
    assert sum(batch.nbytes for batch in rows) < len(large)
    asked: list[int] = []

    def read_large(of: SliceHeader, number: int) -> bytes | None:
        assert of == header
        asked.append(number)
        # The other one is gone meanwhile.
        return large if number == 4 else None

    ((_, messages),) = slices_in(rows, read_large)

    assert asked == [4, 5]
    assert (messages.numbers, messages.payloads) == ([3, 4, 6], [b"a", large, b"d"])
