"""Requests from frames, and frames from answers."""

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

# Appends and batches may be large; nothing else that a client sends is.
MAX_CONTROL_BYTES = 4 * 1024 * 1024
_LARGE = frozenset((Operation.AppendMessage, Operation.AppendMessages))


class UnreadableRequestError(Exception):
    """A frame whose request id cannot be read, so that nobody could match an answer."""


def decode_request(operation: int, body: bytes, requests: Requests) -> Request:
    """One of these requests, from a frame; what is wrong with it is an error that knows its id."""
    try:
        if len(body) > MAX_CONTROL_BYTES and operation not in _LARGE:
            raise cbor.MalformedError(
                f"{len(body)} bytes, where {MAX_CONTROL_BYTES} are allowed for this operation"
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


# Answers to appends. The request id is echoed as it came, CBOR head included, and never decoded;
# the sequence number is what follows, in the smallest of CBOR's widths that holds it.
_APPEND_HEAD = b"\xa4irequestId"
_APPEND_TAIL = b"fstatus\x00lerrorMessage`nsequenceNumber"
_RESPONSE_BYTES = 1 + len(_APPEND_HEAD) + len(_APPEND_TAIL)  # with the operation
_APPEND_RESPONSE = int(Operation.AppendMessageResponse)
# Where the text of an id of up to 23 bytes begins.
_ID_TEXT = len(_APPEND_HEAD) + 1
# The beginning of a request with an id of so many bytes, up to its text.
_REQUEST_HEADS = [b"\xa3irequestId" + bytes((0x60 + size,)) for size in range(24)]
_REQUEST_BYTES = 1 + len(_REQUEST_HEADS[0])  # the operation, and that

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
    """The answers to a run of appends that got consecutive numbers, in one buffer."""
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
    """The same bytes, for ids of one size: only they and the number differ between answers."""
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
    """The request id and the sequence number of such an answer; None if it has another shape."""
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
    """The frame of an append, as the real encoder would write it; for ids of up to 23 bytes."""
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


# Answers to reads: a thousand maps that differ in three values, eight times faster by hand.
_INGEST_TIME = b"jingestTime\x1b"
_PAYLOAD = b"gpayload"


def encode_head(major: int, length: int) -> bytes:
    head = bytearray(encode_uint(length))
    head[0] |= major
    return bytes(head)


def encode_text(text: str) -> bytes:
    data = text.encode()
    return encode_head(_TEXT, len(data)) + data


# CBOR's widths of an unsigned number: below a limit, a prefix and a struct code.
_WIDTHS = (
    (24, b"", "B"),
    (1 << 8, b"\x18", "B"),
    (1 << 16, b"\x19", "H"),
    (1 << 32, b"\x1a", "I"),
    (1 << 64, b"\x1b", "Q"),
)


def encode_messages(stream_name: str, run: MessageRun) -> bytes:
    """The CBOR maps of these messages, one after the other."""
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
    """Messages whose numbers have one width: no line of Python is run for a single one."""
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
    """A ReadMessagesResponse around `count` messages that `encode_messages` made, in parts.

    Large messages are not copied. The frame's head and its first messages are one part: a client
    may expect to receive the head at once.
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
