"""Messages into a stream: `penstock append`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import click

from penstock.cli.completion import complete_streams
from penstock.cli.main import INTERRUPTED, Failure, explained, json_option
from penstock.cli.message_input import Batch, MessageInput, MessageInputError, decode_arguments
from penstock.cli.output import echo_json
from penstock.cli.payload import Encoding
from penstock.cli.progress_bar import make_progress
from penstock.cli.target import Target, target_options
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
            raise explained(error, "A message that begins with a dash stands behind --.") from None


_WHAT_TO_TYPE = {False: "messages, each on a line", True: "the message"}


class Tally:
    """What was appended so far, and what is on its way."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.count = 0
        self.first: int | None = None
        self.last: int | None = None
        self.empty_lines = 0
        self._on_its_way = 0

    def append(self, client: StreamManagerClient, batch: Batch, retry: bool) -> None:
        self.empty_lines += batch.empty_lines
        if not batch.messages:
            return
        self._on_its_way = len(batch.messages)
        try:
            numbers = client.append_messages(self.stream, batch.messages, retry=retry)
        except StreamManagerException as error:
            # Larger ones, and those for servers that take no batches, may be stored in part.
            self.count += error.appended
            is_unknown = isinstance(error, UnansweredException)
            self._on_its_way = len(batch.messages) - error.appended if is_unknown else 0
            if self.count or is_unknown:
                error.message += f"; {self.told()}"
            raise
        except OSError as error:
            # The broker did not come back, and nothing of this has left.
            self._on_its_way = 0
            if self.count:
                raise type(error)(f"{error}; {self.told()}") from None
            raise
        self._on_its_way = 0
        self.count += len(numbers)
        if self.first is None:
            self.first = numbers[0]
        self.last = numbers[-1]

    def told(self) -> str:
        """For people, after something went wrong."""
        told = f"{_number_of(self.count, 'message')} appended before"
        if self._on_its_way:
            told += f", and up to {self._on_its_way:,} more may have been"
        return told

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
    help="Append the lines of a file; - is standard input. May be repeated.",
)
@click.option("--blob", is_flag=True, help="Each file, or standard input, is one message.")
@click.option(
    "--encoding",
    type=click.Choice([encoding.value for encoding in Encoding]),
    default=Encoding.TEXT.value,
    show_default=True,
    help="What arguments, lines and blobs hold. Text is taken as it is, byte by byte.",
)
@click.option(
    "--create", is_flag=True, help="Create the stream if there is none; full, it drops the oldest."
)
@click.option(
    "--retry",
    is_flag=True,
    help="Send messages again whose answer was lost with the connection. They may then be stored "
    "twice; without it the command ends, and says which may have been stored.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
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
    target: Target,
) -> None:
    """Append messages to a stream: the arguments, or lines of standard input or of files.

    Lines are appended as they come, without waiting for more. Empty ones are skipped, because a
    message has at least one byte. A message that begins with a dash goes after --:

    \b
    penstock append temperature 21.5 21.7
    penstock append temperature -- -3.5
    tail -f app.log | penstock append logs
    penstock append images --blob --file picture.jpg
    """
    if messages and (files or blob):
        raise click.UsageError(
            "messages are arguments or come from --file or standard input (--blob): choose one"
        )
    decode = Encoding(encoding)
    if messages:
        sources: list[MessageInput] = []
        batches: Iterable[Batch] = decode_arguments(messages, decode)
    else:
        sources = [MessageInput(None if path == "-" else path) for path in files or ("-",)]
        batches = (batch for source in sources for batch in source.batches(decode, blob))
    tally = Tally(stream)
    with _telling(tally), target.connect() as client:
        if create:
            _create_if_missing(client, stream)
        with make_progress(sources, is_wanted=not (quiet or as_json)) as progress:
            if any(source.is_typed for source in sources) and not quiet:
                click.echo(f"penstock: type {_WHAT_TO_TYPE[blob]}; Ctrl-D ends", err=True)
            for batch in batches:
                tally.append(client, batch, retry)
                progress.update(batch)
    if tally.empty_lines and not quiet:
        click.echo(f"penstock: {_number_of(tally.empty_lines, 'empty line')} skipped", err=True)
    if as_json or not quiet:
        tally.echo(as_json)


@contextlib.contextmanager
def _telling(tally: Tally) -> Iterator[None]:
    """Ends the command, when its input is bad or a user has enough, with what was done before."""
    try:
        yield
    except MessageInputError as error:
        raise Failure(f"{error}; {tally.told()}") from None
    except KeyboardInterrupt:
        raise Failure(f"interrupted; {tally.told()}", INTERRUPTED) from None


def _create_if_missing(client: StreamManagerClient, stream: str) -> None:
    # Asked first: whoever may append need not be allowed to create.
    if stream in client.list_streams():
        return
    definition = MessageStreamDefinition(
        name=stream, strategy_on_full=StrategyOnFull.OverwriteOldestData
    )
    try:
        client.create_message_stream(definition)
    except InvalidRequestException:
        # Somebody else may have created it just now.
        if stream not in client.list_streams():
            raise
