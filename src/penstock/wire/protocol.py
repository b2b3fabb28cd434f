"""The server's side of a connection as a state machine: bytes in, events out, never a socket.

    version byte ──▶ Connect frame ──▶ requests …
          └───────────────┴──────────────┴──▶ Violation: answer what can be answered, then close

Appends are the hot path. Frames that follow one another and append to the same stream leave as
one `AppendRun`: their ids and payloads are cut out of the buffer without decoding anything, by
comparing the bytes between them with those of the frame before.
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

# A handshake fits this many times over, and it comes from somebody who is not known yet.
MAX_CONNECT_FRAME_BYTES = 64 * 1024
# Frames above this are collected piece by piece instead of being joined to the buffer.
_LARGE_FRAME_BYTES = 256 * 1024
# Smaller pieces are joined, or their objects would take more memory than what they hold.
_PIECE_BYTES = 16 * 1024
# As much of a refused frame as is waited for to find its request id.
_PEEK_BYTES = 512
_MAX_SHAPES = 128

# Members of an enum take long to find.
_APPEND = int(Operation.AppendMessage)

_is_name = re.compile(NAME_PATTERN).match
# The bytes of a request id, which has the characters of a name.
_ID_BYTES = bytes(byte for byte in range(128) if _is_name(chr(byte)))
_INVALID = 0
_ID_TABLE = bytes(byte if byte in _ID_BYTES else _INVALID for byte in range(256))
# The first byte of a CBOR text of 24 to 255 bytes; the second one is its length.
_LONG_TEXT = 0x78


class Frame(NamedTuple):
    operation: int
    body: bytes


class AppendRun(msgspec.Struct, frozen=True):
    """Appends to one stream; the ids are CBOR texts as they came, to be echoed as they are."""

    stream_name: str
    request_ids: list[bytes]
    payloads: list[bytes]


class Violation(NamedTuple):
    """The peer broke the protocol: nothing that it sends from here on is read.

    `request_id` is None where it is not readable, so that nothing can be answered.
    """

    reason: str
    status: ResponseStatusCode
    operation: Operation
    request_id: str | None


Event = Frame | AppendRun | Violation


class _Shape(NamedTuple):
    """An append frame of a certain length to a certain stream: all but its id and payload."""

    stream_name: str
    frame: Struct  # head, text of the request id, middle, payload, tail
    head: bytes  # the frame's length and all up to the text of the request id
    middle: bytes  # from behind the request id up to the payload
    tail: bytes  # what closes an indefinite map
    id_start: int  # where the request id begins in the frame, with its CBOR head
    middle_start: int
    payload_start: int


class ServerProtocol:
    """Takes what arrives with `receive` and gives it back, event by event, from `next_event`.

    The buffer holds one chunk from the socket and one unfinished frame at most, whatever length
    a frame claims to have.
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
        """Whether a frame has begun to arrive that is not whole yet."""
        return bool(self._pieces) or self._position < len(self._buffer)

    @property
    def expected_bytes(self) -> int:
        """The size of the large frame that is being collected, or 0."""
        return self._pieces_bytes + self._pieces_missing if self._pieces else 0

    @property
    def buffered_bytes(self) -> int:
        return self._pieces_bytes if self._pieces else len(self._buffer) - self._position

    def accept(self) -> None:
        """The handshake was answered: requests may follow."""
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
        """The next thing that is complete in the buffer, or None until more arrives."""
        if self._broken or self._pieces:
            return None
        buffer, position = self._buffer, self._position
        if not self._version_seen:
            if position == len(buffer):
                return None
            if buffer[position] != CONNECT_VERSION:
                return self._violation(
                    f"connect version {buffer[position]}; this server speaks {CONNECT_VERSION}",
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
                return None  # the id may still be on its way
            return self._violation(
                f"a frame of {length} bytes, where {limit} are allowed",
                ResponseStatusCode.RequestPayloadTooLarge,
                operation=RESPONSE_TO.get(operation, Operation.UnknownOperationError),
                request_id=request_id,
            )
        return self._violation(
            f"a frame length of {length}, where 1 to {limit} are allowed",
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
        """The append frame here and those like it that follow; None if it has another shape."""
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
                # Another stream, or another client's way to write it: look again.
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
                # Frames of one length follow one another: they are cut out together.
                position += self._cut_equal(shape, position, request_ids, payloads)
        if stream_name is None:
            return None
        if not _are_valid_ids(request_ids):
            # The decoder answers each append of this connection from here on. To try again behind
            # every invalid id would take time that is quadratic in the size of the buffer.
            self._cuts_appends = False
            return None
        self._position = position
        return AppendRun(stream_name, request_ids, payloads)

    def _cut_equal(
        self, shape: _Shape, position: int, request_ids: list[bytes], payloads: list[bytes]
    ) -> int:
        """Cuts out frames as long as they have this very shape; how many bytes they take."""
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
    """The shape of an append frame as the three AWS clients write it, or None.

    Keys in the order requestId, name, payload; a map of definite length (Python, JavaScript)
    or an indefinite one (Java). Everything else is left to the real decoder. The request id is
    not checked here, since it is not a part of the shape.
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
    """Whether all ids, which are CBOR texts of 1 to 255 bytes, have only allowed characters."""
    if len(request_ids) == 1:
        (request_id,) = request_ids
        text = request_id[2:] if request_id[0] == _LONG_TEXT else request_id[1:]
        return _INVALID not in text.translate(_ID_TABLE)
    # The CBOR head of a text of up to 23 bytes is a letter. The length byte of a longer one may
    # be invalid as a character, and all other invalid bytes stand in the texts.
    joined = b"".join(request_ids)
    invalid = len(joined.translate(None, _ID_BYTES))
    if not invalid:
        return True
    lengths = _length_bytes(joined, request_ids)
    return invalid == len(lengths.translate(None, _ID_BYTES))


def _length_bytes(joined: bytes, request_ids: list[bytes]) -> bytes:
    """The second bytes of the heads of long texts."""
    size, count = len(request_ids[0]), len(request_ids)
    lengths = joined[1::size]
    # If all that would be heads are like the first head, all texts are as long as the first one.
    head = request_ids[0][:2]
    if head[0] == _LONG_TEXT and joined[::size] + lengths == head[:1] * count + head[1:] * count:
        return lengths
    return bytes([each[1] for each in request_ids if each[0] == _LONG_TEXT])


def _text_bounds(buffer: bytes, start: int) -> tuple[int, int]:
    """Where a text of 1 to 255 bytes that begins here has its first byte and its end, or 0."""
    head = buffer[start]
    if 0x60 < head < 0x78:
        return start + 1, start + 1 + head - 0x60
    if head == _LONG_TEXT and buffer[start + 1]:
        return start + 2, start + 2 + buffer[start + 1]
    return 0, 0


def _bytes_bounds(buffer: bytes, start: int) -> tuple[int, int]:
    """Where a byte string that begins here has its first byte, and its size, or 0."""
    info = buffer[start] - 0x40
    if 0 < info < 24:
        return start + 1, info
    if 24 <= info <= 26:
        stop = start + 1 + (1 << (info - 24))
        return stop, int.from_bytes(buffer[start + 1 : stop], "big")
    return 0, 0
