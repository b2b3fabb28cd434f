"""Reading: start, number of messages, and timeouts."""

from __future__ import annotations

import time

import pytest

from tests.support import TIMEOUT_S, Json

from .conftest import Connect
from .harness import (
    MEMORY,
    OVERWRITE_OLDEST_DATA,
    READ,
    Client,
    SdkError,
    for_sdks_except_node,
    refused,
)

BEYOND = "greater than the last sequence number"
TIMED_OUT = "not enough messages to return before time out"


def stream_of(client: Client, count: int, **fields: int) -> str:
    name = client.create(**fields)
    for i in range(count):
        client.append(name, b"%d" % i)
    return name


def numbers(messages: list[Json]) -> list[int]:
    return [message["sequenceNumber"] for message in messages]


def test_read_without_options_returns_the_oldest_message(client: Client) -> None:
    name = stream_of(client, 3)

    assert numbers(client.read(name)) == [0]


def test_message_has_stream_number_time_and_payload(client: Client) -> None:
    before = int(time.time() * 1000)
    name = stream_of(client, 1)

    [message] = client.read(name)

    assert message["streamName"] == name
    assert message["sequenceNumber"] == 0
    assert message["payload"] == b"0"
    # With a tolerance of a second for the rounding of clocks.
    assert before - 1000 <= message["ingestTime"] <= int(time.time() * 1000) + 1000


def test_read_returns_at_most_the_maximum_in_order(client: Client) -> None:
    name = stream_of(client, 10)

    messages = client.read(name, desiredStartSequenceNumber=3, maxMessageCount=4)

    assert numbers(messages) == [3, 4, 5, 6]
    assert [m["payload"] for m in messages] == [b"3", b"4", b"5", b"6"]


def test_read_returns_fewer_messages_than_the_maximum(client: Client) -> None:
    name = stream_of(client, 3)

    assert numbers(client.read(name, maxMessageCount=100)) == [0, 1, 2]


def test_read_with_a_minimum_returns_at_least_the_minimum(client: Client) -> None:
    name = stream_of(client, 10)

    assert numbers(client.read(name, minMessageCount=7))[:7] == list(range(7))


def test_last_message_can_be_read(client: Client) -> None:
    name = stream_of(client, 5)

    assert numbers(client.read(name, desiredStartSequenceNumber=4)) == [4]


def test_messages_can_be_read_again(client: Client) -> None:
    name = stream_of(client, 3)

    assert client.read(name, minMessageCount=3) == client.read(name, minMessageCount=3)


def test_memory_stream_is_read_like_a_file_stream(client: Client) -> None:
    name = stream_of(client, 10, persistence=MEMORY)

    messages = client.read(name, desiredStartSequenceNumber=5, minMessageCount=5)

    assert [m["payload"] for m in messages] == [b"5", b"6", b"7", b"8", b"9"]


def test_one_answer_has_many_messages(client: Client) -> None:
    name = client.create()
    client.start("append_repeatedly", name=name, data=b"x" * 100, count=300).result(TIMEOUT_S)

    assert numbers(client.read(name, minMessageCount=300)) == list(range(300))


def test_start_below_the_oldest_message_starts_at_the_oldest(client: Client) -> None:
    name = client.create(maxSize=4096, streamSegmentSize=1024, strategyOnFull=OVERWRITE_OLDEST_DATA)
    for _ in range(20):
        client.append(name, b"x" * 500)
    oldest, _, _ = client.storage(name)
    assert oldest > 1

    assert numbers(client.read(name, desiredStartSequenceNumber=1)) == [oldest]
    assert numbers(client.read(name)) == [oldest]


@pytest.mark.parametrize("start", [3, 1000])
def test_start_beyond_the_newest_message_is_rejected_with_the_expected_text(
    client: Client, start: int
) -> None:
    name = stream_of(client, 3)

    with refused("NotEnoughMessagesException", BEYOND):
        client.read(name, desiredStartSequenceNumber=start)


def test_empty_stream_has_not_enough_messages(client: Client) -> None:
    with refused("NotEnoughMessagesException"):
        client.read(client.create())


def test_read_with_fewer_messages_than_the_minimum_is_rejected(client: Client) -> None:
    name = stream_of(client, 2)

    with refused("NotEnoughMessagesException"):
        client.read(name, minMessageCount=3)


@for_sdks_except_node
def test_rejected_read_has_no_messages(client: Client) -> None:
    # The Node.js SDK does not log answers to reads.
    name = stream_of(client, 2)

    with refused("NotEnoughMessagesException"):
        client.read(name, minMessageCount=3)

    assert not client.last_response().get("messages")


def test_read_without_a_timeout_does_not_wait(client: Client) -> None:
    name = client.create()
    start = time.monotonic()

    with refused("NotEnoughMessagesException"):
        client.read(name, readTimeoutMillis=0)

    assert time.monotonic() - start < 60


@pytest.mark.parametrize("present", [0, 2])
def test_read_waits_until_its_timeout(client: Client, present: int) -> None:
    name = stream_of(client, present)
    start = time.monotonic()

    with refused("NotEnoughMessagesException"):
        client.read(name, minMessageCount=3, readTimeoutMillis=600)

    # The server may answer a little earlier, before the client's own timeout.
    assert time.monotonic() - start > 0.4


@pytest.mark.parametrize("start", [0, 2, 9], ids=["too few", "at the end", "after the end"])
def test_timed_out_read_has_the_exact_text(client: Client, start: int) -> None:
    name = stream_of(client, 2)

    with pytest.raises(SdkError) as caught:
        client.read(
            name, desiredStartSequenceNumber=start, minMessageCount=3, readTimeoutMillis=100
        )

    assert caught.value.error == "NotEnoughMessagesException"
    assert caught.value.message == TIMED_OUT


def test_read_with_enough_messages_does_not_wait(client: Client) -> None:
    name = stream_of(client, 1)
    start = time.monotonic()

    client.read(name, maxMessageCount=10, readTimeoutMillis=60_000)

    assert time.monotonic() - start < 100


@pytest.mark.parametrize("present", [0, 2], ids=["empty", "tail"])
def test_append_of_another_client_ends_a_waiting_read(
    client: Client, connect: Connect, present: int
) -> None:
    name = stream_of(client, present)
    other = connect(client.sdk)
    start = time.monotonic()

    reading = client.start_read(name, desiredStartSequenceNumber=present, readTimeoutMillis=60_000)
    # Its answer follows the read on the same connection, so that the server has the read.
    client.list_streams()
    assert not reading.done()
    other.append(name, b"wake up")

    [message] = reading.result(TIMEOUT_S)
    assert (message["sequenceNumber"], message["payload"]) == (present, b"wake up")
    assert time.monotonic() - start < 100


def test_waiting_read_does_not_block_other_calls(client: Client) -> None:
    name = client.create()
    reading = client.start_read(name, minMessageCount=2, readTimeoutMillis=60_000)

    assert client.storage(name) == (0, -1, 0)
    assert [client.append(name, b"m") for _ in range(2)] == [0, 1]

    assert numbers(reading.result(TIMEOUT_S)) == [0, 1]


def test_waiting_read_waits_for_the_minimum(client: Client, connect: Connect) -> None:
    other = connect(client.sdk)
    name = client.create()
    reading = client.start_read(
        name, minMessageCount=3, maxMessageCount=3, readTimeoutMillis=60_000
    )

    for i in range(3):
        client.list_streams()
        assert not reading.done()
        other.append(name, b"%d" % i)

    assert numbers(reading.result(TIMEOUT_S)) == [0, 1, 2]


def test_one_append_ends_many_waiting_reads(client: Client, connect: Connect) -> None:
    name = client.create()
    readers = [connect(client.sdk) for _ in range(4)]
    readings = [reader.start_read(name, readTimeoutMillis=60_000) for reader in readers]
    for reader in readers:
        reader.list_streams()

    client.append(name, b"x")

    assert [numbers(reading.result(TIMEOUT_S)) for reading in readings] == [[0]] * 4


def test_client_stays_usable_after_timed_out_reads(client: Client) -> None:
    name = client.create()
    for _ in range(3):
        with refused("NotEnoughMessagesException"):
            client.read(name, readTimeoutMillis=100)

    assert client.append(name, b"x") == 0
    assert numbers(client.read(name)) == [0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("desiredStartSequenceNumber", -1),
        ("minMessageCount", 0),
        ("maxMessageCount", 0),
        ("readTimeoutMillis", -1),
        ("minMessageCount", "many"),
    ],
)
def test_invalid_option_is_rejected_and_the_field_named(
    client: Client, field: str, value: object
) -> None:
    name = stream_of(client, 1)

    with refused("InvalidRequestException", field):
        client.send(READ, streamName=name, readMessagesOptions={field: value})


def test_rejected_read_has_its_status(client: Client) -> None:
    with pytest.raises(SdkError) as caught:
        client.read(client.create())

    assert caught.value.status == "NotEnoughMessages"
