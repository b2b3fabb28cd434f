"""`penstock streams`: which streams there are, how they are defined, and changing that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

import click
import msgspec

from penstock.cli.definition import (
    ExportChanges,
    change_definition,
    definition_options,
    format_duration,
    format_size,
    read_definition,
    short_name,
)
from penstock.cli.main import WRONG_USAGE, Failure, json_option
from penstock.cli.output import echo_json, echo_table, human_bytes
from penstock.cli.target import Target, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.errors import MessageStoreReadErrorException, ResourceNotFoundException
from penstock.model import (
    ExportConfig,
    ExportStatus,
    MessageStreamDefinition,
    MessageStreamInfo,
    StrategyOnFull,
    to_wire,
)

file_option = click.option(
    "--file",
    metavar="FILE",
    help="A definition in TOML, YAML or JSON; - is standard input, in YAML or JSON.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the definition as JSON, and send nothing."
)


@click.group()
def streams() -> None:
    """Streams: which there are, how they are defined, and changing that.

    A definition file has the fields of the SDKs' MessageStreamDefinition, in the spelling of
    Python (max_size, export_definition) or of the wire (maxSize, exportDefinition). What `describe
    --json` prints under "definition" is one.
    """


# Looking


@streams.command("list")
@target_options
@json_option
def list_streams(target: Target, as_json: bool) -> None:
    """Show all streams, and how much is stored in each.

    With --json it is an array with what `describe --json` prints for each of them: definition,
    storageStatus and exportStatuses.
    """
    with target.connect() as client:
        infos, unreadable = _describe_all(client)
    if as_json:
        echo_json([to_wire(info) for info in infos])
    elif infos:
        echo_table(_HEADINGS, map(_row, infos))
    elif not unreadable:
        click.echo("There are no streams; `penstock streams create NAME` makes one.", err=True)
    if unreadable:
        raise Failure("; ".join(unreadable))


def _describe_all(client: StreamManagerClient) -> tuple[list[MessageStreamInfo], list[str]]:
    """All streams that can be described, and what is wrong with the others."""
    infos, unreadable = [], []
    for name in client.list_streams():
        try:
            infos.append(client.describe_message_stream(name))
        except ResourceNotFoundException:
            continue  # it was deleted just now
        except MessageStoreReadErrorException as error:
            unreadable.append(error.message)
    return infos, unreadable


_HEADINGS = (
    "name",
    "messages",
    "oldest..newest",
    "size",
    "max size",
    "persistence",
    "on full",
    "exports",
)


def _row(info: MessageStreamInfo) -> tuple[object, ...]:
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


def _count(info: MessageStreamInfo) -> int:
    storage = info.storage_status
    return storage.newest_sequence_number - storage.oldest_sequence_number + 1


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _range(info: MessageStreamInfo) -> str:
    storage = info.storage_status
    if not _count(info):
        return ""
    return f"{storage.oldest_sequence_number}..{storage.newest_sequence_number}"


@streams.command()
@click.argument("name")
@target_options
@json_option
def describe(name: str, target: Target, as_json: bool) -> None:
    """Show the definition of a stream, what is stored, and how its exports are doing."""
    with target.connect() as client:
        info = client.describe_message_stream(name)
    if as_json:
        echo_json(to_wire(info))
    else:
        click.echo("\n".join(_page(info)))


def _page(info: MessageStreamInfo) -> Iterator[str]:
    definition, storage = info.definition, info.storage_status
    share = storage.total_bytes / definition.max_size
    shown = _range(info)
    yield from _lines(
        {
            "name": definition.name,
            "messages": f"{_count(info)} ({shown})" if shown else "none",
            "size": f"{human_bytes(storage.total_bytes)} ({share:.1%} of max size)",
            **_shown_fields(definition),
        }
    )
    statuses = {status.export_config_identifier: status for status in info.export_statuses}
    for kind, config in definition.export_definition.configs_by_kind():
        yield ""
        yield f"export {config.identifier}"
        status = statuses.get(config.identifier) or ExportStatus(config.identifier)
        progress = _shown_progress(info, config, status)
        yield from _lines({**_shown_export(kind, config), **progress}, indent="  ")


def _lines(fields: dict[str, str], indent: str = "") -> Iterator[str]:
    width = max(map(len, fields))
    return (f"{indent}{label.ljust(width)}  {value}" for label, value in fields.items())


def _shown_progress(
    info: MessageStreamInfo, config: ExportConfig, status: ExportStatus
) -> dict[str, str]:
    last = status.last_exported_sequence_number
    size = human_bytes(status.exported_bytes_from_stream)
    until = f" (until {last})" if last >= 0 else ""
    return {
        "exported": f"{_messages(status.exported_messages_count)}, {size}{until}",
        "behind": _messages(_messages_behind(info, config, last)),
        "last export": _shown_time(status.last_export_time),
        "last error": _printable(status.error_message) or "none",
    }


def _messages_behind(info: MessageStreamInfo, config: ExportConfig, last_exported: int) -> int:
    storage = info.storage_status
    start = getattr(config, "start_sequence_number", None) or 0
    next_number = max(last_exported + 1, start, storage.oldest_sequence_number)
    return max(storage.newest_sequence_number + 1 - next_number, 0)


def _shown_time(millis: int | None) -> str:
    if not millis:
        return "never"
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(" ", "seconds")


def _printable(text: str) -> str:
    """In one line: what a destination answered may hold anything, also what steers a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


_SIZES = ("max_size", "stream_segment_size")


def _shown_fields(definition: MessageStreamDefinition) -> dict[str, str]:
    return {
        _label(field): _shown(field, getattr(definition, field))
        for field in definition.__struct_fields__
        if field not in ("name", "export_definition")
    }


def _shown_export(kind: str, config: ExportConfig) -> dict[str, str]:
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
            yield _label(field), _shown(field, item)


def _label(field: str) -> str:
    return field.removesuffix("_millis").removesuffix("_bytes").replace("_", " ")


def _shown(field: str, value: Any) -> str:
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
    return _printable(str(value))


# Changing


@streams.command()
@click.argument("name", required=False)
@file_option
@definition_options
@dry_run_option
@target_options
@json_option
def create(
    name: str | None, file: str | None, dry_run: bool, target: Target, as_json: bool, **flags: Any
) -> None:
    """Make a stream, from flags or from a definition file.

    \b
    penstock streams create sensors --max-size 1GB --ttl 7d --kinesis cloud=sensors
    penstock streams create --file sensors.toml

    ID is the identifier of an export, a name of your choice. All but where an export goes needs a
    file. With --json it prints what `describe --json` does.
    """
    given = _given(flags)
    if file is not None:
        _require_nothing_beside_file(given)
        definition = read_definition(file, name)
    elif name is None:
        raise click.UsageError("Name the stream, or give a definition with --file.")
    else:
        made = MessageStreamDefinition(
            name=name, strategy_on_full=StrategyOnFull.OverwriteOldestData
        )
        definition = change_definition(made, given)
    if dry_run:
        echo_json(to_wire(definition))
        return
    with target.connect() as client:
        client.create_message_stream(definition)
        if as_json:
            echo_json(to_wire(client.describe_message_stream(definition.name)))
            return
    click.echo(f"created {definition.name}")


@streams.command()
@click.argument("name", required=False)
@file_option
@definition_options
@click.option("--pause", multiple=True, metavar="ID", help="Stop an export. May be repeated.")
@click.option("--resume", multiple=True, metavar="ID", help="Let it go on. May be repeated.")
@click.option(
    "--remove-export",
    multiple=True,
    metavar="ID",
    help="Remove an export, and how far it got. May be repeated.",
)
@dry_run_option
@target_options
@json_option
def update(
    name: str | None, file: str | None, dry_run: bool, target: Target, as_json: bool, **flags: Any
) -> None:
    """Change a stream: what flags name and nothing else, or to what a file says.

    \b
    penstock streams update sensors --max-size 2GB --pause cloud
    penstock streams update --file sensors.toml

    A file is the whole definition: what it leaves out goes back to its default. With --json it
    prints what `describe --json` does.
    """
    given = _given(flags)
    changes = ExportChanges(
        given.pop("remove_export", ()), given.pop("pause", ()), given.pop("resume", ())
    )
    whole = None
    if file is not None:
        _require_nothing_beside_file(_given(flags))
        whole = read_definition(file, name)
        name = whole.name
    elif name is None:
        raise click.UsageError("Name the stream, or give a definition with --file.")
    elif not given and not any(changes):
        raise click.UsageError("Say what is to change, with flags or with --file.")
    if whole is not None and dry_run:
        echo_json(to_wire(whole))
        return
    with target.connect() as client:
        before = client.describe_message_stream(name).definition
        definition = whole or change_definition(before, given, changes)
        if dry_run:
            echo_json(to_wire(definition))
            return
        client.update_message_stream(definition)
        after = client.describe_message_stream(name)
    if as_json:
        echo_json(to_wire(after))
        return
    changed = list(_differences(before, after.definition))
    click.echo(f"updated {name}" if changed else f"nothing changed in {name}")
    for line in changed:
        click.echo(f"  {line}")


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value not in (None, ())}


def _require_nothing_beside_file(given: dict[str, Any]) -> None:
    parameters = click.get_current_context().command.params
    names = [parameter.opts[0] for parameter in parameters if parameter.name in given]
    if names:
        raise click.UsageError(
            f"--file is the whole definition: leave out {', '.join(names)}, or write it there."
        )


def _differences(before: MessageStreamDefinition, after: MessageStreamDefinition) -> Iterator[str]:
    yield from _changed(_shown_fields(before), _shown_fields(after))
    old, new = _shown_exports(before), _shown_exports(after)
    for identifier in old | new:
        if identifier not in new:
            yield f"export {identifier}: removed"
        elif identifier not in old:
            yield f"export {identifier}: added"
        else:
            for line in _changed(old[identifier], new[identifier]):
                yield f"export {identifier}, {line}"


def _shown_exports(definition: MessageStreamDefinition) -> dict[str, dict[str, str]]:
    return {
        config.identifier: _shown_export(kind, config)
        for kind, config in definition.export_definition.configs_by_kind()
    }


def _changed(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    for label in old | new:
        before, after = old.get(label, "default"), new.get(label, "default")
        if before != after:
            yield f"{label}: {before} -> {after}"


class _Doomed(NamedTuple):
    """A stream that is about to be deleted, and how much goes with it."""

    name: str
    contents: str


@streams.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_options
@json_option
def delete(names: tuple[str, ...], yes: bool, target: Target, as_json: bool) -> None:
    """Delete streams with all that is stored in them, after asking on a terminal.

    If one of them does not exist, none is deleted. With --json it prints {"deleted": [names]}.
    """
    if not yes and not sys.stdin.isatty():
        raise Failure("there is no terminal to ask on: add --yes to delete", WRONG_USAGE)
    deleted: list[str] = []
    with target.connect() as client:
        doomed = [_look_at(client, name) for name in dict.fromkeys(names)]
        if not yes:
            _ask(doomed)
        try:
            for stream in doomed:
                client.delete_message_stream(stream.name)
                deleted.append(stream.name)
        finally:
            # Also of a deletion that failed half-way one must know how far it came.
            _tell_deleted(deleted, as_json)


def _look_at(client: StreamManagerClient, name: str) -> _Doomed:
    try:
        info = client.describe_message_stream(name)
    except MessageStoreReadErrorException:
        return _Doomed(name, "which cannot be read")
    size = human_bytes(info.storage_status.total_bytes)
    return _Doomed(name, f"{_messages(_count(info))}, {size}")


def _ask(doomed: list[_Doomed]) -> None:
    for stream in doomed:
        click.echo(f"{stream.name} ({stream.contents})", err=True)
    click.confirm("Delete with all messages?", abort=True, err=True)


def _tell_deleted(deleted: list[str], as_json: bool) -> None:
    if as_json and deleted:
        echo_json({"deleted": deleted})
    elif deleted:
        click.echo("\n".join(f"deleted {name}" for name in deleted))
