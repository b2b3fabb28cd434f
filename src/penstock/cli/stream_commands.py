"""`penstock streams`: which streams there are, how they are defined, and changing that."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import click

from penstock.cli.completion import complete_streams
from penstock.cli.definition_file import read_definition
from penstock.cli.definition_flags import ExportChanges, change_definition, definition_options
from penstock.cli.description import (
    LIST_HEADINGS,
    contents,
    difference_lines,
    list_row,
    page_lines,
)
from penstock.cli.main import WRONG_USAGE, Failure, json_option
from penstock.cli.output import echo_json, echo_table
from penstock.cli.target import Target, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.errors import MessageStoreReadErrorException, ResourceNotFoundException
from penstock.model import MessageStreamDefinition, MessageStreamInfo, StrategyOnFull, to_wire

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
    --json` prints under "definition" is one. In TOML:

    \b
    name = "sensors"
    max_size = 67108864
    strategy_on_full = "OverwriteOldestData"
    [[export_definition.kinesis]]
    identifier = "cloud"
    kinesis_stream_name = "plant-7"
    batch_size = 100
    priority = 1
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
        echo_table(LIST_HEADINGS, map(list_row, infos))
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


@streams.command()
@click.argument("name", shell_complete=complete_streams)
@target_options
@json_option
def describe(name: str, target: Target, as_json: bool) -> None:
    """Show the definition of a stream, what is stored, and how its exports are doing."""
    with target.connect() as client:
        info = client.describe_message_stream(name)
    if as_json:
        echo_json(to_wire(info))
    else:
        click.echo("\n".join(page_lines(info)))


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
@click.argument("name", required=False, shell_complete=complete_streams)
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
    changed = list(difference_lines(before, after.definition))
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


class _Doomed(NamedTuple):
    """A stream that is about to be deleted, and how much goes with it."""

    name: str
    contents: str


@streams.command()
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_streams
)
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
    return _Doomed(name, contents(info))


def _ask(doomed: list[_Doomed]) -> None:
    for stream in doomed:
        click.echo(f"{stream.name} ({stream.contents})", err=True)
    click.confirm("Delete with all messages?", abort=True, err=True)


def _tell_deleted(deleted: list[str], as_json: bool) -> None:
    if as_json and deleted:
        echo_json({"deleted": deleted})
    elif deleted:
        click.echo("\n".join(f"deleted {name}" for name in deleted))
