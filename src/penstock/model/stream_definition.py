"""Definitions of streams, and their status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from penstock.errors import InvalidRequestException
from penstock.model.export_definition import ExportConfig, ExportDefinition, ExportStatus
from penstock.model.limits import MaxSize, Name, SegmentSize, TimeToLiveMillis
from penstock.model.value import REQUIRED, Choice, Value

DEFAULT_MAX_SIZE = 256 * 1024 * 1024
DEFAULT_SEGMENT_SIZE = 16 * 1024 * 1024


class StrategyOnFull(Choice):
    """The result of an append to a full stream.

    Attributes:
        RejectNewData: The append fails.
        OverwriteOldestData: The oldest segments are evicted.
    """

    RejectNewData = 0
    OverwriteOldestData = 1


class Persistence(Choice):
    """The storage of a stream.

    Attributes:
        File: On disk.
        Memory: In the memory of the broker. A restart of the broker empties the stream.
    """

    File = 0
    Memory = 1


class MessageStreamDefinition(Value):
    """The settings of a stream.

    Attributes:
        name: 1 to 255 letters, digits, spaces and `_,.-`.
        strategy_on_full: The result of an append to a full stream. Required.
        max_size: Bytes of payloads, at least 1024; 256 MiB by default.
        stream_segment_size: Bytes of a segment, at least 1024; 16 MiB by default.
        time_to_live_millis: Older messages are evicted; at least a minute. No limit by default.
        persistence: On disk by default.
        flush_on_write: An append is answered after it is synced to disk. Off by default: then the
            stream is synced once a second.
        export_definition: The exports of the stream; none by default.
    """

    name: Name = REQUIRED
    max_size: MaxSize = DEFAULT_MAX_SIZE
    stream_segment_size: SegmentSize = DEFAULT_SEGMENT_SIZE
    time_to_live_millis: TimeToLiveMillis | None = None
    strategy_on_full: StrategyOnFull = REQUIRED
    persistence: Persistence = Persistence.File
    flush_on_write: bool = False
    export_definition: ExportDefinition = msgspec.field(default_factory=ExportDefinition)

    def exports(self) -> Iterator[ExportConfig]:
        return self.export_definition.configs()

    def validate_exports(self) -> None:
        """Checks that the identifiers of all exports are unique."""
        seen: set[str] = set()
        for export in self.exports():
            if export.identifier in seen:
                raise InvalidRequestException(
                    f"definition.exportDefinition: the identifier {export.identifier!r} is used "
                    "twice; it must be unique among all exports of the stream"
                )
            seen.add(export.identifier)


class StorageStatus(Value):
    """The range of stored messages; an empty stream has `newest = oldest - 1`."""

    oldest_sequence_number: int = REQUIRED
    newest_sequence_number: int = REQUIRED
    total_bytes: int = REQUIRED


class MessageStreamInfo(Value):
    """The result of `describe_message_stream`.

    Attributes:
        definition: The settings of the stream.
        storage_status: The stored messages.
        export_statuses: The state of each export.
    """

    # In the AWS SDK these two classes are nested in this one.
    storageStatus: ClassVar = StorageStatus  # noqa: N815
    exportStatuses: ClassVar = ExportStatus  # noqa: N815

    definition: MessageStreamDefinition = REQUIRED
    storage_status: StorageStatus = REQUIRED
    # A server may omit an empty list.
    export_statuses: list[ExportStatus] = msgspec.field(default_factory=list)
