"""Sends and receives bytes over a blocking socket, with deadlines.

One thread may send while another receives. TLS uses memory buffers, because OpenSSL does not
allow a read and a write at the same time: one would wait for the other.
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

# Receive buffers. The large one is used only while a large answer arrives, because its allocation
# takes longer than a small request.
_SMALL_BUFFER_BYTES = 16 * 1024
_LARGE_BUFFER_BYTES = 256 * 1024
_NONBLOCKING = int(socket.MSG_DONTWAIT)
# The socket's receive timeout, after which a thread checks its deadline. A blocking receive costs
# half as much as a poll and a receive.
_TICK_SECONDS = 1
_TICK = struct.pack("ll", _TICK_SECONDS, 0)
# A blocked sender checks this often whether it has to receive answers.
_CHECK_SECONDS = 0.05


class DeadlineError(TimeoutError):
    """The deadline has passed."""


def _take_no_answers() -> bool:
    return False


class Transport:
    def __init__(self, stream_socket: socket.socket) -> None:
        stream_socket.settimeout(None)
        stream_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TICK)
        self._socket = stream_socket
        self._buffer_bytes = _SMALL_BUFFER_BYTES
        # One thread at a time, the receiver or the sender, uses each of them.
        self._input, self._output, self._either = select.poll(), select.poll(), select.poll()
        self._input.register(stream_socket, select.POLLIN)
        self._output.register(stream_socket, select.POLLOUT)
        self._either.register(stream_socket, select.POLLIN | select.POLLOUT)

    def send(
        self, data: bytes, deadline: float, take_answers: Callable[[], bool] = _take_no_answers
    ) -> None:
        """Sends all bytes. After an error some of them may have been sent.

        A server that cannot send its answers accepts no requests. A blocked sender therefore
        calls `take_answers` periodically; it returns False if another thread receives.
        """
        try:
            sent = self._socket.send(data, _NONBLOCKING)
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
                _wait(poll, min(deadline, time.monotonic() + _CHECK_SECONDS))
            with contextlib.suppress(BlockingIOError):
                data = data[self._socket.send(data, _NONBLOCKING) :]
            if data and time.monotonic() > deadline:
                raise DeadlineError("the server did not accept the request in time")

    def receive(self, deadline: float) -> bytes:
        """Receives bytes; empty at the end of the stream, DeadlineError after the deadline."""
        while True:
            if deadline - time.monotonic() < _TICK_SECONDS:
                _wait(self._input, deadline)
            try:
                data = self._socket.recv(self._buffer_bytes)
                is_full = len(data) == self._buffer_bytes
                self._buffer_bytes = _LARGE_BUFFER_BYTES if is_full else _SMALL_BUFFER_BYTES
                return data
            except BlockingIOError:
                pass  # check the deadline

    def has_input(self) -> bool:
        """Whether bytes or the end of the stream have arrived."""
        return bool(self._input.poll(0))

    def shut_down(self) -> None:
        """Wakes waiting threads. The descriptor stays open until no thread uses it."""
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
        self, data: bytes, deadline: float, take_answers: Callable[[], bool] = _take_no_answers
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
            # Replies of the TLS protocol are sent with the next request.
            if plain:
                return plain
        return b""

    def _decrypt(self) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(_LARGE_BUFFER_BYTES):
                pieces.append(piece)
            self._is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._is_over = True
        return b"".join(pieces)

    def has_input(self) -> bool:
        # After a TLS close the server may keep the socket open until the client closes it.
        return self._is_over or super().has_input()


def open_transport(endpoint: Endpoint, deadline: float) -> Transport:
    """Opens a connection, before the handshake; raises OSError if that fails."""
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
