"""Renders a stream as text: a table row, a full description, the changes of an update."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec

from penstock.cli.definition_flags import short_name
from penstock.cli.output import printable
from penstock.cli.units import format_duration, format_size, human_bytes
from penstock.model import ExportConfig, ExportStatus, MessageStreamDefinition, MessageStreamInfo
from penstock.model.export_definition import messages_behind

_SIZES = ("max_size", "stream_segment_size")

LIST_HEADINGS = (
    "name",
    "messages",
    "oldest..newest",
    "size",
    "max size",
    "persistence",
    "on full",
    "exports",
)


def list_row(info: MessageStreamInfo) -> tuple[object, ...]:
    definition = info.definition
    return (
        definition.name,
        _count(info),
        _range(info) or "-",
        human_bytes(info.storage_status.total_bytes),
        human_bytes(definition.max_size),
        short_name(definition.persistence),
        short_name(definition.strategy_on_full),
        len(list(definition.exports())),
    )


def contents(info: MessageStreamInfo) -> str:
    """The stored amount, such as `3 messages, 1.5 KiB`."""
    return _amount(_count(info), info.storage_status.total_bytes)


def description_lines(info: MessageStreamInfo) -> Iterator[str]:
    definition, storage = info.definition, info.storage_status
    share = storage.total_bytes / definition.max_size
    shown = _range(info)
    yield from _lines(
        {
            "name": definition.name,
            "messages": f"{_count(info)} ({shown})" if shown else "none",
            "size": f"{human_bytes(storage.total_bytes)} ({share:.1%} of max size)",
            **_format_fields(definition),
        }
    )
    statuses = {status.export_config_identifier: status for status in info.export_statuses}
    for kind, config in definition.export_definition.configs_by_kind():
        yield ""
        yield f"export {config.identifier}"
        status = statuses.get(config.identifier) or ExportStatus(config.identifier)
        progress = _format_progress(info, config, status)
        yield from _lines({**_format_export(kind, config), **progress}, indent="  ")


def _lines(fields: dict[str, str], indent: str = "") -> Iterator[str]:
    width = max(map(len, fields))
    return (f"{indent}{label.ljust(width)}  {value}" for label, value in fields.items())


def _format_progress(
    info: MessageStreamInfo, config: ExportConfig, status: ExportStatus
) -> dict[str, str]:
    last = status.last_exported_sequence_number
    exported = _amount(status.exported_messages_count, status.exported_bytes_from_stream)
    until = f" (until {last})" if last >= 0 else ""
    return {
        "exported": f"{exported}{until}",
        "behind": _messages(messages_behind(config, last, *_bounds(info))),
        "last export": _format_time(status.last_export_time),
        "last error": printable(status.error_message) or "none",
    }


def _format_time(millis: int | None) -> str:
    if not millis:
        return "never"
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(" ", "seconds")


def _format_fields(definition: MessageStreamDefinition) -> dict[str, str]:
    return {
        _label(field): _format_value(field, getattr(definition, field))
        for field in definition.__struct_fields__
        if field not in ("name", "export_definition")
    }


def _format_export(kind: str, config: ExportConfig) -> dict[str, str]:
    return {
        "kind": kind,
        "state": "paused" if config.disabled else "active",
        **dict(_set_fields(config)),
    }


def _set_fields(value: msgspec.Struct) -> Iterator[tuple[str, str]]:
    for field in value.__struct_fields__:
        item = getattr(value, field)
        if isinstance(item, msgspec.Struct):
            yield from _set_fields(item)
        elif item is not None and field not in ("identifier", "disabled"):
            yield _label(field), _format_value(field, item)


def _label(field: str) -> str:
    return field.removesuffix("_millis").removesuffix("_bytes").replace("_", " ")


def _format_value(field: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return value.name
    if field.endswith("_millis"):
        return format_duration(value)
    if field in _SIZES or field.endswith("_bytes"):
        return format_size(value)
    return printable(str(value))


def difference_lines(
    before: MessageStreamDefinition, after: MessageStreamDefinition
) -> Iterator[str]:
    yield from _changed(_format_fields(before), _format_fields(after))
    old, new = _format_exports(before), _format_exports(after)
    for identifier in old | new:
        if identifier not in new:
            yield f"export {identifier}: removed"
        elif identifier not in old:
            yield f"export {identifier}: added"
        else:
            for line in _changed(old[identifier], new[identifier]):
                yield f"export {identifier}, {line}"


def _format_exports(definition: MessageStreamDefinition) -> dict[str, dict[str, str]]:
    return {
        config.identifier: _format_export(kind, config)
        for kind, config in definition.export_definition.configs_by_kind()
    }


def _changed(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    for label in old | new:
        before, after = old.get(label, "default"), new.get(label, "default")
        if before != after:
            yield f"{label}: {before} -> {after}"


def _bounds(info: MessageStreamInfo) -> tuple[int, int]:
    storage = info.storage_status
    return storage.oldest_sequence_number, storage.newest_sequence_number


def _count(info: MessageStreamInfo) -> int:
    oldest, newest = _bounds(info)
    return newest - oldest + 1


def _range(info: MessageStreamInfo) -> str:
    oldest, newest = _bounds(info)
    return f"{oldest}..{newest}" if _count(info) else ""


def _amount(count: int, size: int) -> str:
    return f"{_messages(count)}, {human_bytes(size)}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
