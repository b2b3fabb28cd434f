"""The HTTP/1.1 server of the sandbox: one thread per connection, with keep-alive.

It replaces werkzeug's server, which moto uses: that server closes the connection after every
response, with a delay of 10 ms.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.sandbox.dispatch import ConnectionDropped, Dispatcher
from penstock.sandbox.service import ServiceRequest, ServiceResponse

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# The limit for a line with the size of a chunk and its extensions.
_MAX_LINE_BYTES = 1024
_NO_BODY = (204, 304)


class HttpListener(ThreadingHTTPServer):
    """Listens on a loopback port; 0 picks a free one."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, dispatcher: Dispatcher, port: int) -> None:
        self.dispatcher = dispatcher
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _HttpConnection)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def server_bind(self) -> None:
        # HTTPServer.server_bind would look up the name of this machine in DNS.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A disconnected client is not an error.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _HttpConnection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "penstock-sandbox"
    sys_version = ""
    # A response has two writes. Nagle's algorithm would delay the second one.
    disable_nagle_algorithm = True
    server: HttpListener

    def _serve(self) -> None:
        try:
            body = self._read_body()
        except ValueError as error:
            self.send_error(400, str(error))
            self.close_connection = True
            return
        request = ServiceRequest(
            self.command,
            self.path,
            {name.lower(): value for name, value in self.headers.items()},
            body,
            self._is_disconnected,
        )
        try:
            self._send(self.server.dispatcher.answer(request))
        except ConnectionDropped:
            # A reset looks like a server that does not listen.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = _serve  # noqa: N815

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return b"".join(iter(self._read_chunk, b""))
        text = self.headers.get("Content-Length", "0")
        if not text.isascii() or not text.isdigit():
            raise ValueError("Content-Length: must be a number")
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise ConnectionAbortedError("the client disconnected within a request")
        return body

    def _read_chunk(self) -> bytes:
        size = int(self.rfile.readline(_MAX_LINE_BYTES).partition(b";")[0], 16)
        chunk = self.rfile.read(size)
        # Trailers may follow the last chunk, up to an empty line.
        while self.rfile.readline(_MAX_LINE_BYTES).strip() and not size:
            pass
        return chunk

    def _is_disconnected(self) -> bool:
        # `select` does not support descriptors above 1024.
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        readable = poll.poll(0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send(self, answer: ServiceResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "connection", "server", "date"):
                self.send_header(name, value)
        length = str(len(answer.body))
        if self.command == "HEAD":
            # The length of the response to a GET.
            given = {name.lower(): value for name, value in answer.headers.items()}
            length = given.get("content-length", length)
        if answer.status not in _NO_BODY:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD" and answer.status not in _NO_BODY:
            self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: the call log has all requests."""
