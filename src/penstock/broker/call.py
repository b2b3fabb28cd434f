"""One request on its way to one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

from penstock.broker.access import Access
from penstock.broker.memory import AnswerRoom
from penstock.errors import ResponseStatusCode, StreamManagerException, status_for_version
from penstock.wire.codec import encode_response
from penstock.wire.operations import Operation

# How long the clients wait for any answer; one that comes later would kill them.
_CLIENT_TIMEOUT_SECONDS = 60.0
# What an answer may need on its way.
_LAST_MOMENT_SECONDS = 0.1


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
    """A request that waits for its one answer. Later ones, and those to the departed, are lost."""

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
        """The time of the loop after which an answer is late."""
        return self._answer_by

    def allow_seconds(self, seconds: float) -> None:
        """The client waits so long, or as long as for any answer if that is longer."""
        timeout = max(seconds, _CLIENT_TIMEOUT_SECONDS) - _LAST_MOMENT_SECONDS
        self._answer_by = self._peer.loop.time() + timeout

    def on_close(self, cancel: Callable[[], object]) -> None:
        """What to undo if the client leaves before it is answered."""
        self._cancel = cancel
        self._peer.watch(self)

    def on_connection_lost(self, key: Hashable, callback: Callable[[], object]) -> None:
        """What to do when the client is gone, answered or not; once for each key."""
        self._peer.on_connection_lost(key, callback)

    def hold_requests(self) -> None:
        """Requests behind this one on the connection are handled when it is answered."""
        self._peer.hold_for(self)

    def work(self, steps: Iterator[None]) -> None:
        """Takes these steps, one after the other, the last of which answers the call."""
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
        """The same for an answer in parts; its room is released when the peer has taken it."""
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
