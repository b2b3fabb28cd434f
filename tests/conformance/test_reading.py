"""Reading: where it starts, how many messages it gives, and how long it waits."""

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


def test_without_options_it_is_the_oldest_message(client: Client) -> None:
    name = stream_of(client, 3)

    assert numbers(client.read(name)) == [0]


def test_a_message_carries_its_stream_number_time_and_payload(client: Client) -> None:
    before = int(time.time() * 1000)
    name = stream_of(client, 1)

    [message] = client.read(name)

    assert message["streamName"] == name
    assert message["sequenceNumber"] == 0
    assert message["payload"] == b"0"
    # A second either way for the rounding of clocks.
    assert before - 1000 <= message["ingestTime"] <= int(time.time() * 1000) + 1000


def test_a_read_gives_at_most_the_maximum_in_order(client: Client) -> None:
    name = stream_of(client, 10)

    messages = client.read(name, desiredStartSequenceNumber=3, maxMessageCount=4)

    assert numbers(messages) == [3, 4, 5, 6]
    assert [m["payload"] for m in messages] == [b"3", b"4", b"5", b"6"]


def test_a_read_gives_what_there_is_when_the_maximum_is_more(client: Client) -> None:
    name = stream_of(client, 3)

    assert numbers(client.read(name, maxMessageCount=100)) == [0, 1, 2]


def test_a_minimum_without_a_maximum_gives_at_least_the_minimum(client: Client) -> None:
    name = stream_of(client, 10)

    assert numbers(client.read(name, minMessageCount=7))[:7] == list(range(7))


def test_the_last_message_can_be_read_alone(client: Client) -> None:
    name = stream_of(client, 5)

    assert numbers(client.read(name, desiredStartSequenceNumber=4)) == [4]


def test_the_same_messages_can_be_read_again(client: Client) -> None:
    name = stream_of(client, 3)

    assert client.read(name, minMessageCount=3) == client.read(name, minMessageCount=3)


def test_a_memory_stream_reads_like_any_other(client: Client) -> None:
    name = stream_of(client, 10, persistence=MEMORY)

    messages = client.read(name, desiredStartSequenceNumber=5, minMessageCount=5)

    assert [m["payload"] for m in messages] == [b"5", b"6", b"7", b"8", b"9"]


def test_many_messages_come_in_one_answer(client: Client) -> None:
    name = client.create()
    client.start("append_repeatedly", name=name, data=b"x" * 100, count=300).result(TIMEOUT_S)

    assert numbers(client.read(name, minMessageCount=300)) == list(range(300))


def test_a_start_below_the_oldest_starts_at_the_oldest(client: Client) -> None:
    name = client.create(maxSize=4096, streamSegmentSize=1024, strategyOnFull=OVERWRITE_OLDEST_DATA)
    for _ in range(20):
        client.append(name, b"x" * 500)
    oldest, _, _ = client.storage(name)
    assert oldest > 1

    assert numbers(client.read(name, desiredStartSequenceNumber=1)) == [oldest]
    assert numbers(client.read(name)) == [oldest]


@pytest.mark.parametrize("start", [3, 1000])
def test_a_start_beyond_the_newest_is_refused_with_the_text_clients_look_for(
    client: Client, start: int
) -> None:
    name = stream_of(client, 3)

    with refused("NotEnoughMessagesException", BEYOND):
        client.read(name, desiredStartSequenceNumber=start)


def test_an_empty_stream_has_not_enough_messages(client: Client) -> None:
    with refused("NotEnoughMessagesException"):
        client.read(client.create())


def test_fewer_than_the_minimum_are_refused(client: Client) -> None:
    name = stream_of(client, 2)

    with refused("NotEnoughMessagesException"):
        client.read(name, minMessageCount=3)


@for_sdks_except_node
def test_fewer_than_the_minimum_are_not_even_sent(client: Client) -> None:
    # The Node.js SDK does not log the answer to a read, so there it cannot be seen.
    name = stream_of(client, 2)

    with refused("NotEnoughMessagesException"):
        client.read(name, minMessageCount=3)

    assert not client.last_response().get("messages")


def test_without_a_timeout_a_read_does_not_wait(client: Client) -> None:
    name = client.create()
    start = time.monotonic()

    with refused("NotEnoughMessagesException"):
        client.read(name, readTimeoutMillis=0)

    assert time.monotonic() - start < 60


@pytest.mark.parametrize("present", [0, 2])
def test_a_read_waits_as_long_as_it_was_told(client: Client, present: int) -> None:
    name = stream_of(client, present)
    start = time.monotonic()

    with refused("NotEnoughMessagesException"):
        client.read(name, minMessageCount=3, readTimeoutMillis=600)

    # The server may answer a little early, so that the client's own timeout never wins.
    assert time.monotonic() - start > 0.4


@pytest.mark.parametrize("start", [0, 2, 9], ids=["too few", "at the end", "behind the end"])
def test_read_that_timed_out_has_exactly_the_text_that_programs_compare(
    client: Client, start: int
) -> None:
    name = stream_of(client, 2)

    with pytest.raises(SdkError) as caught:
        client.read(
            name, desiredStartSequenceNumber=start, minMessageCount=3, readTimeoutMillis=100
        )

    assert caught.value.error == "NotEnoughMessagesException"
    assert caught.value.message == TIMED_OUT


def test_a_read_that_needs_no_waiting_does_not_wait(client: Client) -> None:
    name = stream_of(client, 1)
    start = time.monotonic()

    client.read(name, maxMessageCount=10, readTimeoutMillis=60_000)

    assert time.monotonic() - start < 100


@pytest.mark.parametrize("present", [0, 2], ids=["empty", "tail"])
def test_a_waiting_read_is_woken_by_an_append_of_another_client(
    client: Client, connect: Connect, present: int
) -> None:
    name = stream_of(client, present)
    other = connect(client.sdk)
    start = time.monotonic()

    reading = client.start_read(name, desiredStartSequenceNumber=present, readTimeoutMillis=60_000)
    # Answered behind the read on the same connection: the read is with the server by then.
    client.list_streams()
    assert not reading.done()
    other.append(name, b"wake up")

    [message] = reading.result(TIMEOUT_S)
    assert (message["sequenceNumber"], message["payload"]) == (present, b"wake up")
    assert time.monotonic() - start < 100


def test_a_waiting_read_holds_up_no_other_call_of_its_client(client: Client) -> None:
    name = client.create()
    reading = client.start_read(name, minMessageCount=2, readTimeoutMillis=60_000)

    assert client.storage(name) == (0, -1, 0)
    assert [client.append(name, b"m") for _ in range(2)] == [0, 1]

    assert numbers(reading.result(TIMEOUT_S)) == [0, 1]


def test_a_waiting_read_waits_until_the_minimum_is_there(client: Client, connect: Connect) -> None:
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


def test_many_waiting_reads_are_woken_by_one_append(client: Client, connect: Connect) -> None:
    name = client.create()
    readers = [connect(client.sdk) for _ in range(4)]
    readings = [reader.start_read(name, readTimeoutMillis=60_000) for reader in readers]
    for reader in readers:
        reader.list_streams()

    client.append(name, b"for all")

    assert [numbers(reading.result(TIMEOUT_S)) for reading in readings] == [[0]] * 4


def test_a_client_is_as_good_as_new_after_a_read_that_waited_in_vain(client: Client) -> None:
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
def test_a_bad_option_is_refused_and_the_field_named(
    client: Client, field: str, value: object
) -> None:
    name = stream_of(client, 1)

    with refused("InvalidRequestException", field):
        client.send(READ, streamName=name, readMessagesOptions={field: value})


def test_a_refused_read_names_its_status(client: Client) -> None:
    with pytest.raises(SdkError) as caught:
        client.read(client.create())

    assert caught.value.status == "NotEnoughMessages"
