"""Which read comes next, played against a stream in memory that loses its oldest messages."""

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
BOTH_KINDS = pytest.mark.parametrize("has_extensions", [True, False])


class Stream:
    """What a server stores under a name, and how it answers reads of it."""

    def __init__(self, oldest: int = 0, end: int = 0, most_at_once: int = 1000) -> None:
        self.oldest = oldest
        self.end = end
        self.most_at_once = most_at_once
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
        stop = min(fields["endSequenceNumber"], self.end, first + self.most_at_once)
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
        stop = min(self.end, first + min(options["maxMessageCount"], self.most_at_once))
        if stop - first < options["minMessageCount"]:
            return {"status": 13}
        found = [self.message(number).as_dict() for number in range(first, stop)]
        return {"status": 0, "messages": found}


def numbers_of(messages: list[Message]) -> list[int]:
    return [message.sequence_number for message in messages]


def read_all(
    stream: Stream,
    has_extensions: bool,
    start: int = 0,
    end: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> list[int]:
    """The numbers that `read_all` gives while something happens between its reads."""
    info = stream.info()
    reading = ReadCursor("s", first_number(start, info), end_number(end, info))
    found: list[int] = []
    while not reading.is_over:
        messages = stream.answer(reading.next_call(has_extensions, REQUEST_TIMEOUT))
        found += numbers_of(reading.take(messages))
        assert reading.pause_after(messages, 0.0, REQUEST_TIMEOUT) == 0.0
        between()
        assert stream.reads < 10_000, "it does not end"
    return found


# Where to begin and where to stop


@pytest.mark.parametrize(
    ("start", "number"),
    [(0, 0), (3, 3), (7, 7), (99, 99), (None, 10), (-1, 9), (-3, 7), (-5, 5), (-6, 5), (-99, 5)],
)
def test_a_start_is_a_number_or_counts_from_the_end(start: int | None, number: int) -> None:
    assert first_number(start, Stream(oldest=5, end=10).info()) == number


@pytest.mark.parametrize("start", [None, 0, -1, -99])
def test_an_empty_stream_begins_at_its_beginning(start: int | None) -> None:
    assert first_number(start, Stream().info()) == 0


def test_a_stream_that_was_emptied_begins_at_its_end() -> None:
    info = Stream(oldest=10, end=10).info()

    assert first_number(None, info) == first_number(-5, info) == end_number(None, info) == 10


@pytest.mark.parametrize(("end", "number"), [(None, 10), (0, 0), (7, 7), (10, 10), (99, 10)])
def test_an_end_is_a_number_up_to_what_is_stored(end: int | None, number: int) -> None:
    assert end_number(end, Stream(oldest=5, end=10).info()) == number


@pytest.mark.parametrize("value", ["5", 1.5, b"x", [1]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValidationException, match=r"^start is .*: expected a number"):
        first_number(value, Stream().info())
    with pytest.raises(ValidationException, match=r"^end is .*: expected a number"):
        end_number(value, Stream().info())


def test_an_end_does_not_count_from_the_end() -> None:
    with pytest.raises(ValidationException, match="end is -1: expected a number, 0 or more"):
        end_number(-1, Stream(0, 10).info())


@pytest.mark.parametrize("storage", [None, StorageStatus(), StorageStatus(0)])
def test_a_server_that_does_not_say_what_is_stored_is_told_so(storage: Any) -> None:
    info = MessageStreamInfo(storage_status=storage)

    for find in (first_number, end_number):
        with pytest.raises(ClientException, match="does not say which messages are stored"):
            find(0, info)


# What is stored now


@BOTH_KINDS
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
def test_a_part_of_what_is_stored_is_read(
    has_extensions: bool, start: int, end: int | None, numbers: range
) -> None:
    stream = Stream(oldest=5, end=10, most_at_once=2)

    assert read_all(stream, has_extensions, start, end) == list(numbers)


@BOTH_KINDS
def test_an_empty_stream_is_not_even_read(has_extensions: bool) -> None:
    stream = Stream()

    assert read_all(stream, has_extensions) == []
    assert stream.reads == 0


@BOTH_KINDS
def test_what_is_appended_meanwhile_is_not_read(has_extensions: bool) -> None:
    stream = Stream(0, 10, most_at_once=3)

    def append() -> None:
        stream.end += 5

    assert read_all(stream, has_extensions, between=append) == list(range(10))


@BOTH_KINDS
def test_what_is_dropped_meanwhile_is_left_out(has_extensions: bool) -> None:
    stream = Stream(0, 10, most_at_once=3)

    def drop() -> None:
        stream.end += 5
        stream.drop_to(8)

    assert read_all(stream, has_extensions, between=drop) == [0, 1, 2, 8, 9]


@BOTH_KINDS
def test_reading_ends_when_all_that_was_wanted_is_dropped(has_extensions: bool) -> None:
    stream = Stream(0, 10, most_at_once=3)

    def drop() -> None:
        stream.end += 5
        stream.drop_to(12)

    assert read_all(stream, has_extensions, between=drop) == [0, 1, 2]


@BOTH_KINDS
def test_reading_ends_when_the_stream_is_emptied(has_extensions: bool) -> None:
    stream = Stream(0, 10, most_at_once=3)

    assert read_all(stream, has_extensions, between=lambda: stream.drop_to(10)) == [0, 1, 2]


@given(
    has_extensions=st.booleans(),
    oldest=st.integers(0, 30),
    stored=st.integers(0, 40),
    most_at_once=st.integers(1, 9),
    start=st.integers(-50, 80),
    end=st.none() | st.integers(0, 80),
    changes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=9),
)
def test_exactly_what_is_stored_is_read(
    has_extensions: bool,
    oldest: int,
    stored: int,
    most_at_once: int,
    start: int,
    end: int | None,
    changes: list[tuple[int, int]],
) -> None:
    stream = Stream(oldest, oldest + stored, most_at_once)
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


# For ever


def poll(reading: ReadCursor, stream: Stream, has_extensions: bool) -> list[int]:
    messages = stream.answer(reading.next_call(has_extensions, REQUEST_TIMEOUT))
    return numbers_of(reading.take(messages))


@BOTH_KINDS
def test_tail_goes_on_after_what_is_stored(has_extensions: bool) -> None:
    stream = Stream(0, 5)
    reading = ReadCursor("s", first_number(-2, stream.info()))

    assert poll(reading, stream, has_extensions) == [3, 4]
    assert poll(reading, stream, has_extensions) == []
    stream.end = 8
    assert poll(reading, stream, has_extensions) == [5, 6, 7]
    assert not reading.is_over


@BOTH_KINDS
def test_tail_goes_on_behind_a_gap(has_extensions: bool) -> None:
    stream = Stream(0, 2)
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
    most_at_once=st.integers(1, 4),
    start=st.none() | st.integers(-20, 30),
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "drop", "poll"]), st.integers(0, 6)), max_size=30
    ),
)
def test_tail_gives_everything_once_and_in_order(
    has_extensions: bool,
    oldest: int,
    stored: int,
    most_at_once: int,
    start: int | None,
    steps: list[tuple[str, int]],
) -> None:
    stream = Stream(oldest, oldest + stored, most_at_once)
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


# How to ask


def test_columns_are_asked_for_up_to_the_end() -> None:
    call = ReadCursor("s", 5, 9).next_call(True, REQUEST_TIMEOUT)

    assert call.operation is Operation.ReadColumns
    assert call.fields == {
        "name": "s",
        "firstSequenceNumber": 5,
        "endSequenceNumber": 9,
        "maxBytes": 1024 * 1024,
        "readTimeoutMillis": 0,
    }


def test_no_more_messages_are_asked_for_than_are_wanted() -> None:
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
def test_the_server_waits_well_within_the_client_s_time(
    request_timeout: float, millis: int
) -> None:
    reading = ReadCursor("s", 5)

    assert reading.next_call(True, request_timeout).fields["readTimeoutMillis"] == millis
    options = reading.next_call(False, request_timeout).fields["readMessagesOptions"]
    assert options["readTimeoutMillis"] == millis


def test_answers_that_are_too_large_are_asked_for_in_smaller_ones() -> None:
    stream, error = Stream(0, 50), ResponsePayloadTooLargeException("too large")
    reading = ReadCursor("s", 0)
    asked: list[int] = []

    while True:
        call = reading.next_call(False, REQUEST_TIMEOUT)
        asked.append(call.fields["readMessagesOptions"]["maxMessageCount"])
        if asked[-1] <= 7:
            break
        reading.shrink(error)

    assert asked == [1000, 500, 250, 125, 62, 31, 15, 7]
    assert poll(reading, stream, False) == list(range(7))
    # It has learned that.
    assert poll(reading, stream, False) == list(range(7, 14))


def test_less_than_was_asked_for_is_asked_for() -> None:
    reading = ReadCursor("s", 0, 10)
    reading.shrink(ResponsePayloadTooLargeException("too large"))

    assert poll(reading, Stream(0, 10), False) == list(range(5))


def test_one_message_that_is_too_large_cannot_be_read() -> None:
    error = ResponsePayloadTooLargeException("too large")
    reading = ReadCursor("s", 0)
    for _ in range(9):
        reading.shrink(error)

    asked = reading.next_call(False, REQUEST_TIMEOUT).fields["readMessagesOptions"]
    assert asked["maxMessageCount"] == 1
    with pytest.raises(ResponsePayloadTooLargeException) as caught:
        reading.shrink(error)
    assert caught.value is error


# How long to wait


def test_a_server_that_waits_is_asked_again_at_once() -> None:
    reading = ReadCursor("s", 0)

    assert reading.pause_after([], 19.6, REQUEST_TIMEOUT) == 0.0
    assert reading.pause_after([], 1.4, request_timeout=3) == 0.0


def test_after_messages_there_is_no_pause() -> None:
    assert ReadCursor("s", 0).pause_after([Stream().message(0)], 0.0, REQUEST_TIMEOUT) == 0.0


def test_a_server_that_answers_at_once_is_asked_less_and_less_often() -> None:
    reading = ReadCursor("s", 0)

    pauses = [reading.pause_after([], 0.001, REQUEST_TIMEOUT) for _ in range(12)]

    assert 0 < pauses[0] <= 0.05
    assert 0.5 <= pauses[-1] <= 1.0
    # Until there is something again.
    reading.take([Stream().message(0)])
    assert 0 < reading.pause_after([], 0.001, REQUEST_TIMEOUT) <= 0.05


def test_what_is_stored_now_is_read_without_a_pause() -> None:
    assert ReadCursor("s", 0, 5).pause_after([], 0.0, REQUEST_TIMEOUT) == 0.0
