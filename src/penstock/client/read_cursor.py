"""Continuous reads: the next request, and the pause after an empty one."""

from __future__ import annotations

from penstock.client import calls
from penstock.client.backoff import delays
from penstock.client.calls import ClientCall
from penstock.errors import (
    ClientException,
    ResponsePayloadTooLargeException,
    ValidationException,
)
from penstock.model import Message, MessageStreamInfo

# Max bytes of a read of columns; max messages of a read from a server without extensions.
_MAX_BYTES = 1024 * 1024
_MAX_MESSAGES = 1000
# The server waits this long for messages.
_LONG_POLL_SECONDS = 20.0
_MAX_PAUSE_SECONDS = 1.0
_NO_END = (1 << 63) - 1


class ReadCursor:
    """Reads the messages [start, end) of a stream; without an end it waits for new messages.

    It does no I/O: the caller executes `next_call` and passes the result to `take`.
    """

    def __init__(self, stream_name: str, start: int, end: int | None = None) -> None:
        self._stream_name = stream_name
        self._next = start
        self._end = _NO_END if end is None else end
        self._waits = end is None
        self._max_messages = _MAX_MESSAGES
        self._pauses = delays(max_seconds=_MAX_PAUSE_SECONDS)

    @property
    def is_over(self) -> bool:
        return self._next >= self._end

    @property
    def _count(self) -> int:
        return min(self._max_messages, self._end - self._next)

    def next_call(self, has_extensions: bool, request_timeout: float) -> ClientCall[list[Message]]:
        timeout = self.poll_seconds(request_timeout) if self._waits else 0.0
        millis = int(timeout * 1000)
        if has_extensions:
            return calls.read_columns(self._stream_name, self._next, self._end, _MAX_BYTES, millis)
        return calls.read_messages_or_none(self._stream_name, self._next, self._count, millis)

    def poll_seconds(self, request_timeout: float) -> float:
        # Well below the client's own timeout.
        return min(_LONG_POLL_SECONDS, request_timeout / 2)

    def take(self, messages: list[Message]) -> list[Message]:
        """Returns the messages below the end. An empty read ends a cursor that does not wait."""
        if messages:
            self._next = messages[-1].sequence_number + 1
            self._pauses = delays(max_seconds=_MAX_PAUSE_SECONDS)
            if self._next > self._end:
                # The requested messages were evicted, and the server returned later ones.
                return [m for m in messages if m.sequence_number < self._end]
        elif not self._waits:
            self._end = self._next
        return messages

    def pause_after(self, messages: list[Message], seconds: float, request_timeout: float) -> float:
        """Returns the pause after a read that took `seconds`.

        It is positive only if the server answered an empty read at once, instead of waiting.
        """
        if messages or not self._waits or seconds > self.poll_seconds(request_timeout) / 2:
            return 0.0
        return next(self._pauses)

    def shrink(self, error: ResponsePayloadTooLargeException) -> None:
        """Halves the messages of a read; raises the error if a single message is too large."""
        if self._count == 1:
            raise error
        self._max_messages = self._count // 2


def first_number(start: object, info: MessageStreamInfo) -> int:
    """Returns the first number: `start`, -start before the end, or the next message for None."""
    oldest, end = _stored(info)
    if start is None:
        return end
    if not isinstance(start, int):
        raise ValidationException(f"start is {start!r}: expected a number, or None")
    if start < 0:
        return max(end + start, oldest, 0)
    return start


def end_number(end: object, info: MessageStreamInfo) -> int:
    """Returns the end number: `end`, at most one above the newest stored message."""
    _, newest_end = _stored(info)
    if end is None:
        return newest_end
    if not isinstance(end, int) or end < 0:
        raise ValidationException(f"end is {end!r}: expected a number, 0 or more, or None")
    return min(end, newest_end)


def _stored(info: MessageStreamInfo) -> tuple[int, int]:
    """Returns the stored slice [oldest, end)."""
    try:
        storage = info.storage_status
        return storage.oldest_sequence_number, storage.newest_sequence_number + 1
    except (AttributeError, TypeError):
        raise ClientException("the server's answer has no storage status") from None
