"""Continuous reads against a model of a stream that evicts its oldest messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.calls import ClientCall
from penstock.client.read_cursor import ReadCursor, end_number, first_number
from penstock.errors import (
    ClientException,
    ResponsePayloadTooLargeException,
    ValidationException,
)
from penstock.model import (
    Message,
    MessageStreamDefinition,
    MessageStreamInfo,
    StorageStatus,
    StrategyOnFull,
)
from penstock.wire.operations import RESPONSE_TO, Operation

REQUEST_TIMEOUT = 60.0
WITH_AND_WITHOUT_EXTENSIONS = pytest.mark.parametrize("has_extensions", [True, False])


class StreamModel:
    """A stream in memory that answers reads like a server."""

    def __init__(self, oldest: int = 0, end: int = 0, max_per_read: int = 1000) -> None:
        self.oldest = oldest
        self.end = end
        self.max_per_read = max_per_read
        self.reads = 0

    def drop_to(self, oldest: int) -> None:
        self.oldest = max(self.oldest, min(oldest, self.end))

    def info(self) -> MessageStreamInfo:
        definition = MessageStreamDefinition("s", strategy_on_full=StrategyOnFull.RejectNewData)
        return MessageStreamInfo(definition, StorageStatus(self.oldest, self.end - 1, 0), [])

    def message(self, number: int) -> Message:
        return Message("s", number, 1000 + number, b"%d" % number)

    def answer(self, call: ClientCall[list[Message]]) -> list[Message]:
        self.reads += 1
        answer = self._columns if call.operation is Operation.ReadColumns else self._messages
        return call.resolve(RESPONSE_TO[call.operation], answer(call.fields))

    def _columns(self, fields: dict[str, Any]) -> dict[str, Any]:
        first = max(fields["firstSequenceNumber"], self.oldest)
        stop = min(fields["endSequenceNumber"], self.end, first + self.max_per_read)
        found = [self.message(number) for number in range(first, stop)]
        offsets = list(accumulate((len(message.payload) for message in found), initial=0))
        return {
            "status": 0,
            "firstSequenceNumber": first,
            "count": len(found),
            "offsets": struct.pack(f"<{len(offsets)}i", *offsets),
            "ingestTimes": struct.pack(f"<{len(found)}q", *(m.ingest_time for m in found)),
            "payloads": b"".join(message.payload for message in found),
        }

    def _messages(self, fields: dict[str, Any]) -> dict[str, Any]:
        options = fields["readMessagesOptions"]
        first = max(options["desiredStartSequenceNumber"], self.oldest)
        stop = min(self.end, first + min(options["maxMessageCount"], self.max_per_read))
        if stop - first < options["minMessageCount"]:
            return {"status": 13}
        found = [self.message(number).as_dict() for number in range(first, stop)]
        return {"status": 0, "messages": found}


def numbers_of(messages: list[Message]) -> list[int]:
    return [message.sequence_number for message in messages]


def read_all(
    stream: StreamModel,
    has_extensions: bool,
    start: int = 0,
    end: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> list[int]:
    """Returns the numbers that `read_all` yields; calls `between` between its reads."""
    info = stream.info()
    reading = ReadCursor("s", first_number(start, info), end_number(end, info))
    found: list[int] = []
    while not reading.is_over:
        messages = stream.answer(reading.next_call(has_extensions, REQUEST_TIMEOUT))
        found += numbers_of(reading.take(messages))
        assert reading.pause_after(messages, 0.0, REQUEST_TIMEOUT) == 0.0
        between()
        assert stream.reads < 10_000, "the read does not end"
    return found


# Start and end


@pytest.mark.parametrize(
    ("start", "number"),
    [(0, 0), (3, 3), (7, 7), (99, 99), (None, 10), (-1, 9), (-3, 7), (-5, 5), (-6, 5), (-99, 5)],
)
def test_start_is_a_number_or_counts_from_the_end(start: int | None, number: int) -> None:
    assert first_number(start, StreamModel(oldest=5, end=10).info()) == number


@pytest.mark.parametrize("start", [None, 0, -1, -99])
def test_start_in_an_empty_stream_is_0(start: int | None) -> None:
    assert first_number(start, StreamModel().info()) == 0


def test_start_in_an_emptied_stream_is_its_end() -> None:
    info = StreamModel(oldest=10, end=10).info()

    assert first_number(None, info) == first_number(-5, info) == end_number(None, info) == 10


@pytest.mark.parametrize(("end", "number"), [(None, 10), (0, 0), (7, 7), (10, 10), (99, 10)])
def test_end_is_limited_to_the_stored_messages(end: int | None, number: int) -> None:
    assert end_number(end, StreamModel(oldest=5, end=10).info()) == number


@pytest.mark.parametrize("value", ["5", 1.5, b"x", [1]])
def test_start_and_end_must_be_numbers(value: Any) -> None:
    with pytest.raises(ValidationException, match=r"^start is .*: expected a number"):
        first_number(value, StreamModel().info())
    with pytest.raises(ValidationException, match=r"^end is .*: expected a number"):
        end_number(value, StreamModel().info())


def test_negative_end_is_rejected() -> None:
    with pytest.raises(ValidationException, match="end is -1: expected a number, 0 or more"):
        end_number(-1, StreamModel(0, 10).info())


@pytest.mark.parametrize("storage", [None, StorageStatus(), StorageStatus(0)])
def test_missing_storage_status_is_an_error(storage: Any) -> None:
    info = MessageStreamInfo(storage_status=storage)

    for find in (first_number, end_number):
        with pytest.raises(ClientException, match="has no storage status"):
            find(0, info)


# Reads of the stored messages


@WITH_AND_WITHOUT_EXTENSIONS
@pytest.mark.parametrize(
    ("start", "end", "numbers"),
    [
        (0, None, range(5, 10)),
        (7, None, range(7, 10)),
        (0, 7, range(5, 7)),
        (6, 8, range(6, 8)),
        (-2, None, range(8, 10)),
        (-99, 6, range(5, 6)),
        (0, 99, range(5, 10)),
        (0, 5, []),
        (0, 3, []),
        (8, 8, []),
        (9, 8, []),
        (10, None, []),
        (99, None, []),
        (-1, 5, []),
    ],
)
def test_slices_of_a_stream_are_read(
    has_extensions: bool, start: int, end: int | None, numbers: range
) -> None:
    stream = StreamModel(oldest=5, end=10, max_per_read=2)

    assert read_all(stream, has_extensions, start, end) == list(numbers)


@WITH_AND_WITHOUT_EXTENSIONS
def test_empty_stream_needs_no_read(has_extensions: bool) -> None:
    stream = StreamModel()

    assert read_all(stream, has_extensions) == []
    assert stream.reads == 0


@WITH_AND_WITHOUT_EXTENSIONS
def test_messages_appended_during_a_read_are_not_read(has_extensions: bool) -> None:
    stream = StreamModel(0, 10, max_per_read=3)

    def append() -> None:
        stream.end += 5

    assert read_all(stream, has_extensions, between=append) == list(range(10))


@WITH_AND_WITHOUT_EXTENSIONS
def test_messages_evicted_during_a_read_are_skipped(has_extensions: bool) -> None:
    stream = StreamModel(0, 10, max_per_read=3)

    def drop() -> None:
        stream.end += 5
        stream.drop_to(8)

    assert read_all(stream, has_extensions, between=drop) == [0, 1, 2, 8, 9]


@WITH_AND_WITHOUT_EXTENSIONS
def test_read_ends_when_its_messages_are_evicted(has_extensions: bool) -> None:
    stream = StreamModel(0, 10, max_per_read=3)

    def drop() -> None:
        stream.end += 5
        stream.drop_to(12)

    assert read_all(stream, has_extensions, between=drop) == [0, 1, 2]


@WITH_AND_WITHOUT_EXTENSIONS
def test_read_ends_when_the_stream_is_emptied(has_extensions: bool) -> None:
    stream = StreamModel(0, 10, max_per_read=3)

    assert read_all(stream, has_extensions, between=lambda: stream.drop_to(10)) == [0, 1, 2]


@given(
    has_extensions=st.booleans(),
    oldest=st.integers(0, 30),
    stored=st.integers(0, 40),
    max_per_read=st.integers(1, 9),
    start=st.integers(-50, 80),
    end=st.none() | st.integers(0, 80),
    changes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=9),
)
def test_read_all_reads_exactly_the_stored_messages(
    has_extensions: bool,
    oldest: int,
    stored: int,
    max_per_read: int,
    start: int,
    end: int | None,
    changes: list[tuple[int, int]],
) -> None:
    stream = StreamModel(oldest, oldest + stored, max_per_read)
    whole = range(oldest, oldest + stored)
    first = max(whole.stop + start, 0) if start < 0 else start
    wanted = [n for n in whole if first <= n and (end is None or n < end)]
    kept = set(wanted)

    def change() -> None:
        if changes:
            appended, dropped = changes.pop()
            stream.end += appended
            stream.drop_to(stream.oldest + dropped)
            kept.intersection_update(range(stream.oldest, stream.end))

    found = read_all(stream, has_extensions, start, end, change)

    assert found == sorted(set(found))
    assert set(found) <= set(wanted)
    assert kept <= set(found)


# Tails


def poll(reading: ReadCursor, stream: StreamModel, has_extensions: bool) -> list[int]:
    messages = stream.answer(reading.next_call(has_extensions, REQUEST_TIMEOUT))
    return numbers_of(reading.take(messages))


@WITH_AND_WITHOUT_EXTENSIONS
def test_tail_continues_after_the_stored_messages(has_extensions: bool) -> None:
    stream = StreamModel(0, 5)
    reading = ReadCursor("s", first_number(-2, stream.info()))

    assert poll(reading, stream, has_extensions) == [3, 4]
    assert poll(reading, stream, has_extensions) == []
    stream.end = 8
    assert poll(reading, stream, has_extensions) == [5, 6, 7]
    assert not reading.is_over


@WITH_AND_WITHOUT_EXTENSIONS
def test_tail_continues_after_a_gap(has_extensions: bool) -> None:
    stream = StreamModel(0, 2)
    reading = ReadCursor("s", 0)

    assert poll(reading, stream, has_extensions) == [0, 1]
    stream.end = 20
    stream.drop_to(18)
    assert poll(reading, stream, has_extensions) == [18, 19]
    stream.drop_to(20)
    assert poll(reading, stream, has_extensions) == []
    stream.end = 21
    assert poll(reading, stream, has_extensions) == [20]


@given(
    has_extensions=st.booleans(),
    oldest=st.integers(0, 9),
    stored=st.integers(0, 9),
    max_per_read=st.integers(1, 4),
    start=st.none() | st.integers(-20, 30),
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "drop", "poll"]), st.integers(0, 6)), max_size=30
    ),
)
def test_tail_yields_each_message_once_and_in_order(
    has_extensions: bool,
    oldest: int,
    stored: int,
    max_per_read: int,
    start: int | None,
    steps: list[tuple[str, int]],
) -> None:
    stream = StreamModel(oldest, oldest + stored, max_per_read)
    first = first_number(start, stream.info())
    reading = ReadCursor("s", first)
    found: list[int] = []
    lost: set[int] = set()

    def catch_up() -> None:
        while numbers := poll(reading, stream, has_extensions):
            found.extend(numbers)

    for step, amount in steps:
        match step:
            case "append":
                stream.end += amount
            case "drop":
                before = stream.oldest
                stream.drop_to(before + amount)
                lost.update(set(range(before, stream.oldest)) - set(found))
            case "poll":
                found.extend(poll(reading, stream, has_extensions))
    catch_up()

    assert found == [n for n in range(max(first, oldest), stream.end) if n not in lost]


# Requests


def test_read_of_columns_has_the_end() -> None:
    call = ReadCursor("s", 5, 9).next_call(True, REQUEST_TIMEOUT)

    assert call.operation is Operation.ReadColumns
    assert call.fields == {
        "name": "s",
        "firstSequenceNumber": 5,
        "endSequenceNumber": 9,
        "maxBytes": 1024 * 1024,
        "readTimeoutMillis": 0,
    }


def test_read_requests_no_more_messages_than_needed() -> None:
    for end, count in ((9, 4), (9000, 1000)):
        call = ReadCursor("s", 5, end).next_call(False, REQUEST_TIMEOUT)

        assert call.operation is Operation.ReadMessages
        assert call.fields["readMessagesOptions"] == {
            "desiredStartSequenceNumber": 5,
            "minMessageCount": 1,
            "maxMessageCount": count,
            "readTimeoutMillis": 0,
        }


@pytest.mark.parametrize(("request_timeout", "millis"), [(60, 20_000), (40, 20_000), (3, 1500)])
def test_long_poll_is_shorter_than_the_request_timeout(request_timeout: float, millis: int) -> None:
    reading = ReadCursor("s", 5)

    assert reading.next_call(True, request_timeout).fields["readTimeoutMillis"] == millis
    options = reading.next_call(False, request_timeout).fields["readMessagesOptions"]
    assert options["readTimeoutMillis"] == millis


def test_too_large_answers_halve_the_read_size() -> None:
    stream, error = StreamModel(0, 50), ResponsePayloadTooLargeException("too large")
    reading = ReadCursor("s", 0)
    requested: list[int] = []

    while True:
        call = reading.next_call(False, REQUEST_TIMEOUT)
        requested.append(call.fields["readMessagesOptions"]["maxMessageCount"])
        if requested[-1] <= 7:
            break
        reading.shrink(error)

    assert requested == [1000, 500, 250, 125, 62, 31, 15, 7]
    assert poll(reading, stream, False) == list(range(7))
    # The smaller size stays.
    assert poll(reading, stream, False) == list(range(7, 14))


def test_shrink_halves_the_actual_read_size() -> None:
    reading = ReadCursor("s", 0, 10)
    reading.shrink(ResponsePayloadTooLargeException("too large"))

    assert poll(reading, StreamModel(0, 10), False) == list(range(5))


def test_shrink_raises_for_a_single_message() -> None:
    error = ResponsePayloadTooLargeException("too large")
    reading = ReadCursor("s", 0)
    for _ in range(9):
        reading.shrink(error)

    requested = reading.next_call(False, REQUEST_TIMEOUT).fields["readMessagesOptions"]
    assert requested["maxMessageCount"] == 1
    with pytest.raises(ResponsePayloadTooLargeException) as caught:
        reading.shrink(error)
    assert caught.value is error


# Pauses


def test_no_pause_after_a_long_poll() -> None:
    reading = ReadCursor("s", 0)

    assert reading.pause_after([], 19.6, REQUEST_TIMEOUT) == 0.0
    assert reading.pause_after([], 1.4, request_timeout=3) == 0.0


def test_no_pause_after_messages() -> None:
    assert ReadCursor("s", 0).pause_after([StreamModel().message(0)], 0.0, REQUEST_TIMEOUT) == 0.0


def test_pauses_grow_while_the_server_answers_empty_reads_at_once() -> None:
    reading = ReadCursor("s", 0)

    pauses = [reading.pause_after([], 0.001, REQUEST_TIMEOUT) for _ in range(12)]

    assert 0 < pauses[0] <= 0.05
    assert 0.5 <= pauses[-1] <= 1.0
    # Messages reset the pauses.
    reading.take([StreamModel().message(0)])
    assert 0 < reading.pause_after([], 0.001, REQUEST_TIMEOUT) <= 0.05


def test_no_pause_for_a_read_with_an_end() -> None:
    assert ReadCursor("s", 0, 5).pause_after([], 0.0, REQUEST_TIMEOUT) == 0.0
