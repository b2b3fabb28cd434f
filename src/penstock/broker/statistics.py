"""How the broker is doing: counters while it runs, and a frozen picture of them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(slots=True)
class Counters:
    """Counted since the start, by the event loop only."""

    messages_appended: int = 0
    bytes_appended: int = 0
    messages_read: int = 0
    bytes_read: int = 0
    requests_failed: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    connections_dropped: int = 0


class StreamStatistics(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    oldest_sequence_number: int
    newest_sequence_number: int
    total_bytes: int
    max_size: int
    segments: int
    waiting_reads: int


class Statistics(msgspec.Struct, frozen=True, rename="camel"):
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
