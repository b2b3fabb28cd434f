"""Messages, and the message counts of a read."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRequestException
from penstock.model import Message, ReadMessagesOptions, from_wire, to_wire


def test_message_has_wire_names() -> None:
    message = Message("s", 5, 1_700_000_000_000, b"\x00\xff")
    wire = {
        "streamName": "s",
        "sequenceNumber": 5,
        "ingestTime": 1_700_000_000_000,
        "payload": b"\x00\xff",
    }

    assert to_wire(message) == wire
    assert from_wire(wire, Message) == message


def test_default_options_read_one_message_without_waiting() -> None:
    options = from_wire({}, ReadMessagesOptions)

    assert options == ReadMessagesOptions(None, 1, None, 0)
    assert options.message_counts() == (1, 1)
    assert to_wire(options) == {"minMessageCount": 1, "readTimeoutMillis": 0}


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"minMessageCount": 100}, (100, 100)),
        ({"maxMessageCount": 100}, (1, 100)),
        ({"minMessageCount": 5, "maxMessageCount": 5}, (5, 5)),
        ({"minMessageCount": 5, "maxMessageCount": 9}, (5, 9)),
        ({"minMessageCount": None, "maxMessageCount": None}, (1, 1)),
    ],
)
def test_minimum_without_a_maximum_raises_the_maximum(
    options: dict[str, int], counts: tuple[int, int]
) -> None:
    assert from_wire(options, ReadMessagesOptions).message_counts() == counts


def test_maximum_below_the_minimum_is_rejected() -> None:
    options = from_wire({"minMessageCount": 5, "maxMessageCount": 4}, ReadMessagesOptions)

    with pytest.raises(InvalidRequestException) as caught:
        options.message_counts()

    assert caught.value.message == (
        "readMessagesOptions.maxMessageCount is 4: it must be at least minMessageCount, 5"
    )
