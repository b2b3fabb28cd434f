"""The measured client: append frames built by hand, every answer checked.

It sends what the AWS clients send and makes use of the fact that all frames to one stream are the
same but for the request id and the payload:

    request  length int32, operation int8, map of requestId (36 characters), name, payload
    answer   length int32, operation int8, map of requestId, status, errorMessage, sequenceNumber

One connection and one thread, as the peers have.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import chain
from operator import lt
from struct import Struct
from types import TracebackType
from typing import Any, Self

import cbor2

from penstock.client.connection import Connection
from penstock.wire.operations import Operation

# So many frames leave in one send: enough that the price of a system call disappears.
FRAMES_A_SEND = 500
# So many appends wait for their answers. These fit the buffers between the two ends, so that a
# client which sends without looking never blocks on a server that is blocked by its answers.
WINDOW = 4000
MESSAGES_A_BATCH = 1000

_HEADER = Struct(">ib")
_ID = b"x\x24"  # the CBOR head of a text of 36 characters
_ID_START = b"00000000-0000-4000-8000-"
_REQUEST_START = b"\xa3irequestId" + _ID

# An answer with a sequence number of four bytes, which is all that are expected: see `prime`.
_ANSWER_START = b"\xa4irequestId" + _ID
_ANSWER_MIDDLE = b"fstatus\x00lerrorMessage`nsequenceNumber\x1a"
_ANSWER = Struct(f">{_HEADER.size + len(_ANSWER_START)}s32s4s{len(_ANSWER_MIDDLE)}sI")
_ANSWER_HEAD = (
    _HEADER.pack(_ANSWER.size - _HEADER.size + 1, Operation.AppendMessageResponse) + _ANSWER_START
)
_SHORTER_NUMBERS = 1 << 16

# The last four characters of the ids in one send.
_ID_ENDS = tuple(b"%04x" % number for number in range(FRAMES_A_SEND))

_RECEIVE_BYTES = 1 << 18


class WrongAnswerError(Exception):
    """An answer that is no success, out of order, or to something that was not asked."""


class WireClient:
    """A connection that appends messages of one size to one stream, and reads them."""

    def __init__(self, port: int, token: str, stream_name: str, message_bytes: int) -> None:
        self._connection = Connection.open("127.0.0.1", port, token)
        self._socket: socket.socket = self._connection.socket
        self._name = stream_name
        payload_head = cbor2.dumps(bytes(message_bytes))[:-message_bytes]
        self._middle = b"dname" + cbor2.dumps(stream_name) + b"gpayload" + payload_head
        body_bytes = len(_REQUEST_START) + 36 + len(self._middle) + message_bytes
        self._start = _HEADER.pack(body_bytes + 1, Operation.AppendMessage) + _REQUEST_START
        self._sends = 0
        self._last_number = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def create_stream(self, *, flush_on_write: bool, max_bytes: int = 1 << 34) -> None:
        definition = {
            "name": self._name,
            "maxSize": max_bytes,
            "strategyOnFull": 1,
            "flushOnWrite": flush_on_write,
        }
        self._connection.call(Operation.CreateMessageStream, definition=definition)

    def prime(self, payloads: Sequence[bytes]) -> None:
        """Fill the stream beyond the numbers that take fewer than four bytes in an answer."""
        while self._last_number < _SHORTER_NUMBERS:
            self.append_batches(payloads)

    def append_one_at_a_time(self, payloads: Sequence[bytes]) -> None:
        send, receive, unpack = self._socket.sendall, self._socket.recv, _ANSWER.unpack
        for payload in payloads:
            id_start = self._next_id_start()
            send(b"".join((self._start, id_start, b"0000", self._middle, payload)))
            answer = receive(_RECEIVE_BYTES)
            while len(answer) < _ANSWER.size:
                _check_start(answer)
                answer += _or_fail(receive(_RECEIVE_BYTES))
            _check_start(answer)
            _, answered_start, id_end, middle, number = unpack(answer)
            if (answered_start, id_end, middle) != (id_start, b"0000", _ANSWER_MIDDLE):
                raise WrongAnswerError(f"{answer!r} to request {id_start!r}")
            if number <= self._last_number:
                raise WrongAnswerError(f"{number} behind {self._last_number}")
            self._last_number = number

    def append_pipelined(self, payloads: Sequence[bytes]) -> None:
        """Keep the window full: send as long as there is room in it, then take answers."""
        total = len(payloads)
        sent = answered = 0
        id_starts: list[bytes] = []  # of each send
        rest = b""
        while answered < total:
            while sent < total and sent - answered <= WINDOW - FRAMES_A_SEND:
                id_starts.append(self._next_id_start())
                sent += self._send_frames(id_starts[-1], payloads[sent : sent + FRAMES_A_SEND])
            data = rest + _or_fail(self._socket.recv(_RECEIVE_BYTES))
            _check_start(data)
            whole = len(data) - len(data) % _ANSWER.size
            if whole:
                answered += self._check_answers(data[:whole], id_starts, answered)
            rest = data[whole:]
        if rest:
            raise WrongAnswerError(f"{len(rest)} bytes behind the last answer")

    def append_batches(self, payloads: Sequence[bytes]) -> None:
        """With the extension: a thousand messages in one request, one request after the other."""
        for start in range(0, len(payloads), MESSAGES_A_BATCH):
            batch = payloads[start : start + MESSAGES_A_BATCH]
            first = self._connection.append_many(self._name, batch)
            if first <= self._last_number:
                raise WrongAnswerError(f"{first} behind {self._last_number}")
            self._last_number = first + len(batch) - 1

    def read(self, start: int, count: int) -> list[dict[str, Any]]:
        """Messages as the protocol has them, each one a dict of four values."""
        response = self._connection.call(
            Operation.ReadMessages,
            streamName=self._name,
            readMessagesOptions={
                "desiredStartSequenceNumber": start,
                "minMessageCount": count,
                "maxMessageCount": count,
            },
        )
        messages: list[dict[str, Any]] = response["messages"]
        return messages

    def _next_id_start(self) -> bytes:
        self._sends += 1
        return _ID_START + b"%08x" % self._sends

    def _send_frames(self, id_start: bytes, payloads: Sequence[bytes]) -> int:
        count = len(payloads)
        parts = [self._start + id_start, b"", self._middle, b""] * count
        parts[1::4] = _ID_ENDS[:count]
        parts[3::4] = payloads
        self._socket.sendall(b"".join(parts))
        return count

    def _check_answers(self, data: bytes, id_starts: Sequence[bytes], answered: int) -> int:
        """Answers to the requests from number `answered` on, in their order; how many there are."""
        # Columns: comparing a whole one costs less than a step of a loop for each answer.
        heads, starts, ends, middles, numbers = zip(*_ANSWER.iter_unpack(data), strict=True)
        count = len(numbers)
        if heads.count(_ANSWER_HEAD) != count or middles.count(_ANSWER_MIDDLE) != count:
            raise WrongAnswerError("an answer that is no success is among the answers")
        done = 0
        while done < count:
            send, first = divmod(answered + done, FRAMES_A_SEND)
            stop = min(done + FRAMES_A_SEND - first, count)
            if starts[done:stop].count(id_starts[send]) != stop - done:
                raise WrongAnswerError("an answer to another request")
            if ends[done:stop] != _ID_ENDS[first : first + stop - done]:
                raise WrongAnswerError("answers in another order than their requests")
            done = stop
        if not all(map(lt, chain((self._last_number,), numbers), numbers)):
            raise WrongAnswerError("sequence numbers that do not increase")
        self._last_number = numbers[-1]
        return count


def _or_fail(data: bytes) -> bytes:
    if not data:
        raise WrongAnswerError("the broker closed the connection")
    return data


def _check_start(answer: bytes) -> None:
    # An error has another length: waiting for the rest of a success would never end.
    if not answer.startswith(_ANSWER_HEAD[: len(answer)]):
        raise WrongAnswerError(f"not the answer to an append: {answer[:200]!r}")
