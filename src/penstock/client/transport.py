"""Bytes to and from a server over a blocking socket, each with a deadline.

One thread may send while another receives. TLS goes through buffers in memory: OpenSSL's own
reads and writes may not run at the same time, and so each would wait for the other.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable

from penstock.client.endpoint import Endpoint

# Room for what arrives: making it for a large answer takes longer than all of a small request, so
# that there is much only while there is much to come.
_LITTLE = 16 * 1024
_MUCH = 256 * 1024
_AT_ONCE = int(socket.MSG_DONTWAIT)
# The kernel wakes a thread that waits so long, to look at its deadline: waiting in the call itself
# costs half of what it does to wait first and then call.
_TICK_SECONDS = 1
_TICK = struct.pack("ll", _TICK_SECONDS, 0)
# So often one that cannot send looks whether the answers are still being taken.
_LOOK_SECONDS = 0.05


class DeadlineError(TimeoutError):
    """The time is up."""


def _nobody_answers_yet() -> bool:
    return False


class Transport:
    def __init__(self, stream_socket: socket.socket) -> None:
        stream_socket.settimeout(None)
        stream_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TICK)
        self._socket = stream_socket
        self._room = _LITTLE
        # Each is used by one thread at a time: the one that receives, the one that sends.
        self._input, self._output, self._either = select.poll(), select.poll(), select.poll()
        self._input.register(stream_socket, select.POLLIN)
        self._output.register(stream_socket, select.POLLOUT)
        self._either.register(stream_socket, select.POLLIN | select.POLLOUT)

    def send(
        self, data: bytes, deadline: float, take_answers: Callable[[], bool] = _nobody_answers_yet
    ) -> None:
        """All of it, or an error: then a part of it may have left.

        A server that cannot get rid of its answers takes no requests. So where it takes no more,
        `take_answers` is called now and then; it says False if another thread sees to that.
        """
        try:
            sent = self._socket.send(data, _AT_ONCE)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._send_rest(memoryview(data)[sent:], deadline, take_answers)

    def _send_rest(
        self, data: memoryview, deadline: float, take_answers: Callable[[], bool]
    ) -> None:
        while data:
            poll = self._either if take_answers() else self._output
            with contextlib.suppress(DeadlineError):
                _wait(poll, min(deadline, time.monotonic() + _LOOK_SECONDS))
            with contextlib.suppress(BlockingIOError):
                data = data[self._socket.send(data, _AT_ONCE) :]
            if data and time.monotonic() > deadline:
                raise DeadlineError("the server takes no more in time")

    def receive(self, deadline: float) -> bytes:
        """What has arrived; nothing at the end. DeadlineError if nothing does in time."""
        while True:
            if deadline - time.monotonic() < _TICK_SECONDS:
                _wait(self._input, deadline)
            try:
                data = self._socket.recv(self._room)
                self._room = _MUCH if len(data) == self._room else _LITTLE
                return data
            except BlockingIOError:
                pass  # a tick is over

    def has_input(self) -> bool:
        """Whether something has arrived, be it the end."""
        return bool(self._input.poll(0))

    def shut(self) -> None:
        """Wakes whoever waits here; the descriptor stays until nobody can be using it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class TlsTransport(Transport):
    def __init__(
        self, stream_socket: socket.socket, context: ssl.SSLContext, host: str, deadline: float
    ) -> None:
        super().__init__(stream_socket)
        self._lock = threading.Lock()
        self._is_over = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._shake_hands(deadline)

    def _shake_hands(self, deadline: float) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                super().send(self._outgoing.read(), deadline)
                data = super().receive(deadline)
                if not data:
                    raise ConnectionResetError("the server ended the handshake") from None
                self._incoming.write(data)
            else:
                super().send(self._outgoing.read(), deadline)
                return

    def send(
        self, data: bytes, deadline: float, take_answers: Callable[[], bool] = _nobody_answers_yet
    ) -> None:
        with self._lock:
            rest = memoryview(data)
            while rest:
                rest = rest[self._tls.write(rest) :]
            encrypted = self._outgoing.read()
        super().send(encrypted, deadline, take_answers)

    def receive(self, deadline: float) -> bytes:
        while not self._is_over:
            data = super().receive(deadline)
            if not data:
                break
            with self._lock:
                self._incoming.write(data)
                plain = self._decrypt()
            # What TLS itself has to say in return leaves with the next request.
            if plain:
                return plain
        return b""

    def _decrypt(self) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(_MUCH):
                pieces.append(piece)
            self._is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._is_over = True
        return b"".join(pieces)

    def has_input(self) -> bool:
        # The server may have said that it ends and keep the socket open, until we do so too.
        return self._is_over or super().has_input()


def open_transport(endpoint: Endpoint, deadline: float) -> Transport:
    """A connection on which nothing was said yet; OSError if there is none."""
    timeout = max(deadline - time.monotonic(), 0.001)
    if endpoint.unix_socket:
        stream_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream_socket.settimeout(timeout)
        try:
            stream_socket.connect(endpoint.unix_socket)
        except BaseException:
            stream_socket.close()
            raise
    else:
        stream_socket = socket.create_connection((endpoint.host, endpoint.port), timeout)
        stream_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        if endpoint.tls is not None:
            return TlsTransport(stream_socket, endpoint.tls, endpoint.host, deadline)
        return Transport(stream_socket)
    except BaseException:
        stream_socket.close()
        raise


def _wait(poll: select.poll, deadline: float) -> None:
    remaining = deadline - time.monotonic()
    if not poll.poll(max(math.ceil(remaining * 1000), 0)):
        raise DeadlineError
