"""Reading messages for an answer: in steps, so that a large read holds nobody else up."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.streams import Stream
from penstock.errors import MessageStoreReadErrorException, ResponsePayloadTooLargeException
from penstock.wire.codec import encode_messages
from penstock.wire.frames import MAX_FRAME_BYTES

STEP_BYTES = 1024 * 1024

# What a message takes in an answer beside its payload and the stream's name: keys and heads.
_MESSAGE_OVERHEAD = 80
_RESPONSE_OVERHEAD = 2048
# More than any step adds, with the shortest messages of the longest stream name.
_ROOM_FOR_A_STEP = 64 * 1024 * 1024


class MessageReader:
    """Collects [minimum, maximum] messages from `start` on, as parts of a ReadMessagesResponse.

    The caller has seen that the minimum is there. After the minimum the size of the answer ends
    the read as well; before it only the largest frame does.
    """

    def __init__(
        self, stream: Stream, start: int, minimum: int, maximum: int, soft_limit: int
    ) -> None:
        self._stream = stream
        self._next = start
        self._stop = min(stream.log.end, start + maximum)
        self._minimum = minimum
        self._soft_limit = min(soft_limit, MAX_FRAME_BYTES - _ROOM_FOR_A_STEP)
        self._overhead = _MESSAGE_OVERHEAD + len(stream.name)
        self.count = 0
        self.parts: list[bytes] = []
        self.size = 0

    def steps(self) -> Iterator[None]:
        """Reads; pauses after each step of about a mebibyte, unless it is done."""
        while not self._is_done():
            try:
                run = self._stream.read(self._next, self._stop, self._budget())
            except MessageStoreReadErrorException:
                if self.count >= self._minimum:
                    return
                raise
            self.parts += encode_messages(self._stream.name, run)
            count = len(run.payloads)
            self.size += sum(map(len, run.payloads)) + count * self._overhead
            if self.size > MAX_FRAME_BYTES - _RESPONSE_OVERHEAD:
                raise ResponsePayloadTooLargeException(
                    f"{self._minimum} messages from {self._next - self.count} on do not fit a "
                    f"frame of {MAX_FRAME_BYTES} bytes; ask for fewer"
                )
            self.count += count
            self._next += count
            if not self._is_done():
                yield

    def _is_done(self) -> bool:
        if self._next >= self._stop:
            return True
        return self.count >= self._minimum and self.size >= self._soft_limit

    def _budget(self) -> int:
        if self.count < self._minimum:
            return STEP_BYTES
        return max(1, min(STEP_BYTES, self._soft_limit - self.size))
