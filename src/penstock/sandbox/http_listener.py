"""HTTP/1.1 between a client and the sandbox: a thread for each connection, kept open.

Not werkzeug's server, which comes with moto: it closes the connection after every answer, and waits
10 ms before it does.
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

from penstock.sandbox.dispatch import Application, Dropped
from penstock.sandbox.service import ServiceRequest, ServiceResponse

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# The most that a line of a chunked body has: its length, and extensions that nobody uses.
_LINE_BYTES = 1024
_NO_BODY = (204, 304)


class HttpListener(ThreadingHTTPServer):
    """Listens on a port of this machine; 0 picks one."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, application: Application, port: int) -> None:
        self.application = application
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _HttpConnection)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def server_bind(self) -> None:
        # Not that of HTTPServer, which asks DNS for the name of this machine.
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
        # A client that is gone is nothing to tell of.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _HttpConnection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "penstock-sandbox"
    sys_version = ""
    # An answer has two writes; with Nagle's algorithm the second waits for the client.
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
            self._is_gone,
        )
        try:
            self._send(self.server.application.answer(request))
        except Dropped:
            # Reset rather than ended, as if nobody had listened.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = _serve  # noqa: N815

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return b"".join(iter(self._read_chunk, b""))
        text = self.headers.get("Content-Length", "0")
        if not text.isascii() or not text.isdigit():
            raise ValueError("Content-Length: has to be a number")
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise ConnectionAbortedError("the client is gone in the middle of a request")
        return body

    def _read_chunk(self) -> bytes:
        size = int(self.rfile.readline(_LINE_BYTES).partition(b";")[0], 16)
        chunk = self.rfile.read(size)
        # After the last chunk there may be trailers, up to an empty line.
        while self.rfile.readline(_LINE_BYTES).strip() and not size:
            pass
        return chunk

    def _is_gone(self) -> bool:
        # Not `select`, which knows no descriptors above 1024.
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
            # That of what a GET would bring.
            given = {name.lower(): value for name, value in answer.headers.items()}
            length = given.get("content-length", length)
        if answer.status not in _NO_BODY:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD" and answer.status not in _NO_BODY:
            self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Says nothing: what was asked is in the ledger."""
