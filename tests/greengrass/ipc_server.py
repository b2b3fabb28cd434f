"""A Greengrass nucleus with four operations, which listens on a Unix socket in a thread.

The layout of a message in the event-stream format, all numbers big-endian:

    0   4  length of the whole message
    4   4  length of the headers
    8   4  CRC-32 of the eight bytes before it
    12  …  headers: length of the name (1), name, type (1), value
        …  payload, JSON here
        4  CRC-32 of everything before it
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

Json = dict[str, Any]
Headers = dict[str, int | str]

_PRELUDE = struct.Struct(">II")
_NUMBER = struct.Struct(">I")
_INT32, _STRING = 4, 7

_APPLICATION_MESSAGE, _APPLICATION_ERROR, _CONNECT, _CONNECT_ACK = 0, 1, 4, 5
_CONNECTION_ACCEPTED, _TERMINATE_STREAM = 1, 2

# The only component that may validate tokens.
STREAM_MANAGER = "aws.greengrass.StreamManager"


class IpcError(Exception):
    """An error of the service model, sent to the client."""

    def __init__(self, shape: str, message: str) -> None:
        super().__init__(message)
        self.shape = shape


class NucleusServer:
    """Listens on a Unix socket; `tokens` are those of its components, by the component's name."""

    def __init__(self, path: Path, **tokens: str) -> None:
        self.path = path
        self.tokens = {STREAM_MANAGER: "svcuid", **tokens}
        self.configurations: dict[str, Json] = {}
        self.states: list[tuple[str, str]] = []
        self.validated: list[str] = []
        # Whether to answer no operation.
        self.is_silent = False
        # Number of accepted connections.
        self.accepted = 0
        # Number of operations that fail next.
        self.failures = 0
        self._connections: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Closes the listener and all connections."""
        if self._listener is not None:
            # A close alone does not end a pending accept.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
            self.path.unlink()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the client has closed it
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        component = ""
        while message := _read(reader):
            kind, stream = message.headers[":message-type"], message.headers[":stream-id"]
            if kind == _CONNECT:
                component = self._component_of(json.loads(message.payload)["authToken"]) or ""
                flags = _CONNECTION_ACCEPTED if component else 0
                _write(connection, {":message-type": _CONNECT_ACK, ":message-flags": flags})
            elif kind == _APPLICATION_MESSAGE and "operation" in message.headers:
                self._answer(connection, component, stream, message)
        reader.close()
        connection.close()

    def _answer(
        self, connection: socket.socket, component: str, stream: int | str, message: Message
    ) -> None:
        name = str(message.headers["operation"])
        if self.is_silent:
            return
        kind = _APPLICATION_MESSAGE
        try:
            if self.failures:
                self.failures -= 1
                raise IpcError("ServiceError", "not now")
            body = _OPERATIONS[name](self, component, json.loads(message.payload))
            shape = f"{name}Response"
        except IpcError as error:
            kind, shape, body = (
                _APPLICATION_ERROR,
                f"aws.greengrass#{error.shape}",
                {"message": str(error)},
            )
        _write(
            connection,
            {
                ":message-type": kind,
                ":message-flags": _TERMINATE_STREAM,
                ":stream-id": stream,
                ":content-type": "application/json",
                "service-model-type": shape,
            },
            json.dumps(body).encode(),
        )

    def _component_of(self, token: str) -> str | None:
        return next((name for name, each in self.tokens.items() if each == token), None)

    # The operations

    def _validate(self, component: str, request: Json) -> Json:
        if component != STREAM_MANAGER:
            raise IpcError("UnauthorizedError", f"{component} is not authorized to perform this")
        self.validated.append(request["token"])
        if self._component_of(request["token"]) is None:
            raise IpcError("InvalidTokenError", "Authentication token not found")
        return {"isValid": True}

    def _update_configuration(self, component: str, request: Json) -> Json:
        assert isinstance(request["timestamp"], float)
        assert not request.get("keyPath")
        self.configurations.setdefault(component, {}).update(request["valueToMerge"])
        return {}

    def _update_state(self, component: str, request: Json) -> Json:
        self.states.append((component, request["state"]))
        return {}


_OPERATIONS: dict[str, Callable[[NucleusServer, str, Json], Json]] = {
    "aws.greengrass#ValidateAuthorizationToken": NucleusServer._validate,
    "aws.greengrass#UpdateConfiguration": NucleusServer._update_configuration,
    "aws.greengrass#UpdateState": NucleusServer._update_state,
}


class Message(NamedTuple):
    headers: Headers
    payload: bytes


def _read(reader: Any) -> Message | None:
    """Reads the next message; None after the client closed the connection."""
    try:
        start = reader.read(12)
    except OSError:
        return None
    if len(start) < 12:
        return None
    length, headers_length = _PRELUDE.unpack_from(start)
    assert _NUMBER.unpack_from(start, 8)[0] == zlib.crc32(start[:8])
    rest = reader.read(length - 12)
    if len(rest) < length - 12:
        return None
    assert _NUMBER.unpack(rest[-4:])[0] == zlib.crc32(start + rest[:-4])
    return Message(_decode_headers(rest[:headers_length]), rest[headers_length:-4])


def _decode_headers(data: bytes) -> Headers:
    headers: Headers = {}
    position = 0
    while position < len(data):
        end = position + 1 + data[position]
        name = data[position + 1 : end].decode()
        if data[end] == _INT32:
            (headers[name],) = _NUMBER.unpack_from(data, end + 1)
            position = end + 5
        else:
            assert data[end] == _STRING
            size = int.from_bytes(data[end + 1 : end + 3])
            headers[name] = data[end + 3 : end + 3 + size].decode()
            position = end + 3 + size
    return headers


def _write(connection: socket.socket, headers: Headers, payload: bytes = b"") -> None:
    encoded = b"".join(
        _encode_header(name, value) for name, value in {":stream-id": 0, **headers}.items()
    )
    start = _PRELUDE.pack(12 + len(encoded) + len(payload) + 4, len(encoded))
    start += _NUMBER.pack(zlib.crc32(start))
    message = start + encoded + payload
    try:
        connection.sendall(message + _NUMBER.pack(zlib.crc32(message)))
    except OSError:
        return  # the client closed the connection


def _encode_header(name: str, value: int | str) -> bytes:
    start = bytes((len(name),)) + name.encode()
    if isinstance(value, int):
        return start + bytes((_INT32,)) + _NUMBER.pack(value)
    return start + bytes((_STRING,)) + len(value).to_bytes(2) + value.encode()
