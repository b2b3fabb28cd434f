"""Responses with messages, within the memory limit for all large answers of the broker."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.broker.memory import AnswerMemory, AnswerRoom

_WAIT_SECONDS = 10.0
_CHUNK_BYTES = 256 * 1024


async def take_room(memory: AnswerMemory, size: int) -> AnswerRoom:
    """Reserves room for an answer of this size. Waits in a queue with all other large answers.

    The caller must release the room or pass it to a `RoomResponse`.
    """
    room = memory.open()
    if room.grow(size, is_needed=True):
        return room
    granted = asyncio.Event()
    room = memory.wait(size, lambda _: granted.set())
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            await granted.wait()
    except TimeoutError:
        room.release()
        raise HTTPException(
            503,
            f"the answer has about {size} bytes, and the memory for answers "
            "(max_unsent_response_bytes) is full of answers that other clients have not read; "
            "retry",
        ) from None
    except BaseException:
        room.release()
        raise
    return room


class RoomResponse(Response):
    """Keeps its room until the client has taken the body or has disconnected."""

    def __init__(
        self,
        content: bytes,
        room: AnswerRoom,
        media_type: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._room = room
        room.shrink(len(content))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        body = memoryview(self.body)
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            # Each call waits until the client has taken the previous chunk. The last chunk is
            # empty, so that the room is kept for all data.
            for start in range(0, len(body), _CHUNK_BYTES):
                chunk = bytes(body[start : start + _CHUNK_BYTES])
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._room.release()
