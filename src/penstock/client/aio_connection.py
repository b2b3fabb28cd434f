"""One connection in an event loop, shared by any number of tasks."""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from penstock.client.calls import ClientCall
from penstock.client.client_protocol import Answer, ClientProtocol, ServerInfo
from penstock.client.endpoint import Endpoint
from penstock.client.failures import (
    NotSentError,
    closed_in_handshake,
    connection_lost,
    request_timed_out,
)
from penstock.errors import ConnectFailedException

T = TypeVar("T")
# An answer, or a function that creates the error for the call.
Outcome = Answer | Callable[[ClientCall[Any]], Exception]

logger = logging.getLogger(__name__)

# Max bytes of requests in one turn of the loop. Further requests wait.
_MAX_TURN_BYTES = 1024 * 1024


class AsyncSentCall(NamedTuple, Generic[T]):
    """A request in flight."""

    call: ClientCall[T]
    outcome: asyncio.Future[Outcome]
    timer: asyncio.TimerHandle

    async def result(self) -> T:
        outcome = await self.outcome
        self.timer.cancel()
        if isinstance(outcome, Answer):
            return self.call.resolve(outcome.operation, outcome.response)
        raise outcome(self.call)


class AsyncConnection(asyncio.Protocol):
    """A connection that is usable until it is lost or closed. It never reopens."""

    server: ServerInfo

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._protocol = ClientProtocol()
        self._transport = cast(asyncio.Transport, None)
        self._hangup = select.poll()
        self._hello: asyncio.Future[Answer | None] = self._loop.create_future()
        self._pending: dict[str, asyncio.Future[Outcome]] = {}
        # Frames for the next write, under the ids of their requests.
        self._outgoing: dict[str, bytes] = {}
        self._outgoing_bytes = 0
        self._is_paused = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._queue = asyncio.Lock()
        self._ended = asyncio.Event()
        self.is_usable = False

    async def shake_hands(self, token: str, timeout: float) -> None:
        self._transport.write(self._protocol.connect(token))
        try:
            async with asyncio.timeout(timeout):
                answer = await self._hello
            if answer is None:
                raise closed_in_handshake()
            self.server = self._protocol.accept(answer)
        except BaseException:
            self._transport.abort()
            raise
        self.is_usable = not self._transport.is_closing()

    async def send(self, calls: Sequence[ClientCall[T]], timeout: float) -> list[AsyncSentCall[T]]:
        """Sends requests together, in order; raises NotSentError if none was sent."""
        if not self._has_room.is_set() or self._queue.locked():
            await self._wait_for_room(timeout)
        if not self.is_usable or self._is_hung_up():
            raise NotSentError("connection lost")
        requests = [(call, *self._protocol.request(call)) for call in calls]
        return [self._send(*request, timeout) for request in requests]

    def _send(
        self, call: ClientCall[T], request_id: str, frame: bytes, timeout: float
    ) -> AsyncSentCall[T]:
        # All requests of one turn of the loop are sent in one write.
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing[request_id] = frame
        self._outgoing_bytes += len(frame)
        if self._outgoing_bytes > _MAX_TURN_BYTES:
            self._has_room.clear()
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._pending[request_id] = outcome
        timer = self._loop.call_later(timeout, self._finish, request_id, request_timed_out)
        return AsyncSentCall(call, outcome, timer)

    async def _wait_for_room(self, timeout: float) -> None:
        try:
            # One at a time and in order, otherwise all waiting tasks would send at once.
            async with asyncio.timeout(timeout), self._queue:
                await self._has_room.wait()
        except TimeoutError:
            raise NotSentError("the server did not accept the request in time") from None

    def _is_hung_up(self) -> bool:
        """Whether the server closed the connection, which a busy event loop reports late.

        Checked only while no request is in flight: a new connection loses no answer then.
        """
        return not self._pending and bool(self._hangup.poll(0))

    def _flush(self) -> None:
        # Frames that remain after the connection ended were never sent: see `connection_lost`.
        if not self._transport.is_closing():
            data = b"".join(self._outgoing.values())
            self._outgoing.clear()
            self._outgoing_bytes = 0
            self._transport.write(data)
            if not self._is_paused:
                self._has_room.set()

    def _finish(self, request_id: str, outcome: Outcome) -> None:
        future = self._pending.pop(request_id, None)
        if future is None or future.done():
            logger.debug("ignored a late answer to %s", request_id)
        else:
            future.set_result(outcome)

    async def close(self) -> None:
        self.is_usable = False
        # An orderly close would wait for a server that does not read.
        self._transport.abort()
        await self._ended.wait()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._hangup.register(transport.get_extra_info("socket"), select.POLLRDHUP)

    def data_received(self, data: bytes) -> None:
        try:
            answers = self._protocol.receive(data)
        except (ConnectFailedException, ConnectionError) as error:
            logger.debug("the server violates the protocol: %r", error)
            self.is_usable = False
            if not self._hello.done():
                self._hello.set_exception(error)
            self._transport.abort()
            return
        for answer in answers:
            if self._hello.done():
                self._finish(answer.request_id, answer)
            else:
                self._hello.set_result(answer)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._has_room.set()

    def connection_lost(self, error: Exception | None) -> None:
        logger.debug("connection lost: %r", error)
        self.is_usable = False
        if not self._hello.done():
            self._hello.set_result(None)
        for request_id in tuple(self._pending):
            is_sent = request_id not in self._outgoing
            self._finish(request_id, connection_lost if is_sent else _not_sent)
        self._has_room.set()
        self._ended.set()


def _not_sent(call: ClientCall[Any]) -> NotSentError:
    return NotSentError(f"connection lost before {call.operation.name} was sent")


async def open_connection(endpoint: Endpoint) -> AsyncConnection:
    """Opens a connection, before the handshake; raises OSError if that fails."""
    loop = asyncio.get_running_loop()
    if endpoint.unix_socket:
        _, connection = await loop.create_unix_connection(AsyncConnection, endpoint.unix_socket)
    else:
        _, connection = await loop.create_connection(
            AsyncConnection, endpoint.host, endpoint.port, ssl=endpoint.tls
        )
    return connection
