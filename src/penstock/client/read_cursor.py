"""Reading on and on: which read comes next, and when there is nothing, how long to wait."""

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

# One read of columns, and of messages from a server that has no columns.
_MAX_BYTES = 1024 * 1024
_MAX_MESSAGES = 1000
# A read that finds nothing waits so long on the server.
_LONG_POLL_SECONDS = 20.0
_MAX_PAUSE_SECONDS = 1.0
_ENDLESS = (1 << 63) - 1


class ReadCursor:
    """The messages of a stream from one number on, up to another one or for ever.

    Pure: the caller makes the reads that `next_call` names and passes what they gave to `take`.
    """

    def __init__(self, stream_name: str, start: int, end: int | None = None) -> None:
        self._stream_name = stream_name
        self._next = start
        self._end = _ENDLESS if end is None else end
        self._waits = end is None
        self._max_messages = _MAX_MESSAGES
        self._pauses = delays(most=_MAX_PAUSE_SECONDS)

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
        # Well within the time after which the client itself gives up.
        return min(_LONG_POLL_SECONDS, request_timeout / 2)

    def take(self, messages: list[Message]) -> list[Message]:
        """What is to be handed on; a read that gave nothing ends one that does not wait."""
        if messages:
            self._next = messages[-1].sequence_number + 1
            self._pauses = delays(most=_MAX_PAUSE_SECONDS)
            if self._next > self._end:
                # What was wanted is gone, and the server began with what is left.
                return [m for m in messages if m.sequence_number < self._end]
        elif not self._waits:
            self._end = self._next
        return messages

    def pause_after(self, messages: list[Message], seconds: float, request_timeout: float) -> float:
        """How long to wait after a read that took so long.

        None at all, unless a server answers at once instead of waiting for messages.
        """
        if messages or not self._waits or seconds > self.poll_seconds(request_timeout) / 2:
            return 0.0
        return next(self._pauses)

    def shrink(self, error: ResponsePayloadTooLargeException) -> None:
        """Fewer messages at once; what is already one message cannot be read at all."""
        if self._count == 1:
            raise error
        self._max_messages = self._count // 2


def first_number(start: object, info: MessageStreamInfo) -> int:
    """Where to begin: at a number, so many before the end, or with what comes next."""
    oldest, end = _stored(info)
    if start is None:
        return end
    if not isinstance(start, int):
        raise ValidationException(f"start is {start!r}: expected a number, or None")
    if start < 0:
        return max(end + start, oldest, 0)
    return start


def end_number(end: object, info: MessageStreamInfo) -> int:
    """Where to stop: at the number behind the newest that is stored now, or before it."""
    _, newest_end = _stored(info)
    if end is None:
        return newest_end
    if not isinstance(end, int) or end < 0:
        raise ValidationException(f"end is {end!r}: expected a number, 0 or more, or None")
    return min(end, newest_end)


def _stored(info: MessageStreamInfo) -> tuple[int, int]:
    """The numbers that a stream has: from the oldest one to before its end."""
    try:
        storage = info.storage_status
        return storage.oldest_sequence_number, storage.newest_sequence_number + 1
    except (AttributeError, TypeError):
        raise ClientException("the server does not say which messages are stored") from None
