"""Appending: sequence numbers, payloads, sizes, and full streams."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import BrokerProcess

from .conftest import Connect
from .harness import (
    APPEND,
    FILE,
    MEMORY,
    OVERWRITE_OLDEST_DATA,
    REJECT_NEW_DATA,
    Client,
    SdkError,
    refused,
)

MIB = 1024 * 1024

either_persistence = pytest.mark.parametrize("persistence", [FILE, MEMORY], ids=["file", "memory"])


def small(client: Client, strategy: int, persistence: int) -> str:
    return client.create(
        maxSize=4096, streamSegmentSize=1024, strategyOnFull=strategy, persistence=persistence
    )


def fill(client: Client, name: str, payload: bytes) -> int:
    """Appends until the stream is full, and returns the number of stored messages."""
    for count in range(100):
        try:
            assert client.append(name, payload) == count
        except SdkError as error:
            if error.error != "InvalidRequestException":
                raise
            return count
    raise AssertionError("the stream is not full")


def files_below(root: Path) -> Iterator[bytes]:
    for directory, _, names in os.walk(root):
        for name in names:
            # Files of deleted streams are removed in the background.
            with suppress(FileNotFoundError):
                yield Path(directory, name).read_bytes()


@either_persistence
def test_sequence_numbers_start_at_zero_and_go_up_by_one(client: Client, persistence: int) -> None:
    name = client.create(persistence=persistence)

    assert [client.append(name, b"m") for _ in range(5)] == [0, 1, 2, 3, 4]


def test_streams_have_separate_sequence_numbers(client: Client) -> None:
    one, two = client.create(), client.create()

    assert [client.append(name, b"m") for name in (one, two, one, two)] == [0, 0, 1, 1]


@either_persistence
@pytest.mark.parametrize(
    "payload",
    [b"\0", b"\xff", bytes(range(256)) * 4, "ünï".encode(), b"\r\n\0\r\n", b"{}"],
    ids=["zero", "ff", "all-bytes", "utf8", "newlines", "json"],
)
def test_any_bytes_are_read_unchanged(client: Client, payload: bytes, persistence: int) -> None:
    name = client.create(persistence=persistence)
    client.append(name, payload)

    assert client.read(name)[0]["payload"] == payload


@pytest.mark.parametrize("size", [MIB, 20 * MIB], ids=["1MiB", "20MiB"])
def test_large_messages_are_read_unchanged(client: Client, size: int) -> None:
    # 20 MiB is more than the default segment size.
    payload = bytes(range(256)) * (size // 256)
    name = client.create()
    try:
        assert client.append(name, payload) == 0
        assert client.append(name, b"after") == 1

        messages = client.read(name, minMessageCount=2)
        assert [m["payload"] == p for m, p in zip(messages, (payload, b"after"), strict=True)] == [
            True,
            True,
        ]
        assert client.storage(name) == (0, 1, size + 5)
    finally:
        client.delete(name)


def test_empty_message_is_rejected_and_the_field_named(client: Client) -> None:
    name = client.create()

    with refused("InvalidRequestException", "payload"):
        client.send(APPEND, name=name, payload=b"")

    assert client.append(name, b"x") == 0


@either_persistence
def test_total_bytes_is_the_sum_of_payload_sizes(client: Client, persistence: int) -> None:
    name = client.create(persistence=persistence)

    for size in (1, 10, 100):
        client.append(name, b"x" * size)

    assert client.storage(name) == (0, 2, 111)


def test_stream_with_flush_on_write_accepts_messages(client: Client) -> None:
    name = client.create(flushOnWrite=True)

    assert [client.append(name, b"m") for _ in range(3)] == [0, 1, 2]
    assert client.describe(name)["definition"]["flushOnWrite"] is True
    assert len(client.read(name, minMessageCount=3)) == 3


def test_memory_stream_writes_nothing_to_disk(client: Client, broker: BrokerProcess) -> None:
    marker = uuid.uuid4().hex.encode()
    name = client.create(persistence=MEMORY)
    client.append(name, marker)
    assert client.read(name)[0]["payload"] == marker

    assert not any(marker in content for content in files_below(broker.root))


@either_persistence
def test_full_stream_rejects_new_data(client: Client, persistence: int) -> None:
    name = small(client, REJECT_NEW_DATA, persistence)
    count = fill(client, name, b"x" * 500)

    with refused("InvalidRequestException", "is full"):
        client.append(name, b"x" * 500)

    oldest, newest, total = client.storage(name)
    assert (oldest, newest, total) == (0, count - 1, count * 500)
    assert 0 < total <= 4096


@either_persistence
def test_full_stream_can_be_read(client: Client, persistence: int) -> None:
    name = small(client, REJECT_NEW_DATA, persistence)
    count = fill(client, name, b"x" * 500)

    messages = client.read(name, minMessageCount=count)

    assert [m["sequenceNumber"] for m in messages] == list(range(count))


@either_persistence
def test_full_stream_overwrites_the_oldest_messages(client: Client, persistence: int) -> None:
    name = small(client, OVERWRITE_OLDEST_DATA, persistence)

    numbers = [client.append(name, b"%03d" % i + b"x" * 497) for i in range(30)]

    assert numbers == list(range(30))
    oldest, newest, total = client.storage(name)
    assert newest == 29
    assert 20 <= oldest <= 29
    assert total == 500 * (newest - oldest + 1) <= 4096
    messages = client.read(name, maxMessageCount=100)
    assert [m["sequenceNumber"] for m in messages] == list(range(oldest, 30))
    assert [int(m["payload"][:3]) for m in messages] == list(range(oldest, 30))


@either_persistence
@pytest.mark.parametrize(
    "strategy", [REJECT_NEW_DATA, OVERWRITE_OLDEST_DATA], ids=["reject", "overwrite"]
)
def test_message_larger_than_the_stream_is_rejected(
    client: Client, strategy: int, persistence: int
) -> None:
    name = small(client, strategy, persistence)
    client.append(name, b"small")

    with refused("RequestPayloadTooLargeException"):
        client.append(name, b"x" * 8192)

    # No message was evicted for a message that can never fit.
    assert client.storage(name) == (0, 0, 5)
    assert client.append(name, b"small") == 1


def test_two_clients_share_the_sequence_numbers_of_a_stream(
    client: Client, connect: Connect
) -> None:
    other = connect(client.sdk)
    name = client.create()

    assert [c.append(name, b"m") for c in (client, other, client, other)] == [0, 1, 2, 3]
