"""One connection in an event loop, for any number of tasks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar, cast

from penstock.client.calls import Call
from penstock.client.endpoint import Endpoint
from penstock.client.failures import (
    NotSentError,
    closed_in_handshake,
    connection_lost,
    not_in_time,
)
from penstock.client.protocol import Answer, ClientProtocol, ServerInfo
from penstock.errors import ConnectFailedException

T = TypeVar("T")

logger = logging.getLogger(__name__)


class AsyncConnection(asyncio.Protocol):
    """Open until it is lost or closed; then it stays so, and the client opens another one."""

    server: ServerInfo

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._protocol = ClientProtocol()
        # Futures with the answer, or with None where there will be none.
        self._pending: dict[str, asyncio.Future[Answer | None]] = {}
        self._hello: asyncio.Future[Answer | None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._outgoing: list[bytes] = []
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._transport: asyncio.Transport | None = None
        self.is_usable = False

    async def shake_hands(self, token: str, timeout: float) -> None:
        assert self._transport is not None
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
        self.is_usable = True

    async def call(self, call: Call[T], timeout: float) -> T:
        if not self._may_write.is_set():
            await self._may_write.wait()
        if not self.is_usable:
            raise NotSentError("the connection was lost")
        request_id, frame = self._protocol.request(call)
        future: asyncio.Future[Answer | None] = self._loop.create_future()
        self._pending[request_id] = future
        timer = self._loop.call_later(timeout, _expire, future, call)
        self._write(frame)
        try:
            answer = await future
        finally:
            timer.cancel()
            # An answer that comes later is passed over.
            self._pending.pop(request_id, None)
        if answer is None:
            raise connection_lost(call)
        return call.resolve(answer.operation, answer.response)

    def _write(self, frame: bytes) -> None:
        # What is sent in one turn of the loop leaves in one write.
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(frame)

    def _flush(self) -> None:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def close(self) -> None:
        self.is_usable = False
        if self._transport is not None:
            self._transport.close()
            await self._ended

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            answers = self._protocol.receive(data)
        except (ConnectFailedException, ConnectionError) as error:
            logger.debug("the connection makes no sense any more: %r", error)
            if not self._hello.done():
                self._hello.set_exception(error)
            assert self._transport is not None
            self._transport.abort()
            return
        for answer in answers:
            if not self._hello.done():
                self._hello.set_result(answer)
                continue
            future = self._pending.get(answer.request_id)
            if future is None or future.done():
                logger.debug("an answer that nobody waits for is passed over")
            else:
                future.set_result(answer)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        logger.debug("the connection is lost: %r", error)
        self.is_usable = False
        self._may_write.set()
        for future in (self._hello, *self._pending.values()):
            if not future.done():
                future.set_result(None)
        if not self._ended.done():
            self._ended.set_result(None)


def _expire(future: asyncio.Future[Any], call: Call[Any]) -> None:
    if not future.done():
        future.set_exception(not_in_time(call))


async def open_connection(endpoint: Endpoint) -> AsyncConnection:
    """A connection on which nothing was said yet; OSError if there is none."""
    loop = asyncio.get_running_loop()
    if endpoint.unix_socket:
        _, connection = await loop.create_unix_connection(AsyncConnection, endpoint.unix_socket)
    else:
        _, connection = await loop.create_connection(
            AsyncConnection, endpoint.host, endpoint.port, ssl=endpoint.tls
        )
    return connection
