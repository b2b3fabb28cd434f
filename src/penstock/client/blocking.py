"""The blocking client: the class and methods of the AWS Python SDK, with additions."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from penstock.client import calls
from penstock.client.backoff import delays
from penstock.client.calls import ClientCall
from penstock.client.client_base import ClientBase
from penstock.client.client_protocol import ServerInfo
from penstock.client.connection import RECENT_SECONDS, Connection, SentCall
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


class StreamManagerClient(ClientBase):
    """A client of Penstock, and of any other stream manager.

    It connects when it is created, and reconnects after the connection was lost. Threads may
    share it. A request without an answer raises UnansweredException, because the server may have
    executed it. It is not sent again without `retry`.
    """

    def _begin(self) -> None:
        self._connecting = threading.Lock()
        # Time and error of the last failed reconnect.
        self._failure: tuple[float, Exception | None] = (0.0, None)
        self._is_closed = threading.Event()
        self._connection = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. A closed client cannot be used again."""
        self._is_closed.set()
        self._connection.close()

    @property
    def connected(self) -> bool:
        """Whether there is a usable connection."""
        return not self._is_closed.is_set() and self._connection.is_usable()

    @property
    def server(self) -> ServerInfo:
        """The version and the limits of the server."""
        return self._connection.server

    # Streams

    def create_message_stream(self, definition: MessageStreamDefinition) -> None:
        """Creates a stream."""
        self._call(calls.create_message_stream(definition))

    def update_message_stream(self, definition: MessageStreamDefinition) -> None:
        """Replaces the whole definition: fields that it omits get their defaults."""
        self._call(calls.update_message_stream(definition))

    def delete_message_stream(self, stream_name: str) -> None:
        """Deletes a stream with its messages and exports."""
        self._call(calls.delete_message_stream(stream_name))

    def list_streams(self) -> list[str]:
        """Returns the names of all streams."""
        return self._call(calls.list_streams())

    def describe_message_stream(self, stream_name: str) -> MessageStreamInfo:
        """Returns the definition, the stored messages and the export statuses of a stream."""
        return self._call(calls.describe_message_stream(stream_name))

    def statistics(self) -> Statistics:
        """Returns the broker's statistics; other servers raise UnknownOperationException."""
        return self._call(calls.statistics())

    def rewind_export(self, stream_name: str, identifier: str, sequence_number: int) -> None:
        """Moves an export back or forward; it continues with this message."""
        self._call(calls.rewind_export(stream_name, identifier, sequence_number))

    # Appends

    def append_message(self, stream_name: str, data: bytes, *, retry: bool = False) -> int:
        """Appends one message and returns its sequence number.

        With `retry`, a message whose answer was lost is sent again. It may be stored twice.
        """
        return self._call(calls.append_message(stream_name, data), retry)

    def append_messages(
        self, stream_name: str, messages: Iterable[bytes], *, retry: bool = False
    ) -> Sequence[int]:
        """Appends messages in one round trip, if they fit one request.

        One request has up to 4 MiB and 16,384 messages, which are stored all or none. More
        messages are sent in several requests, one after the other. The attribute `appended` of an
        error is the number of messages stored before it. A server without extensions gets one
        request for each message, without waiting for each answer; it may reject one message and
        store a later one.
        """
        server = self._connected().server
        numbers: list[Sequence[int]] = []
        try:
            for group in calls.plan_appends(
                stream_name, messages, server.has_extensions, server.max_frame_bytes
            ):
                numbers += self._call_together(group, retry)
        except (StreamManagerException, OSError) as error:
            calls.add_appended_count(error, sum(map(len, numbers)))
            raise
        return calls.join_numbers(numbers)

    def _call_together(self, group: Sequence[ClientCall[T]], retry: bool) -> list[T]:
        """Sends all calls before it waits for the first answer; raises the first error."""
        if len(group) == 1:
            return [self._call(group[0], retry)]
        connection, sent, deadline = self._send(group)
        results: list[T] = []
        first_error: StreamManagerException | None = None
        for pending in sent:
            try:
                results.append(self._finish(connection, pending, deadline, retry))
            except StreamManagerException as error:
                first_error = first_error or error
        if first_error is not None:
            first_error.appended = len(results)
            raise first_error
        return results

    def _finish(
        self, connection: Connection, pending: SentCall[T], deadline: float, retry: bool
    ) -> T:
        try:
            return connection.finish(pending, deadline)
        except ConnectionLostException as error:
            if not retry:
                raise
            return self._call_again(pending.call, True, error)

    # Reads

    def read_messages(
        self, stream_name: str, options: ReadMessagesOptions | None = None
    ) -> list[Message]:
        """Reads the oldest message, or the messages that the options select."""
        return self._call(calls.read_messages(stream_name, options, self.request_timeout))

    def read_all(
        self, stream_name: str, start: int = 0, end: int | None = None
    ) -> Iterator[Message]:
        """Yields the stored messages of [start, end), without waiting for new ones.

        A negative start counts from the end: -10 begins with the last ten messages.
        """
        info = self.describe_message_stream(stream_name)
        reading = ReadCursor(stream_name, first_number(start, info), end_number(end, info))
        return self._read(reading)

    def tail(self, stream_name: str, start: int | None = None) -> Iterator[Message]:
        """Yields the messages from `start` on, then each new message, without end.

        Without a start it yields only messages that are appended after this call. A negative
        start adds the last messages before them. After a lost connection it reconnects, without
        skipping or repeating a message.
        """
        info = self.describe_message_stream(stream_name)
        return self._read(ReadCursor(stream_name, first_number(start, info)))

    def _read(self, reading: ReadCursor) -> Iterator[Message]:
        while not reading.is_over:
            has_extensions = self._connected().server.has_extensions
            began = time.monotonic()
            try:
                messages = self._call(reading.next_call(has_extensions, self.request_timeout))
            except ResponsePayloadTooLargeException as error:
                reading.shrink(error)
                continue
            yield from reading.take(messages)
            seconds = time.monotonic() - began
            pause = reading.pause_after(messages, seconds, self.request_timeout)
            if pause:
                self._is_closed.wait(pause)

    # Connections

    def _call(self, call: ClientCall[T], retry: bool = False) -> T:
        connection, now = self._connection, time.monotonic()
        if connection.is_lost or now - connection.last_received > RECENT_SECONDS:
            connection, now = self._connected(), time.monotonic()
        try:
            return connection.call(call, now + self.request_timeout)
        except (NotSentError, ConnectionLostException) as error:
            return self._call_again(call, retry or call.may_repeat, error)

    def _call_again(self, call: ClientCall[T], may_repeat: bool, error: ConnectionError) -> T:
        """Retries a call that was not sent, or that may be repeated, after a lost connection."""
        retry_until = time.monotonic() + self.request_timeout
        for pause in delays():
            if isinstance(error, ConnectionLostException) and not may_repeat:
                raise error
            if time.monotonic() > retry_until:
                raise error
            self._is_closed.wait(pause)
            try:
                connection = self._connected()
                return connection.call(call, time.monotonic() + self.request_timeout)
            except (NotSentError, ConnectionLostException) as next_error:
                # A request that was sent may have been executed, despite later failures.
                if isinstance(next_error, ConnectionLostException):
                    error = next_error
            except (ClientException, OSError) as reason:
                if isinstance(error, ConnectionLostException) and not call.may_repeat:
                    raise error from reason
                raise
        raise AssertionError("delays do not end")

    def _send(self, group: Sequence[ClientCall[T]]) -> tuple[Connection, list[SentCall[T]], float]:
        """Sends requests once there is a connection; returns the connection and the deadline."""
        retry_until = time.monotonic() + self.request_timeout
        for pause in delays():
            connection = self._connected()
            deadline = time.monotonic() + self.request_timeout
            try:
                return connection, connection.send(group, deadline), deadline
            except NotSentError:
                if time.monotonic() > retry_until:
                    raise
            self._is_closed.wait(pause)
        raise AssertionError("delays do not end")

    def _connected(self) -> Connection:
        """Returns the connection, or a new one if it was lost."""
        if self._connection.is_usable():
            return self._connection
        began = time.monotonic()
        with self._connecting:
            if self._is_closed.is_set():
                raise ClientException("the client is closed: create a new one")
            if self._connection.is_usable():
                return self._connection
            retry_until = began + self.reconnect_timeout
            failed, error = self._failure
            if failed > retry_until and error is not None:
                # Another thread retried past the deadline of this thread.
                raise copy.copy(error)
            try:
                return self._reconnect(retry_until)
            except (OSError, ConnectFailedException) as failure:
                self._failure = time.monotonic(), failure
                raise

    def _reconnect(self, retry_until: float) -> Connection:
        for pause in delays():
            try:
                connection = self._open()
                break
            except (OSError, ConnectFailedException) as error:
                if not is_retryable(error) or time.monotonic() + pause > retry_until:
                    raise
                self.logger.debug("not connected, retrying: %s", error)
            if self._is_closed.wait(pause):
                raise ClientException("the client is closed: create a new one")
        self._connection.close()
        self._connection = connection
        if self._is_closed.is_set():
            connection.close()
            raise ClientException("the client is closed: create a new one")
        self.logger.info("reconnected to %s", self.address)
        return connection

    def _open(self) -> Connection:
        endpoint = self._find_endpoint()
        try:
            connection = Connection.open(endpoint, self.connect_timeout, self.request_timeout)
        except ConnectFailedException:
            raise
        except OSError as error:
            raise connect_error(error, endpoint) from error
        self._note_endpoint(endpoint)
        self.logger.debug("connected to %s, %s", endpoint, connection.server)
        return connection
