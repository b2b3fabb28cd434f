"""Reads a whole stream and skips damage."""

from __future__ import annotations

import re

from penstock.errors import MessageStoreReadErrorException, NotEnoughMessagesException
from penstock.wire.operations import Operation
from soak.checks import Found
from soak.messages import MessageId, identify
from tests.raw_connection import RawConnection

_PAGE = 5000
_NEXT_NUMBER = re.compile(r"continue reading from (\d+)")


def read_stream(connection: RawConnection, name: str, first: int = 0) -> Found:
    """Reads all messages from a sequence number, and skips damage.

    Raises MessageStoreReadError if the stream cannot be read at all.
    """
    status = connection.call(Operation.DescribeMessageStream, name=name)
    storage = status["messageStreamInfo"]["storageStatus"]
    oldest, end = storage["oldestSequenceNumber"], storage["newestSequenceNumber"] + 1
    messages: dict[int, MessageId | None] = {}
    damaged: list[range] = []
    number = max(first, oldest)
    while number < end:
        options = {
            "desiredStartSequenceNumber": number,
            "minMessageCount": 1,
            "maxMessageCount": min(_PAGE, end - number),
        }
        try:
            response = connection.call(
                Operation.ReadMessages, streamName=name, readMessagesOptions=options
            )
        except NotEnoughMessagesException:
            break
        except MessageStoreReadErrorException as error:
            next_number = _NEXT_NUMBER.search(error.message)
            if next_number is None:
                raise
            after = min(max(int(next_number[1]), number + 1), end)
            damaged.append(range(number, after))
            number = after
            continue
        for message in response["messages"]:
            messages[message["sequenceNumber"]] = identify(message["payload"])
        number = response["messages"][-1]["sequenceNumber"] + 1
    return Found(first, oldest, end, messages, damaged)
