"""Messages, and the options of a read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import InvalidRequestException
from penstock.model.limits import MessageCount, ReadTimeoutMillis, SequenceNumber
from penstock.model.value import REQUIRED, Value


class Message(Value):
    """A stored message.

    Attributes:
        stream_name: The stream of the message.
        sequence_number: The place of the message in its stream.
        ingest_time: When the broker stored it, in milliseconds since 1970.
        payload: The bytes of the message.
    """

    stream_name: str = REQUIRED
    sequence_number: int = REQUIRED
    ingest_time: int = REQUIRED
    payload: bytes = REQUIRED


class ReadMessagesOptions(Value):
    """The messages that `read_messages` returns.

    Attributes:
        desired_start_sequence_number: The first message; by default the oldest one.
        min_message_count: The number of messages for which the read waits; 1 by default.
        max_message_count: The maximum number of messages; by default the minimum.
        read_timeout_millis: How long to wait for the minimum; 0 by default. After this time
            NotEnoughMessagesException is raised.
    """

    desired_start_sequence_number: SequenceNumber | None = None
    min_message_count: MessageCount = 1
    max_message_count: MessageCount | None = None
    read_timeout_millis: ReadTimeoutMillis = 0

    def message_counts(self) -> tuple[int, int]:
        """The effective minimum and maximum. The maximum is the minimum by default."""
        if self.max_message_count is None:
            return self.min_message_count, self.min_message_count
        if self.max_message_count < self.min_message_count:
            raise InvalidRequestException(
                f"readMessagesOptions.maxMessageCount is {self.max_message_count}: "
                f"it must be at least minMessageCount, {self.min_message_count}"
            )
        return self.min_message_count, self.max_message_count


class MessageRun(NamedTuple):
    """Consecutive messages of one stream, as columns: an object per message costs more than I/O."""

    first_sequence_number: int
    ingest_times: Sequence[int]
    payloads: Sequence[bytes]
