"""One connection that threads share, without a thread of its own.

Any thread sends its request at once and then waits for its answer. One of those who wait reads
from the socket, for all of them: it hands each answer to whom it belongs, and when it has its own
it leaves the reading to another. A thread alone so sends, receives and goes on, with no lock that
anybody else could hold.

An exception may strike a thread anywhere, from a signal's handler: the others go on. One that
strikes a thread while it sends or receives ends the connection, because bytes may be missing.
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
    not_in_time,
)
from penstock.client.transport import DeadlineError, Transport, open_transport

T = TypeVar("T")

logger = logging.getLogger(__name__)


# Who answered so shortly ago is taken to be there still: to look takes as long as half a request.
RECENT_SECONDS = 0.02
# One that sleeps looks so often whether anybody reads: an interrupt may have kept a thread from
# waking it.
_LOOK_SECONDS = 1.0
_READER = "reader"


class SentCall(msgspec.Struct, Generic[T], weakref=True):
    """A request that was sent and not answered yet. It belongs to the thread that sent it."""

    call: ClientCall[T]
    request_id: str
    answer: Answer | None = None
    # Made by a thread that has to sleep: a thread alone does not.
    wake_up: threading.Lock | None = None

    def wake(self) -> None:
        assert self.wake_up is not None
        # It may be awake already, and others may be waking it too.
        with contextlib.suppress(RuntimeError):
            self.wake_up.release()


class _Turn:
    """That of a thread which reads without a call of its own."""

    __slots__ = ("__weakref__",)


class Connection:
    """Open until it is lost or closed; then it stays so, and the client opens another one."""

    def __init__(self, transport: Transport, token: str, deadline: float) -> None:
        self._transport = transport
        self._protocol = ClientProtocol()
        self._pending: dict[str, SentCall[Any]] = {}
        self._sleepers: dict[str, SentCall[Any]] = {}
        self._sending = threading.Lock()
        # Whose turn it is to read. It is taken with `setdefault`: one step, and whose it is can be
        # seen even by one who was interrupted in it. One who was interrupted while giving it back
        # is known by being gone.
        self._reader: dict[str, weakref.ref[SentCall[Any]] | weakref.ref[_Turn]] = {}
        self._freeing = threading.Lock()
        self.is_lost = False
        self.heard = 0.0
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
            # Nothing else was asked yet, so that there is one answer at most.
            for answer in self._protocol.receive(data):
                return self._protocol.accept(answer)

    # Requests

    def call(self, call: ClientCall[T], deadline: float) -> T:
        request_id, frame = self._protocol.request(call)
        pending = SentCall(call, request_id)
        self._send((pending,), frame, deadline)
        return self.finish(pending, deadline)

    def send(self, calls: Sequence[ClientCall[T]], deadline: float) -> list[SentCall[T]]:
        """Sends requests together; the answer of each is to be taken with `finish`."""
        requests = [self._protocol.request(call) for call in calls]
        sent = [
            SentCall(call, request_id)
            for call, (request_id, _) in zip(calls, requests, strict=True)
        ]
        self._send(sent, b"".join([frame for _, frame in requests]), deadline)
        return sent

    def _send(self, sent: Sequence[SentCall[Any]], data: bytes, deadline: float) -> None:
        """NotSentError if none can have been carried out.

        One frame that is cut off cannot; of several some may have left, and all are lost then.
        """
        try:
            with self._sending:
                if self.is_lost:
                    raise NotSentError("the connection was lost")
                for pending in sent:
                    self._pending[pending.request_id] = pending
                try:
                    self._transport.send(data, deadline, self._take_answers)
                except BaseException as error:
                    self._end_sending(error)
                    if not isinstance(error, OSError):
                        raise
                    if len(sent) == 1 and sent[0].answer is None:
                        raise NotSentError(f"the request could not be sent: {error}") from error
        finally:
            if self.is_lost:
                self._dispose()

    def _end_sending(self, error: BaseException) -> None:
        """Only for whoever has `_sending`: a frame that is cut off spoils all that follow."""
        try:
            # The server may have said why it takes no more.
            self._take_answers()
        finally:
            self._lose(error)

    def finish(self, pending: SentCall[T], deadline: float) -> T:
        me = weakref.ref(pending)
        try:
            while pending.answer is None and not self.is_lost:
                if self._reader.setdefault(_READER, me) is me:
                    self._receive(deadline)
                else:
                    self._sleep(pending, deadline)
        except DeadlineError:
            if pending.answer is None:
                raise not_in_time(pending.call) from None
        finally:
            if self._reader.get(_READER) is me:
                del self._reader[_READER]
            if pending.answer is None:
                # An answer that comes later is passed over.
                self._pending.pop(pending.request_id, None)
            if pending.wake_up is not None:
                self._sleepers.pop(pending.request_id, None)
            if self._sleepers or self.is_lost:
                self._hand_over()
        if pending.answer is None:
            raise connection_lost(pending.call)
        return pending.call.resolve(pending.answer.operation, pending.answer.response)

    # Answers

    def _take_answers(self) -> bool:
        """Hands out what has arrived already; False if another thread sees to that."""
        turn = _Turn()
        me = weakref.ref(turn)
        try:
            if self._reader.setdefault(_READER, me) is not me:
                return False
            while not self.is_lost and self._transport.has_input():
                self._receive(time.monotonic())
            return True
        except DeadlineError:
            return True  # a part of something: TLS, say
        finally:
            if self._reader.get(_READER) is me:
                del self._reader[_READER]
            if self._sleepers or self.is_lost:
                self._hand_over()

    def _receive(self, deadline: float) -> None:
        """Only for the reader. What strikes it here may cost an answer, and so the connection."""
        try:
            data = self._transport.receive(deadline)
            if not data:
                raise BrokenProtocolError("the server closed the connection")
            self.heard = time.monotonic()
            for answer in self._protocol.receive(data):
                pending = self._pending.pop(answer.request_id, None)
                if pending is None:
                    logger.debug("an answer that nobody waits for: %s", answer.request_id)
                    continue
                pending.answer = answer
                if pending.wake_up is not None:
                    pending.wake()
        except DeadlineError:
            raise
        except BaseException as error:
            self._lose(error)
            # The system's errors have numbers; others, but ours, are of a signal's handler.
            if not isinstance(error, BrokenProtocolError) and not getattr(error, "errno", None):
                raise

    def _sleep(self, pending: SentCall[Any], deadline: float) -> None:
        """Until it is woken. The first time it only gets ready: look again whether to."""
        if pending.wake_up is None:
            wake_up = threading.Lock()
            wake_up.acquire()
            pending.wake_up = wake_up
            self._sleepers[pending.request_id] = pending
            return
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise DeadlineError
        pending.wake_up.acquire(timeout=min(remaining, _LOOK_SECONDS))
        self._free_turn()

    def _free_turn(self) -> None:
        """Ends the turn of a reader that is gone."""
        with self._freeing:
            reader = self._reader.get(_READER)
            # One that has ended its turn may be gone as well, and another thread may read now. So
            # it is looked up again: once a reader is gone, its turn is ended only here.
            if reader is not None and reader() is None and self._reader.get(_READER) is reader:
                del self._reader[_READER]

    def _hand_over(self) -> None:
        """One of those who sleep is to read now, unless somebody does already."""
        if self.is_lost:
            self._dispose()
        elif not self._reader:
            for sleeper in list(self._sleepers.values()):
                if sleeper.answer is None:
                    sleeper.wake()
                    return

    # The end

    def is_usable(self) -> bool:
        """Whether a request may be sent, as far as one can know.

        A server that went while nothing was asked is noticed, so that the next request goes to
        another connection instead of being lost.
        """
        if time.monotonic() - self.heard > RECENT_SECONDS and not self.is_lost:
            self._take_answers()
        return not self.is_lost

    def close(self) -> None:
        self._lose(ConnectionAbortedError("closed"))
        self._dispose()

    def _lose(self, error: BaseException) -> None:
        self.is_lost = True
        logger.debug("the connection is lost: %r", error)
        self._transport.shut()
        for sleeper in list(self._sleepers.values()):
            sleeper.wake()

    def _dispose(self) -> None:
        """Closes the socket, unless it is in use: those who use it come by here when they leave."""
        # Not a wait for them: the handler of a signal that closes may have interrupted one.
        turn = _Turn()
        me = weakref.ref(turn)
        while not (self._reader or self._sending.locked()):
            if self._reader.setdefault(_READER, me) is me:
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
        """In a child process: the connection is its parent's, and so are those who hold locks."""
        self.is_lost = True
        self._sending, self._reader, self._freeing = threading.Lock(), {}, threading.Lock()
        self._transport.close()


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_all() -> None:
    for connection in list(_connections):
        connection.forget()


os.register_at_fork(after_in_child=_forget_all)
