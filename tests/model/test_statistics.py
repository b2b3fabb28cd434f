"""Statistics of a broker on the wire."""

from __future__ import annotations

import msgspec

from penstock.model import ExportStatistics, Statistics, StreamStatistics, to_wire

EXPORT = ExportStatistics(
    identifier="cloud",
    kind="kinesis",
    is_paused=False,
    last_exported_sequence_number=-1,
    messages_behind=3,
    error_message="",
    exported_bytes=0,
    exported_messages=0,
)
STATISTICS = Statistics(
    version="1.2.3",
    uptime_millis=5,
    connections=1,
    messages_appended=3,
    bytes_appended=30,
    messages_read=0,
    bytes_read=0,
    requests_failed=0,
    connections_accepted=1,
    connections_refused=0,
    connections_dropped=0,
    streams=[StreamStatistics("s", 0, 2, 30, 1024, 1, 0, [EXPORT])],
)


def test_statistics_survive_a_round_trip() -> None:
    assert msgspec.convert(to_wire(STATISTICS), Statistics) == STATISTICS


def test_new_export_has_no_export_time() -> None:
    plain = to_wire(EXPORT)

    assert "lastExportTime" not in plain
    assert msgspec.convert(plain, ExportStatistics).last_export_time is None
