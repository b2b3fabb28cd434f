"""One connection that threads share, without a thread of its own.

Any thread sends its request at once and then waits for its answer. One of those who wait reads
from the socket, for all of them: it hands each answer to whom it belongs, and when it has its own
it leaves the reading to another. A thread alone so sends, receives and goes on, with no lock that
anybody else could hold.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from penstock.client.calls import Call
from penstock.client.endpoint import Endpoint
from penstock.client.failures import (
    NotSentError,
    closed_in_handshake,
    connection_lost,
    not_in_time,
)
from penstock.client.protocol import Answer, BrokenProtocolError, ClientProtocol, ServerInfo
from penstock.client.transport import Transport, open_transport

T = TypeVar("T")

logger = logging.getLogger(__name__)


# Who answered so shortly ago is taken to be there still: to look takes as long as half a request.
_RECENT_SECONDS = 0.02


class PendingCall(Generic[T]):
    """A request that was sent and not answered yet. It belongs to the thread that sent it."""

    __slots__ = ("answer", "call", "is_done", "request_id", "wake_up")

    def __init__(self, call: Call[T], request_id: str) -> None:
        self.call = call
        self.request_id = request_id
        self.is_done = False
        self.answer: Answer | None = None
        # Made by a thread that has to sleep: a thread alone does not.
        self.wake_up: threading.Lock | None = None

    def finish(self, answer: Answer | None) -> None:
        """There is an answer, or there will be none."""
        self.answer = answer
        self.is_done = True
        self.wake()

    def wake(self) -> None:
        if self.wake_up is not None:
            # It may be awake already, and others may be waking it too.
            with contextlib.suppress(RuntimeError):
                self.wake_up.release()

    def sleep(self, deadline: float) -> None:
        """Until somebody wakes it. The first time it only gets ready: look again whether to."""
        if self.wake_up is None:
            wake_up = threading.Lock()
            wake_up.acquire()
            self.wake_up = wake_up
        elif not self.wake_up.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise TimeoutError

    def result(self) -> T:
        if self.answer is None:
            raise connection_lost(self.call)
        return self.call.resolve(self.answer.operation, self.answer.response)


class Connection:
    """Open until it is lost or closed; then it stays so, and the client opens another one."""

    def __init__(self, transport: Transport, token: str, deadline: float) -> None:
        self._transport = transport
        self._protocol = ClientProtocol()
        self._pending: dict[str, PendingCall[Any]] = {}
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._is_lost = False
        self._heard = 0.0
        self.server = self._shake_hands(token, deadline)

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

    def call(self, call: Call[T], deadline: float) -> T:
        (pending,) = self.send((call,), deadline)
        return self.finish(pending, deadline)

    def send(self, calls: Sequence[Call[T]], deadline: float) -> list[PendingCall[T]]:
        """Sends requests together; the answer of each is to be taken with `finish`.

        NotSentError if none can have been carried out: a frame that is cut off is not. Of several
        some may have left, and all of them are lost then.
        """
        requests = [(call, *self._protocol.request(call)) for call in calls]
        sent = [PendingCall(call, request_id) for call, request_id, _ in requests]
        data = b"".join([frame for _, _, frame in requests]) if len(sent) > 1 else requests[0][2]
        with self._sending:
            if self._is_lost:
                raise NotSentError("the connection was lost")
            for pending in sent:
                self._pending[pending.request_id] = pending
            try:
                self._transport.send(data, deadline)
            except BaseException as error:
                # A frame that is cut off spoils all that follow.
                self._lose(error)
                for pending in sent:
                    self._pending.pop(pending.request_id, None)
                if isinstance(error, OSError) and len(sent) == 1:
                    raise NotSentError(f"the request could not be sent: {error}") from error
                if not isinstance(error, OSError):
                    raise
        return sent

    def finish(self, pending: PendingCall[T], deadline: float) -> T:
        try:
            self._wait_for(pending, deadline)
        except TimeoutError:
            raise not_in_time(pending.call) from None
        finally:
            # An answer that comes later is passed over.
            self._pending.pop(pending.request_id, None)
            self._hand_over()
        return pending.result()

    def _wait_for(self, pending: PendingCall[Any], deadline: float) -> None:
        while not pending.is_done:
            if self._reading.acquire(blocking=False):
                try:
                    while not pending.is_done:
                        self._receive(deadline)
                finally:
                    self._reading.release()
            else:
                pending.sleep(deadline)

    def _hand_over(self) -> None:
        """One of those who sleep is to read now, unless somebody does already."""
        if self._pending and not self._reading.locked():
            for pending in tuple(self._pending.values()):
                if pending.wake_up is not None and not pending.is_done:
                    pending.wake()
                    return

    def _receive(self, deadline: float) -> None:
        """Hands out what has arrived. Only for whoever holds `_reading`."""
        try:
            data = self._transport.receive(deadline)
            if data:
                self._heard = time.monotonic()
                for answer in self._protocol.receive(data):
                    self._hand_out(answer)
                return
            error: OSError = ConnectionResetError("the server closed the connection")
        except TimeoutError:
            raise
        except (OSError, BrokenProtocolError) as caught:
            error = caught
        self._lose(error)

    def _hand_out(self, answer: Answer) -> None:
        pending = self._pending.get(answer.request_id)
        if pending is None:
            logger.debug("an answer that nobody waits for is passed over: %s", answer.request_id)
        else:
            pending.finish(answer)

    def _lose(self, error: BaseException) -> None:
        logger.debug("the connection is lost: %r", error)
        self._is_lost = True
        self._transport.shut()
        for pending in tuple(self._pending.values()):
            if not pending.is_done:
                pending.finish(None)

    def is_usable(self) -> bool:
        """Whether a request may be sent, as far as one can know.

        A server that went while nothing was asked is noticed, so that the next request goes to
        another connection instead of being lost.
        """
        if (
            not self._pending
            and time.monotonic() - self._heard > _RECENT_SECONDS
            and self._reading.acquire(blocking=False)
        ):
            try:
                while not self._is_lost and self._transport.has_input():
                    self._receive(time.monotonic())
            except TimeoutError:
                pass  # a part of something: TLS, say
            finally:
                self._reading.release()
                self._hand_over()
        return not self._is_lost

    def close(self) -> None:
        self._lose(ConnectionAbortedError("closed"))
        # Both return soon: nothing can be sent or received any more.
        with self._sending, self._reading:
            self._transport.close()
