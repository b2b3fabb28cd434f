"""The requests of the protocol, as declared values with their limits."""

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
    # Sent by Penstock's own client; other servers ignore the key.
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
    """Many messages in one round trip: all of them are appended, or none.

    `sizes` holds the size of each message as little-endian uint32, `payloads` the messages one
    after the other.
    """

    operation = Operation.AppendMessages
    name: Name
    sizes: Annotated[bytes, Meta(min_length=4)]
    payloads: Payload


class ReadColumnsRequest(Request):
    """Messages as three byte strings that are Arrow columns as they stand.

    The answer holds `firstSequenceNumber`, `count`, `offsets` (count + 1 int32, little-endian),
    `ingestTimes` (int64, milliseconds) and `payloads`.
    """

    operation = Operation.ReadColumns
    name: Name
    first_sequence_number: SequenceNumber
    end_sequence_number: SequenceNumber
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 29)] = 16 * 1024 * 1024
    read_timeout_millis: ReadTimeoutMillis = 0


# No name is longer; a pattern is compiled while everybody waits.
Pattern = Annotated[str, Meta(min_length=1, max_length=255)]


class WatchStreamsRequest(Request):
    """Which streams match these patterns, and which messages they have.

    The answer comes when one of them has a message at or behind the number in `nextNumbers`, or is
    not named there, or when the time is up.
    """

    operation = Operation.WatchStreams
    patterns: Annotated[list[Pattern], Meta(min_length=1, max_length=1024)]
    next_numbers: dict[str, SequenceNumber] = {}
    wait_millis: ReadTimeoutMillis = 0


class LocateMessagesRequest(Request):
    """Where messages are: the segments that hold [first, end), and the root they are below.

    With `maxBytes` the answer also says up to which number the payloads fit so many bytes.
    """

    operation = Operation.LocateMessages
    name: Name
    first_sequence_number: SequenceNumber
    end_sequence_number: SequenceNumber
    max_bytes: Annotated[int, Meta(ge=1)] | None = None
    # Another stream of the same name is not the one that was meant.
    stream_id: str | None = None


class ReadStoredRequest(Request):
    """Messages as segments hold them, for whoever checks them: entries of the index, payloads."""

    operation = Operation.ReadStored
    name: Name
    first_sequence_number: SequenceNumber
    end_sequence_number: SequenceNumber
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 29)] = 4 * 1024 * 1024
    stream_id: str | None = None


class PlanExportsRequest(Request):
    """Work for a task of a pipeline, which is leased to it, after its reports are settled.

    Leases that the task holds are renewed, and its others end. The answer waits until something is
    due, or the time is up. With `max_slices` 0 it tells only how much is due.
    """

    operation = Operation.PlanExports
    # Of one run of a pipeline.
    pipeline: Annotated[str, Meta(min_length=1, max_length=64)]
    task: Annotated[str, Meta(min_length=1, max_length=64)]
    lease_millis: Annotated[int, Meta(ge=100, le=3_600_000)]
    # Leases that the task holds.
    holding: Annotated[list[str], Meta(max_length=4096)] = []
    # As in CommitExportsRequest.
    reports: Annotated[list[DeliveryReport], Meta(max_length=4096)] = []
    max_slices: Annotated[int, Meta(ge=0, le=4096)] = 256
    max_bytes: Annotated[int, Meta(ge=0)] = 64 * 1024 * 1024
    # Exports with larger priorities, which are less urgent, are left out.
    max_priority: Annotated[int, Meta(ge=1)] | None = None
    wait_millis: ReadTimeoutMillis = 0
    about: PipelineDescription | None = None
    # The pipeline stops: all of its tasks end.
    stops: bool = False


class CommitExportsRequest(Request):
    """Reports about work. Late reports are ignored, each by itself."""

    operation = Operation.CommitExports
    reports: Annotated[list[DeliveryReport], Meta(max_length=4096)]


class ReserveBandwidthRequest(Request):
    """Bytes of a file that are to be sent; the answer waits until they may be.

    With `size` 0 it tells only whether the lease is still held.
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


# What a client may ask for: first, then, and then if it offered extensions.
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
