"""Messages out of a stream: `penstock read` and `penstock tail`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import islice

import click

from penstock.cli.completion import complete_streams
from penstock.cli.display import Display, Printer, display_options
from penstock.cli.main import INTERRUPTED
from penstock.cli.target import Target, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.client.failures import may_pass
from penstock.client.read_cursor import first_number
from penstock.errors import ConnectFailedException, NotEnoughMessagesException
from penstock.model import Message, ReadMessagesOptions

_DEFAULT_TAIL = 10
_FOLLOWED_MESSAGES = 1000
_LONG_POLL_MILLIS = 20_000
_PAUSE_SECONDS = 0.05


@click.command()
@click.argument("stream", shell_complete=complete_streams)
@click.option(
    "--start",
    type=int,
    default=0,
    help="The sequence number to begin with; -10 begins with the last ten.",
)
@click.option("--end", type=click.IntRange(min=0), help="The sequence number to stop before.")
@click.option("-n", "--limit", type=click.IntRange(min=0), help="So many messages at most.")
@display_options
@target_options
def read(
    stream: str, start: int, end: int | None, limit: int | None, display: Display, target: Target
) -> None:
    """Print the messages that are stored now.

    Each is a line with its sequence number, the local time at which it came, and its payload:

    \b
    auto    text if it is readable UTF-8, else hex after 0x
    text    text; bytes that are none stand as \\xff
    json    JSON in one line; as auto if it is none
    hex     two digits a byte
    base64  base64
    raw     the bytes as they are, with nothing between or around them

    Control characters stand as \\x1b, so that no payload can steer a terminal. Only raw, and text
    of --payload-only that goes to a file or a pipe, is as it was appended.

    With --json each message is an object with streamName, sequenceNumber, ingestTime in
    milliseconds, and payload: a string with the text, or what "encoding" says, if it is there:
    "json" for a value (--format json), "hex", or "base64" (also for what is not UTF-8).
    """
    with _ending_on_interrupt(), target.connect() as client:
        messages = client.read_all(stream, start, end)
        display.printer(stream).print(islice(messages, limit))


@click.command()
@click.argument("stream", shell_complete=complete_streams)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help=f"Begin with so many of the last messages.  [default: {_DEFAULT_TAIL}]",
)
@click.option(
    "--start", type=int, help="Begin with this sequence number; -10 is the same as -n 10."
)
@display_options
@target_options
def tail(
    stream: str,
    follow: bool,
    limit: int | None,
    start: int | None,
    display: Display,
    target: Target,
) -> None:
    """Print the last messages, and with -f those that come.

    A broker that is stopped or restarted meanwhile is waited for, and nothing is left out. What is
    printed, and the formats, are those of `penstock read`.
    """
    if start is not None and limit is not None:
        raise click.UsageError("--limit and --start exclude each other: choose one")
    if start is None:
        start = -(_DEFAULT_TAIL if limit is None else limit) or None
    with _ending_on_interrupt(), target.connect() as client:
        printer = display.printer(stream)
        info = client.describe_message_stream(stream)
        first = first_number(start, info)
        if follow:
            follow_stream(client, stream, first, printer)
        else:
            end = info.storage_status.newest_sequence_number + 1
            printer.print(client.read_all(stream, first, end))


@contextlib.contextmanager
def _ending_on_interrupt() -> Iterator[None]:
    """Ctrl-C is how a user says that this is enough: nothing is wrong, and nothing is said."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def follow_stream(client: StreamManagerClient, stream: str, first: int, printer: Printer) -> None:
    is_reached = True
    while True:
        try:
            messages = _wait_for_messages(client, stream, first)
        except (ConnectionError, TimeoutError, ConnectFailedException) as error:
            if not may_pass(error):
                raise
            # The client has tried for a while; it does so again with each call.
            if is_reached:
                click.echo(f"penstock: {error}; trying on, until Ctrl-C", err=True)
            is_reached = False
            continue
        if not is_reached:
            click.echo(f"penstock: connected again to {client.address}", err=True)
            is_reached = True
        if messages:
            printer.print(messages)
            first = messages[-1].sequence_number + 1


def _wait_for_messages(client: StreamManagerClient, stream: str, first: int) -> list[Message]:
    """Those from `first` on, as soon as there is one; none after some time without."""
    options = ReadMessagesOptions(
        desired_start_sequence_number=first,
        min_message_count=1,
        max_message_count=_FOLLOWED_MESSAGES,
        read_timeout_millis=_LONG_POLL_MILLIS,
    )
    try:
        return client.read_messages(stream, options)
    except NotEnoughMessagesException:
        # A server need not have waited, and is not to be asked without a pause.
        time.sleep(_PAUSE_SECONDS)
        return []
