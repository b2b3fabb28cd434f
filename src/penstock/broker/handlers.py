"""The handlers of all operations, in a table by request. The event loop calls them."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol

import cbor2

from penstock.broker.access import Access
from penstock.broker.answering import answer_in_room, failing
from penstock.broker.bulk import BrokerLocation, BulkHandlers
from penstock.broker.counters import Counters
from penstock.broker.memory import AnswerMemory, AnswerRoom
from penstock.broker.message_reader import MessageReader
from penstock.broker.streams import Stream, Streams
from penstock.broker.waiting import Waiter, seconds_to_wait
from penstock.errors import (
    InvalidRequestException,
    ResourceNotFoundException,
    StreamManagerException,
    UnknownFailureException,
    UpdateFailedException,
)
from penstock.model.message import MessageRun
from penstock.model.statistics import Statistics
from penstock.model.validation import to_wire
from penstock.settings import Settings
from penstock.wire.codec import encode_append_responses
from penstock.wire.operations import Operation
from penstock.wire.protocol import AppendRun
from penstock.wire.requests import (
    AppendMessageRequest,
    AppendMessagesRequest,
    CreateMessageStreamRequest,
    DeleteMessageStreamRequest,
    DescribeMessageStreamRequest,
    ListStreamsRequest,
    ReadColumnsRequest,
    ReadMessagesRequest,
    Request,
    RewindExportRequest,
    StatisticsRequest,
    UpdateMessageStreamRequest,
)

logger = logging.getLogger(__name__)

# Other connections wait while an answer of columns is read, so its size is limited.
_MAX_COLUMN_BYTES = 4 * 1024 * 1024
# Bytes of a message in an answer of columns, without its payload.
_COLUMN_BYTES = 12
# Looking up a member of an enum is slow.
_APPEND = Operation.AppendMessage


def now_millis() -> int:
    return time.time_ns() // 1_000_000


class PendingCall(Protocol):
    """A request to answer once, now or later."""

    request_id: str

    @property
    def access(self) -> Access: ...
    def succeed(self, **fields: Any) -> None: ...
    def succeed_in(self, room: AnswerRoom, **fields: Any) -> None: ...
    def send_parts(self, parts: list[bytes], room: AnswerRoom) -> None: ...
    def fail(self, error: StreamManagerException) -> None: ...
    @property
    def answer_by(self) -> float: ...
    def allow_seconds(self, seconds: float) -> None: ...
    def work(self, steps: Iterator[None]) -> None: ...
    def on_close(self, cancel: Callable[[], object]) -> None: ...
    def hold_requests(self) -> None: ...


class Caller(Protocol):
    """The connection of a run of appends."""

    access: Access

    def send(self, response: bytes) -> None: ...
    def open_call(self, request_id: str, operation: Operation) -> PendingCall: ...
    def defer(self) -> Callable[[bytes], None]: ...


class Handlers:
    def __init__(
        self,
        streams: Streams,
        settings: Settings,
        counters: Counters,
        statistics: Callable[[], Statistics],
        location: BrokerLocation,
        answers: AnswerMemory,
        other_handlers: Mapping[type[Request], Callable[[Any, Any], None]],
    ) -> None:
        self._streams = streams
        self._settings = settings
        self._counters = counters
        self._statistics = statistics
        # The event loop keeps only weak references to tasks.
        self._changes: set[asyncio.Task[None]] = set()
        self._answers = answers
        self._handlers: dict[type[Request], Callable[[PendingCall, Any], None]] = {
            CreateMessageStreamRequest: self._create,
            UpdateMessageStreamRequest: self._update,
            DeleteMessageStreamRequest: self._delete,
            DescribeMessageStreamRequest: self._describe,
            ListStreamsRequest: self._list,
            AppendMessageRequest: self._append,
            AppendMessagesRequest: self._append_many,
            ReadMessagesRequest: self._read,
            ReadColumnsRequest: self._read_columns,
            RewindExportRequest: self._rewind,
            StatisticsRequest: self._answer_statistics,
            **BulkHandlers(streams, location, answers, self._count_read).table(),
            **other_handlers,
        }

    def handle(self, call: PendingCall, request: Request) -> None:
        """Answers the call, now or later. Errors become answers and are never raised."""
        with failing(call):
            self._handlers[type(request)](call, request)

    # Appends

    def append_run(self, caller: Caller, run: AppendRun) -> None:
        """Stores consecutive appends, with one write per segment."""
        try:
            caller.access.require(_APPEND, run.stream_name)
            stream = self._streams.find(run.stream_name)
        except StreamManagerException as error:
            _fail_appends(caller, run.request_ids, error)
            return
        request_ids, payloads = run.request_ids, run.payloads
        if len(payloads) == 1:
            self._append_together(caller, stream, request_ids, payloads)
            return
        while payloads:
            count = stream.log.count_fitting(payloads)
            self._append_together(caller, stream, request_ids[:count], payloads[:count])
            request_ids, payloads = request_ids[count:], payloads[count:]

    def _append_together(
        self, caller: Caller, stream: Stream, request_ids: list[bytes], payloads: list[bytes]
    ) -> None:
        try:
            first = stream.append(payloads, now_millis())
        except StreamManagerException as error:
            _fail_appends(caller, request_ids, error)
            return
        counters = self._counters
        counters.messages_appended += len(payloads)
        counters.bytes_appended += (
            len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        )
        if not stream.flushes:
            caller.send(encode_append_responses(request_ids, first))
            return
        send = caller.defer()

        def answer(error: BaseException | None) -> None:
            if error is None:
                send(encode_append_responses(request_ids, first))
            else:
                send(b"")
                _fail_appends(caller, request_ids, _not_synced(error))

        stream.wait_for_disk(answer)

    def _append(self, call: PendingCall, request: AppendMessageRequest) -> None:
        """Handles an append that does not arrive as an `AppendRun`."""
        call.access.require(request.operation, request.name)
        stream = self._streams.find(request.name)
        self._append_and_answer(
            call, stream, [request.payload], lambda first: {"sequenceNumber": first}
        )

    def _append_many(self, call: PendingCall, request: AppendMessagesRequest) -> None:
        call.access.require(request.operation, request.name)
        stream = self._streams.find(request.name)
        payloads = _split(request.sizes, request.payloads)
        self._append_and_answer(
            call,
            stream,
            payloads,
            lambda first: {"firstSequenceNumber": first, "count": len(payloads)},
        )

    def _append_and_answer(
        self,
        call: PendingCall,
        stream: Stream,
        payloads: list[bytes],
        fields: Callable[[int], dict[str, Any]],
    ) -> None:
        first = stream.append(payloads, now_millis())
        self._counters.messages_appended += len(payloads)
        self._counters.bytes_appended += sum(map(len, payloads))
        if not stream.flushes:
            call.succeed(**fields(first))
            return

        def answer(error: BaseException | None) -> None:
            if error is None:
                call.succeed(**fields(first))
            else:
                call.fail(_not_synced(error))

        stream.wait_for_disk(answer)

    # Reads

    def _read(self, call: PendingCall, request: ReadMessagesRequest) -> None:
        call.access.require(request.operation, request.stream_name)
        stream = self._streams.find(request.stream_name)
        options = request.read_messages_options
        minimum, maximum = options.message_counts()
        wanted_start = options.desired_start_sequence_number or 0
        waits = options.read_timeout_millis > 0

        def start() -> int:
            return max(wanted_start, stream.log.oldest)

        def read(room: AnswerRoom) -> Iterator[None]:
            limit = self._settings.max_response_bytes
            reader = MessageReader(stream, start(), minimum, maximum, limit, room, waits=waits)
            yield from reader.steps()
            self._count_read(reader.count, reader.payload_bytes)
            call.send_parts(reader.response(call.request_id), room)

        self._read_or_wait(
            call,
            stream,
            options.read_timeout_millis,
            needed_end=lambda: start() + minimum,
            read=read,
            give_up=lambda: call.fail(stream.not_enough(start(), minimum, waited=waits)),
        )

    def _read_columns(self, call: PendingCall, request: ReadColumnsRequest) -> None:
        call.access.require(request.operation, request.name)
        stream = self._streams.find(request.name)
        max_bytes = min(request.max_bytes, _MAX_COLUMN_BYTES)

        def start() -> int:
            return max(request.first_sequence_number, stream.log.oldest)

        def answer(run: MessageRun, room: AnswerRoom) -> None:
            offsets = list(accumulate(map(len, run.payloads), initial=0))
            room.require(offsets[-1] + _COLUMN_BYTES * len(run.payloads))
            self._count_read(len(run.payloads), offsets[-1])
            call.succeed_in(
                room,
                firstSequenceNumber=run.first_sequence_number,
                count=len(run.payloads),
                offsets=struct.pack(f"<{len(offsets)}i", *offsets),
                ingestTimes=struct.pack(f"<{len(run.ingest_times)}q", *run.ingest_times),
                payloads=b"".join(run.payloads),
                oldestSequenceNumber=stream.log.oldest,
                endSequenceNumber=stream.log.end,
            )

        def give_up() -> None:
            answer(MessageRun(start(), (), ()), self._answers.open())

        def read(room: AnswerRoom) -> Iterator[None]:
            stop = min(request.end_sequence_number, stream.log.end)
            if start() < stop:
                size = room.limit_step(max_bytes)
                answer(stream.read(start(), stop, size), room)
            else:
                give_up()
            yield from ()

        def needed_end() -> int:
            # An empty range is answered at once.
            return start() + 1 if start() < request.end_sequence_number else 0

        self._read_or_wait(call, stream, request.read_timeout_millis, needed_end, read, give_up)

    def _read_or_wait(
        self,
        call: PendingCall,
        stream: Stream,
        timeout_millis: int,
        needed_end: Callable[[], int],
        read: Callable[[AnswerRoom], Iterator[None]],
        give_up: Callable[[], None],
    ) -> None:
        """Reads at once, or when the stream has enough messages, or gives up after the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds_to_wait(timeout_millis)
        call.allow_seconds(timeout_millis / 1000)

        def attempt(room: AnswerRoom, *, may_wait: bool) -> Iterator[None]:
            # The stream may have been deleted, or its oldest messages evicted.
            self._require_served(stream)
            if stream.log.end >= needed_end():
                for _ in read(room):
                    yield
                    self._require_served(stream)
                return
            room.release()
            if may_wait:
                waiter = Waiter(needed_end(), woken)
                waiter.arm(loop, deadline)
                call.on_close(waiter.cancel)
                stream.waiters.add(waiter)
            else:
                give_up()

        def woken(may_wait: bool) -> None:
            build = partial(attempt, may_wait=may_wait)
            call.work(answer_in_room(call, self._answers, build))

        woken(timeout_millis > 0)

    def _require_served(self, stream: Stream) -> None:
        if not self._streams.is_served(stream):
            raise ResourceNotFoundException(f"the message stream {stream.name!r} was deleted")

    def _count_read(self, messages: int, size: int) -> None:
        self._counters.messages_read += messages
        self._counters.bytes_read += size

    # Definitions and statistics

    def _create(self, call: PendingCall, request: CreateMessageStreamRequest) -> None:
        call.access.require(request.operation, request.definition.name)
        self._change(call, self._streams.create(request.definition))

    def _update(self, call: PendingCall, request: UpdateMessageStreamRequest) -> None:
        call.access.require(request.operation, request.definition.name)

        async def update() -> None:
            try:
                await self._streams.update(request.definition)
            except UnknownFailureException as error:
                raise UpdateFailedException(error.message) from None

        self._change(call, update())

    def _delete(self, call: PendingCall, request: DeleteMessageStreamRequest) -> None:
        call.access.require(request.operation, request.name)
        self._change(call, self._streams.delete(request.name))

    def _rewind(self, call: PendingCall, request: RewindExportRequest) -> None:
        name = request.stream_name
        call.access.require(request.operation, name)
        change = self._streams.rewind(name, request.identifier, request.sequence_number)
        self._change(call, change)

    def _change(self, call: PendingCall, change: Coroutine[Any, Any, None]) -> None:
        """Answers when a definition change is stored and applied.

        Later requests of the connection wait for it, so that a client can send the creation of a
        stream and an append together.
        """

        async def answer() -> None:
            with failing(call):
                await change
                call.succeed()

        call.hold_requests()
        task = asyncio.get_running_loop().create_task(answer())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    def _describe(self, call: PendingCall, request: DescribeMessageStreamRequest) -> None:
        call.access.require(request.operation, request.name)
        stream = self._streams.find(request.name)
        call.succeed(messageStreamInfo=to_wire(stream.describe()))

    def _list(self, call: PendingCall, request: ListStreamsRequest) -> None:
        call.access.require(request.operation)
        call.succeed(streams=[name for name in self._streams.names() if call.access.sees(name)])

    def _answer_statistics(self, call: PendingCall, request: StatisticsRequest) -> None:
        call.access.require(request.operation)
        statistics = to_wire(self._statistics())
        statistics["streams"] = [
            stream for stream in statistics["streams"] if call.access.sees(stream["name"])
        ]
        call.succeed(statistics=statistics)


def _fail_appends(caller: Caller, request_ids: list[bytes], error: StreamManagerException) -> None:
    for request_id in request_ids:
        caller.open_call(cbor2.loads(request_id), Operation.AppendMessage).fail(error)


def _not_synced(error: BaseException) -> UnknownFailureException:
    return UnknownFailureException(
        f"cannot sync the message to the disk ({error}): a power cut may lose it"
    )


def _split(sizes: bytes, payloads: bytes) -> list[bytes]:
    if len(sizes) % 4:
        raise InvalidRequestException(f"sizes has {len(sizes)} bytes: expected 4 for each message")
    ends = list(accumulate(struct.unpack(f"<{len(sizes) // 4}I", sizes), initial=0))
    if ends[-1] != len(payloads):
        raise InvalidRequestException(
            f"the sum of sizes is {ends[-1]}: expected {len(payloads)}, the size of payloads"
        )
    messages = [payloads[start:end] for start, end in pairwise(ends)]
    if not all(messages):
        raise InvalidRequestException("sizes has a 0: a message has at least 1 byte")
    return messages
