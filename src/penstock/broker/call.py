"""A request that is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

from penstock.broker.access import Access
from penstock.broker.memory import AnswerRoom
from penstock.errors import ResponseStatusCode, StreamManagerException, status_for_version
from penstock.wire.codec import encode_response
from penstock.wire.operations import Operation

# The timeout of the AWS clients. They crash on a later answer.
_CLIENT_TIMEOUT_SECONDS = 60.0
# Time for the answer to reach the client.
_TRANSIT_SECONDS = 0.1


class Peer(Protocol):
    """The connection that a request came from."""

    loop: asyncio.AbstractEventLoop
    access: Access

    @property
    def version(self) -> str: ...
    def send(self, response: bytes) -> None: ...
    def send_parts(self, parts: list[bytes], room: AnswerRoom) -> None: ...
    def work(self, steps: Iterator[None]) -> None: ...
    def watch(self, call: Call) -> None: ...
    def hold_for(self, call: Call) -> None: ...
    def on_connection_lost(self, key: Hashable, callback: Callable[[], object]) -> None: ...
    def close_call(self, call: Call) -> None: ...
    def count_failure(self, error: StreamManagerException) -> None: ...
    def abort_late(self) -> None: ...


class Call:
    """A pending request. Only its first answer is sent, unless the connection was lost."""

    __slots__ = ("_answer_by", "_cancel", "_is_open", "_peer", "_response", "request_id")

    def __init__(self, peer: Peer, request_id: str, response: Operation) -> None:
        self._peer = peer
        self._response = response
        self._is_open = True
        self._cancel: Callable[[], object] | None = None
        self._answer_by = 0.0
        self.request_id = request_id
        self.allow_seconds(_CLIENT_TIMEOUT_SECONDS)

    @property
    def access(self) -> Access:
        return self._peer.access

    @property
    def answer_by(self) -> float:
        """The deadline for the answer, in the loop's time."""
        return self._answer_by

    def allow_seconds(self, seconds: float) -> None:
        """Sets the deadline for a client with this timeout; at least the default."""
        timeout = max(seconds, _CLIENT_TIMEOUT_SECONDS) - _TRANSIT_SECONDS
        self._answer_by = self._peer.loop.time() + timeout

    def on_close(self, cancel: Callable[[], object]) -> None:
        """Calls `cancel` if the connection is lost before the answer."""
        self._cancel = cancel
        self._peer.watch(self)

    def on_connection_lost(self, key: Hashable, callback: Callable[[], object]) -> None:
        """Calls `callback` when the connection is lost; replaces a callback with the same key."""
        self._peer.on_connection_lost(key, callback)

    def hold_requests(self) -> None:
        """Holds later requests of the connection until this one is answered."""
        self._peer.hold_for(self)

    def work(self, steps: Iterator[None]) -> None:
        """Runs these steps in turns of the connection; the last one answers the call."""
        self._peer.work(steps)

    def cancel(self) -> None:
        self._close()
        if self._cancel is not None:
            self._cancel()

    def _close(self) -> bool:
        if not self._is_open:
            return False
        self._is_open = False
        self._peer.close_call(self)
        return True

    def send(self, response: bytes) -> None:
        if not self._close():
            return
        if self._peer.loop.time() > self._answer_by:
            self._peer.abort_late()
        else:
            self._peer.send(response)

    def send_parts(self, parts: list[bytes], room: AnswerRoom) -> None:
        """Sends an answer in parts; its room is released when the peer has read it."""
        if not self._close():
            room.release()
        elif self._peer.loop.time() > self._answer_by:
            room.release()
            self._peer.abort_late()
        else:
            self._peer.send_parts(parts, room)

    def succeed_in(self, room: AnswerRoom, **fields: Any) -> None:
        self.send_parts([encode_response(self._response, self.request_id, **fields)], room)

    def succeed(self, **fields: Any) -> None:
        self.send(encode_response(self._response, self.request_id, **fields))

    def fail(self, error: StreamManagerException) -> None:
        status = error.status or ResponseStatusCode.UnknownFailure
        response = encode_response(
            self._response,
            self.request_id,
            status_for_version(status, self._peer.version),
            error.message,
        )
        self._peer.count_failure(error)
        self.send(response)
