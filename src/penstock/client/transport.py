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

from penstock.client.endpoint import Endpoint

_RECEIVE_BYTES = 256 * 1024
# The kernel wakes a thread that waits so long, to look at its deadline: waiting in the call itself
# costs half of what it does to wait first and then call.
_TICK_SECONDS = 1
_TICK = struct.pack("ll", _TICK_SECONDS, 0)


class Transport:
    def __init__(self, stream_socket: socket.socket) -> None:
        stream_socket.settimeout(None)
        stream_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TICK)
        stream_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TICK)
        self._socket = stream_socket
        # Each is used by one thread at a time: the one that receives, the one that sends.
        self._input, self._output = select.poll(), select.poll()
        self._input.register(stream_socket, select.POLLIN)
        self._output.register(stream_socket, select.POLLOUT)

    def send(self, data: bytes, deadline: float) -> None:
        """All of it, or an error: then a part of it may have left."""
        sent = self._send_some(data, deadline)
        if sent < len(data):
            view = memoryview(data)
            while sent < len(data):
                sent += self._send_some(view[sent:], deadline)

    def _send_some(self, data: bytes | memoryview, deadline: float) -> int:
        while True:
            if deadline - time.monotonic() < _TICK_SECONDS:
                _wait(self._output, deadline)
            try:
                return self._socket.send(data)
            except BlockingIOError:
                pass  # a tick is over

    def receive(self, deadline: float) -> bytes:
        """What has arrived; nothing at the end. TimeoutError if nothing does in time."""
        while True:
            if deadline - time.monotonic() < _TICK_SECONDS:
                _wait(self._input, deadline)
            try:
                return self._socket.recv(_RECEIVE_BYTES)
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

    def send(self, data: bytes, deadline: float) -> None:
        with self._lock:
            self._tls.write(data)
            encrypted = self._outgoing.read()
        super().send(encrypted, deadline)

    def receive(self, deadline: float) -> bytes:
        while True:
            data = super().receive(deadline)
            if not data:
                return b""
            with self._lock:
                self._incoming.write(data)
                plain, is_end = self._decrypt()
            # What TLS itself has to say in return leaves with the next request.
            if plain or is_end:
                return plain

    def _decrypt(self) -> tuple[bytes, bool]:
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(_RECEIVE_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(pieces), False
        except ssl.SSLZeroReturnError:
            pass
        return b"".join(pieces), True


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
        raise TimeoutError
