"""The server's side of a connection as a state machine: bytes in, events out, without a socket.

    version byte ──▶ Connect frame ──▶ requests …
          └───────────────┴──────────────┴──▶ Violation: answer if there is a request id, then close

Appends are the hot path. Consecutive appends to one stream become one `AppendRun`. Their ids and
payloads are cut out of the buffer without decoding: the other bytes of each frame are compared
with the previous frame.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import msgspec

from penstock.errors import ResponseStatusCode
from penstock.model.limits import NAME_PATTERN
from penstock.wire.cbor import peek_request_id
from penstock.wire.frames import CONNECT_VERSION, LENGTH, MAX_FRAME_BYTES
from penstock.wire.operations import RESPONSE_TO, Operation

# More than a handshake needs. The limit is low because the client is not authenticated yet.
MAX_CONNECT_FRAME_BYTES = 64 * 1024
# Larger frames are collected in pieces, instead of being joined to the buffer.
_LARGE_FRAME_BYTES = 256 * 1024
# Smaller pieces are joined, because their objects would take more memory than their bytes.
_PIECE_BYTES = 16 * 1024
# Max bytes of a rejected frame that are read to find its request id.
_PEEK_BYTES = 512
_MAX_SHAPES = 128

# Looking up a member of an enum is slow.
_APPEND = int(Operation.AppendMessage)

_is_name = re.compile(NAME_PATTERN).match
# The bytes allowed in a request id, as in a name.
_ID_BYTES = bytes(byte for byte in range(128) if _is_name(chr(byte)))
_INVALID = 0
_ID_TABLE = bytes(byte if byte in _ID_BYTES else _INVALID for byte in range(256))
# The first byte of a CBOR text of 24 to 255 bytes; the second byte is its length.
_LONG_TEXT = 0x78


class Frame(NamedTuple):
    operation: int
    body: bytes


class AppendRun(msgspec.Struct, frozen=True):
    """Appends to one stream. The ids are undecoded CBOR texts, which the answers echo."""

    stream_name: str
    request_ids: list[bytes]
    payloads: list[bytes]


class Violation(NamedTuple):
    """A violation of the protocol by the peer, whose further bytes are ignored.

    Without a readable `request_id` there is no answer.
    """

    reason: str
    status: ResponseStatusCode
    operation: Operation
    request_id: str | None


Event = Frame | AppendRun | Violation


class _Shape(NamedTuple):
    """The fixed bytes of append frames of one length to one stream: all but id and payload."""

    stream_name: str
    frame: Struct  # head, text of the request id, middle, payload, tail
    head: bytes  # from the frame's length to the text of the request id
    middle: bytes  # between the request id and the payload
    tail: bytes  # the end of an indefinite map
    id_start: int  # position of the request id in the frame, with its CBOR head
    middle_start: int
    payload_start: int


class ServerProtocol:
    """Takes received bytes with `receive`, and returns events from `next_event`.

    The buffer holds at most one chunk from the socket and one incomplete frame, independent of the
    length in the frame's header.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = b""
        self._position = 0
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._pieces_missing = 0
        self._version_seen = False
        self._connected = False
        self._broken = False
        self._shapes: dict[int, _Shape] = {}
        self._cuts_appends = True

    @property
    def in_handshake(self) -> bool:
        return not self._connected

    @property
    def is_inside_frame(self) -> bool:
        """Whether an incomplete frame has arrived."""
        return bool(self._pieces) or self._position < len(self._buffer)

    @property
    def expected_bytes(self) -> int:
        """The size of the incomplete large frame, or 0."""
        return self._pieces_bytes + self._pieces_missing if self._pieces else 0

    @property
    def buffered_bytes(self) -> int:
        return self._pieces_bytes if self._pieces else len(self._buffer) - self._position

    def accept(self) -> None:
        """Completes the handshake: requests may follow."""
        self._connected = True

    def receive(self, data: bytes) -> None:
        if self._broken:
            return
        if self._pieces:
            if len(self._pieces[-1]) < _PIECE_BYTES:
                self._pieces[-1] += data
            else:
                self._pieces.append(data)
            self._pieces_bytes += len(data)
            self._pieces_missing -= len(data)
            if self._pieces_missing <= 0:
                self._buffer = b"".join(self._pieces)
                self._pieces = []
            return
        if self._position == len(self._buffer):
            self._buffer = data
        else:
            self._buffer = self._buffer[self._position :] + data
        self._position = 0

    def next_event(self) -> Event | None:
        """Returns the next complete event, or None until more bytes arrive."""
        if self._broken or self._pieces:
            return None
        buffer, position = self._buffer, self._position
        if not self._version_seen:
            if position == len(buffer):
                return None
            if buffer[position] != CONNECT_VERSION:
                return self._violation(
                    f"connect version {buffer[position]} is not supported; "
                    f"this server supports {CONNECT_VERSION}",
                    ResponseStatusCode.UnsupportedConnectVersion,
                    request_id="unknown",
                )
            self._version_seen = True
            self._position = position = position + 1
        available = len(buffer) - position
        if available < LENGTH.size + 1:
            return None
        (length,) = LENGTH.unpack_from(buffer, position)
        limit = self._max_frame_bytes if self._connected else MAX_CONNECT_FRAME_BYTES
        if not 1 <= length <= limit:
            return self._refuse_length(length, limit)
        stop = position + LENGTH.size + length
        if stop > len(buffer):
            self._collect_large(stop)
            return None
        operation = buffer[position + LENGTH.size]
        if not self._connected:
            if operation != Operation.Connect:
                return self._violation(
                    f"operation {operation} before the handshake",
                    ResponseStatusCode.UnexpectedOperation,
                    request_id=peek_request_id(buffer[position + 5 : stop]) or "unknown",
                )
        elif operation == _APPEND and self._cuts_appends:
            run = self._cut_appends()
            if run is not None:
                return run
        self._position = stop
        # Operation numbers are signed on the wire.
        return Frame(operation if operation < 128 else operation - 256, buffer[position + 5 : stop])

    def _collect_large(self, stop: int) -> None:
        missing = stop - len(self._buffer)
        if stop - self._position > _LARGE_FRAME_BYTES:
            self._pieces = [self._buffer[self._position :]]
            self._pieces_bytes = len(self._pieces[0])
            self._pieces_missing = missing
            self._buffer, self._position = b"", 0

    def _refuse_length(self, length: int, limit: int) -> Violation | None:
        body = self._buffer[self._position + LENGTH.size + 1 :]
        operation = self._buffer[self._position + LENGTH.size]
        if length > limit and self._connected:
            request_id = peek_request_id(body[:_PEEK_BYTES])
            if request_id is None and len(body) < _PEEK_BYTES:
                return None  # the id may not have arrived yet
            return self._violation(
                f"a frame of {length} bytes: expected at most {limit}",
                ResponseStatusCode.RequestPayloadTooLarge,
                operation=RESPONSE_TO.get(operation, Operation.UnknownOperationError),
                request_id=request_id,
            )
        return self._violation(
            f"a frame length of {length}: expected 1 to {limit}",
            ResponseStatusCode.InvalidRequest,
            request_id=None if self._connected else "unknown",
        )

    def _violation(
        self,
        reason: str,
        status: ResponseStatusCode,
        *,
        request_id: str | None,
        operation: Operation = Operation.ConnectResponse,
    ) -> Violation:
        self._broken = True
        self._buffer, self._position = b"", 0
        return Violation(reason, status, operation, request_id)

    def _cut_appends(self) -> AppendRun | None:
        """Cuts out the append at the position and following appends; None for any other frame."""
        buffer, position, shapes = self._buffer, self._position, self._shapes
        size, limit = len(buffer), self._max_frame_bytes
        stream_name: str | None = None
        request_ids: list[bytes] = []
        payloads: list[bytes] = []
        while size - position > LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, position)
            stop = position + 4 + length
            if stop > size or not 1 <= length <= limit:
                break
            shape = shapes.get(length) or self._learn_shape(length, position, stop)
            if shape is None:
                break
            name, _, head, middle, tail, id_start, middle_start, payload_start = shape
            if not (
                buffer.startswith(head, position)
                and buffer.startswith(middle, position + middle_start)
                and (not tail or buffer.startswith(tail, stop - 1))
            ):
                # Another stream, or another client's encoding: learn the shape again.
                del shapes[length]
                continue
            if name != stream_name:
                if stream_name is not None:
                    break
                stream_name = name
            request_ids.append(buffer[position + id_start : position + middle_start])
            payloads.append(buffer[position + payload_start : stop - len(tail)])
            position = stop
            if buffer.startswith(head, position):
                # Consecutive frames of one length are cut out together.
                position += self._cut_equal(shape, position, request_ids, payloads)
        if stream_name is None:
            return None
        if not _are_valid_ids(request_ids):
            # The general decoder handles all further appends of this connection. A retry after
            # each invalid id would take time quadratic in the size of the buffer.
            self._cuts_appends = False
            return None
        self._position = position
        return AppendRun(stream_name, request_ids, payloads)

    def _cut_equal(
        self, shape: _Shape, position: int, request_ids: list[bytes], payloads: list[bytes]
    ) -> int:
        """Cuts out consecutive frames of this shape; returns their size in bytes."""
        _, frame, head, middle, tail, id_start, _, _ = shape
        id_head = head[id_start:]
        count = (len(self._buffer) - position) // frame.size
        view = memoryview(self._buffer)[position : position + count * frame.size]
        before = len(payloads)
        for frame_head, id_text, frame_middle, payload, frame_tail in frame.iter_unpack(view):
            if frame_head != head or frame_middle != middle or frame_tail != tail:
                break
            request_ids.append(id_head + id_text)
            payloads.append(payload)
        return (len(payloads) - before) * frame.size

    def _learn_shape(self, length: int, start: int, stop: int) -> _Shape | None:
        shape = _parse_append(self._buffer, start, stop)
        if shape is not None:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[length] = shape
        return shape


def _parse_append(buffer: bytes, start: int, stop: int) -> _Shape | None:
    """Returns the shape of an append frame of one of the three AWS clients, or None.

    The keys have the order requestId, name, payload. The map has a definite length (Python,
    JavaScript) or an indefinite one (Java). The general decoder handles all other frames. The
    request id is not checked here, because it is not part of the shape.
    """
    body = start + 5
    if buffer[start + 4] != _APPEND or stop - body < 24:
        return None
    last = stop
    if buffer[body] == 0xBF and buffer[stop - 1] == 0xFF:
        last = stop - 1
    elif buffer[body] != 0xA3:
        return None
    if not buffer.startswith(b"irequestId", body + 1):
        return None
    id_start = body + 11
    id_text, id_stop = _text_bounds(buffer, id_start)
    if not id_stop or id_stop + 7 > last or not buffer.startswith(b"dname", id_stop):
        return None
    name_text, name_stop = _text_bounds(buffer, id_stop + 5)
    if not name_stop or name_stop + 9 >= last or not buffer.startswith(b"gpayload", name_stop):
        return None
    payload_start, payload_size = _bytes_bounds(buffer, name_stop + 8)
    if payload_size == 0 or payload_start + payload_size != last:
        return None
    name = _decode_name(buffer[name_text:name_stop])
    if name is None:
        return None
    head, middle = buffer[start:id_text], buffer[id_stop:payload_start]
    tail = buffer[last:stop]
    return _Shape(
        name,
        Struct(f"{len(head)}s{id_stop - id_text}s{len(middle)}s{payload_size}s{len(tail)}s"),
        head,
        middle,
        tail,
        id_start - start,
        id_stop - start,
        payload_start - start,
    )


@lru_cache(maxsize=1024)
def _decode_name(data: bytes) -> str | None:
    name = data.decode("latin-1")
    return name if _is_name(name) else None


def _are_valid_ids(request_ids: list[bytes]) -> bool:
    """Whether all ids, CBOR texts of 1 to 255 bytes, have only allowed characters."""
    if len(request_ids) == 1:
        (request_id,) = request_ids
        text = request_id[2:] if request_id[0] == _LONG_TEXT else request_id[1:]
        return _INVALID not in text.translate(_ID_TABLE)
    # The CBOR head of a text of up to 23 bytes is a valid character. The length byte of a longer
    # text may be an invalid one. All other invalid bytes are in the texts.
    joined = b"".join(request_ids)
    invalid = len(joined.translate(None, _ID_BYTES))
    if not invalid:
        return True
    lengths = _length_bytes(joined, request_ids)
    return invalid == len(lengths.translate(None, _ID_BYTES))


def _length_bytes(joined: bytes, request_ids: list[bytes]) -> bytes:
    """Returns the length bytes of the long texts."""
    size, count = len(request_ids[0]), len(request_ids)
    lengths = joined[1::size]
    # If each `size` bytes begin with the first text's head, all texts have the same length.
    head = request_ids[0][:2]
    if head[0] == _LONG_TEXT and joined[::size] + lengths == head[:1] * count + head[1:] * count:
        return lengths
    return bytes([each[1] for each in request_ids if each[0] == _LONG_TEXT])


def _text_bounds(buffer: bytes, start: int) -> tuple[int, int]:
    """Returns the start and the end of a text of 1 to 255 bytes; zeros for other items."""
    head = buffer[start]
    if 0x60 < head < 0x78:
        return start + 1, start + 1 + head - 0x60
    if head == _LONG_TEXT and buffer[start + 1]:
        return start + 2, start + 2 + buffer[start + 1]
    return 0, 0


def _bytes_bounds(buffer: bytes, start: int) -> tuple[int, int]:
    """Returns the start and the size of a byte string; zeros for other items."""
    info = buffer[start] - 0x40
    if 0 < info < 24:
        return start + 1, info
    if 24 <= info <= 26:
        stop = start + 1 + (1 << (info - 24))
        return stop, int.from_bytes(buffer[start + 1 : stop], "big")
    return 0, 0
