"""Reads the messages of an answer in steps, so that a large read delays no other connection."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.memory import SMALL_ANSWER_BYTES, AnswerRoom, RoomNeededError
from penstock.broker.streams import Stream
from penstock.errors import MessageStoreReadErrorException, ResponsePayloadTooLargeException
from penstock.model.message import MessageRun
from penstock.wire.codec import encode_messages, encode_read_response
from penstock.wire.frames import MAX_FRAME_BYTES

# A step ends at either limit: many small messages take as much time as a few large ones.
STEP_BYTES = 1024 * 1024
STEP_MESSAGES = 8192

# While memory is short, a step of small messages fits a small answer, with the longest stream name.
_SHORT_STEP_BYTES = SMALL_ANSWER_BYTES // 2
_SHORT_STEP_MESSAGES = 64

# Bytes of an answer without its messages.
_RESPONSE_OVERHEAD = 2048
# Bytes of a message in an answer, without its payload and its stream name.
_MESSAGE_OVERHEAD = 80
# Above the size of any step of small messages, with the longest stream name.
_MAX_STEP_BYTES = 64 * 1024 * 1024


class MessageReader:
    """Collects `minimum` to `maximum` messages from `start` on, as parts of a ReadMessagesResponse.

    The caller has checked that the minimum is stored. After the minimum, the read also ends at the
    soft limit or when memory is short. Before the minimum, only the max frame size limits it, and a
    lack of memory raises `RoomNeededError`.
    """

    def __init__(
        self,
        stream: Stream,
        start: int,
        minimum: int,
        maximum: int,
        soft_limit: int,
        room: AnswerRoom,
        *,
        waits: bool = False,
    ) -> None:
        self._stream = stream
        self._room = room
        self._waits = waits
        self._minimum = minimum
        self._maximum = maximum
        self._soft_limit = min(soft_limit, MAX_FRAME_BYTES - _MAX_STEP_BYTES)
        self._begin(start)

    def response(self, request_id: str) -> list[bytes]:
        """The frame of the answer, in parts."""
        self._room.shrink(self._size)
        return encode_read_response(request_id, self.count, self.parts)

    def _begin(self, start: int) -> None:
        self._next = start
        self._stop = min(self._stream.log.end, start + self._maximum)
        self.count = 0
        self.parts: list[bytes] = []
        self.payload_bytes = 0
        self._size = 0

    def steps(self) -> Iterator[None]:
        """Reads, with a pause after each step of about a mebibyte."""
        while not self._is_done():
            try:
                run = self._read_step()
            except MessageStoreReadErrorException:
                if self.count >= self._minimum:
                    return
                raise
            messages = encode_messages(self._stream.name, run)
            if self._size + len(messages) > MAX_FRAME_BYTES - _RESPONSE_OVERHEAD:
                if self.count >= self._minimum:
                    return
                raise ResponsePayloadTooLargeException(
                    f"{self._minimum} messages from {self._next - self.count} on do not fit into a "
                    f"frame of {MAX_FRAME_BYTES} bytes; lower minMessageCount"
                )
            if not self._room.grow(
                self._size + len(messages), is_needed=self.count < self._minimum
            ):
                if self.count >= self._minimum:
                    return
                raise RoomNeededError(self._minimum_bytes())
            self.parts.append(messages)
            self._size += len(messages)
            self.payload_bytes += sum(map(len, run.payloads))
            count = len(run.payloads)
            self.count += count
            self._next += count
            if not self._is_done():
                yield
                if self._next < self._stream.log.oldest:
                    if self.count >= self._minimum:
                        return
                    self._begin_again()

    def _begin_again(self) -> None:
        """Starts over if the next messages were evicted between steps: an answer has no gaps."""
        oldest = self._stream.log.oldest
        if self._stream.log.end - oldest < self._minimum:
            raise self._stream.not_enough(oldest, self._minimum, waited=self._waits)
        self._begin(oldest)

    def _is_done(self) -> bool:
        if self._next >= self._stop:
            return True
        return self.count >= self._minimum and self._size >= self._soft_limit

    def _read_step(self) -> MessageRun:
        if self._room.allows_step(self._size + STEP_BYTES):
            step_bytes, step_messages = STEP_BYTES, STEP_MESSAGES
        else:
            step_bytes, step_messages = _SHORT_STEP_BYTES, _SHORT_STEP_MESSAGES
        remaining = self._soft_limit - self._size
        if remaining > 0:
            stop = self._next + step_messages
            return self._stream.read(self._next, min(stop, self._stop), min(remaining, step_bytes))
        # Above the soft limit, only the rest of the minimum is read.
        stop = self._next + min(step_messages, self._minimum - self.count)
        return self._stream.read(self._next, stop, step_bytes)

    def _minimum_bytes(self) -> int:
        """The approximate size of an answer with the minimum only."""
        first = self._next - self.count
        count = self._minimum
        overhead = _MESSAGE_OVERHEAD + len(self._stream.name)
        return self._stream.log.size_of(first, first + count) + count * overhead + STEP_BYTES
