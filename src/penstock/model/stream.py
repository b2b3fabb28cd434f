"""Streams: how one is defined and how it stands."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from penstock.errors import InvalidRequestException
from penstock.model.export import ExportConfig, ExportDefinition, ExportStatus
from penstock.model.limits import MaxSize, Name, SegmentSize, TimeToLiveMillis

DEFAULT_MAX_SIZE = 256 * 1024 * 1024
DEFAULT_SEGMENT_SIZE = 16 * 1024 * 1024


class StrategyOnFull(IntEnum):
    RejectNewData = 0
    OverwriteOldestData = 1


class Persistence(IntEnum):
    File = 0
    Memory = 1


class MessageStreamDefinition(msgspec.Struct, rename="camel", kw_only=True):
    name: Name
    max_size: MaxSize = DEFAULT_MAX_SIZE
    stream_segment_size: SegmentSize = DEFAULT_SEGMENT_SIZE
    time_to_live_millis: TimeToLiveMillis | None = None
    strategy_on_full: StrategyOnFull
    persistence: Persistence = Persistence.File
    flush_on_write: bool = False
    export_definition: ExportDefinition = msgspec.field(default_factory=ExportDefinition)

    def exports(self) -> Iterator[ExportConfig]:
        return self.export_definition.configs()

    def validate_exports(self) -> None:
        """Each export is known by its identifier alone, so no two of a stream share one."""
        seen: set[str] = set()
        for export in self.exports():
            if export.identifier in seen:
                raise InvalidRequestException(
                    f"definition.exportDefinition: the identifier {export.identifier!r} is used "
                    "twice; it must be unique among all exports of the stream"
                )
            seen.add(export.identifier)


class StorageStatus(msgspec.Struct, rename="camel"):
    """What is stored; `newest - oldest + 1` messages, also when that is none."""

    oldest_sequence_number: int
    newest_sequence_number: int
    total_bytes: int


class MessageStreamInfo(msgspec.Struct, rename="camel"):
    definition: MessageStreamDefinition
    storage_status: StorageStatus
    export_statuses: list[ExportStatus]
