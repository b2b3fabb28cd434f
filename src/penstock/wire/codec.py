"""Decodes requests from frames, and encodes answers as frames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, count, repeat
from struct import Struct
from typing import Any

from penstock.errors import (
    InvalidRequestException,
    ResponseStatusCode,
    UnknownOperationException,
)
from penstock.model.message import MessageRun
from penstock.model.validation import from_wire
from penstock.wire import cbor
from penstock.wire.frames import HEADER, encode_frame
from penstock.wire.operations import Operation
from penstock.wire.requests import Request, Requests

SUCCESS = ResponseStatusCode.Success

# Only appends and batches may be larger.
MAX_CONTROL_BYTES = 4 * 1024 * 1024
_LARGE_OPERATIONS = frozenset((Operation.AppendMessage, Operation.AppendMessages))


class UnreadableRequestError(Exception):
    """A frame without a readable request id, which cannot be answered."""


def decode_request(operation: int, body: bytes, requests: Requests) -> Request:
    """Decodes a frame to one of `requests`; errors contain the request id."""
    try:
        if len(body) > MAX_CONTROL_BYTES and operation not in _LARGE_OPERATIONS:
            raise cbor.MalformedError(
                f"{len(body)} bytes, max {MAX_CONTROL_BYTES} for this operation"
            )
        fields = cbor.decode_map(body)
    except cbor.MalformedError as error:
        request_id = cbor.peek_request_id(body[:4096])
        if request_id is None:
            raise UnreadableRequestError(str(error)) from None
        raise InvalidRequestException(
            f"the request is malformed: {error}", request_id=request_id
        ) from None
    request_id = fields.get("requestId")
    if not isinstance(request_id, str) or not request_id:
        raise UnreadableRequestError("the request has no requestId")
    kind = requests.get(operation)
    if kind is None:
        raise UnknownOperationException(
            f"operation {operation} is not known to this server", request_id=request_id
        )
    try:
        return from_wire(fields, kind)
    except InvalidRequestException as error:
        raise InvalidRequestException(error.message, request_id=request_id) from None


def encode_response(
    operation: Operation,
    request_id: str,
    status: ResponseStatusCode = SUCCESS,
    error_message: str = "",
    **fields: Any,
) -> bytes:
    return encode_frame(
        operation,
        *cbor.encode_parts(
            {
                "requestId": request_id,
                "status": int(status),
                "errorMessage": error_message,
                **fields,
            }
        ),
    )


# Answers to appends. The request id is echoed with its CBOR head, without decoding. The sequence
# number follows, in the smallest CBOR width that holds it.
_APPEND_HEAD = b"\xa4irequestId"
_APPEND_TAIL = b"fstatus\x00lerrorMessage`nsequenceNumber"
_RESPONSE_BYTES = 1 + len(_APPEND_HEAD) + len(_APPEND_TAIL)  # with the operation
_APPEND_RESPONSE = int(Operation.AppendMessageResponse)
# The position of the text of an id of up to 23 bytes.
_ID_TEXT = len(_APPEND_HEAD) + 1
# The first bytes of a request up to the id's text, by the size of the id.
_REQUEST_HEADS = [b"\xa3irequestId" + bytes((0x60 + size,)) for size in range(24)]
_REQUEST_BYTES = 1 + len(_REQUEST_HEADS[0])  # with the operation

_TEXT, _BYTES, _ARRAY = 0x60, 0x40, 0x80


def encode_uint(value: int) -> bytes:
    if value < 24:
        return bytes((value,))
    if value < 1 << 8:
        return bytes((0x18, value))
    if value < 1 << 16:
        return b"\x19" + value.to_bytes(2, "big")
    if value < 1 << 32:
        return b"\x1a" + value.to_bytes(4, "big")
    return b"\x1b" + value.to_bytes(8, "big")


def encode_append_responses(request_ids: Sequence[bytes], first_sequence_number: int) -> bytes:
    """Encodes the answers to appends with consecutive sequence numbers, in one buffer."""
    count = len(request_ids)
    if count == 1:
        return _encode_append_response(request_ids[0], first_sequence_number)
    last = first_sequence_number + count - 1
    if first_sequence_number >= 1 << 16 and last < 1 << 32:
        size = len(request_ids[0])
        if set(map(len, request_ids)) == {size}:
            return _encode_equal_append_responses(request_ids, size, first_sequence_number)
    numbers = range(first_sequence_number, last + 1)
    return b"".join(map(_encode_append_response, request_ids, numbers))


def _encode_append_response(request_id: bytes, sequence_number: int) -> bytes:
    number = encode_uint(sequence_number)
    length = _RESPONSE_BYTES + len(request_id) + len(number)
    header = HEADER.pack(length, _APPEND_RESPONSE)
    return b"".join((header, _APPEND_HEAD, request_id, _APPEND_TAIL, number))


def _encode_equal_append_responses(
    request_ids: Sequence[bytes], id_size: int, first_sequence_number: int
) -> bytes:
    """Like `_encode_append_response` for each id, but faster; all ids have one size."""
    size = len(_APPEND_HEAD) + id_size + len(_APPEND_TAIL) + 5
    head = HEADER.pack(size + 1, Operation.AppendMessageResponse) + _APPEND_HEAD
    tail = _APPEND_TAIL + b"\x1a"
    pack = Struct(f">{len(head)}s{id_size}s{len(tail)}sI").pack
    return b"".join(
        [
            pack(head, request_id, tail, sequence_number)
            for sequence_number, request_id in enumerate(request_ids, first_sequence_number)
        ]
    )


def decode_append_response(body: bytes) -> tuple[str, int] | None:
    """Returns the request id and the sequence number; None for an answer of another shape."""
    if not body.startswith(_APPEND_HEAD) or len(body) <= _ID_TEXT:
        return None
    id_size = body[_ID_TEXT - 1] - _TEXT
    id_stop = _ID_TEXT + id_size
    start = id_stop + len(_APPEND_TAIL)
    if not 0 <= id_size < 24 or not body.startswith(_APPEND_TAIL, id_stop) or start >= len(body):
        return None
    info, size = body[start], len(body) - start - 1
    if info < 24 and size == 0:
        number = info
    elif 24 <= info <= 27 and size == 1 << (info - 24):
        number = int.from_bytes(body[start + 1 :], "big")
    else:
        return None
    try:
        return body[_ID_TEXT:id_stop].decode(), number
    except UnicodeDecodeError:
        return None


def encode_append_request(request_id: str, name: str, payload: bytes) -> bytes:
    """Encodes an append, byte for byte like the general encoder; for ids of up to 23 bytes."""
    middle = _append_middle(name, len(payload))
    length = _REQUEST_BYTES + len(request_id) + len(middle) + len(payload)
    return b"".join(
        (
            HEADER.pack(length, Operation.AppendMessage),
            _REQUEST_HEADS[len(request_id)],
            request_id.encode("ascii"),
            middle,
            payload,
        )
    )


@lru_cache(maxsize=4096)
def _append_middle(name: str, payload_bytes: int) -> bytes:
    return b"dname" + encode_text(name) + b"gpayload" + encode_head(_BYTES, payload_bytes)


# Answers to reads: many maps that differ in three values, 8 times as fast as the library.
_INGEST_TIME = b"jingestTime\x1b"
_PAYLOAD = b"gpayload"


def encode_head(major: int, length: int) -> bytes:
    head = bytearray(encode_uint(length))
    head[0] |= major
    return bytes(head)


def encode_text(text: str) -> bytes:
    data = text.encode()
    return encode_head(_TEXT, len(data)) + data


# CBOR's widths of an unsigned number: exclusive limit, prefix, struct code.
_WIDTHS = (
    (24, b"", "B"),
    (1 << 8, b"\x18", "B"),
    (1 << 16, b"\x19", "H"),
    (1 << 32, b"\x1a", "I"),
    (1 << 64, b"\x1b", "Q"),
)


def encode_messages(stream_name: str, run: MessageRun) -> bytes:
    """Encodes messages as CBOR maps, one after the other."""
    head = b"\xa4jstreamName" + encode_text(stream_name) + b"nsequenceNumber"
    done, number, messages = 0, run.first_sequence_number, len(run.payloads)
    parts: list[bytes] = []
    for limit, prefix, code in _WIDTHS:
        if done < messages and number < limit:
            stop = min(messages, done + limit - number)
            same_width = MessageRun(number, run.ingest_times[done:stop], run.payloads[done:stop])
            parts.append(_encode_same_width(head + prefix, code, same_width))
            number, done = number + stop - done, stop
    return b"".join(parts)


def _encode_same_width(head: bytes, code: str, run: MessageRun) -> bytes:
    """Encodes messages whose numbers have one width, without a Python loop."""
    layout = f">{len(head)}s{code}{len(_INGEST_TIME)}sq"
    columns = (
        repeat(head),
        count(run.first_sequence_number),
        repeat(_INGEST_TIME),
        run.ingest_times,
    )
    sizes = list(map(len, run.payloads))
    payload_heads = {size: _PAYLOAD + encode_head(_BYTES, size) for size in set(sizes)}
    if len(payload_heads) == 1:
        ((size, payload_head),) = payload_heads.items()
        pack = Struct(f"{layout}{len(payload_head)}s{size}s").pack
        return b"".join(map(pack, *columns, repeat(payload_head), run.payloads))
    heads = map(Struct(layout).pack, *columns)
    parts = zip(heads, map(payload_heads.__getitem__, sizes), run.payloads, strict=True)
    return b"".join(chain.from_iterable(parts))


def encode_read_response(request_id: str, count: int, messages: Sequence[bytes]) -> list[bytes]:
    """Encodes a ReadMessagesResponse in parts, from `count` messages of `encode_messages`.

    Large messages are not copied. The frame's head and its first messages are one part, because
    some clients expect to receive the head in one read.
    """
    head = b"".join(
        (
            b"\xa4irequestId",
            encode_text(request_id),
            b"fstatus\x00lerrorMessage`hmessages",
            encode_head(_ARRAY, count),
        )
    )
    length = 1 + len(head) + sum(map(len, messages))
    first = b"".join((HEADER.pack(length, Operation.ReadMessagesResponse), head, *messages[:1]))
    return [first, *messages[1:]]
