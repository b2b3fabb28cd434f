"""A connection shared by threads, without a background thread.

A thread sends its request at once and then waits for its answer. One waiting thread, the reader,
receives for all of them and delivers each answer to its call. When the reader has its own answer,
another waiting thread becomes the reader. A single thread therefore sends and receives without
contention for a lock.

A signal handler may raise an exception anywhere in a thread. Other threads continue. An exception
during a send or a receive ends the connection, because bytes may be missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.calls import ClientCall
from penstock.client.client_protocol import Answer, BrokenProtocolError, ClientProtocol, ServerInfo
from penstock.client.endpoint import Endpoint
from penstock.client.failures import (
    NotSentError,
    closed_in_handshake,
    connection_lost,
    request_timed_out,
)
from penstock.client.transport import DeadlineError, Transport, open_transport

T = TypeVar("T")

logger = logging.getLogger(__name__)


# Checks of an idle connection begin after this time: a check costs half as much as a request.
RECENT_SECONDS = 0.02
# A waiting thread checks this often for a reader: a signal may have interrupted the wake-up.
_CHECK_SECONDS = 1.0
_READER = "reader"


class SentCall(msgspec.Struct, Generic[T], weakref=True):
    """A request in flight. It belongs to the thread that sent it."""

    call: ClientCall[T]
    request_id: str
    answer: Answer | None = None
    # Created only when the thread has to wait for another reader.
    wake_up: threading.Lock | None = None

    def wake(self) -> None:
        assert self.wake_up is not None
        # The thread may be awake, and several threads may wake it.
        with contextlib.suppress(RuntimeError):
            self.wake_up.release()


class _ReaderTurn:
    """Identifies a reader that has no call of its own."""

    __slots__ = ("__weakref__",)


class Connection:
    """A connection that is usable until it is lost or closed. It never reopens."""

    def __init__(self, transport: Transport, token: str, deadline: float) -> None:
        self._transport = transport
        self._protocol = ClientProtocol()
        self._pending: dict[str, SentCall[Any]] = {}
        self._sleepers: dict[str, SentCall[Any]] = {}
        self._sending = threading.Lock()
        # The current reader. `setdefault` sets it atomically, and an interrupted thread can still
        # check whether it is the reader. A dead reference is a reader that was interrupted before
        # it released its role.
        self._reader: dict[str, weakref.ref[SentCall[Any]] | weakref.ref[_ReaderTurn]] = {}
        self._freeing = threading.Lock()
        self.is_lost = False
        self.last_received = 0.0
        self.server = self._shake_hands(token, deadline)
        _connections.add(self)

    @classmethod
    def open(cls, endpoint: Endpoint, connect_timeout: float, request_timeout: float) -> Connection:
        now = time.monotonic()
        transport = open_transport(endpoint, now + connect_timeout)
        try:
            return cls(transport, endpoint.token, now + request_timeout)
        except BaseException:
            transport.close()
            raise

    def _shake_hands(self, token: str, deadline: float) -> ServerInfo:
        self._transport.send(self._protocol.connect(token), deadline)
        while True:
            data = self._transport.receive(deadline)
            if not data:
                raise closed_in_handshake()
            # The handshake is the only request in flight, so there is at most one answer.
            for answer in self._protocol.receive(data):
                return self._protocol.accept(answer)

    # Requests

    def call(self, call: ClientCall[T], deadline: float) -> T:
        request_id, frame = self._protocol.request(call)
        pending = SentCall(call, request_id)
        self._send((pending,), frame, deadline)
        return self.finish(pending, deadline)

    def send(self, calls: Sequence[ClientCall[T]], deadline: float) -> list[SentCall[T]]:
        """Sends requests together; `finish` waits for the answer of each."""
        requests = [self._protocol.request(call) for call in calls]
        sent = [
            SentCall(call, request_id)
            for call, (request_id, _) in zip(calls, requests, strict=True)
        ]
        self._send(sent, b"".join([frame for _, frame in requests]), deadline)
        return sent

    def _send(self, sent: Sequence[SentCall[Any]], data: bytes, deadline: float) -> None:
        """Sends frames; raises NotSentError if the server cannot have executed any of them.

        A single truncated frame was not executed. Of several frames some may have been sent, and
        then all calls fail as lost.
        """
        try:
            with self._sending:
                if self.is_lost:
                    raise NotSentError("connection lost")
                for pending in sent:
                    self._pending[pending.request_id] = pending
                try:
                    self._transport.send(data, deadline, self._take_answers)
                except BaseException as error:
                    self._end_sending(error)
                    if not isinstance(error, OSError):
                        raise
                    if len(sent) == 1 and sent[0].answer is None:
                        raise NotSentError(f"cannot send the request: {error}") from error
        finally:
            if self.is_lost:
                self._dispose()

    def _end_sending(self, error: BaseException) -> None:
        """Marks the connection as lost after a truncated frame. The caller holds `_sending`."""
        try:
            # The server may have sent an answer before it closed the connection.
            self._take_answers()
        finally:
            self._lose(error)

    def finish(self, pending: SentCall[T], deadline: float) -> T:
        reference = weakref.ref(pending)
        try:
            while pending.answer is None and not self.is_lost:
                if self._reader.setdefault(_READER, reference) is reference:
                    self._receive(deadline)
                else:
                    self._sleep(pending, deadline)
        except DeadlineError:
            if pending.answer is None:
                raise request_timed_out(pending.call) from None
        finally:
            if self._reader.get(_READER) is reference:
                del self._reader[_READER]
            if pending.answer is None:
                # A later answer is ignored.
                self._pending.pop(pending.request_id, None)
            if pending.wake_up is not None:
                self._sleepers.pop(pending.request_id, None)
            if self._sleepers or self.is_lost:
                self._wake_next_reader()
        if pending.answer is None:
            raise connection_lost(pending.call)
        return pending.call.resolve(pending.answer.operation, pending.answer.response)

    # Answers

    def _take_answers(self) -> bool:
        """Delivers answers that have arrived; False if another thread is the reader."""
        turn = _ReaderTurn()
        reference = weakref.ref(turn)
        try:
            if self._reader.setdefault(_READER, reference) is not reference:
                return False
            while not self.is_lost and self._transport.has_input():
                self._receive(time.monotonic())
            return True
        except DeadlineError:
            return True  # for example a partial TLS record
        finally:
            if self._reader.get(_READER) is reference:
                del self._reader[_READER]
            if self._sleepers or self.is_lost:
                self._wake_next_reader()

    def _receive(self, deadline: float) -> None:
        """Receives and delivers answers. Only the reader calls it. Any error may lose answers."""
        try:
            data = self._transport.receive(deadline)
            if not data:
                raise BrokenProtocolError("the server closed the connection")
            self.last_received = time.monotonic()
            for answer in self._protocol.receive(data):
                pending = self._pending.pop(answer.request_id, None)
                if pending is None:
                    logger.debug("ignored a late answer to %s", answer.request_id)
                    continue
                pending.answer = answer
                if pending.wake_up is not None:
                    pending.wake()
        except DeadlineError:
            raise
        except BaseException as error:
            self._lose(error)
            # System errors have an errno. Any other error is from a signal handler.
            if not isinstance(error, BrokenProtocolError) and not getattr(error, "errno", None):
                raise

    def _sleep(self, pending: SentCall[Any], deadline: float) -> None:
        """Waits until woken. The first call only registers, so the caller checks once more."""
        if pending.wake_up is None:
            wake_up = threading.Lock()
            wake_up.acquire()
            pending.wake_up = wake_up
            self._sleepers[pending.request_id] = pending
            return
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise DeadlineError
        pending.wake_up.acquire(timeout=min(remaining, _CHECK_SECONDS))
        self._release_dead_reader()

    def _release_dead_reader(self) -> None:
        """Removes a reader whose thread has ended."""
        with self._freeing:
            reader = self._reader.get(_READER)
            # The dead reader may have released its role, and another thread may be the reader. So
            # the reference is compared again. Only this method removes a dead reader.
            if reader is not None and reader() is None and self._reader.get(_READER) is reader:
                del self._reader[_READER]

    def _wake_next_reader(self) -> None:
        """Wakes a waiting thread to become the reader, unless there is a reader."""
        if self.is_lost:
            self._dispose()
        elif not self._reader:
            for sleeper in list(self._sleepers.values()):
                if sleeper.answer is None:
                    sleeper.wake()
                    return

    # Closing

    def is_usable(self) -> bool:
        """Whether a request may be sent.

        Detects that the server closed an idle connection, so that the next request uses a new
        connection instead of being lost.
        """
        if time.monotonic() - self.last_received > RECENT_SECONDS and not self.is_lost:
            self._take_answers()
        return not self.is_lost

    def close(self) -> None:
        self._lose(ConnectionAbortedError("closed"))
        self._dispose()

    def _lose(self, error: BaseException) -> None:
        self.is_lost = True
        logger.debug("connection lost: %r", error)
        self._transport.shut_down()
        for sleeper in list(self._sleepers.values()):
            sleeper.wake()

    def _dispose(self) -> None:
        """Closes the socket, unless a thread uses it. That thread then calls this method."""
        # It must not wait for that thread, which may be interrupted by the caller's signal handler.
        turn = _ReaderTurn()
        reference = weakref.ref(turn)
        while not (self._reader or self._sending.locked()):
            if self._reader.setdefault(_READER, reference) is reference:
                try:
                    if self._sending.acquire(blocking=False):
                        try:
                            self._transport.close()
                            return
                        finally:
                            self._sending.release()
                finally:
                    del self._reader[_READER]

    def forget(self) -> None:
        """Drops the connection in a forked child; the parent's threads may hold its locks."""
        self.is_lost = True
        self._sending, self._reader, self._freeing = threading.Lock(), {}, threading.Lock()
        self._transport.close()


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_all() -> None:
    for connection in list(_connections):
        connection.forget()


os.register_at_fork(after_in_child=_forget_all)
