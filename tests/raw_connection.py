"""A connection to a broker over a blocking socket, for single requests and responses.

Any number of requests may be in flight. It neither checks arguments nor retries.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self

from penstock import __version__
from penstock.errors import (
    EXCEPTION_OF,
    ConnectFailedException,
    ResponseStatusCode,
    StreamManagerException,
)
from penstock.wire import cbor
from penstock.wire.frames import CONNECT_VERSION, HEADER, LENGTH, encode_frame
from penstock.wire.handshake import EXTENSIONS_VERSION, SUPPORTED_VERSIONS
from penstock.wire.operations import Operation


class RawConnection:
    def __init__(self, stream_socket: socket.socket, token: str = "") -> None:
        self.socket = stream_socket
        self._reader = stream_socket.makefile("rb")
        self._ids = count()
        try:
            self._perform_handshake(token)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, host: str, port: int, token: str = "", timeout: float = 60) -> RawConnection:
        stream_socket = socket.create_connection((host, port), timeout)
        stream_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(stream_socket, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self.socket.close()

    def _perform_handshake(self, token: str) -> None:
        *others, preferred = SUPPORTED_VERSIONS
        request: dict[str, Any] = {
            "requestId": str(next(self._ids)),
            "protocolVersion": preferred,
            "otherSupportedProtocolVersions": others,
            "sdkVersion": __version__,
            "penstockExtensions": EXTENSIONS_VERSION,
        }
        if token:
            request["authToken"] = token
        self.socket.sendall(
            bytes((CONNECT_VERSION,)) + encode_frame(Operation.Connect, cbor.encode(request))
        )
        if self._read(1)[0] != CONNECT_VERSION:
            raise ConnectFailedException("the server uses another protocol")
        _, response = self.receive()
        if response["status"] != ResponseStatusCode.Success:
            raise ConnectFailedException(
                response.get("errorMessage", ""), ResponseStatusCode(response["status"])
            )

    def send(self, operation: Operation, **fields: Any) -> str:
        """Sends a request and returns its id; `receive` returns the answer."""
        request_id = str(next(self._ids))
        self.socket.sendall(
            encode_frame(operation, cbor.encode({"requestId": request_id, **fields}))
        )
        return request_id

    def receive(self) -> tuple[int, dict[str, Any]]:
        """Receives the next answer, of any request."""
        length, operation = HEADER.unpack(self._read(LENGTH.size + 1))
        return operation, cbor.decode_answer(self._read(length - 1))

    def call(self, operation: Operation, **fields: Any) -> dict[str, Any]:
        """Sends a request and receives its answer; raises an error answer."""
        self.send(operation, **fields)
        _, response = self.receive()
        raise_for_status(response)
        return response

    def append_many(self, stream_name: str, payloads: Sequence[bytes]) -> int:
        """Appends messages, all or none; returns the first sequence number."""
        response = self.call(
            Operation.AppendMessages,
            name=stream_name,
            sizes=struct.pack(f"<{len(payloads)}I", *map(len, payloads)),
            payloads=b"".join(payloads),
        )
        return int(response["firstSequenceNumber"])

    def _read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) < size:
            raise ConnectionError("the server closed the connection")
        return data


def raise_for_status(response: dict[str, Any]) -> None:
    status = response["status"]
    if status != ResponseStatusCode.Success:
        kind = EXCEPTION_OF.get(status, StreamManagerException)
        raise kind(response.get("errorMessage", ""), status, response.get("requestId"))
