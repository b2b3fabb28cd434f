"""Renders the status of a broker, its streams and exports, as lines or as JSON.

All functions are pure. Rates are computed from two `StatusSnapshot`s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.cli.output import Line, format_table, printable
from penstock.cli.units import human_bytes, human_duration
from penstock.model import ExportStatus, MessageStreamInfo, to_wire
from penstock.model.export_definition import messages_behind
from penstock.model.exporting import ExportState
from penstock.model.statistics import ExportStatistics, Statistics, StreamStatistics

HEADING = {"bold": True}
DIM = {"dim": True}
ALARM = {"fg": "red"}

# Screens with fewer lines show streams and exports only.
_MIN_HEIGHT_WITH_TRAFFIC = 12
# Fields of StreamStatistics that a server without extensions does not report.
_EXTENSION_FIELDS = (
    "segments",
    "waitingReads",
    "messagesAppended",
    "bytesAppended",
    "damagedMessages",
    "damage",
)
# Fields of ExportStatistics that a server without extensions does not report.
_EXPORT_EXTENSION_FIELDS = (
    "skippedMessages",
    "failures",
    "retryInMillis",
    "secondsBehind",
    "isLeased",
    "lostMessages",
)
# The state of an export that is not up to date, if the server reports no states.
_BEHIND = "behind"


class StatusSnapshot(NamedTuple):
    """The status of a broker at one time, by the clocks of this machine."""

    address: str
    version: str
    # Monotonic, for rates.
    seconds: float
    epoch_millis: int
    streams: list[StreamStatistics]
    # Damaged streams, with the reason.
    unreadable: dict[str, str]
    # None if the server is not Penstock and reports only its streams.
    broker: Statistics | None = None


def statistics_of(info: MessageStreamInfo) -> StreamStatistics:
    """Statistics of a described stream, without `_EXTENSION_FIELDS`."""
    storage = info.storage_status
    statuses = {status.export_config_identifier: status for status in info.export_statuses}
    exports = []
    for kind, export in info.definition.export_definition.configs_by_kind():
        status = statuses.get(export.identifier) or ExportStatus(export.identifier)
        exports.append(
            ExportStatistics(
                identifier=export.identifier,
                kind=kind,
                is_paused=bool(export.disabled),
                last_exported_sequence_number=status.last_exported_sequence_number,
                messages_behind=messages_behind(
                    export,
                    status.last_exported_sequence_number,
                    storage.oldest_sequence_number,
                    storage.newest_sequence_number,
                ),
                last_export_time=status.last_export_time or None,
                error_message=status.error_message or "",
                exported_bytes=status.exported_bytes_from_stream,
                exported_messages=status.exported_messages_count,
            )
        )
    return StreamStatistics(
        name=info.definition.name,
        oldest_sequence_number=storage.oldest_sequence_number,
        newest_sequence_number=storage.newest_sequence_number,
        total_bytes=storage.total_bytes,
        max_size=info.definition.max_size,
        segments=0,
        waiting_reads=0,
        exports=exports,
    )


def export_state(export: ExportStatistics) -> str:
    """The state that the broker reports. Without one, it is derived from the status."""
    return export.state or _implied_state(export)


def _implied_state(export: ExportStatistics) -> str:
    if export.is_paused:
        return ExportState.paused
    # An export that skipped messages is not failing.
    if export.failures or (export.error_message and not export.skipped_messages):
        return ExportState.failing
    return _BEHIND if export.messages_behind else ExportState.up_to_date


# For programs


def snapshot_to_dict(snapshot: StatusSnapshot) -> dict[str, Any]:
    """The snapshot with the names of the wire, without unknown fields."""
    is_penstock = snapshot.broker is not None
    return {
        "address": snapshot.address,
        "version": snapshot.version,
        **(to_wire(snapshot.broker) if snapshot.broker is not None else {}),
        "time": snapshot.epoch_millis,
        "streams": [_stream_to_dict(stream, is_penstock) for stream in snapshot.streams],
        "unreadableStreams": [
            {"name": name, "errorMessage": message} for name, message in snapshot.unreadable.items()
        ],
    }


def _stream_to_dict(stream: StreamStatistics, is_penstock: bool) -> dict[str, Any]:
    plain: dict[str, Any] = to_wire(stream)
    for export, plain_export in zip(stream.exports, plain["exports"], strict=True):
        plain_export["state"] = export_state(export)
        for key in () if is_penstock else _EXPORT_EXTENSION_FIELDS:
            plain_export.pop(key, None)
    for key in () if is_penstock else _EXTENSION_FIELDS:
        del plain[key]
    return plain


# Rates


class Rate(NamedTuple):
    """Messages and bytes per second; None without an earlier snapshot."""

    messages: float | None = None
    size: float | None = None


class Rates(NamedTuple):
    appended: Rate = Rate()
    read: Rate = Rate()
    streams: Mapping[str, Rate] = {}

    def of(self, stream: StreamStatistics) -> Rate:
        return self.streams.get(stream.name, Rate())


def rates_between(before: StatusSnapshot | None, snapshot: StatusSnapshot) -> Rates:
    """The rates between two snapshots. Empty for the first one, and after a broker restart."""
    if before is None or not _is_same_run(before, snapshot):
        return Rates()
    seconds = snapshot.seconds - before.seconds
    olds = {stream.name: stream for stream in before.streams}
    streams = {}
    for stream in snapshot.streams:
        messages, size = _growth(stream, olds.get(stream.name))
        streams[stream.name] = Rate(messages / seconds, size / seconds)
    new, old = snapshot.broker, before.broker
    if new is None or old is None:
        return Rates(streams=streams)
    return Rates(
        Rate(
            (new.messages_appended - old.messages_appended) / seconds,
            (new.bytes_appended - old.bytes_appended) / seconds,
        ),
        Rate(
            (new.messages_read - old.messages_read) / seconds,
            (new.bytes_read - old.bytes_read) / seconds,
        ),
        streams,
    )


def _is_same_run(before: StatusSnapshot, snapshot: StatusSnapshot) -> bool:
    """Whether the broker did not restart since `before`, so that its counters continue."""
    if before.broker is None or snapshot.broker is None:
        return before.broker is snapshot.broker
    return before.broker.uptime_millis <= snapshot.broker.uptime_millis


def _growth(stream: StreamStatistics, old: StreamStatistics | None) -> tuple[float, float]:
    """The messages that were appended since `old`, and their bytes."""
    first = old.newest_sequence_number + 1 if old is not None else 0
    messages = max(stream.newest_sequence_number + 1 - first, 0)
    if old is not None and old.oldest_sequence_number == stream.oldest_sequence_number:
        return messages, max(stream.total_bytes - old.total_bytes, 0)
    # Messages were dropped in the meantime: assume that new messages have the average size.
    stored = _stored(stream)
    return messages, messages * stream.total_bytes / stored if stored else 0.0


def _stored(stream: StreamStatistics) -> int:
    return stream.newest_sequence_number - stream.oldest_sequence_number + 1


# For people


def snapshot_lines(
    snapshot: StatusSnapshot, rates: Rates | None = None, height: int | None = None
) -> list[Line]:
    """The snapshot as at most `height` lines, with columns for rates if `rates` is given."""
    head = [_server_line(snapshot), *_warnings(snapshot)]
    if height is None or height >= _MIN_HEIGHT_WITH_TRAFFIC:
        head += _traffic_lines(snapshot, rates)
    # Two empty lines separate the three parts.
    room = None if height is None else height - len(head) - 2
    streams, exports = _stream_lines(snapshot, rates, room), _export_lines(snapshot)
    if room is not None:
        streams, exports = _fit(streams, exports, room)
    return [*head, Line(""), *streams, *([Line(""), *exports] if exports else [])][:height]


def _server_line(snapshot: StatusSnapshot) -> Line:
    broker = snapshot.broker
    if broker is None:
        name = f"stream manager {snapshot.version}".strip()
        return Line(f"{name} at {snapshot.address}", HEADING)
    words = [
        f"penstock {broker.version} at {snapshot.address}",
        f"up {human_duration(broker.uptime_millis)}",
        _count(broker.connections, "connection"),
        _count(broker.requests_failed, "failed request"),
    ]
    if broker.connections_refused:
        words.append(_count(broker.connections_refused, "refused connection"))
    if broker.connections_dropped:
        words.append(_count(broker.connections_dropped, "dropped connection"))
    if broker.descriptor_shortages:
        words.append(_count(broker.descriptor_shortages, "descriptor shortage"))
    return Line(", ".join(words), HEADING)


def _warnings(snapshot: StatusSnapshot) -> Iterator[Line]:
    if snapshot.broker is None:
        yield Line("this server is not Penstock: it reports the state of its streams only", DIM)
    else:
        yield from _disk_warnings(snapshot.broker)
    for name, message in snapshot.unreadable.items():
        yield Line(f"damaged: {name}: {printable(message)}", ALARM)
    for stream in snapshot.streams:
        if stream.damaged_messages:
            found = _count(stream.damaged_messages, "damaged message")
            yield Line(f"damaged: {stream.name}: {found}, {printable(stream.damage)}", ALARM)


def _disk_warnings(broker: Statistics) -> Iterator[Line]:
    disk = broker.disk
    if disk is not None and (disk.is_low or disk.is_full):
        free = human_bytes(disk.free_bytes)
        limit = f", less than min_free_disk ({human_bytes(disk.min_free_bytes)})"
        refused = _count(disk.refused_messages, "message")
        yield Line(
            f"the disk has {free} free{limit if disk.is_low else ''}: appends are refused, "
            f"{refused} so far",
            ALARM,
        )
    if broker.exports_suspended:
        yield Line(
            "exports are suspended, because their progress cannot be stored: "
            f"{printable(broker.exports_suspended)}",
            ALARM,
        )


def _traffic_lines(snapshot: StatusSnapshot, rates: Rates | None) -> list[Line]:
    broker = snapshot.broker
    if broker is None:
        return []
    rows = [
        {"": "appended", **_amount(broker.messages_appended, broker.bytes_appended)},
        {"": "read", **_amount(broker.messages_read, broker.bytes_read)},
    ]
    if rates is not None:
        for row, rate in zip(rows, (rates.appended, rates.read), strict=True):
            row["messages/s"] = _rate(rate.messages)
            row["bytes/s"] = _bytes_rate(rate.size)
    return [Line(text) for text in _format(rows)]


def _amount(messages: int, size: int) -> dict[str, str]:
    return {"messages": str(messages), "bytes": human_bytes(size)}


def _stream_lines(snapshot: StatusSnapshot, rates: Rates | None, room: int | None) -> list[Line]:
    streams = snapshot.streams
    if not streams:
        return [Line("no streams; `penstock streams create NAME` creates one")]
    if rates is not None and room is not None and len(streams) >= room:
        # Not all streams fit: the busiest come first.
        streams = sorted(streams, key=lambda stream: _busyness(rates.of(stream)), reverse=True)
    is_penstock = snapshot.broker is not None
    return _table(
        [
            _stream_row(stream, None if rates is None else rates.of(stream), is_penstock)
            for stream in streams
        ]
    )


def _busyness(rate: Rate) -> tuple[float, float]:
    return rate.messages or 0, rate.size or 0


def _stream_row(stream: StreamStatistics, rate: Rate | None, is_penstock: bool) -> dict[str, str]:
    count = _stored(stream)
    numbers = f"{stream.oldest_sequence_number}..{stream.newest_sequence_number}"
    row = {"stream": stream.name, "messages": str(count)}
    if rate is not None:
        row["msg/s"] = _rate(rate.messages)
    row["size"] = human_bytes(stream.total_bytes)
    if rate is not None:
        row["bytes/s"] = _bytes_rate(rate.size)
    row["full"] = _percent(stream.total_bytes, stream.max_size)
    row["numbers"] = numbers if count else "-"
    if is_penstock:
        row["segments"] = str(stream.segments)
        row["waiting"] = str(stream.waiting_reads)
    return row


# States in order of urgency.
_STATE_STYLE: dict[str, Mapping[str, Any]] = {
    ExportState.failing: ALARM,
    ExportState.due: {"fg": "yellow"},
    _BEHIND: {"fg": "yellow"},
    ExportState.exporting: {},
    ExportState.waiting: {},
    ExportState.paused: DIM,
    ExportState.up_to_date: {},
}


def _export_lines(snapshot: StatusSnapshot) -> list[Line]:
    found = [
        (export_state(export), stream.name, export)
        for stream in snapshot.streams
        for export in stream.exports
    ]
    if not found:
        return []
    rank = {state: place for place, state in enumerate(_STATE_STYLE)}
    # A newer broker may report other states.
    found.sort(key=lambda entry: (rank.get(entry[0], len(rank)), entry[1], entry[2].identifier))
    has_skipped = any(export.skipped_messages for _, _, export in found)
    rows = []
    for state, name, export in found:
        last = export.last_exported_sequence_number
        row = {
            "stream": name,
            "export": export.identifier,
            "kind": export.kind,
            "state": _state(state, export),
            "behind": str(export.messages_behind),
            "exported": str(last) if last >= 0 else "-",
        }
        if has_skipped:
            row["skipped"] = str(export.skipped_messages or "-")
        row["last export"] = _age(snapshot.epoch_millis, export.last_export_time)
        row["error"] = printable(export.error_message)
        rows.append(row)
    return _table(rows, [_STATE_STYLE.get(state, {}) for state, _, _ in found])


def _state(state: str, export: ExportStatistics) -> str:
    """The state, and when a failed delivery is retried."""
    if state == ExportState.paused or not export.retry_in_millis:
        return state
    # Rounded up, so that it never shows "0 s" before a retry.
    return f"{state} (retry in {human_duration(export.retry_in_millis + 999)})"


# Tables: a row maps headings to cells


def _format(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def _table(
    rows: Sequence[Mapping[str, str]], styles: Sequence[Mapping[str, Any]] | None = None
) -> list[Line]:
    return [
        Line(text, style)
        for text, style in zip(_format(rows), [HEADING, *(styles or [{}] * len(rows))], strict=True)
    ]


def _fit(streams: list[Line], exports: list[Line], height: int) -> tuple[list[Line], list[Line]]:
    """Cuts both tables to fit. Each may use the lines that the other does not need."""
    for_exports = min(len(exports), max(height // 2, height - len(streams)))
    return (
        _cut(streams, height - for_exports, "streams"),
        _cut(exports, for_exports, "exports"),
    )


def _cut(table: list[Line], height: int, noun: str) -> list[Line]:
    if len(table) <= height:
        return table
    kept = table[: max(height - 1, 0)]
    return [*kept, Line(f"and {len(table) - max(len(kept), 1)} more {noun}", DIM)]


# Cells


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _percent(size: int, max_size: int) -> str:
    share = size / max_size
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"


def _bytes_rate(value: float | None) -> str:
    return "-" if value is None else human_bytes(round(value))


def _age(now_millis: int, then_millis: int | None) -> str:
    if then_millis is None:
        return "never"
    return f"{human_duration(max(now_millis - then_millis, 0))} ago"
