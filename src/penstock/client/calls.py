"""The operations of a client as plain values: a request, and a decoder for its answer.

All functions are pure. They check a program's arguments before anything is sent.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgspec

from penstock.errors import (
    EXCEPTION_OF,
    ClientException,
    RequestPayloadTooLargeException,
    ResponseStatusCode,
    StreamManagerException,
    ValidationException,
)
from penstock.model import (
    Message,
    MessageStreamDefinition,
    MessageStreamInfo,
    ReadMessagesOptions,
    to_wire,
)
from penstock.model.exporting import (
    CommittedReports,
    DeliveryReport,
    ExportPlan,
    PipelineDescription,
    ReservedBandwidth,
)
from penstock.model.limits import NAME_PATTERN
from penstock.model.statistics import Statistics
from penstock.model.storage import Location, StoredRun, StreamPosition
from penstock.model.validation import convert, from_server, validate
from penstock.wire.frames import MAX_FRAME_BYTES
from penstock.wire.operations import RESPONSE_TO, Operation

T = TypeVar("T")
Response = dict[str, Any]

# Max size of one request, because other clients wait while the broker stores it.
MAX_BATCH_BYTES = 4 * 1024 * 1024
MAX_BATCH_MESSAGES = 16_384

# Max single appends in flight. Their answers fit the socket buffers, otherwise client and
# server could wait for each other to read.
_MAX_UNANSWERED = 512
_SIZE_BYTES = 4
_MAX_NAME_LENGTH = 255
_NAME = re.compile(NAME_PATTERN)

# The operation number of the answer, by the operation number of the request.
_RESPONSES = [int(RESPONSE_TO.get(number, 0)) for number in range(max(RESPONSE_TO) + 1)]
_UNKNOWN_OPERATION = int(Operation.UnknownOperationError)
_APPEND_MESSAGE = Operation.AppendMessage

# In the order of StoredRun.
_STORED_FIELDS = ("firstSequenceNumber", "position", "entries", "payloads")


class ClientCall(msgspec.Struct, Generic[T], frozen=True):
    operation: Operation
    fields: dict[str, Any]
    # Called with every answer, errors included.
    decode: Callable[[Response], T]
    # Whether the operation is idempotent.
    may_repeat: bool = False

    def resolve(self, operation: int, response: Response) -> T:
        """Decodes the answer; raises the error that it contains."""
        if operation != _RESPONSES[self.operation] and operation != _UNKNOWN_OPERATION:
            raise ClientException(
                f"the server answered {self.operation.name} with operation {operation}"
            )
        try:
            return self.decode(response)
        except (KeyError, TypeError, ValueError, struct.error) as error:
            raise ClientException(
                f"cannot decode the server's answer to {self.operation.name}: {error!r}"
            ) from None


def raise_for_status(response: Response) -> None:
    status = response["status"]
    if status == ResponseStatusCode.Success:
        return
    try:
        status = ResponseStatusCode(status)
    except ValueError:
        raise StreamManagerException(
            f"the server answered with the unknown status {status!r}: "
            f"{response.get('errorMessage', '')}",
            status,
            response.get("requestId"),
        ) from None
    kind = EXCEPTION_OF.get(status, StreamManagerException)
    raise kind(response.get("errorMessage") or status.name, status, response.get("requestId"))


# Streams


def create_message_stream(definition: MessageStreamDefinition) -> ClientCall[None]:
    return ClientCall(
        Operation.CreateMessageStream, {"definition": _checked_definition(definition)}, _nothing
    )


def update_message_stream(definition: MessageStreamDefinition) -> ClientCall[None]:
    return ClientCall(
        Operation.UpdateMessageStream, {"definition": _checked_definition(definition)}, _nothing
    )


def delete_message_stream(stream_name: str) -> ClientCall[None]:
    return ClientCall(Operation.DeleteMessageStream, {"name": _checked_name(stream_name)}, _nothing)


def list_streams() -> ClientCall[list[str]]:
    return ClientCall(Operation.ListStreams, {}, _stream_names, may_repeat=True)


def describe_message_stream(stream_name: str) -> ClientCall[MessageStreamInfo]:
    name = _checked_name(stream_name)
    return ClientCall(
        Operation.DescribeMessageStream, {"name": name}, _stream_info, may_repeat=True
    )


def statistics() -> ClientCall[Statistics]:
    return ClientCall(Operation.Statistics, {}, _statistics, may_repeat=True)


def rewind_export(stream_name: str, identifier: str, sequence_number: int) -> ClientCall[None]:
    fields = {
        "streamName": _checked_name(stream_name),
        "identifier": identifier,
        "sequenceNumber": sequence_number,
    }
    return ClientCall(Operation.RewindExport, fields, raise_for_status, may_repeat=True)


# Appends


def append_message(stream_name: str, data: bytes) -> ClientCall[int]:
    if type(data) is not bytes or not 0 < len(data) < MAX_FRAME_BYTES:
        data = _checked_payload(data)
    if type(stream_name) is not str or not _is_name(stream_name):
        _checked_name(stream_name)
    fields = {"name": stream_name, "payload": data}
    return ClientCall(_APPEND_MESSAGE, fields, _sequence_number)


def plan_appends(
    stream_name: str, messages: Iterable[bytes], has_extensions: bool, max_frame_bytes: int
) -> Iterator[list[ClientCall[Sequence[int]]]]:
    """Yields groups of requests; the requests of a group may be in flight together.

    With extensions each group is one request, whose messages are stored all or none. Without
    extensions a group has one append for each message.
    """
    name = _checked_name(stream_name)
    if isinstance(messages, (bytes, bytearray, memoryview, str)) or not isinstance(
        messages, Iterable
    ):
        raise ValidationException(
            f"messages is {type(messages).__name__}: expected an iterable of messages, each bytes"
        )
    if has_extensions:
        max_bytes = min(MAX_BATCH_BYTES, max_frame_bytes // 2)
        for batch in _cut(messages, MAX_BATCH_MESSAGES, max_bytes):
            yield [_append_batch(name, batch)]
    else:
        for batch in _cut(messages, _MAX_UNANSWERED, MAX_BATCH_BYTES):
            yield [_append_one_of_many(name, payload) for payload in batch]


def _cut(messages: Iterable[bytes], max_messages: int, max_bytes: int) -> Iterator[list[bytes]]:
    """Cuts messages into batches, in order; a message above `max_bytes` is a batch of its own."""
    batch: list[bytes] = []
    room = max_bytes
    for message in messages:
        payload = _checked_payload(message)
        room -= len(payload) + _SIZE_BYTES
        if batch and (room < 0 or len(batch) == max_messages):
            yield batch
            batch, room = [], max_bytes - len(payload) - _SIZE_BYTES
        batch.append(payload)
    if batch:
        yield batch


def _append_batch(name: str, batch: Sequence[bytes]) -> ClientCall[Sequence[int]]:
    fields = {
        "name": name,
        "sizes": struct.pack(f"<{len(batch)}I", *map(len, batch)),
        "payloads": b"".join(batch),
    }
    return ClientCall(Operation.AppendMessages, fields, _sequence_numbers)


def _append_one_of_many(name: str, payload: bytes) -> ClientCall[Sequence[int]]:
    return ClientCall(
        Operation.AppendMessage,
        {"name": name, "payload": payload},
        lambda response: (_sequence_number(response),),
    )


def join_numbers(groups: Sequence[Sequence[int]]) -> Sequence[int]:
    """Joins the sequence numbers of all groups; a single group keeps its range."""
    return groups[0] if len(groups) == 1 else [number for group in groups for number in group]


def add_appended_count(error: StreamManagerException | OSError, count: int) -> None:
    """Adds the number of messages that were stored before the error."""
    if isinstance(error, StreamManagerException):
        error.appended += count
    elif count:
        error.add_note(f"{count} messages were appended before the error")


# Reads


def read_messages(
    stream_name: str, options: ReadMessagesOptions | None, request_timeout: float
) -> ClientCall[list[Message]]:
    fields: dict[str, Any] = {"streamName": _checked_name(stream_name)}
    if options is not None:
        fields["readMessagesOptions"] = _checked_options(options, request_timeout)
    return ClientCall(Operation.ReadMessages, fields, _messages, may_repeat=True)


def read_messages_or_none(
    stream_name: str, start: int, max_count: int, timeout_millis: int
) -> ClientCall[list[Message]]:
    """Reads at least one message; the result is empty after the timeout."""
    options = {
        "desiredStartSequenceNumber": start,
        "minMessageCount": 1,
        "maxMessageCount": max_count,
        "readTimeoutMillis": timeout_millis,
    }
    fields = {"streamName": stream_name, "readMessagesOptions": options}
    return ClientCall(Operation.ReadMessages, fields, _messages_or_none, may_repeat=True)


def read_columns(
    stream_name: str, start: int, end: int, max_bytes: int, timeout_millis: int
) -> ClientCall[list[Message]]:
    """Reads messages as columns: an extension that is cheaper to encode and decode."""
    fields = {
        "name": stream_name,
        "firstSequenceNumber": start,
        "endSequenceNumber": end,
        "maxBytes": max_bytes,
        "readTimeoutMillis": timeout_millis,
    }

    def decode(response: Response) -> list[Message]:
        raise_for_status(response)
        count, first = response["count"], response["firstSequenceNumber"]
        payloads = response["payloads"]
        offsets = struct.unpack(f"<{count + 1}i", response["offsets"])
        times = struct.unpack(f"<{count}q", response["ingestTimes"])
        return [
            Message(stream_name, number, time, payloads[start:stop])
            for number, time, (start, stop) in zip(
                range(first, first + count), times, pairwise(offsets), strict=True
            )
        ]

    return ClientCall(Operation.ReadColumns, fields, decode, may_repeat=True)


# For the Spark connector


def watch_streams(
    patterns: Sequence[str],
    next_numbers: Mapping[str, int],
    wait_millis: int,
    request_timeout: float,
) -> ClientCall[list[StreamPosition]]:
    """Returns the positions of matching streams; waits until a stream has a new message."""
    if isinstance(patterns, str):
        raise ValidationException("patterns is str: expected a list of names and patterns")
    _check_wait("wait_millis", wait_millis, request_timeout)
    fields = {
        "patterns": list(patterns),
        "nextNumbers": dict(next_numbers),
        "waitMillis": wait_millis,
    }
    return ClientCall(Operation.WatchStreams, fields, _stream_positions, may_repeat=True)


def locate_messages(
    stream_name: str, stream_id: str, start: int, end: int, max_bytes: int | None
) -> ClientCall[Location]:
    fields = _slice_of(stream_name, stream_id, start, end)
    if max_bytes is not None:
        fields["maxBytes"] = max_bytes
    return ClientCall(Operation.LocateMessages, fields, _location, may_repeat=True)


def read_stored(
    stream_name: str, stream_id: str, start: int, end: int, max_bytes: int
) -> ClientCall[StoredRun]:
    fields = _slice_of(stream_name, stream_id, start, end) | {"maxBytes": max_bytes}
    return ClientCall(Operation.ReadStored, fields, _stored_run, may_repeat=True)


def _slice_of(stream_name: str, stream_id: str, start: int, end: int) -> dict[str, Any]:
    return {
        "name": _checked_name(stream_name),
        "streamId": stream_id,
        "firstSequenceNumber": start,
        "endSequenceNumber": end,
    }


# For the export pipeline


def plan_exports(
    pipeline: str,
    task: str,
    *,
    lease_millis: int,
    holding: Sequence[str],
    reports: Sequence[DeliveryReport],
    max_slices: int,
    max_bytes: int,
    max_priority: int | None,
    wait_millis: int,
    about: PipelineDescription | None,
    stops: bool,
    request_timeout: float,
) -> ClientCall[ExportPlan]:
    _check_wait("wait_millis", wait_millis, request_timeout)
    fields: dict[str, Any] = {
        "pipeline": pipeline,
        "task": task,
        "leaseMillis": lease_millis,
        "holding": list(holding),
        "maxSlices": max_slices,
        "maxBytes": max_bytes,
        "waitMillis": wait_millis,
        "stops": stops,
    }
    if reports:
        fields["reports"] = _encode_reports(reports)
    if max_priority is not None:
        fields["maxPriority"] = max_priority
    if about is not None:
        fields["about"] = msgspec.to_builtins(about)
    return ClientCall(Operation.PlanExports, fields, _export_plan, may_repeat=True)


def commit_exports(reports: Sequence[DeliveryReport]) -> ClientCall[CommittedReports]:
    fields = {"reports": _encode_reports(reports)}
    # The broker recognizes a report that it has accepted before.
    return ClientCall(Operation.CommitExports, fields, _committed, may_repeat=True)


def _encode_reports(reports: Sequence[DeliveryReport]) -> list[Any]:
    return [msgspec.to_builtins(report) for report in reports]


def reserve_bandwidth(
    lease: str, size: int, *, wait_millis: int, request_timeout: float
) -> ClientCall[ReservedBandwidth]:
    _check_wait("wait_millis", wait_millis, request_timeout)
    fields = {"lease": lease, "size": size, "waitMillis": wait_millis}
    return ClientCall(Operation.ReserveBandwidth, fields, _reserved, may_repeat=True)


# Checks of arguments


def _checked_name(stream_name: object) -> str:
    if not isinstance(stream_name, str) or not _is_name(stream_name):
        raise ValidationException(
            f"stream_name is {stream_name!r}: expected 1 to {_MAX_NAME_LENGTH} letters, digits, "
            "spaces or any of , . - _"
        )
    return stream_name


@lru_cache(maxsize=1024)
def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME_LENGTH and _NAME.match(text) is not None


def _checked_payload(data: object) -> bytes:
    if not isinstance(data, bytes):
        if not isinstance(data, (bytearray, memoryview)):
            raise ValidationException(f"data is {type(data).__name__}: expected bytes")
        data = bytes(data)
    if not data:
        raise ValidationException("data is empty: expected 1 byte or more")
    if len(data) >= MAX_FRAME_BYTES:
        raise RequestPayloadTooLargeException(
            f"data has {len(data)} bytes: expected less than {MAX_FRAME_BYTES}"
        )
    return data


def _checked_definition(definition: object) -> dict[str, Any]:
    if not isinstance(definition, MessageStreamDefinition):
        raise ValidationException(
            f"definition is {type(definition).__name__}: expected a MessageStreamDefinition"
        )
    plain: dict[str, Any] = to_wire(validate(definition))
    return plain


def _checked_options(options: object, request_timeout: float) -> dict[str, Any]:
    if not isinstance(options, ReadMessagesOptions):
        raise ValidationException(
            f"options is {type(options).__name__}: expected a ReadMessagesOptions"
        )
    checked = validate(options)
    if (
        checked.max_message_count is not None
        and checked.min_message_count > checked.max_message_count
    ):
        raise ValidationException(
            f"min_message_count is {checked.min_message_count}: expected at most "
            f"max_message_count, {checked.max_message_count}"
        )
    _check_wait("read_timeout_millis", checked.read_timeout_millis, request_timeout)
    plain: dict[str, Any] = to_wire(checked)
    return plain


def _check_wait(name: str, millis: int, request_timeout: float) -> None:
    if millis > request_timeout * 1000:
        raise ValidationException(
            f"{name} is {millis}: expected at most the client's request_timeout, "
            f"{request_timeout} s"
        )


# Decoders of answers


def _nothing(response: Response) -> None:
    raise_for_status(response)


def _sequence_number(response: Response) -> int:
    if response["status"] != 0:
        raise_for_status(response)
    return int(response["sequenceNumber"])


def _sequence_numbers(response: Response) -> range:
    raise_for_status(response)
    first = response["firstSequenceNumber"]
    return range(first, first + response["count"])


def _stream_names(response: Response) -> list[str]:
    raise_for_status(response)
    return [str(name) for name in response["streams"]]


def _stream_info(response: Response) -> MessageStreamInfo:
    raise_for_status(response)
    return from_server(response["messageStreamInfo"], MessageStreamInfo)


def _statistics(response: Response) -> Statistics:
    raise_for_status(response)
    return convert(response["statistics"], Statistics)


def _stream_positions(response: Response) -> list[StreamPosition]:
    raise_for_status(response)
    return convert(response["streams"], list[StreamPosition])


def _location(response: Response) -> Location:
    raise_for_status(response)
    return convert(response, Location)


def _export_plan(response: Response) -> ExportPlan:
    raise_for_status(response)
    return convert(response, ExportPlan)


def _committed(response: Response) -> CommittedReports:
    raise_for_status(response)
    return convert(response, CommittedReports)


def _reserved(response: Response) -> ReservedBandwidth:
    raise_for_status(response)
    return convert(response, ReservedBandwidth)


def _stored_run(response: Response) -> StoredRun:
    raise_for_status(response)
    fields = [response[name] for name in _STORED_FIELDS]
    return convert(fields, StoredRun, builtin_types=(bytes,))


def _messages(response: Response) -> list[Message]:
    raise_for_status(response)
    return convert(response["messages"], list[Message], builtin_types=(bytes,))


def _messages_or_none(response: Response) -> list[Message]:
    if response["status"] == ResponseStatusCode.NotEnoughMessages:
        return []
    return _messages(response)
