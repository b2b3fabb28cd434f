"""The client's side of a connection as a state machine: bytes in, answers out, without a socket.

    version byte, Connect ──▶ server's version byte, ConnectResponse ──▶ answers, in any order

A body that cannot be decoded is ignored. Bytes that are not a frame end the connection.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import Any, NamedTuple

import cbor2
import msgspec

from penstock import __version__
from penstock.client.calls import ClientCall, Response
from penstock.errors import (
    ConnectFailedException,
    RequestPayloadTooLargeException,
    ResponseStatusCode,
)
from penstock.wire import cbor
from penstock.wire.codec import decode_append_response, encode_append_request
from penstock.wire.frames import CONNECT_VERSION, HEADER, LENGTH, MAX_FRAME_BYTES, encode_frame
from penstock.wire.handshake import EXTENSIONS_VERSION, SUPPORTED_VERSIONS
from penstock.wire.operations import Operation

logger = logging.getLogger(__name__)

_CONNECT_ID = "connect"
_SUCCESS = int(ResponseStatusCode.Success)
_APPEND = Operation.AppendMessage
_APPEND_RESPONSE = int(Operation.AppendMessageResponse)


class ServerInfo(NamedTuple):
    """The server's version and limits, from the handshake."""

    version: str
    protocol_version: str
    has_extensions: bool
    max_frame_bytes: int


class Answer(msgspec.Struct, frozen=True):
    operation: int
    request_id: str
    response: Response


class BrokenProtocolError(ConnectionError):
    """The bytes are not a frame, or the stream ended: no further answer can be read."""


class ClientProtocol:
    """Encodes requests, and decodes received bytes into answers."""

    def __init__(self) -> None:
        self.server: ServerInfo | None = None
        self._max_frame_bytes = MAX_FRAME_BYTES
        self._ids = count(1)
        self._pieces: list[bytes] = []
        self._missing = 0
        self._version_seen = False

    def connect(self, token: str) -> bytes:
        *others, preferred = SUPPORTED_VERSIONS
        request: dict[str, Any] = {
            "requestId": _CONNECT_ID,
            "protocolVersion": preferred,
            "otherSupportedProtocolVersions": others,
            "sdkVersion": __version__,
            "penstockExtensions": EXTENSIONS_VERSION,
        }
        if token:
            request["authToken"] = token
        frame = encode_frame(Operation.Connect, cbor.encode(request))
        return bytes((CONNECT_VERSION,)) + frame

    def request(self, call: ClientCall[Any]) -> tuple[str, bytes]:
        """Returns the id and the frame of a request."""
        # Ids have a fixed width: the server decodes frames of one shape faster.
        request_id = f"{next(self._ids):08x}"
        if call.operation is _APPEND:
            frame = encode_append_request(request_id, call.fields["name"], call.fields["payload"])
        else:
            parts = cbor.encode_parts({"requestId": request_id, **call.fields})
            frame = encode_frame(call.operation, *parts)
        if len(frame) - LENGTH.size > self._max_frame_bytes:
            raise RequestPayloadTooLargeException(
                f"the request has {len(frame)} bytes: expected at most {self._max_frame_bytes}"
            )
        return request_id, frame

    def receive(self, data: bytes) -> list[Answer]:
        """Returns completed answers; raises BrokenProtocolError if the data is not a frame."""
        if not self._version_seen:
            if data[0] != CONNECT_VERSION:
                raise ConnectFailedException(
                    f"not a stream manager: the server answered with byte {data[0]}"
                )
            self._version_seen = True
            data = data[1:]
        # A large answer arrives in many pieces, which are joined once.
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        answers: list[Answer] = []
        position, size = 0, len(data)
        while size - position >= HEADER.size:
            length, operation = HEADER.unpack_from(data, position)
            if not 1 <= length <= MAX_FRAME_BYTES:
                raise BrokenProtocolError(f"the server sent a frame of {length} bytes")
            stop = position + LENGTH.size + length
            if stop > size:
                self._keep(data[position:], stop - size)
                return answers
            body = data[position + HEADER.size : stop]
            position = stop
            if operation == _APPEND_RESPONSE and (appended := decode_append_response(body)):
                fields = {"status": _SUCCESS, "sequenceNumber": appended[1]}
                answers.append(Answer(operation, appended[0], fields))
            elif (answer := _decode(operation, body)) is not None:
                answers.append(answer)
        if position < size:
            self._keep(data[position:], HEADER.size - (size - position))
        return answers

    def _keep(self, data: bytes, missing: int) -> None:
        self._pieces = [data]
        self._missing = missing

    def accept(self, answer: Answer) -> ServerInfo:
        """Accepts the answer to the handshake; raises ConnectFailedException for a refusal."""
        response = answer.response
        if answer.operation != Operation.ConnectResponse:
            raise ConnectFailedException(
                f"the server answered the handshake with operation {answer.operation}"
            )
        if response.get("status") != ResponseStatusCode.Success:
            raise _refusal(response)
        try:
            self.server = ServerInfo(
                str(response.get("serverVersion", "")),
                str(response.get("protocolVersion", SUPPORTED_VERSIONS[-1])),
                int(response.get("penstockExtensions", 0)) >= EXTENSIONS_VERSION,
                int(response.get("maxFrameBytes", MAX_FRAME_BYTES)),
            )
        except (TypeError, ValueError) as error:
            raise ConnectFailedException(
                f"cannot decode the server's answer to the handshake: {error}"
            ) from None
        self._max_frame_bytes = self.server.max_frame_bytes
        return self.server


def _decode(operation: int, body: bytes) -> Answer | None:
    try:
        response = cbor.decode_answer(body)
        return Answer(operation, str(response.get("requestId", "")), response)
    except (cbor2.CBORDecodeError, ValueError, TypeError, AttributeError) as error:
        logger.warning("ignored an answer that cannot be decoded: %r", error)
        return None


def _refusal(response: Response) -> ConnectFailedException:
    try:
        status = ResponseStatusCode(response["status"])
    except (KeyError, ValueError):
        status = ResponseStatusCode.FailedToConnect
    message = response.get("errorMessage") or status.name
    return ConnectFailedException(f"the server refused the connection: {message}", status)
