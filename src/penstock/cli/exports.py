"""`penstock exports`: list, pause, resume and rewind exports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from penstock.cli.completion import complete_exports, complete_streams
from penstock.cli.definition_flags import ExportChanges, change_definition, find_export
from penstock.cli.main import Failure, json_option
from penstock.cli.output import echo_json, echo_table, printable
from penstock.cli.overview import export_state
from penstock.cli.status import take_snapshot
from penstock.cli.target import BrokerTarget, target_options
from penstock.cli.units import parse_time
from penstock.client.blocking import StreamManagerClient
from penstock.errors import ResourceNotFoundException
from penstock.model import MessageStreamInfo, ReadMessagesOptions, to_wire
from penstock.model.export_definition import next_number
from penstock.model.statistics import ExportStatistics, StreamStatistics

_HEADINGS = ("stream", "export", "kind", "state", "behind", "next", "last error")
_WORDS = ("earliest", "latest")

stream_argument = click.argument("stream", shell_complete=complete_streams)
identifier_argument = click.argument("identifier", shell_complete=complete_exports)


@click.group()
def exports() -> None:
    """List, pause, resume and rewind exports.

    IDENTIFIER is the identifier of the export in the definition of its stream. `penstock streams
    update` adds and removes exports.
    """


# Listing


class _ListedExport(NamedTuple):
    stream: str
    export: ExportStatistics
    next_sequence_number: int

    @property
    def state(self) -> str:
        return export_state(self.export)

    def row(self) -> tuple[object, ...]:
        export = self.export
        error = printable(export.error_message) or "-"
        behind, number = export.messages_behind, self.next_sequence_number
        return self.stream, export.identifier, export.kind, self.state, behind, number, error

    def plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_wire(self.export)
        return {
            "streamName": self.stream,
            **plain,
            "state": self.state,
            "nextSequenceNumber": self.next_sequence_number,
        }


@exports.command("list")
@click.argument("stream", required=False, shell_complete=complete_streams)
@target_options
@json_option
def list_exports(stream: str | None, target: BrokerTarget, as_json: bool) -> None:
    """List exports with their state and lag.

    Without STREAM it lists the exports of all streams. The column BEHIND has the number of messages
    that are not exported yet, NEXT the sequence number of the next message to export. --json prints
    an array whose elements have the fields of an export in `penstock status --json`, streamName and
    nextSequenceNumber.
    """
    with target.connect() as client:
        if stream is not None:
            # Fails if the stream does not exist.
            client.describe_message_stream(stream)
        snapshot = take_snapshot(client)
        shown = [each for each in snapshot.streams if stream in (None, each.name)]
        found = [listed for each in shown for listed in _list_exports(client, each)]
    if as_json:
        echo_json([each.plain() for each in found])
    elif found:
        echo_table(_HEADINGS, [each.row() for each in found])
    else:
        where = "no exports" if stream is None else f"no exports of the stream {stream!r}"
        click.echo(f"There are {where}; `penstock streams update` adds one.", err=True)
    if snapshot.unreadable and stream is None:
        raise Failure("; ".join(snapshot.unreadable.values()))


def _list_exports(client: StreamManagerClient, stream: StreamStatistics) -> Iterator[_ListedExport]:
    if not stream.exports:
        return
    try:
        definition = client.describe_message_stream(stream.name).definition
    except ResourceNotFoundException:
        return  # the stream was deleted in the meantime
    configs = {config.identifier: config for config in definition.exports()}
    for export in stream.exports:
        if export.identifier in configs:
            last, oldest = export.last_exported_sequence_number, stream.oldest_sequence_number
            number = next_number(configs[export.identifier], last, oldest)
            yield _ListedExport(stream.name, export, number)


# Pausing


@exports.command()
@stream_argument
@identifier_argument
@target_options
@json_option
def pause(stream: str, identifier: str, target: BrokerTarget, as_json: bool) -> None:
    """Pause an export. It keeps its progress.

    --json prints streamName, identifier and isPaused.
    """
    _set_paused(stream, identifier, target, as_json, is_paused=True)


@exports.command()
@stream_argument
@identifier_argument
@target_options
@json_option
def resume(stream: str, identifier: str, target: BrokerTarget, as_json: bool) -> None:
    """Resume a paused export.

    --json prints streamName, identifier and isPaused.
    """
    _set_paused(stream, identifier, target, as_json, is_paused=False)


def _set_paused(
    stream: str, identifier: str, target: BrokerTarget, as_json: bool, *, is_paused: bool
) -> None:
    changes = ExportChanges(**{"paused" if is_paused else "resumed": (identifier,)})
    with target.connect() as client:
        before = client.describe_message_stream(stream).definition
        was_paused = bool(find_export(before, identifier).disabled)
        if was_paused != is_paused:
            client.update_message_stream(change_definition(before, {}, changes))
    if as_json:
        echo_json({"streamName": stream, "identifier": identifier, "isPaused": is_paused})
    elif was_paused == is_paused:
        state = "already paused" if is_paused else "not paused"
        click.echo(f"the export {identifier} of {stream} is {state}")
    else:
        click.echo(f"{'paused' if is_paused else 'resumed'} {identifier} of {stream}")


# Rewinding


class Move(NamedTuple):
    """A move of an export from one sequence number to another, and how many stored messages it
    affects."""

    start: int
    target: int
    oldest: int
    end: int

    @property
    def sent_again(self) -> int:
        return max(self._stored(self.start) - self._stored(self.target), 0)

    @property
    def skipped(self) -> int:
        return max(self._stored(self.target) - self._stored(self.start), 0)

    def _stored(self, number: int) -> int:
        return min(max(number, self.oldest), self.end)

    def __str__(self) -> str:
        if self.target == self.start:
            return f"to {self.target}, where it was: messages in flight are sent again"
        direction = "back" if self.target < self.start else "forward"
        count = abs(self.sent_again - self.skipped)
        messages = "messages are" if count != 1 else "message is"
        effect = "not sent" if self.skipped else "sent again"
        return f"from {self.start} {direction} to {self.target}: {count} {messages} {effect}"


def _complete_to(
    ctx: click.Context,  # noqa: ARG001 - click passes it
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    return [word for word in _WORDS if word.startswith(incomplete)]


@exports.command()
@stream_argument
@identifier_argument
@click.option(
    "--to",
    required=True,
    metavar="NUMBER|TIME|earliest|latest",
    shell_complete=_complete_to,
    help="Sequence number or time of the message to continue with, earliest or latest.",
)
@click.option("--dry-run", is_flag=True, help="Print the effect, and change nothing.")
@target_options
@json_option
def rewind(
    stream: str, identifier: str, to: str, dry_run: bool, target: BrokerTarget, as_json: bool
) -> None:
    """Move an export back to resend messages, or forward to skip some.

    \b
      penstock exports rewind sensors cloud --to 12000
      penstock exports rewind sensors cloud --to "2h ago"
      penstock exports rewind sensors cloud --to 2026-03-01T08:00
      penstock exports rewind sensors cloud --to earliest

    A time selects the first message that was appended at that time or later. A time without a zone
    is local. `earliest` is the oldest stored message, `latest` the next one to be appended. --json
    prints streamName, identifier, from, to, sentAgain and leftOut.
    """
    with target.connect() as client:
        info = client.describe_message_stream(stream)
        start = _find_start(info, identifier)
        storage = info.storage_status
        oldest, end = storage.oldest_sequence_number, storage.newest_sequence_number + 1
        number = _find_number(client, info, to)
        if not dry_run:
            client.rewind_export(stream, identifier, number)
    move = Move(start, number, oldest, end)
    if as_json:
        plain = {"from": start, "to": number, "sentAgain": move.sent_again}
        names = {"streamName": stream, "identifier": identifier}
        echo_json({**names, **plain, "leftOut": move.skipped})
        return
    click.echo(f"{'would move' if dry_run else 'moved'} {identifier} of {stream} {move}")


def _find_start(info: MessageStreamInfo, identifier: str) -> int:
    config = find_export(info.definition, identifier)
    for status in info.export_statuses:
        if status.export_config_identifier == identifier:
            oldest = info.storage_status.oldest_sequence_number
            return next_number(config, status.last_exported_sequence_number, oldest)
    return next_number(config, -1, info.storage_status.oldest_sequence_number)


def _find_number(client: StreamManagerClient, info: MessageStreamInfo, to: str) -> int:
    storage = info.storage_status
    oldest, end = storage.oldest_sequence_number, storage.newest_sequence_number + 1
    if to == "earliest":
        return oldest
    if to == "latest":
        return end
    if to.isdecimal():
        return _require_number(int(to), end)
    now_millis = time.time_ns() // 1_000_000
    try:
        wanted = parse_time(to, now_millis)
    except ValueError:
        raise click.BadParameter(
            f"{to!r} is neither a number nor a time: expected a sequence number from 0 to {end}, a "
            "time such as 2026-03-01T08:00 or '2h ago', earliest, or latest",
            param_hint="'--to'",
        ) from None
    if wanted > now_millis:
        raise click.BadParameter(f"{to!r} is in the future", param_hint="'--to'")
    return find_first_since(client, info.definition.name, wanted, range(oldest, end))


def _require_number(number: int, end: int) -> int:
    if number > end:
        raise click.BadParameter(
            f"{number} is beyond the stream: expected 0 to {end}, the number of the next message",
            param_hint="'--to'",
        )
    return number


def find_first_since(client: StreamManagerClient, stream: str, millis: int, numbers: range) -> int:
    """The first of `numbers` whose message was appended at `millis` or later; else their end."""
    first, end = numbers.start, numbers.stop
    while first < end:
        middle = (first + end) // 2
        options = ReadMessagesOptions(middle, min_message_count=1, max_message_count=1)
        (message,) = client.read_messages(stream, options)
        if message.ingest_time >= millis:
            end = middle
        else:
            # The stream may have dropped messages in the meantime, and start later.
            first = message.sequence_number + 1
    return first
