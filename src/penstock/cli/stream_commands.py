"""`penstock streams`: list, describe, create, update and delete streams."""

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
    description_lines,
    difference_lines,
    list_row,
)
from penstock.cli.main import WRONG_USAGE, Failure, json_option
from penstock.cli.output import echo_json, echo_table
from penstock.cli.target import BrokerTarget, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.errors import MessageStoreReadErrorException, ResourceNotFoundException
from penstock.model import MessageStreamDefinition, MessageStreamInfo, StrategyOnFull, to_wire

file_option = click.option(
    "--file",
    metavar="FILE",
    help="Definition in TOML, YAML or JSON; - is standard input, in YAML or JSON.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the definition as JSON, and change nothing."
)


@click.group()
def streams() -> None:
    """List, describe, create, update and delete streams.

    A definition file has the fields of the SDKs' MessageStreamDefinition, with the names of Python
    (max_size, export_definition) or of the wire (maxSize, exportDefinition). The member
    "definition" of `describe --json` is a valid file. In TOML:

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


# Showing


@streams.command("list")
@target_options
@json_option
def list_streams(target: BrokerTarget, as_json: bool) -> None:
    """List all streams with their messages and sizes.

    --json prints an array with the output of `describe --json` for each stream: definition,
    storageStatus and exportStatuses.
    """
    with target.connect() as client:
        infos, unreadable = _describe_all(client)
    if as_json:
        echo_json([to_wire(info) for info in infos])
    elif infos:
        echo_table(LIST_HEADINGS, map(list_row, infos))
    elif not unreadable:
        click.echo("There are no streams; `penstock streams create NAME` creates one.", err=True)
    if unreadable:
        raise Failure("; ".join(unreadable))


def _describe_all(client: StreamManagerClient) -> tuple[list[MessageStreamInfo], list[str]]:
    """Descriptions of all readable streams, and the errors of other streams."""
    infos, unreadable = [], []
    for name in client.list_streams():
        try:
            infos.append(client.describe_message_stream(name))
        except ResourceNotFoundException:
            continue  # the stream was deleted in the meantime
        except MessageStoreReadErrorException as error:
            unreadable.append(error.message)
    return infos, unreadable


@streams.command()
@click.argument("name", shell_complete=complete_streams)
@target_options
@json_option
def describe(name: str, target: BrokerTarget, as_json: bool) -> None:
    """Show the definition of a stream, its size and its exports."""
    with target.connect() as client:
        info = client.describe_message_stream(name)
    if as_json:
        echo_json(to_wire(info))
    else:
        click.echo("\n".join(description_lines(info)))


# Changing


@streams.command()
@click.argument("name", required=False)
@file_option
@definition_options
@dry_run_option
@target_options
@json_option
def create(
    name: str | None,
    file: str | None,
    dry_run: bool,
    target: BrokerTarget,
    as_json: bool,
    **flags: Any,
) -> None:
    """Create a stream from options or from a definition file.

    ID is an identifier of your choice for an export. Other fields of an export, such as a batch
    size, need a file. --json prints the same as `describe --json`.

    \b
      penstock streams create sensors --max-size 1GB --kinesis cloud=sensors
      penstock streams create --file sensors.toml
    """
    given = _given(flags)
    if file is not None:
        _reject_options_with_file(given)
        definition = read_definition(file, name)
    elif name is None:
        raise click.UsageError("Name the stream, or give a definition with --file.")
    else:
        default = MessageStreamDefinition(
            name=name, strategy_on_full=StrategyOnFull.OverwriteOldestData
        )
        definition = change_definition(default, given)
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
@click.option("--pause", multiple=True, metavar="ID", help="Pause an export. May be repeated.")
@click.option("--resume", multiple=True, metavar="ID", help="Resume an export. May be repeated.")
@click.option(
    "--remove-export",
    multiple=True,
    metavar="ID",
    help="Remove an export and its progress. May be repeated.",
)
@dry_run_option
@target_options
@json_option
def update(
    name: str | None,
    file: str | None,
    dry_run: bool,
    target: BrokerTarget,
    as_json: bool,
    **flags: Any,
) -> None:
    """Change a stream by options or by a definition file.

    Options change the fields that they name. A file is the whole definition: fields that it does
    not contain get their defaults. --json prints the same as `describe --json`.

    \b
      penstock streams update sensors --max-size 2GB --pause cloud
      penstock streams update --file sensors.toml
    """
    given = _given(flags)
    changes = ExportChanges(
        given.pop("remove_export", ()), given.pop("pause", ()), given.pop("resume", ())
    )
    whole = None
    if file is not None:
        _reject_options_with_file(_given(flags))
        whole = read_definition(file, name)
        name = whole.name
    elif name is None:
        raise click.UsageError("Name the stream, or give a definition with --file.")
    elif not given and not any(changes):
        raise click.UsageError("Nothing to change: give options, or a definition with --file.")
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


def _reject_options_with_file(given: dict[str, Any]) -> None:
    parameters = click.get_current_context().command.params
    names = [parameter.opts[0] for parameter in parameters if parameter.name in given]
    if names:
        raise click.UsageError(
            f"--file is the whole definition: put {', '.join(names)} into the file."
        )


class _Deletion(NamedTuple):
    """A stream to delete, and its stored amount."""

    name: str
    contents: str


@streams.command()
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_streams
)
@click.option("--yes", is_flag=True, help="Delete without confirmation.")
@target_options
@json_option
def delete(names: tuple[str, ...], yes: bool, target: BrokerTarget, as_json: bool) -> None:
    """Delete streams and their messages, after confirmation.

    If one of the streams does not exist, none is deleted. --json prints {"deleted": [names]}.
    """
    if not yes and not sys.stdin.isatty():
        raise Failure("there is no terminal for the confirmation: add --yes to delete", WRONG_USAGE)
    deleted: list[str] = []
    with target.connect() as client:
        deletions = [_plan_deletion(client, name) for name in dict.fromkeys(names)]
        if not yes:
            _confirm(deletions)
        try:
            for stream in deletions:
                client.delete_message_stream(stream.name)
                deleted.append(stream.name)
        finally:
            # Printed even if a later deletion fails.
            _echo_deleted(deleted, as_json)


def _plan_deletion(client: StreamManagerClient, name: str) -> _Deletion:
    try:
        info = client.describe_message_stream(name)
    except MessageStoreReadErrorException:
        return _Deletion(name, "unreadable")
    return _Deletion(name, contents(info))


def _confirm(deletions: list[_Deletion]) -> None:
    for stream in deletions:
        click.echo(f"{stream.name} ({stream.contents})", err=True)
    click.confirm("Delete these streams and all their messages?", abort=True, err=True)


def _echo_deleted(deleted: list[str], as_json: bool) -> None:
    if as_json and deleted:
        echo_json({"deleted": deleted})
    elif deleted:
        click.echo("\n".join(f"deleted {name}" for name in deleted))
