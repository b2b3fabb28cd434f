"""One connection: a thin shell around the protocol's state machine.

It bounds what a peer can cost: a handshake in time, one unfinished frame, so many calls at once,
one large answer at a time, and no further request while answers wait to be taken. After each
mebibyte of answers it is the turn of the other connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, Protocol, cast

from penstock import __version__
from penstock.broker.access import NOTHING, Access, Gate
from penstock.broker.call import Call
from penstock.broker.handlers import Handlers
from penstock.broker.memory import FrameMemory
from penstock.broker.statistics import Counters
from penstock.errors import (
    ConnectFailedException,
    ResponseStatusCode,
    StreamManagerException,
    UnauthorizedException,
    UnknownOperationException,
    status_for_version,
)
from penstock.wire.codec import UnreadableRequestError, decode_request, encode_response
from penstock.wire.frames import CONNECT_VERSION
from penstock.wire.handshake import EXTENSIONS_VERSION, SUPPORTED_VERSIONS, choose_version
from penstock.wire.operations import RESPONSE_TO, Operation
from penstock.wire.protocol import AppendRun, Frame, ServerProtocol, Violation
from penstock.wire.requests import EXTENDED_REQUESTS, HANDSHAKE, REQUESTS, ConnectRequest

logger = logging.getLogger(__name__)

_VERSION_BYTE = bytes((CONNECT_VERSION,))
_MAX_OPEN_CALLS = 4096
_WRITE_BUFFER_BYTES = 1024 * 1024
# A frame that has begun keeps coming at this pace, and an answer keeps being taken, or the
# connection is dropped. A large frame holds memory that others wait for, and so has an end.
_SLOWEST_BYTES_A_SECOND = 1024
_SLOWEST_FRAME_SECONDS = 600
_PATIENCE_SECONDS = 60.0


class Host(Protocol):
    """What a session needs of the server it belongs to."""

    handlers: Handlers
    gate: Gate
    counters: Counters
    memory: FrameMemory
    max_frame_bytes: int
    handshake_timeout: float

    def opened(self, session: Session) -> str | None: ...
    def closed(self, session: Session) -> None: ...


class Session(asyncio.Protocol):
    def __init__(self, host: Host) -> None:
        self._host = host
        self._protocol = ServerProtocol(host.max_frame_bytes)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_processing = False
        self._is_closing = False
        self._is_stopping = False
        self._gives_way = False
        self._writing_is_paused = False
        self._writing_paused_at = 0.0
        self._unsent_when_paused = 0
        self._version = SUPPORTED_VERSIONS[-1]
        self._requests = REQUESTS
        # The question whose token it is, while somebody else is asked.
        self._question: asyncio.Task[None] | None = None
        self._open_calls = 0
        # A call that the requests behind it wait for.
        self._held_for: Call | None = None
        self._work: deque[Iterator[None]] = deque()
        self._cancellations: set[Call] = set()
        self._farewells: dict[Hashable, Callable[[], object]] = {}
        self._frame_began = 0.0
        self._holds_memory = False
        # The beginning of the handshake, and later that of the end.
        self._began = self.loop.time()
        self.access: Access = NOTHING
        self.peer = "?"

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix socket"
        if isinstance(peer, tuple) and hasattr(socket, "TCP_QUICKACK"):
            self._socket = transport.get_extra_info("socket")
        refusal = self._host.opened(self)
        if refusal is not None:
            self._refuse(ResponseStatusCode.FailedToConnect, refusal)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._is_closing = True
        if self._question is not None:
            self._question.cancel()
        for call in tuple(self._cancellations):
            call.cancel()
        for say_farewell in self._farewells.values():
            say_farewell()
        self._work.clear()
        self._host.memory.release(self)
        self._host.closed(self)

    def data_received(self, data: bytes) -> None:
        if not self._protocol.is_inside_frame:
            self._frame_began = self.loop.time()
        self._protocol.receive(data)
        self._process()
        if self._protocol.is_inside_frame:
            self._wait_for_rest()

    def pause_writing(self) -> None:
        self._writing_is_paused = True
        self._writing_paused_at = self.loop.time()
        self._unsent_when_paused = self._transport.get_write_buffer_size()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writing_is_paused = False
        self._go_on()

    # Requests

    def _process(self) -> None:
        """Do what there is to do; the answers that are ready leave in one write."""
        self._is_processing = True
        try:
            while not self._is_waiting():
                if self._work:
                    if not next(self._work[0], True):
                        self._give_way()
                        break
                    self._work.popleft()
                elif not self._handle_next():
                    break
                if self._out_bytes > _WRITE_BUFFER_BYTES:
                    self._give_way()
        except Exception:
            logger.exception("%s: its requests cannot be handled", self.peer)
            self._drop("the server failed")
        self._is_processing = False
        if self._out:
            self._flush()
        if self._is_held_up():
            self._transport.pause_reading()

    def _is_waiting(self) -> bool:
        return self._writing_is_paused or self._is_closing or self._gives_way

    def _is_held_up(self) -> bool:
        """Whether no further request is taken for now."""
        return (
            self._writing_is_paused
            or self._is_closing
            or self._gives_way
            or self._is_stopping
            or self._question is not None
            or self._held_for is not None
            or self._open_calls >= _MAX_OPEN_CALLS
        )

    def _handle_next(self) -> bool:
        """Handle what is complete; False if nothing is left, or if no request may be taken."""
        event = None if self._is_held_up() else self._protocol.next_event()
        if event is None:
            return False
        if isinstance(event, AppendRun):
            self._host.handlers.append_run(self, event)
        elif isinstance(event, Frame):
            self._handle_frame(event)
        else:
            self._handle_violation(event)
        if self._holds_memory:
            self._holds_memory = False
            self._host.memory.release(self)
        if self._protocol.is_inside_frame:
            # What is left has just begun to arrive.
            self._frame_began = self.loop.time()
            return True
        return bool(self._work)

    def _give_way(self) -> None:
        """Let the other connections have their turn before this one goes on."""
        self._gives_way = True
        self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._gives_way = False
        self._go_on()

    def _go_on(self) -> None:
        if self._is_waiting() or self._is_processing:
            return
        # What the peer could not send meanwhile does not count as dawdling.
        self._frame_began = self.loop.time()
        self._process()
        if not self._is_held_up() and self._host.memory.admits(self):
            self._transport.resume_reading()

    def _handle_frame(self, frame: Frame) -> None:
        if self._protocol.in_handshake:
            self._shake_hands(frame)
            return
        operation = frame.operation
        try:
            request = decode_request(operation, frame.body, self._requests)
        except UnreadableRequestError as error:
            self._drop(f"a request that cannot be answered: {error}")
            return
        except StreamManagerException as error:
            known = RESPONSE_TO.get(operation)
            if known is None or isinstance(error, UnknownOperationException):
                known = Operation.UnknownOperationError
            self.open_call(error.request_id or "unknown", Operation.Unknown, known).fail(error)
            return
        self._host.handlers.handle(self.open_call(request.request_id, request.operation), request)

    def _shake_hands(self, frame: Frame) -> None:
        request_id = "unknown"
        try:
            request = decode_request(frame.operation, frame.body, HANDSHAKE)
            assert isinstance(request, ConnectRequest)
            request_id = request.request_id
            self._version = choose_version(request)
            access = self._host.gate.find(request.auth_token)
        except UnreadableRequestError as error:
            self._refuse(ResponseStatusCode.InvalidRequest, f"the handshake is malformed: {error}")
            return
        except StreamManagerException as error:
            self._refuse_because(error, request_id)
            return
        if access is None:
            self._question = self.loop.create_task(self._ask(request))
        else:
            self._welcome(request, access)

    async def _ask(self, request: ConnectRequest) -> None:
        """Answers the handshake when it is known whose token this is. Meanwhile nothing is read."""
        try:
            access = await self._host.gate.ask(request.auth_token)
        except StreamManagerException as error:
            self._settle(partial(self._refuse_because, error, request.request_id))
        except Exception:
            logger.exception("%s: its token cannot be checked", self.peer)
            reason = "the server failed to check the token"
            refuse = partial(self._refuse, ResponseStatusCode.FailedToConnect, reason)
            self._settle(partial(refuse, request.request_id))
        else:
            self._settle(partial(self._welcome, request, access))

    def _settle(self, answer: Callable[[], None]) -> None:
        self._question = None
        # The time for the handshake may be over, or the server stops.
        if not self._is_closing:
            answer()
            self._go_on()

    def _refuse_because(self, error: StreamManagerException, request_id: str) -> None:
        if not isinstance(error, (UnauthorizedException, ConnectFailedException)):
            request_id = error.request_id or request_id
        self._refuse(error.status or ResponseStatusCode.FailedToConnect, error.message, request_id)

    def _welcome(self, request: ConnectRequest, access: Access) -> None:
        self.access = access
        extensions: dict[str, Any] = {}
        if request.penstock_extensions >= 1:
            self._requests = EXTENDED_REQUESTS
            extensions["penstockExtensions"] = EXTENSIONS_VERSION
            extensions["maxFrameBytes"] = self._host.max_frame_bytes
        self._protocol.accept()
        self.send(
            _VERSION_BYTE
            + encode_response(
                Operation.ConnectResponse,
                request.request_id,
                protocolVersion=self._version,
                supportedProtocolVersions=list(SUPPORTED_VERSIONS),
                serverVersion=__version__,
                clientIdentifier=self.peer,
                **extensions,
            )
        )
        logger.debug(
            "%s connected: SDK %s, protocol %s, role %s",
            self.peer,
            request.sdk_version or "?",
            self._version,
            self.access.role,
        )

    def _refuse(self, status: ResponseStatusCode, reason: str, request_id: str = "unknown") -> None:
        """Answer the handshake, then close: a bare close is an error nobody expects."""
        self._host.counters.connections_refused += 1
        logger.warning("%s refused: %s", self.peer, reason)
        self.send(
            _VERSION_BYTE + encode_response(Operation.ConnectResponse, request_id, status, reason)
        )
        self._close()

    def _handle_violation(self, violation: Violation) -> None:
        if self._protocol.in_handshake:
            self._refuse(violation.status, violation.reason, violation.request_id or "unknown")
            return
        if violation.request_id is not None:
            status = status_for_version(violation.status, self._version)
            self.send(
                encode_response(violation.operation, violation.request_id, status, violation.reason)
            )
        self._drop(violation.reason)

    # Answers

    def open_call(
        self, request_id: str, operation: Operation, response: Operation | None = None
    ) -> Call:
        self._open_calls += 1
        return Call(self, request_id, response or RESPONSE_TO[operation])

    def close_call(self, call: Call) -> None:
        self._open_calls -= 1
        self._cancellations.discard(call)
        may_go_on = self._open_calls == _MAX_OPEN_CALLS - 1
        if self._held_for is call:
            self._held_for = None
            may_go_on = True
        if may_go_on and not self._is_processing:
            self.loop.call_soon(self._go_on)

    def count_failure(self, error: StreamManagerException) -> None:
        counters = self._host.counters
        counters.requests_failed += 1
        counters.failures[ResponseStatusCode(error.status or 1).name] += 1
        logger.debug("%s: %s", self.peer, error)

    def defer(self) -> Callable[[bytes], None]:
        """A promise to send something later; a stop waits for it."""
        call = self.open_call("", Operation.AppendMessage)
        return call.send

    def hold_for(self, call: Call) -> None:
        """Take no further request until this call is answered."""
        self._held_for = call

    def watch(self, call: Call) -> None:
        self._cancellations.add(call)

    def on_departure(self, key: Hashable, say_farewell: Callable[[], object]) -> None:
        """What to do when the client is gone; once for each key."""
        self._farewells[key] = say_farewell

    def work(self, steps: Iterator[None]) -> None:
        """Do this in the connection's turn, behind what it has to do already."""
        if self._is_closing:
            return
        self._work.append(steps)
        if not self._is_processing:
            self.loop.call_soon(self._go_on)

    def send(self, response: bytes) -> None:
        self._out.append(response)
        self._out_bytes += len(response)
        if not self._is_processing:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out = []
            self._out_bytes = 0
            if data and not self._transport.is_closing():
                self._transport.write(data)

    @property
    def version(self) -> str:
        return self._version

    # The end of it

    def _drop(self, reason: str) -> None:
        self._host.counters.connections_dropped += 1
        logger.warning("%s dropped: %s", self.peer, reason)
        self._close()

    def _close(self) -> None:
        self._is_closing = True
        self._began = self.loop.time()
        self._flush()
        self._transport.close()

    def abort_late(self) -> None:
        """An answer is too late: close instead, which every client survives."""
        if not self._is_closing:
            self._drop("an answer came too late for the client")

    def revoke(self) -> None:
        self._drop("its token was revoked")

    def expire(self) -> None:
        self._drop("its token has expired")

    def abort(self) -> None:
        self._transport.abort()

    def check_pace(self, now: float) -> None:
        """Drop a peer that dawdles: in the handshake, or in the middle of a frame."""
        if self._is_closing:
            # Those who were told to go and do not take the answer.
            if now - self._began > _PATIENCE_SECONDS and self._transport.is_closing():
                self._transport.abort()
            return
        if self._protocol.in_handshake:
            if now - self._began > self._host.handshake_timeout:
                self._refuse(ResponseStatusCode.ServerTimeout, "the handshake took too long")
        elif self._writing_is_paused:
            taken = self._unsent_when_paused - self._transport.get_write_buffer_size()
            if _is_too_slow(taken, now - self._writing_paused_at):
                self._drop("it does not take its answers")
                self._transport.abort()
        elif (
            self._protocol.is_inside_frame
            and not self._is_held_up()
            and self._host.memory.admits(self)
        ):
            slowest = self._protocol.expected_bytes / _SLOWEST_FRAME_SECONDS
            if _is_too_slow(self._protocol.buffered_bytes, now - self._frame_began, slowest):
                self._drop("a request arrives too slowly")

    @property
    def is_connected(self) -> bool:
        return not self._protocol.in_handshake and not self._is_closing

    @property
    def is_idle(self) -> bool:
        """Whether it owes the peer nothing."""
        return self._open_calls == 0 and self._transport.get_write_buffer_size() == 0

    def stop(self) -> None:
        """Take no more requests. What is under way is still answered."""
        self._is_stopping = True
        if not self._is_closing and not self._transport.is_closing():
            self._transport.pause_reading()

    def finish(self) -> None:
        if not self._is_closing:
            self._close()

    # The transport's fine points

    def _wait_for_rest(self) -> None:
        if self._socket is not None:
            # The JavaScript client writes a frame's head and body apart, with Nagle's algorithm
            # on: it sends the body when the head is acknowledged, for which the system takes
            # its time (40 ms) unless it is told not to.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        expected = self._protocol.expected_bytes
        if expected:
            self._holds_memory = True
            if not self._host.memory.reserve(self, expected, self._go_on):
                self._transport.pause_reading()


def _is_too_slow(size: int, seconds: float, slowest: float = 0.0) -> bool:
    pace = max(_SLOWEST_BYTES_A_SECOND, slowest)
    return seconds > _PATIENCE_SECONDS and size < seconds * pace
