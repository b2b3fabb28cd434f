"""The client for asyncio: the methods of the blocking client as coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from penstock.client import calls
from penstock.client.aio_connection import AsyncConnection, AsyncSentCall, open_connection
from penstock.client.backoff import delays
from penstock.client.calls import ClientCall
from penstock.client.client_base import ClientBase
from penstock.client.client_protocol import ServerInfo
from penstock.client.endpoint import connect_error
from penstock.client.failures import NotSentError, is_retryable
from penstock.client.read_cursor import ReadCursor, end_number, first_number
from penstock.errors import (
    ClientException,
    ConnectFailedException,
    ConnectionLostException,
    ResponsePayloadTooLargeException,
    StreamManagerException,
)
from penstock.model import (
    Message,
    MessageStreamDefinition,
    MessageStreamInfo,
    ReadMessagesOptions,
)
from penstock.model.statistics import Statistics

T = TypeVar("T")


class AsyncStreamManagerClient(ClientBase):
    """A client of Penstock, and of any other stream manager, for one event loop.

    It connects with `connect`, with `async with`, or with the first operation. Any number of
    operations may be in flight. Requests of one turn of the event loop are sent in one write.
    """

    def _begin(self) -> None:
        # Raises SettingError for invalid options. The broker may start later.
        with contextlib.suppress(ConnectionError):
            self._endpoint = self._find_endpoint()
        self._connection: AsyncConnection | None = None
        self._connecting: asyncio.Task[AsyncConnection] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connects now, with one attempt. The blocking client connects when it is created."""
        await self._connected(reconnect_timeout=0)

    async def close(self) -> None:
        """Closes the connection. A closed client cannot be used again."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        if self._connection is not None:
            await self._connection.close()

    @property
    def connected(self) -> bool:
        """Whether there is a usable connection."""
        return not self._is_closed and self._connection is not None and self._connection.is_usable

    @property
    def server(self) -> ServerInfo:
        """The server's version and limits; ClientException before the first connection."""
        if self._connection is None:
            raise ClientException("the client has not connected yet")
        return self._connection.server

    # Streams

    async def create_message_stream(self, definition: MessageStreamDefinition) -> None:
        """Creates a stream."""
        await self._call(calls.create_message_stream(definition))

    async def update_message_stream(self, definition: MessageStreamDefinition) -> None:
        """Replaces the whole definition: fields that it omits get their defaults."""
        await self._call(calls.update_message_stream(definition))

    async def delete_message_stream(self, stream_name: str) -> None:
        """Deletes a stream with its messages and exports."""
        await self._call(calls.delete_message_stream(stream_name))

    async def list_streams(self) -> list[str]:
        """Returns the names of all streams."""
        return await self._call(calls.list_streams())

    async def describe_message_stream(self, stream_name: str) -> MessageStreamInfo:
        """Returns the definition, the stored messages and the export statuses of a stream."""
        return await self._call(calls.describe_message_stream(stream_name))

    async def statistics(self) -> Statistics:
        """Returns the broker's statistics; other servers raise UnknownOperationException."""
        return await self._call(calls.statistics())

    async def rewind_export(self, stream_name: str, identifier: str, sequence_number: int) -> None:
        """Moves an export back or forward; it continues with this message."""
        await self._call(calls.rewind_export(stream_name, identifier, sequence_number))

    # Appends

    async def append_message(self, stream_name: str, data: bytes, *, retry: bool = False) -> int:
        """Appends one message and returns its sequence number.

        With `retry`, a message whose answer was lost is sent again. It may be stored twice.
        """
        return await self._call(calls.append_message(stream_name, data), retry)

    async def append_messages(
        self, stream_name: str, messages: Iterable[bytes], *, retry: bool = False
    ) -> Sequence[int]:
        """Appends messages in one round trip, if they fit one request.

        One request has up to 4 MiB and 16,384 messages, which are stored all or none. More
        messages are sent in several requests, one after the other. The attribute `appended` of an
        error is the number of messages stored before it. A server without extensions gets one
        request for each message, without waiting for each answer; it may reject one message and
        store a later one.
        """
        server = (await self._connected(self.reconnect_timeout)).server
        numbers: list[Sequence[int]] = []
        try:
            for group in calls.plan_appends(
                stream_name, messages, server.has_extensions, server.max_frame_bytes
            ):
                numbers += await self._call_together(group, retry)
        except (StreamManagerException, OSError) as error:
            calls.add_appended_count(error, sum(map(len, numbers)))
            raise
        return calls.join_numbers(numbers)

    async def _call_together(self, group: Sequence[ClientCall[T]], retry: bool) -> list[T]:
        """Sends all calls before it waits for the first answer; raises the first error."""
        results: list[T] = []
        first_error: StreamManagerException | OSError | None = None
        for pending in await self._send(group):
            try:
                results.append(await self._finish(pending, retry))
            except (StreamManagerException, OSError) as error:
                first_error = first_error or error
                if not self.connected:
                    break  # all other calls would time out, too
        if first_error is not None:
            calls.add_appended_count(first_error, len(results))
            raise first_error
        return results

    # Reads

    async def read_messages(
        self, stream_name: str, options: ReadMessagesOptions | None = None
    ) -> list[Message]:
        """Reads the oldest message, or the messages that the options select."""
        return await self._call(calls.read_messages(stream_name, options, self.request_timeout))

    async def read_all(
        self, stream_name: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[Message]:
        """Yields the stored messages of [start, end), without waiting for new ones.

        A negative start counts from the end: -10 begins with the last ten messages.
        """
        info = await self.describe_message_stream(stream_name)
        reading = ReadCursor(stream_name, first_number(start, info), end_number(end, info))
        async for message in self._read(reading):
            yield message

    async def tail(self, stream_name: str, start: int | None = None) -> AsyncIterator[Message]:
        """Yields the messages from `start` on, then each new message, without end.

        Without a start it yields only messages that are appended after the first iteration. A
        negative start adds the last messages before them. After a lost connection it reconnects,
        without skipping or repeating a message.
        """
        info = await self.describe_message_stream(stream_name)
        async for message in self._read(ReadCursor(stream_name, first_number(start, info))):
            yield message

    async def _read(self, reading: ReadCursor) -> AsyncIterator[Message]:
        while not reading.is_over:
            has_extensions = (await self._connected(self.reconnect_timeout)).server.has_extensions
            began = time.monotonic()
            try:
                messages = await self._call(reading.next_call(has_extensions, self.request_timeout))
            except ResponsePayloadTooLargeException as error:
                reading.shrink(error)
                continue
            for message in reading.take(messages):
                yield message
            seconds = time.monotonic() - began
            pause = reading.pause_after(messages, seconds, self.request_timeout)
            if pause:
                await asyncio.sleep(pause)

    # Connections

    async def _call(self, call: ClientCall[T], retry: bool = False) -> T:
        (pending,) = await self._send((call,))
        return await self._finish(pending, retry)

    async def _send(self, group: Sequence[ClientCall[T]]) -> list[AsyncSentCall[T]]:
        """Sends requests once there is a connection; retries if no request was sent."""
        retry_until = time.monotonic() + self.request_timeout
        for pause in delays():
            connection = await self._connected(self.reconnect_timeout)
            try:
                return await connection.send(group, self.request_timeout)
            except NotSentError:
                if time.monotonic() > retry_until:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("delays do not end")

    async def _finish(self, pending: AsyncSentCall[T], retry: bool) -> T:
        """Waits for the answer. Sends the request again if it was not sent or may be repeated."""
        try:
            return await pending.result()
        except (NotSentError, ConnectionLostException) as error:
            return await self._call_again(pending.call, retry or pending.call.may_repeat, error)

    async def _call_again(self, call: ClientCall[T], may_repeat: bool, error: ConnectionError) -> T:
        retry_until = time.monotonic() + self.request_timeout
        for pause in delays():
            is_unanswered = isinstance(error, ConnectionLostException)
            if (is_unanswered and not may_repeat) or time.monotonic() > retry_until:
                raise error
            await asyncio.sleep(pause)
            try:
                (pending,) = await self._send((call,))
                return await pending.result()
            except NotSentError:
                pass  # the earlier error still applies
            except ConnectionLostException as lost:
                error = lost
            except (ClientException, OSError) as reason:
                if is_unanswered and not call.may_repeat:
                    # The server may have executed the request, which only the first error says.
                    raise error from reason
                raise
        raise AssertionError("delays do not end")

    async def _connected(self, reconnect_timeout: float) -> AsyncConnection:
        """Returns the connection, or a new one if it was lost. All callers wait for one task."""
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        if self._is_closed:
            raise ClientException("the client is closed: create a new one")
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._reconnect(reconnect_timeout))
            # Retrieves the exception, in case all waiting callers were canceled.
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        connecting = self._connecting
        await asyncio.wait((connecting,))
        if connecting.cancelled():
            raise ClientException("the client was closed")
        return connecting.result()

    async def _reconnect(self, reconnect_timeout: float) -> AsyncConnection:
        retry_until = time.monotonic() + reconnect_timeout
        for pause in delays():
            try:
                return await self._open()
            except (OSError, ConnectFailedException) as error:
                if not is_retryable(error) or time.monotonic() + pause > retry_until:
                    raise
                self.logger.debug("not connected, retrying: %s", error)
            await asyncio.sleep(pause)
        raise AssertionError("delays do not end")

    async def _open(self) -> AsyncConnection:
        endpoint = self._find_endpoint()
        try:
            async with asyncio.timeout(self.connect_timeout):
                connection = await open_connection(endpoint)
            await connection.shake_hands(endpoint.token, self.request_timeout)
        except OSError as error:
            raise connect_error(error, endpoint) from error
        self._connection = connection
        self._note_endpoint(endpoint)
        self.logger.debug("connected to %s, %s", endpoint, connection.server)
        return connection
