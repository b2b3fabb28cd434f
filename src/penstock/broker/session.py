"""One connection: a thin shell around the protocol's state machine.

A session limits the resources of a peer: the time for the handshake, one unfinished frame, the
number of open calls, and one large answer at a time. It handles no request while answers are
unsent. After each mebibyte of answers it yields to the other connections.

Unsent answers stay in the session. The transport gets one piece at a time, so its buffer is empty
or holds one piece that the peer has not read. A peer that does not read is dropped after a timeout.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Protocol, cast

from penstock import __version__
from penstock.broker.access import NO_ACCESS, Access, Authenticator
from penstock.broker.call import Call
from penstock.broker.counters import Counters
from penstock.broker.handlers import Handlers
from penstock.broker.memory import SMALL_ANSWER_BYTES, AnswerMemory, AnswerRoom, FrameMemory
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
_TURN_BYTES = 1024 * 1024
# The max size of one write to the transport. A TLS transport does not report bytes that it has
# encrypted, so it gets smaller pieces.
_PIECE_BYTES = 1024 * 1024
_TLS_PIECE_BYTES = 64 * 1024
_TLS_HANDSHAKE_BYTES = 4096
# A connection whose unfinished frame arrives more slowly is dropped. A large frame holds memory
# that other connections wait for, so its total time is limited too.
_MIN_BYTES_PER_SECOND = 1024
_MAX_FRAME_SECONDS = 600
_TIMEOUT_SECONDS = 60.0


class SessionState(Enum):
    """States of a connection, in order. A session may skip states, but never goes back."""

    # Waits for the handshake.
    HANDSHAKE = 1
    # An external verifier checks the token of the handshake. No request is handled.
    VERIFYING = 2
    # Handles requests.
    OPEN = 3
    # The server stops: pending requests are answered, no further request is handled.
    STOPPING = 4
    # Sends the remaining answers, or is closed already.
    CLOSING = 5


# Looking up a member of an enum is slow.
_HANDSHAKE = SessionState.HANDSHAKE
_OPEN = SessionState.OPEN
_CLOSING = SessionState.CLOSING


class Host(Protocol):
    """The parts of the server that a session uses."""

    handlers: Handlers
    authenticator: Authenticator
    counters: Counters
    memory: FrameMemory
    answers: AnswerMemory
    max_frame_bytes: int
    handshake_timeout: float
    unsent_response_timeout: float

    def opened(self, session: Session) -> str | None: ...
    def closed(self, session: Session) -> None: ...


class Session(asyncio.Protocol):
    # With more than 30 attributes, Python looks them up faster in slots.
    __slots__ = (
        "_closing_began",
        "_frame_began",
        "_handshake_began",
        "_held_bytes",
        "_held_for",
        "_holds_memory",
        "_host",
        "_is_processing",
        "_is_yielding",
        "_lost_callbacks",
        "_open_calls",
        "_out",
        "_out_bytes",
        "_piece_bytes",
        "_progress",
        "_progress_at",
        "_protocol",
        "_requests",
        "_rooms",
        "_socket",
        "_state",
        "_transport",
        "_unsent",
        "_unsent_bytes",
        "_verification",
        "_version",
        "_watched_calls",
        "_work",
        "_writing_is_paused",
        "access",
        "loop",
        "peer",
    )

    def __init__(self, host: Host) -> None:
        self._host = host
        self._protocol = ServerProtocol(host.max_frame_bytes)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        # Only `_enter` changes the state. The flags below are flow control, in any state.
        self._state = _HANDSHAKE
        self._is_processing = False
        self._is_yielding = False
        self._writing_is_paused = False
        # Answers that were not passed to the transport, and the rooms of all unsent answers.
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        self._rooms: list[AnswerRoom] = []
        self._held_bytes = 0
        self._piece_bytes = _PIECE_BYTES
        self._progress: object = None
        self._progress_at = 0.0
        self._version = SUPPORTED_VERSIONS[-1]
        self._requests = REQUESTS
        # The pending external token verification.
        self._verification: asyncio.Task[None] | None = None
        self._open_calls = 0
        # Requests behind this call are handled after its answer.
        self._held_for: Call | None = None
        self._work: deque[Iterator[None]] = deque()
        self._watched_calls: set[Call] = set()
        self._lost_callbacks: dict[Hashable, Callable[[], object]] = {}
        self._frame_began = 0.0
        self._holds_memory = False
        self._handshake_began = self.loop.time()
        self._closing_began = 0.0
        self.access: Access = NO_ACCESS
        self.peer = "?"

    @property
    def state(self) -> SessionState:
        return self._state

    def _enter(self, state: SessionState) -> None:
        """Changes the state, unless the session is in this state or a later one.

        For example, a token that is verified while the server stops does not open the session.
        """
        if state.value > self._state.value:
            self._state = state

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # A limit of 0, so that `pause_writing` fires for every unsent byte. With TLS, the transport
        # sends the end of the handshake only when it reads: these bytes must stay below the limit.
        if transport.get_extra_info("ssl_object") is None:
            self._transport.set_write_buffer_limits(high=0)
        else:
            self._transport.set_write_buffer_limits(high=_TLS_HANDSHAKE_BYTES, low=0)
            self._piece_bytes = _TLS_PIECE_BYTES
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix socket"
        if isinstance(peer, tuple) and hasattr(socket, "TCP_QUICKACK"):
            self._socket = transport.get_extra_info("socket")
        refusal = self._host.opened(self)
        if refusal is not None:
            self._refuse(ResponseStatusCode.FailedToConnect, refusal)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._enter(_CLOSING)
        if self._verification is not None:
            self._verification.cancel()
        for call in tuple(self._watched_calls):
            call.cancel()
        for callback in self._lost_callbacks.values():
            callback()
        self._work.clear()
        self._unsent.clear()
        self._release_answers()
        self._host.memory.release(self)
        self._host.closed(self)

    def data_received(self, data: bytes) -> None:
        if not self._protocol.is_inside_frame:
            self._frame_began = self.loop.time()
        self._protocol.receive(data)
        self._process()
        if self._protocol.is_inside_frame:
            self._expect_rest()

    def pause_writing(self) -> None:
        self._writing_is_paused = True
        self._progress = measure_unsent(self._transport)
        self._progress_at = self.loop.time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writing_is_paused = False
        self._write()
        self._resume()

    # Requests

    def _process(self) -> None:
        """Handles complete requests and pending work. Sends all answers in one write."""
        self._is_processing = True
        try:
            while not self._is_suspended():
                if self._work:
                    if not next(self._work[0], True):
                        self._yield_turn()
                        break
                    self._work.popleft()
                elif not self._handle_next():
                    break
                if self._out_bytes > SMALL_ANSWER_BYTES and self._is_turn_over():
                    self._yield_turn()
        except Exception:
            logger.exception("%s: cannot handle its requests", self.peer)
            self._drop("the server failed")
        self._is_processing = False
        if self._out:
            self._flush()
        if self._defers_requests():
            self._transport.pause_reading()

    def _is_turn_over(self) -> bool:
        return self._out_bytes > _TURN_BYTES or self._host.answers.is_short

    def _is_suspended(self) -> bool:
        """Whether requests and pending work have to wait."""
        return self._writing_is_paused or self._is_yielding or self._state is _CLOSING

    def _defers_requests(self) -> bool:
        """Whether the next request has to wait."""
        return (
            self._writing_is_paused
            or self._is_yielding
            or self._held_for is not None
            or self._open_calls >= _MAX_OPEN_CALLS
            or not ((state := self._state) is _OPEN or state is _HANDSHAKE)
        )

    def _handle_next(self) -> bool:
        """Handles the next event; returns False without one, or if requests have to wait."""
        event = None if self._defers_requests() else self._protocol.next_event()
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
            # The next frame has just begun to arrive.
            self._frame_began = self.loop.time()
            return True
        return bool(self._work)

    def _yield_turn(self) -> None:
        """Lets the event loop serve the other connections first."""
        self._is_yielding = True
        self.loop.call_soon(self._end_yield)

    def _end_yield(self) -> None:
        self._is_yielding = False
        self._resume()

    def _resume(self) -> None:
        if self._is_suspended() or self._is_processing:
            return
        # The peer could not send during the pause, so its pace is measured from now on.
        self._frame_began = self.loop.time()
        self._process()
        if not self._defers_requests() and self._host.memory.admits(self):
            self._transport.resume_reading()

    def _handle_frame(self, frame: Frame) -> None:
        if self._state is _HANDSHAKE:
            self._handle_handshake(frame)
            return
        operation = frame.operation
        try:
            request = decode_request(operation, frame.body, self._requests)
        except UnreadableRequestError as error:
            self._drop(f"a request that cannot be answered: {error}")
            return
        except StreamManagerException as error:
            response = RESPONSE_TO.get(operation)
            if response is None or isinstance(error, UnknownOperationException):
                response = Operation.UnknownOperationError
            self.open_call(error.request_id or "unknown", Operation.Unknown, response).fail(error)
            return
        self._host.handlers.handle(self.open_call(request.request_id, request.operation), request)

    def _handle_handshake(self, frame: Frame) -> None:
        request_id = "unknown"
        try:
            request = decode_request(frame.operation, frame.body, HANDSHAKE)
            assert isinstance(request, ConnectRequest)
            request_id = request.request_id
            self._version = choose_version(request)
            access = self._host.authenticator.find(request.auth_token)
        except UnreadableRequestError as error:
            self._refuse(ResponseStatusCode.InvalidRequest, f"the handshake is malformed: {error}")
            return
        except StreamManagerException as error:
            self._refuse_for(error, request_id)
            return
        if access is None:
            self._enter(SessionState.VERIFYING)
            self._verification = self.loop.create_task(self._verify(request))
        else:
            self._accept_handshake(request, access)

    async def _verify(self, request: ConnectRequest) -> None:
        """Answers the handshake when the external verifier has checked the token."""
        try:
            access = await self._host.authenticator.verify(request.auth_token)
        except StreamManagerException as error:
            self._finish_verification(partial(self._refuse_for, error, request.request_id))
        except Exception:
            logger.exception("%s: cannot verify its token", self.peer)
            reason = "the server failed to check the token"
            refuse = partial(self._refuse, ResponseStatusCode.FailedToConnect, reason)
            self._finish_verification(partial(refuse, request.request_id))
        else:
            self._finish_verification(partial(self._accept_handshake, request, access))

    def _finish_verification(self, answer: Callable[[], None]) -> None:
        self._verification = None
        # The handshake may have timed out.
        if self._state is not _CLOSING:
            answer()
            self._resume()

    def _refuse_for(self, error: StreamManagerException, request_id: str) -> None:
        if not isinstance(error, (UnauthorizedException, ConnectFailedException)):
            request_id = error.request_id or request_id
        self._refuse(error.status or ResponseStatusCode.FailedToConnect, error.message, request_id)

    def _accept_handshake(self, request: ConnectRequest, access: Access) -> None:
        self.access = access
        extensions: dict[str, Any] = {}
        if request.penstock_extensions >= 1:
            self._requests = EXTENDED_REQUESTS
            extensions["penstockExtensions"] = EXTENSIONS_VERSION
            extensions["maxFrameBytes"] = self._host.max_frame_bytes
        self._protocol.accept()
        self._enter(_OPEN)
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
        """Answers the handshake with an error, which clients expect before the close."""
        self._host.counters.connections_refused += 1
        logger.warning("%s refused: %s", self.peer, reason)
        self.send(
            _VERSION_BYTE + encode_response(Operation.ConnectResponse, request_id, status, reason)
        )
        self._close()

    def _handle_violation(self, violation: Violation) -> None:
        if self._state is _HANDSHAKE:
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
        self._watched_calls.discard(call)
        may_go_on = self._open_calls == _MAX_OPEN_CALLS - 1
        if self._held_for is call:
            self._held_for = None
            may_go_on = True
        if may_go_on and not self._is_processing:
            self.loop.call_soon(self._resume)

    def count_failure(self, error: StreamManagerException) -> None:
        counters = self._host.counters
        counters.requests_failed += 1
        counters.failures[ResponseStatusCode(error.status or 1).name] += 1
        logger.debug("%s: %s", self.peer, error)

    def defer(self) -> Callable[[bytes], None]:
        """Returns a function that sends an answer later; a stop waits for it."""
        call = self.open_call("", Operation.AppendMessage)
        return call.send

    def hold_for(self, call: Call) -> None:
        """Handles no further request until this call is answered."""
        self._held_for = call

    def watch(self, call: Call) -> None:
        """Cancels the call if the connection is lost before its answer."""
        self._watched_calls.add(call)

    def on_connection_lost(self, key: Hashable, callback: Callable[[], object]) -> None:
        """Calls `callback` when the connection is lost; replaces a callback with the same key."""
        self._lost_callbacks[key] = callback

    def work(self, steps: Iterator[None]) -> None:
        """Queues work for the connection's next turns, after other work and before requests."""
        if self._state is _CLOSING:
            return
        self._work.append(steps)
        if not self._is_processing:
            self.loop.call_soon(self._resume)

    def send(self, response: bytes) -> None:
        self._out.append(response)
        self._out_bytes += len(response)
        if not self._is_processing:
            self._flush()

    def send_parts(self, parts: list[bytes], room: AnswerRoom) -> None:
        """Sends an answer whose room is released when all its bytes are sent."""
        if room.size:
            self._rooms.append(room)
        self._out += parts
        self._out_bytes += sum(map(len, parts))
        if not self._is_processing:
            self._flush()

    def _flush(self) -> None:
        if not self._out:
            return
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if self._transport.is_closing():
            self._release_answers()
        elif size <= self._piece_bytes and not self._unsent and not self._writing_is_paused:
            data = out[0] if len(out) == 1 else b"".join(out)
            if data:
                self._transport.write(data)
            if self._rooms or self._writing_is_paused:
                self._write()
        else:
            self._unsent += out
            self._unsent_bytes += size
            self._write()

    def _write(self) -> None:
        """Writes pieces until the transport has an unsent one."""
        unsent = self._unsent
        while unsent and not self._writing_is_paused:
            piece = unsent.popleft()
            if len(piece) > self._piece_bytes:
                whole = memoryview(piece)
                piece = whole[: self._piece_bytes]
                unsent.appendleft(whole[self._piece_bytes :])
            self._unsent_bytes -= len(piece)
            if piece:
                self._transport.write(piece)
        if not self._writing_is_paused:
            if self._rooms or self._held_bytes:
                self._release_answers()
        else:
            self._hold_answers()

    def _hold_answers(self) -> None:
        """Counts unsent bytes that exceed the rooms of the answers."""
        unsent = self._unsent_bytes + self._transport.get_write_buffer_size()
        held = max(0, unsent - sum(room.size for room in self._rooms))
        if held != self._held_bytes:
            more, self._held_bytes = held - self._held_bytes, held
            self._host.answers.hold(more)

    def _release_answers(self) -> None:
        rooms, self._rooms = self._rooms, []
        for room in rooms:
            room.release()
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self._host.answers.hold(-held)

    @property
    def version(self) -> str:
        return self._version

    # Closing and timeouts

    def _drop(self, reason: str) -> None:
        self._host.counters.connections_dropped += 1
        logger.warning("%s dropped: %s", self.peer, reason)
        self._close()

    def _close(self) -> None:
        self._enter(_CLOSING)
        self._closing_began = self.loop.time()
        self._flush()
        # The transport sends its buffer before it closes the connection.
        while self._unsent:
            self._transport.write(self._unsent.popleft())
        self._unsent_bytes = 0
        self._transport.close()

    def abort_late(self) -> None:
        """Closes the connection instead of sending a late answer, which crashes AWS clients."""
        if self._state is not _CLOSING:
            self._drop("the answer to a request is late")

    def revoke(self) -> None:
        self._drop("its token was revoked")

    def expire(self) -> None:
        self._drop("its token has expired")

    def abort(self) -> None:
        self._transport.abort()

    def check_timeouts(self, now: float) -> None:
        """Drops a peer that is too slow: in the handshake, in a frame, or in reading answers."""
        if self._state is _CLOSING:
            # The peer does not read the last answers.
            if now - self._closing_began > _TIMEOUT_SECONDS and self._transport.is_closing():
                self._transport.abort()
            return
        if self._state in (SessionState.HANDSHAKE, SessionState.VERIFYING):
            if now - self._handshake_began > self._host.handshake_timeout:
                self._refuse(ResponseStatusCode.ServerTimeout, "the handshake took too long")
        elif self._writing_is_paused:
            progress = measure_unsent(self._transport)
            if progress != self._progress:
                self._progress, self._progress_at = progress, now
            elif now - self._progress_at > self._host.unsent_response_timeout:
                seconds = self._host.unsent_response_timeout
                self._drop(f"it read no byte of its answers for {seconds:g} seconds")
                self._transport.abort()
        elif (
            self._protocol.is_inside_frame
            and not self._defers_requests()
            and self._host.memory.admits(self)
        ):
            min_pace = self._protocol.expected_bytes / _MAX_FRAME_SECONDS
            if _is_too_slow(self._protocol.buffered_bytes, now - self._frame_began, min_pace):
                self._drop("a request arrives too slowly")

    @property
    def is_idle(self) -> bool:
        """Whether no call is open and every answer is sent."""
        return (
            self._open_calls == 0
            and not self._unsent
            and self._transport.get_write_buffer_size() == 0
        )

    def stop(self) -> None:
        """Handles no more requests. Open calls are still answered."""
        self._enter(SessionState.STOPPING)
        if self._state is not _CLOSING and not self._transport.is_closing():
            self._transport.pause_reading()

    def finish(self) -> None:
        if self._state is not _CLOSING:
            self._close()

    # Sockets

    def _expect_rest(self) -> None:
        if self._socket is not None:
            # The JavaScript client writes head and body of a frame separately, with Nagle's
            # algorithm: it sends the body when the head is acknowledged. Without this option the
            # system delays the acknowledgement by 40 ms.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        expected = self._protocol.expected_bytes
        if expected:
            self._holds_memory = True
            if not self._host.memory.reserve(self, expected, self._resume):
                self._transport.pause_reading()


def measure_unsent(transport: asyncio.WriteTransport) -> tuple[int, int]:
    """Unsent bytes in the transport and in the system: one changes when the peer reads a byte.

    The transport's buffer alone may not change for minutes while a slow peer reads: the system
    accepts more bytes only when a large part of its own buffer is free.
    """
    connection: socket.socket | None = transport.get_extra_info("socket")
    in_system = 0
    if connection is not None:
        with suppress(OSError):
            answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
            in_system = int.from_bytes(answer, sys.byteorder)
    return transport.get_write_buffer_size(), in_system


def _is_too_slow(size: int, seconds: float, min_pace: float = 0.0) -> bool:
    pace = max(_MIN_BYTES_PER_SECOND, min_pace)
    return seconds > _TIMEOUT_SECONDS and size < seconds * pace
