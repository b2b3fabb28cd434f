"""The requests of the protocol, with their fields and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from penstock.model import MessageStreamDefinition, ReadMessagesOptions
from penstock.model.exporting import DeliveryReport, PipelineDescription
from penstock.model.limits import Name, Payload, ReadTimeoutMillis, RequestId, SequenceNumber
from penstock.wire.operations import Operation


class Request(msgspec.Struct, rename="camel", kw_only=True):
    operation: ClassVar[Operation]
    request_id: RequestId


class ConnectRequest(Request):
    operation = Operation.Connect
    protocol_version: str
    other_supported_protocol_versions: list[str] = []
    sdk_version: str = ""
    auth_token: str = ""
    # Sent by Penstock's client; other servers ignore it.
    penstock_extensions: int = 0


class CreateMessageStreamRequest(Request):
    operation = Operation.CreateMessageStream
    definition: MessageStreamDefinition


class UpdateMessageStreamRequest(Request):
    operation = Operation.UpdateMessageStream
    definition: MessageStreamDefinition


class DeleteMessageStreamRequest(Request):
    operation = Operation.DeleteMessageStream
    name: Name


class DescribeMessageStreamRequest(Request):
    operation = Operation.DescribeMessageStream
    name: Name


class AppendMessageRequest(Request):
    operation = Operation.AppendMessage
    name: Name
    payload: Payload


class ReadMessagesRequest(Request):
    operation = Operation.ReadMessages
    stream_name: Name
    read_messages_options: ReadMessagesOptions = msgspec.field(default_factory=ReadMessagesOptions)


class ListStreamsRequest(Request):
    operation = Operation.ListStreams


class AppendMessagesRequest(Request):
    """Appends many messages, all or none.

    `sizes` has the size of each message as little-endian uint32, `payloads` the concatenated
    messages.
    """

    operation = Operation.AppendMessages
    name: Name
    sizes: Annotated[bytes, Meta(min_length=4)]
    payloads: Payload


class ReadColumnsRequest(Request):
    """Reads messages as three byte strings in the layout of Arrow columns.

    The answer has `firstSequenceNumber`, `count`, `offsets` (count + 1 int32, little-endian),
    `ingestTimes` (int64, milliseconds) and `payloads`.
    """

    operation = Operation.ReadColumns
    name: Name
    first_sequence_number: SequenceNumber
    end_sequence_number: SequenceNumber
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 29)] = 16 * 1024 * 1024
    read_timeout_millis: ReadTimeoutMillis = 0


# The length limit of a name, because the event loop compiles the pattern.
Pattern = Annotated[str, Meta(min_length=1, max_length=255)]


class WatchStreamsRequest(Request):
    """Lists the streams that match the patterns, with their oldest and next sequence numbers.

    The answer waits until a stream has a message at or above its number in `nextNumbers`, until a
    stream that is not in `nextNumbers` matches, or until the timeout.
    """

    operation = Operation.WatchStreams
    patterns: Annotated[list[Pattern], Meta(min_length=1, max_length=1024)]
    next_numbers: dict[str, SequenceNumber] = {}
    wait_millis: ReadTimeoutMillis = 0


class LocateMessagesRequest(Request):
    """Locates the segments that hold [first, end), and the broker's root.

    With `maxBytes`, the answer has the end of the messages whose payloads fit these bytes.
    """

    operation = Operation.LocateMessages
    name: Name
    first_sequence_number: SequenceNumber
    end_sequence_number: SequenceNumber
    max_bytes: Annotated[int, Meta(ge=1)] | None = None
    # Rejects a stream that was deleted and created again under the same name.
    stream_id: str | None = None


class ReadStoredRequest(Request):
    """Reads index entries and payloads in the format of a segment. The client checks them."""

    operation = Operation.ReadStored
    name: Name
    first_sequence_number: SequenceNumber
    end_sequence_number: SequenceNumber
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 29)] = 4 * 1024 * 1024
    stream_id: str | None = None


class PlanExportsRequest(Request):
    """Leases work to a task of a pipeline, after its reports are processed.

    Leases in `holding` are renewed; the task's other leases end. The answer waits until work is
    due, or until the timeout. With `max_slices` 0, it has only the number of due exports.
    """

    operation = Operation.PlanExports
    # Identifies one run of a pipeline.
    pipeline: Annotated[str, Meta(min_length=1, max_length=64)]
    task: Annotated[str, Meta(min_length=1, max_length=64)]
    lease_millis: Annotated[int, Meta(ge=100, le=3_600_000)]
    # Leases that the task holds.
    holding: Annotated[list[str], Meta(max_length=4096)] = []
    # As in CommitExportsRequest.
    reports: Annotated[list[DeliveryReport], Meta(max_length=4096)] = []
    max_slices: Annotated[int, Meta(ge=0, le=4096)] = 256
    max_bytes: Annotated[int, Meta(ge=0)] = 64 * 1024 * 1024
    # Skips exports with a larger priority number, which are less urgent.
    max_priority: Annotated[int, Meta(ge=1)] | None = None
    wait_millis: ReadTimeoutMillis = 0
    about: PipelineDescription | None = None
    # The pipeline stops, and all its tasks end.
    stops: bool = False


class CommitExportsRequest(Request):
    """Reports deliveries. A late report is ignored; the others are processed."""

    operation = Operation.CommitExports
    reports: Annotated[list[DeliveryReport], Meta(max_length=4096)]


class ReserveBandwidthRequest(Request):
    """Reserves bandwidth for bytes of a file; the answer waits until it is available.

    With `size` 0, it has only the state of the lease.
    """

    operation = Operation.ReserveBandwidth
    lease: Annotated[str, Meta(max_length=1024)]
    size: Annotated[int, Meta(ge=0)]
    wait_millis: ReadTimeoutMillis = 0


class RewindExportRequest(Request):
    """Moves an export: the next message that it exports has this number."""

    operation = Operation.RewindExport
    stream_name: Name
    identifier: Name
    sequence_number: SequenceNumber


class StatisticsRequest(Request):
    operation = Operation.Statistics


Requests: TypeAlias = Mapping[int, type[Request]]


def _by_operation(*kinds: type[Request]) -> Requests:
    return {kind.operation: kind for kind in kinds}


# Allowed requests: before the handshake, after it, and after it with extensions.
HANDSHAKE = _by_operation(ConnectRequest)
REQUESTS = _by_operation(
    CreateMessageStreamRequest,
    UpdateMessageStreamRequest,
    DeleteMessageStreamRequest,
    DescribeMessageStreamRequest,
    AppendMessageRequest,
    ReadMessagesRequest,
    ListStreamsRequest,
)
EXTENDED_REQUESTS = {
    **REQUESTS,
    **_by_operation(
        AppendMessagesRequest,
        ReadColumnsRequest,
        StatisticsRequest,
        WatchStreamsRequest,
        LocateMessagesRequest,
        ReadStoredRequest,
        PlanExportsRequest,
        CommitExportsRequest,
        ReserveBandwidthRequest,
        RewindExportRequest,
    ),
}
