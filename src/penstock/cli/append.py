"""`penstock append`: append messages to a stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import click

from penstock.cli.completion import complete_streams
from penstock.cli.main import INTERRUPTED, Failure, add_hint, json_option
from penstock.cli.message_input import Batch, MessageInput, MessageInputError, decode_arguments
from penstock.cli.output import echo_json
from penstock.cli.payload import Encoding
from penstock.cli.progress_bar import make_progress
from penstock.cli.target import BrokerTarget, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.errors import (
    InvalidRequestException,
    StreamManagerException,
    UnansweredException,
)
from penstock.model import MessageStreamDefinition, StrategyOnFull


class _Append(click.Command):
    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        try:
            return super().parse_args(context, arguments)
        except click.NoSuchOption as error:
            raise add_hint(error, "Put messages that begin with a dash after --.") from None


_PROMPTS = {False: "one message per line", True: "the message"}


class AppendTally:
    """Counts messages that are appended and in flight."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.count = 0
        self.first: int | None = None
        self.last: int | None = None
        self.empty_lines = 0
        self._in_flight = 0

    def append(self, client: StreamManagerClient, batch: Batch, retry: bool) -> None:
        self.empty_lines += batch.empty_lines
        if not batch.messages:
            return
        self._in_flight = len(batch.messages)
        try:
            numbers = client.append_messages(self.stream, batch.messages, retry=retry)
        except StreamManagerException as error:
            # A large batch, or one for a server without batches, may be stored in part.
            self.count += error.appended
            is_unknown = isinstance(error, UnansweredException)
            self._in_flight = len(batch.messages) - error.appended if is_unknown else 0
            if self.count or is_unknown:
                error.message += f"; {self.summary()}"
            raise
        except OSError as error:
            # The broker is still unavailable, and no message of this batch was sent.
            self._in_flight = 0
            if self.count:
                raise type(error)(f"{error}; {self.summary()}") from None
            raise
        self._in_flight = 0
        self.count += len(numbers)
        if self.first is None:
            self.first = numbers[0]
        self.last = numbers[-1]

    def summary(self) -> str:
        """The part of an error message with the number of stored messages."""
        summary = f"{_number_of(self.count, 'message')} appended"
        if self._in_flight:
            summary += f", and up to {self._in_flight:,} more may have been"
        return summary

    def echo(self, as_json: bool) -> None:
        if as_json:
            echo_json(
                {
                    "stream": self.stream,
                    "count": self.count,
                    "firstSequenceNumber": self.first,
                    "lastSequenceNumber": self.last,
                }
            )
        elif self.count == 1:
            click.echo(self.last)
        else:
            numbers = f": {self.first}..{self.last}" if self.count else ""
            click.echo(f"appended {self.count:,} messages to {self.stream}{numbers}")


def _number_of(count: int, thing: str) -> str:
    return f"{count:,} {thing} was" if count == 1 else f"{count:,} {thing}s were"


@click.command(cls=_Append)
@click.argument("stream", shell_complete=complete_streams)
@click.argument("messages", metavar="[MESSAGE]...", nargs=-1)
@click.option(
    "--file",
    "files",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    help="Append each line of this file; - is standard input. May be repeated.",
)
@click.option("--blob", is_flag=True, help="Append each file, or standard input, as one message.")
@click.option(
    "--encoding",
    type=click.Choice([encoding.value for encoding in Encoding]),
    default=Encoding.TEXT.value,
    show_default=True,
    help="Encoding of the messages. Text is appended byte for byte.",
)
@click.option(
    "--create",
    is_flag=True,
    help="Create the stream if it does not exist. When full, it overwrites its oldest messages.",
)
@click.option(
    "--retry",
    is_flag=True,
    help="Retry messages whose answer was lost with the connection. They may be stored twice. "
    "Without --retry the command fails, and reports how many messages may have been stored.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing on success.")
@json_option
@target_options
def append(
    stream: str,
    messages: tuple[str, ...],
    files: tuple[str, ...],
    blob: bool,
    encoding: str,
    create: bool,
    retry: bool,
    quiet: bool,
    as_json: bool,
    target: BrokerTarget,
) -> None:
    """Append messages from arguments, files or standard input.

    Without MESSAGE and --file, each line of standard input is a message. Lines are appended as
    they arrive. Empty lines are skipped, because a message has at least one byte. Put messages
    that begin with a dash after --.

    \b
      penstock append temperature 21.5 21.7
      penstock append temperature -- -3.5
      tail -f app.log | penstock append logs
      penstock append images --blob --file picture.jpg
    """
    if messages and (files or blob):
        raise click.UsageError("MESSAGE cannot be combined with --file or --blob: choose one")
    decode = Encoding(encoding)
    if messages:
        sources: list[MessageInput] = []
        batches: Iterable[Batch] = decode_arguments(messages, decode)
    else:
        sources = [MessageInput(None if path == "-" else path) for path in files or ("-",)]
        batches = (batch for source in sources for batch in source.batches(decode, blob))
    tally = AppendTally(stream)
    with _summarizing(tally), target.connect() as client:
        if create:
            _create_if_missing(client, stream)
        with make_progress(sources, is_wanted=not (quiet or as_json)) as progress:
            if any(source.is_typed for source in sources) and not quiet:
                click.echo(f"penstock: type {_PROMPTS[blob]}; Ctrl-D ends the input", err=True)
            for batch in batches:
                tally.append(client, batch, retry)
                progress.update(batch)
    if tally.empty_lines and not quiet:
        click.echo(f"penstock: {_number_of(tally.empty_lines, 'empty line')} skipped", err=True)
    if as_json or not quiet:
        tally.echo(as_json)


@contextlib.contextmanager
def _summarizing(tally: AppendTally) -> Iterator[None]:
    """Adds the count of appended messages to the error for bad input or Ctrl-C."""
    try:
        yield
    except MessageInputError as error:
        raise Failure(f"{error}; {tally.summary()}") from None
    except KeyboardInterrupt:
        raise Failure(f"interrupted; {tally.summary()}", INTERRUPTED) from None


def _create_if_missing(client: StreamManagerClient, stream: str) -> None:
    # Listed first: a token may allow appends, but not the creation of streams.
    if stream in client.list_streams():
        return
    definition = MessageStreamDefinition(
        name=stream, strategy_on_full=StrategyOnFull.OverwriteOldestData
    )
    try:
        client.create_message_stream(definition)
    except InvalidRequestException:
        # Another client may have created it in the meantime.
        if stream not in client.list_streams():
            raise
