"""Responses with messages, within the memory that all large answers of the broker share."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.broker.memory import AnswerMemory, AnswerRoom

_WAIT_SECONDS = 10.0
_PIECE_BYTES = 256 * 1024


async def take_room(memory: AnswerMemory, size: int) -> AnswerRoom:
    """Room for an answer of this size; waits in line with all other large answers.

    The caller releases it, or hands it to a `RoomResponse`.
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
    """Keeps its room until the client has taken the body, or is gone."""

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
            # Each call waits until the client has taken the piece before, also the empty last one.
            for start in range(0, len(body), _PIECE_BYTES):
                piece = bytes(body[start : start + _PIECE_BYTES])
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._room.release()
