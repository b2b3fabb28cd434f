"""Makes status snapshots of an idle broker. A test sets the fields that it needs."""

from __future__ import annotations

from typing import Any

from penstock.cli.overview import StatusSnapshot
from penstock.model.statistics import ExportStatistics, Statistics, StreamStatistics


def export(**fields: Any) -> ExportStatistics:
    defaults = {
        "identifier": "cloud",
        "kind": "kinesis",
        "is_paused": False,
        "last_exported_sequence_number": -1,
        "messages_behind": 0,
        "last_export_time": None,
        "error_message": "",
        "exported_bytes": 0,
        "exported_messages": 0,
    }
    return ExportStatistics(**{**defaults, **fields})


def stream(name: str = "s", oldest: int = 0, end: int = 0, **fields: Any) -> StreamStatistics:
    """A stream whose messages have ten bytes."""
    defaults = {
        "name": name,
        "oldest_sequence_number": oldest,
        "newest_sequence_number": end - 1,
        "total_bytes": 10 * (end - oldest),
        "max_size": 1000,
        "segments": 1,
        "waiting_reads": 0,
        "exports": [],
    }
    return StreamStatistics(**{**defaults, **fields})


def snapshot(seconds: float, *streams: StreamStatistics, **fields: Any) -> StatusSnapshot:
    """A snapshot of a broker that started `seconds` ago."""
    defaults = {
        "version": "1",
        "uptime_millis": round(1000 * seconds),
        "connections": 1,
        "messages_appended": 0,
        "bytes_appended": 0,
        "messages_read": 0,
        "bytes_read": 0,
        "requests_failed": 0,
        "connections_accepted": 1,
        "connections_refused": 0,
        "connections_dropped": 0,
        "streams": list(streams),
    }
    broker = Statistics(**{**defaults, **fields})
    return StatusSnapshot("127.0.0.1:8088", "1", seconds, 1_000_000, list(streams), {}, broker)
