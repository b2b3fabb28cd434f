"""How a broker, its streams and its exports are doing: as lines for people, as JSON for programs.

All of it is pure: from a `Picture`, and for rates from two of them.
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

# Fewer lines than this are for the streams and exports alone.
_TALL = 12
# What StreamStatistics has and a server without extensions does not tell.
_UNTOLD = (
    "segments",
    "waitingReads",
    "messagesAppended",
    "bytesAppended",
    "damagedMessages",
    "damage",
)
# The state of an export that is not up to date, where the server tells none.
_BEHIND = "behind"
# The same as `_UNTOLD` for ExportStatistics.
_UNTOLD_OF_EXPORTS = (
    "skippedMessages",
    "failures",
    "retryInMillis",
    "secondsBehind",
    "isLeased",
    "lostMessages",
)


class Picture(NamedTuple):
    """What a broker said about itself at one moment, by our own clocks."""

    address: str
    version: str
    # Of a clock that only ever goes forward, for rates.
    seconds: float
    epoch_millis: int
    streams: list[StreamStatistics]
    # Streams that are there and damaged, and why.
    unreadable: dict[str, str]
    # None where the server is not a Penstock, and says nothing but how its streams are.
    broker: Statistics | None = None


def statistics_of(info: MessageStreamInfo) -> StreamStatistics:
    """What a description tells of a stream; nothing of `_UNTOLD`."""
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
    """The state by the broker's word; from a server that tells none, what its status implies."""
    return export.state or _implied_state(export)


def _implied_state(export: ExportStatistics) -> str:
    if export.is_paused:
        return ExportState.paused
    # An export that only skipped messages works well.
    if export.failures or (export.error_message and not export.skipped_messages):
        return ExportState.failing
    return _BEHIND if export.messages_behind else ExportState.up_to_date


# For programs


def plain_picture(picture: Picture) -> dict[str, Any]:
    """The names of the wire, and no key for what is not known."""
    is_penstock = picture.broker is not None
    return {
        "address": picture.address,
        "version": picture.version,
        **(to_wire(picture.broker) if picture.broker is not None else {}),
        "time": picture.epoch_millis,
        "streams": [_plain_stream(stream, is_penstock) for stream in picture.streams],
        "unreadableStreams": [
            {"name": name, "errorMessage": message} for name, message in picture.unreadable.items()
        ],
    }


def _plain_stream(stream: StreamStatistics, is_penstock: bool) -> dict[str, Any]:
    plain: dict[str, Any] = to_wire(stream)
    for export, plain_export in zip(stream.exports, plain["exports"], strict=True):
        plain_export["state"] = export_state(export)
        for key in () if is_penstock else _UNTOLD_OF_EXPORTS:
            plain_export.pop(key, None)
    for key in () if is_penstock else _UNTOLD:
        del plain[key]
    return plain


# Rates


class Rate(NamedTuple):
    """How many a second, and their bytes; None where there is nothing to compare with."""

    messages: float | None = None
    size: float | None = None


class Rates(NamedTuple):
    appended: Rate = Rate()
    read: Rate = Rate()
    streams: Mapping[str, Rate] = {}

    def of(self, stream: StreamStatistics) -> Rate:
        return self.streams.get(stream.name, Rate())


def rates_between(before: Picture | None, picture: Picture) -> Rates:
    """None are known if the picture is the first, or the broker has begun anew since."""
    if before is None or not _are_of_one_run(before, picture):
        return Rates()
    seconds = picture.seconds - before.seconds
    olds = {stream.name: stream for stream in before.streams}
    streams = {}
    for stream in picture.streams:
        messages, size = _growth(stream, olds.get(stream.name))
        streams[stream.name] = Rate(messages / seconds, size / seconds)
    new, old = picture.broker, before.broker
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


def _are_of_one_run(before: Picture, picture: Picture) -> bool:
    """Whether counters have gone on between the two, and not begun again."""
    if before.broker is None or picture.broker is None:
        return before.broker is picture.broker
    return before.broker.uptime_millis <= picture.broker.uptime_millis


def _growth(stream: StreamStatistics, old: StreamStatistics | None) -> tuple[float, float]:
    """How many messages have come since, and their bytes."""
    first = old.newest_sequence_number + 1 if old is not None else 0
    messages = max(stream.newest_sequence_number + 1 - first, 0)
    if old is not None and old.oldest_sequence_number == stream.oldest_sequence_number:
        return messages, max(stream.total_bytes - old.total_bytes, 0)
    # Some were dropped meanwhile: those that came are taken to be like those that are there.
    stored = _stored(stream)
    return messages, messages * stream.total_bytes / stored if stored else 0.0


def _stored(stream: StreamStatistics) -> int:
    return stream.newest_sequence_number - stream.oldest_sequence_number + 1


# For people


def picture_lines(
    picture: Picture, rates: Rates | None = None, height: int | None = None
) -> list[Line]:
    """With columns for rates if there are `rates`; of no more than so many lines."""
    head = [_server_line(picture), *_remarks(picture)]
    if height is None or height >= _TALL:
        head += _traffic_lines(picture, rates)
    # There are two empty lines between the three parts.
    room = None if height is None else height - len(head) - 2
    streams, exports = _stream_lines(picture, rates, room), _export_lines(picture)
    if room is not None:
        streams, exports = _fit(streams, exports, room)
    return [*head, Line(""), *streams, *([Line(""), *exports] if exports else [])][:height]


def _server_line(picture: Picture) -> Line:
    broker = picture.broker
    if broker is None:
        name = f"stream manager {picture.version}".strip()
        return Line(f"{name} at {picture.address}", HEADING)
    words = [
        f"penstock {broker.version} at {picture.address}",
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


def _remarks(picture: Picture) -> Iterator[Line]:
    if picture.broker is None:
        yield Line("it is no Penstock: how its streams are is all that it tells", DIM)
    else:
        yield from _disk_remarks(picture.broker)
    for name, message in picture.unreadable.items():
        yield Line(f"damaged: {name}: {printable(message)}", ALARM)
    for stream in picture.streams:
        if stream.damaged_messages:
            found = _count(stream.damaged_messages, "damaged message")
            yield Line(f"damaged: {stream.name}: {found}, {printable(stream.damage)}", ALARM)


def _disk_remarks(broker: Statistics) -> Iterator[Line]:
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


def _traffic_lines(picture: Picture, rates: Rates | None) -> list[Line]:
    broker = picture.broker
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


def _stream_lines(picture: Picture, rates: Rates | None, room: int | None) -> list[Line]:
    streams = picture.streams
    if not streams:
        return [Line("no streams; `penstock streams create` makes one")]
    if rates is not None and room is not None and len(streams) >= room:
        # Only some fit: those where something happens.
        streams = sorted(streams, key=lambda stream: _busyness(rates.of(stream)), reverse=True)
    is_penstock = picture.broker is not None
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


# The states that need attention most come first.
_STATE_STYLE: dict[str, Mapping[str, Any]] = {
    ExportState.failing: ALARM,
    ExportState.due: {"fg": "yellow"},
    _BEHIND: {"fg": "yellow"},
    ExportState.exporting: {},
    ExportState.waiting: {},
    ExportState.paused: DIM,
    ExportState.up_to_date: {},
}


def _export_lines(picture: Picture) -> list[Line]:
    found = [
        (export_state(export), stream.name, export)
        for stream in picture.streams
        for export in stream.exports
    ]
    if not found:
        return []
    rank = {state: place for place, state in enumerate(_STATE_STYLE)}
    # A newer broker may know states that this program does not.
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
        row["last export"] = _age(picture.epoch_millis, export.last_export_time)
        row["error"] = printable(export.error_message)
        rows.append(row)
    return _table(rows, [_STATE_STYLE.get(state, {}) for state, _, _ in found])


def _state(state: str, export: ExportStatistics) -> str:
    """The state, and when a failed delivery is retried."""
    if state == ExportState.paused or not export.retry_in_millis:
        return state
    # Rounded up: the last second before a retry is no "0 s".
    return f"{state} (retry in {human_duration(export.retry_in_millis + 999)})"


# Tables: rows have their cells by the headings


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
    """Both tables, cut so that they fit; each may have the lines that the other leaves."""
    for_exports = min(len(exports), max(height // 2, height - len(streams)))
    return (
        _cut(streams, height - for_exports, "streams"),
        _cut(exports, for_exports, "exports"),
    )


def _cut(table: list[Line], height: int, what: str) -> list[Line]:
    if len(table) <= height:
        return table
    kept = table[: max(height - 1, 0)]
    return [*kept, Line(f"and {len(table) - max(len(kept), 1)} more {what}", DIM)]


# Cells


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _percent(size: int, most: int) -> str:
    share = size / most
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
