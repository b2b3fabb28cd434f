"""Reads in steps from a real stream that changes between the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cbor2
import pytest

from penstock.broker.memory import AnswerMemory, AnswerRoom, RoomNeededError
from penstock.broker.message_reader import STEP_BYTES, STEP_MESSAGES, MessageReader
from penstock.broker.streams import Stream, Streams
from penstock.errors import MessageStoreReadErrorException, NotEnoughMessagesException
from penstock.model import MessageStreamDefinition, from_wire
from penstock.settings import Settings
from penstock.store.store import Store

NO_LIMIT = 1 << 30

MakeStream = Callable[..., Stream]


def open_room(limit: int = NO_LIMIT) -> AnswerRoom:
    return AnswerMemory(limit).open()


@pytest.fixture
def make_stream(tmp_path: Path) -> Iterator[MakeStream]:
    store = Store(tmp_path)
    with ThreadPoolExecutor(1) as executor:
        streams = Streams(store, Settings(root=str(tmp_path)), executor)

        def make(**fields: Any) -> Stream:
            definition = {"name": "s", "strategyOnFull": 1, **fields}
            asyncio.run(streams.create(from_wire(definition, MessageStreamDefinition)))
            return streams.find("s")

        yield make
    store.close()


def append(stream: Stream, count: int, size: int = 10) -> None:
    for _ in range(count):
        stream.append([stream.log.end.to_bytes(size, "big")], 1)


def numbers_of(reader: MessageReader) -> list[int]:
    """The sequence numbers of the messages, which the payloads contain too."""
    answer = cbor2.loads(b"".join(reader.response("r"))[5:])
    messages = answer["messages"]
    assert len(messages) == reader.count
    assert reader.payload_bytes == sum(len(message["payload"]) for message in messages)
    numbers = [message["sequenceNumber"] for message in messages]
    assert numbers == [int.from_bytes(message["payload"], "big") for message in messages]
    return numbers


def read(stream: Stream, start: int, minimum: int, maximum: int, limit: int = NO_LIMIT) -> Any:
    reader = MessageReader(stream, start, minimum, maximum, limit, open_room())
    steps = sum(1 for _ in reader.steps())
    return numbers_of(reader), steps


@pytest.mark.parametrize("persistence", [0, 1])
def test_read_returns_stored_messages_up_to_the_maximum(
    make_stream: MakeStream, persistence: int
) -> None:
    stream = make_stream(persistence=persistence)
    append(stream, 20)

    assert read(stream, 5, 1, 10) == (list(range(5, 15)), 0)
    assert read(stream, 5, 1, 100) == (list(range(5, 20)), 0)
    assert read(stream, 19, 1, 1) == ([19], 0)


def test_read_spans_many_segments(make_stream: MakeStream) -> None:
    stream = make_stream(streamSegmentSize=1024, maxSize=1 << 20)
    append(stream, 100, size=100)
    assert stream.log.segment_count == 10

    assert read(stream, 3, 90, 95)[0] == list(range(3, 98))


def test_read_with_its_minimum_ends_at_the_soft_limit(make_stream: MakeStream) -> None:
    stream = make_stream()
    append(stream, 50, size=10_000)

    few, _ = read(stream, 0, 1, 50, limit=65_536)
    at_least, _ = read(stream, 0, 30, 50, limit=65_536)

    assert 1 <= len(few) <= 7
    assert at_least == list(range(30))


def test_large_read_pauses_after_each_mebibyte(make_stream: MakeStream) -> None:
    stream = make_stream()
    append(stream, 10, size=STEP_BYTES // 2)

    numbers, pauses = read(stream, 0, 1, 10)

    assert numbers == list(range(10))
    assert pauses == 4


def test_read_of_many_small_messages_pauses(make_stream: MakeStream) -> None:
    stream = make_stream()
    count = 2 * STEP_MESSAGES + 1
    stream.append([number.to_bytes(3, "big") for number in range(count)], 1)

    numbers, pauses = read(stream, 0, 1, count)

    assert numbers == list(range(count))
    assert pauses == 2


@pytest.mark.parametrize("persistence", [0, 1])
def test_eviction_between_steps_leaves_no_gap(make_stream: MakeStream, persistence: int) -> None:
    size = STEP_BYTES // 2
    stream = make_stream(persistence=persistence, streamSegmentSize=2 * size, maxSize=20 * size)
    append(stream, 20, size)
    enough = MessageReader(stream, 0, 2, 20, NO_LIMIT, open_room())
    too_few = MessageReader(stream, 0, 15, 18, NO_LIMIT, open_room())
    first_steps = [reader.steps() for reader in (enough, too_few)]
    for steps in first_steps:
        next(steps)

    append(stream, 10, size)
    assert stream.log.oldest == 10
    for steps in first_steps:
        list(steps)

    # A read with its minimum ends; one without starts over with the oldest message.
    assert numbers_of(enough) == [0, 1]
    assert numbers_of(too_few) == list(range(10, 28))


@pytest.mark.parametrize(
    ("waits", "text"),
    [(False, "minMessageCount is 15"), (True, "not enough messages to return before time out")],
)
def test_eviction_below_the_minimum_between_steps_fails(
    make_stream: MakeStream, waits: bool, text: str
) -> None:
    size = STEP_BYTES // 2
    stream = make_stream(streamSegmentSize=2 * size, maxSize=20 * size)
    append(stream, 20, size)
    reader = MessageReader(stream, 0, 15, 20, NO_LIMIT, open_room(), waits=waits)
    steps = reader.steps()
    next(steps)

    # A message that needs nearly the whole stream.
    stream.append([bytes(19 * size)], 1)

    with pytest.raises(NotEnoughMessagesException, match=text):
        list(steps)


def test_damage_after_the_minimum_ends_the_read(make_stream: MakeStream, tmp_path: Path) -> None:
    stream = make_stream()
    append(stream, 10, size=100)
    (data,) = tmp_path.glob("streams/*/*.data")
    with data.open("r+b") as file:
        file.seek(550)
        file.write(b"damage")

    assert read(stream, 0, 5, 10)[0] == list(range(5))
    assert read(stream, 6, 4, 10)[0] == list(range(6, 10))
    with pytest.raises(MessageStoreReadErrorException, match="message 5 is damaged"):
        read(stream, 0, 6, 10)


KIBIBYTE = 1024


def test_read_with_its_minimum_ends_when_memory_is_short(make_stream: MakeStream) -> None:
    stream = make_stream()
    append(stream, 100, size=64 * KIBIBYTE)
    # The optional part of an answer uses at most half of the free memory.
    reader = MessageReader(stream, 0, 1, 100, NO_LIMIT, open_room(4 * STEP_BYTES))

    list(reader.steps())

    numbers = numbers_of(reader)
    assert numbers == list(range(len(numbers)))
    assert STEP_BYTES <= reader.payload_bytes <= 2 * STEP_BYTES


def test_read_may_use_all_memory_for_its_minimum(make_stream: MakeStream) -> None:
    stream = make_stream()
    append(stream, 100, size=64 * KIBIBYTE)
    reader = MessageReader(stream, 0, 50, 100, NO_LIMIT, open_room(4 * STEP_BYTES))

    list(reader.steps())

    assert 50 <= len(numbers_of(reader)) < 100


@pytest.mark.parametrize("size", [1, 100, 10 * KIBIBYTE])
def test_read_with_a_small_minimum_needs_no_memory(make_stream: MakeStream, size: int) -> None:
    stream = make_stream()
    append(stream, 1000, size=size + 2)
    memory = AnswerMemory(STEP_BYTES)
    memory.hold(STEP_BYTES)
    reader = MessageReader(stream, 0, 3, 10_000, NO_LIMIT, memory.open())

    list(reader.steps())

    assert len(numbers_of(reader)) >= 3
    assert memory.used == STEP_BYTES


def test_read_whose_minimum_does_not_fit_needs_its_whole_size(make_stream: MakeStream) -> None:
    stream = make_stream()
    append(stream, 100, size=64 * KIBIBYTE)
    memory = AnswerMemory(8 * STEP_BYTES)
    other = memory.open()
    assert other.grow(6 * STEP_BYTES, is_needed=True)
    reader = MessageReader(stream, 0, 50, 100, NO_LIMIT, memory.open())

    with pytest.raises(RoomNeededError) as needed:
        list(reader.steps())

    assert 50 * 64 * KIBIBYTE <= needed.value.size <= 60 * 64 * KIBIBYTE + STEP_BYTES
