"""How a broker is doing: a picture of its counters and its streams at one moment."""

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
    # Of these, those that their destination never takes.
    skipped_messages: int = 0
    # Deliveries that failed one after the other, and in how long the next one is tried.
    failures: int = 0
    retry_in_millis: int | None = None
    # See `ExportState`; empty if the server does not tell.
    state: str = ""
    # Of the oldest message that it has not exported: how long that one waits.
    seconds_behind: float = 0.0
    # A task of a pipeline delivers; also for a moment after the export was paused.
    is_leased: bool = False
    # Since the broker was started: messages that the stream dropped, or that were damaged, before
    # they were exported.
    lost_messages: int = 0


class ExportActivity(NamedTuple):
    """What an export is doing, as far as it is not stored."""

    # See `ExportState`.
    state: str
    failures: int
    retry_in_millis: int | None
    # When the oldest message that it has not exported was appended; None if there is none.
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
    # Messages that are known to be damaged, by the start of the broker or by reads since then, and
    # the first of these places.
    damaged_messages: int = 0
    damage: str = ""


class DiskStatistics(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The disk that the root is on."""

    # At the last sample, which is about a second old at most.
    free_bytes: int
    # With less, appends to streams in files are refused; 0 if none are.
    min_free_bytes: int
    is_low: bool
    # A write found no space.
    is_full: bool
    # Messages that were refused for want of space, since the broker was started.
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
    # When it was looked at, in milliseconds since 1970.
    time: int = 0
    # How often the system refused the broker a file descriptor.
    descriptor_shortages: int = 0
    # None from a broker that does not tell.
    disk: DiskStatistics | None = None
    # Why no export is carried out: its progress could not be stored. Empty if it can.
    exports_suspended: str = ""
