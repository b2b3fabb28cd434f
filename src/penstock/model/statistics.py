"""Statistics of a broker: its counters and its streams at one time."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class ExportStatistics(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The statistics of an export."""

    identifier: str
    kind: str
    is_paused: bool
    last_exported_sequence_number: int
    messages_behind: int
    last_export_time: int | None = None
    error_message: str
    exported_bytes: int
    exported_messages: int
    # Exported messages that the destination rejected.
    skipped_messages: int = 0
    # The number of consecutive failed deliveries, and the time until the next attempt.
    failures: int = 0
    retry_in_millis: int | None = None
    # See `ExportState`; empty if the server does not send it.
    state: str = ""
    # The age of the oldest message that is not exported.
    seconds_behind: float = 0.0
    # A task of a pipeline has leased messages, possibly of an export that was just paused.
    is_leased: bool = False
    # Messages that were evicted or damaged before they were exported, since the broker was started.
    lost_messages: int = 0


class ExportActivity(NamedTuple):
    """The part of an export's state that is not stored."""

    # See `ExportState`.
    state: str
    failures: int
    retry_in_millis: int | None
    # The ingest time of the oldest message that is not exported; None if all are exported.
    waiting_since: int | None
    is_leased: bool
    lost_messages: int


class StreamStatistics(msgspec.Struct, frozen=True, rename="camel"):
    """The statistics of a stream."""

    name: str
    oldest_sequence_number: int
    newest_sequence_number: int
    total_bytes: int
    max_size: int
    segments: int
    waiting_reads: int
    exports: list[ExportStatistics]
    # Since the broker was started.
    messages_appended: int = 0
    bytes_appended: int = 0
    # In milliseconds since 1970; None if there is no message.
    oldest_time: int | None = None
    newest_time: int | None = None
    # The number of damaged messages found by recovery and by reads, and the first damaged range.
    damaged_messages: int = 0
    damage: str = ""


class DiskStatistics(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The disk of the root."""

    # At the last sample, which is at most about a second old.
    free_bytes: int
    # With less free space, appends to streams in files are rejected; 0 disables it.
    min_free_bytes: int
    is_low: bool
    # A write failed for lack of space.
    is_full: bool
    # Messages that were rejected because of low space, since the broker was started.
    refused_messages: int


class Statistics(msgspec.Struct, frozen=True, rename="camel"):
    """The statistics of a broker and its streams."""

    version: str
    uptime_millis: int
    connections: int
    messages_appended: int
    bytes_appended: int
    messages_read: int
    bytes_read: int
    requests_failed: int
    connections_accepted: int
    connections_refused: int
    connections_dropped: int
    streams: list[StreamStatistics]
    # The time of these statistics, in milliseconds since 1970.
    time: int = 0
    # The number of file descriptors that the system refused.
    descriptor_shortages: int = 0
    # None if the server does not send it.
    disk: DiskStatistics | None = None
    # The error that suspends all exports, because their progress cannot be stored; else empty.
    exports_suspended: str = ""
