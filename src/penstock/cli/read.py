"""`penstock read` and `penstock tail`: print the messages of a stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import islice

import click

from penstock.cli.completion import complete_streams
from penstock.cli.display import Display, Printer, display_options
from penstock.cli.main import INTERRUPTED
from penstock.cli.target import BrokerTarget, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.client.failures import is_retryable
from penstock.client.read_cursor import first_number
from penstock.errors import ConnectFailedException, NotEnoughMessagesException
from penstock.model import Message, ReadMessagesOptions

_DEFAULT_TAIL = 10
_MAX_FOLLOWED_MESSAGES = 1000
_LONG_POLL_MILLIS = 20_000
_PAUSE_SECONDS = 0.05


@click.command()
@click.argument("stream", shell_complete=complete_streams)
@click.option(
    "--start",
    type=int,
    default=0,
    help="First sequence number; -10 starts with the last ten messages.",
    show_default=True,
)
@click.option("--end", type=click.IntRange(min=0), help="Sequence number to stop before.")
@click.option("-n", "--limit", type=click.IntRange(min=0), help="Maximum number of messages.")
@display_options
@target_options
def read(
    stream: str,
    start: int,
    end: int | None,
    limit: int | None,
    display: Display,
    target: BrokerTarget,
) -> None:
    """Print the stored messages of a stream.

    Each message is a line with its sequence number, the local time of the append, and its payload
    in one of these formats:

    \b
      auto    text if it is readable UTF-8, else hex after 0x
      text    text; bytes that are not UTF-8 are escaped, as in \\xff
      json    JSON on one line; as auto if it is not JSON
      hex     two digits per byte
      base64  base64
      raw     the bytes only, with nothing between messages

    Control characters are escaped, as in \\x1b, so that a payload cannot control the terminal.
    They are not escaped with raw, and with --payload-only when the output is a file or a pipe.

    --json prints an object per message, with streamName, sequenceNumber, ingestTime in
    milliseconds, and payload. The payload is a string with the text, unless there is a member
    encoding: "json" (with --format json) for a JSON value, "hex", or "base64", which is also used
    for bytes that are not UTF-8.
    """
    with _ending_on_interrupt(), target.connect() as client:
        messages = client.read_all(stream, start, end)
        display.printer(stream).print(islice(messages, limit))


@click.command()
@click.argument("stream", shell_complete=complete_streams)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new messages, until Ctrl-C.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help=f"Number of messages to start with.  [default: {_DEFAULT_TAIL}]",
)
@click.option("--start", type=int, help="First sequence number; -10 is the same as -n 10.")
@display_options
@target_options
def tail(
    stream: str,
    follow: bool,
    limit: int | None,
    start: int | None,
    display: Display,
    target: BrokerTarget,
) -> None:
    """Print the last messages of a stream, and with -f new messages.

    With -f the command reconnects after a restart of the broker, and misses no message. It prints
    messages in the formats of `penstock read`.
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
    """Ends the command on Ctrl-C without an error message, because this is its usual end."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def follow_stream(client: StreamManagerClient, stream: str, first: int, printer: Printer) -> None:
    is_connected = True
    while True:
        try:
            messages = _wait_for_messages(client, stream, first)
        except (ConnectionError, TimeoutError, ConnectFailedException) as error:
            if not is_retryable(error):
                raise
            # The retries of the client have timed out. The next call retries again.
            if is_connected:
                click.echo(f"penstock: {error}; retrying until Ctrl-C", err=True)
            is_connected = False
            continue
        if not is_connected:
            click.echo(f"penstock: reconnected to {client.address}", err=True)
            is_connected = True
        if messages:
            printer.print(messages)
            first = messages[-1].sequence_number + 1


def _wait_for_messages(client: StreamManagerClient, stream: str, first: int) -> list[Message]:
    """Waits for messages from `first` on; none after a timeout."""
    options = ReadMessagesOptions(
        desired_start_sequence_number=first,
        min_message_count=1,
        max_message_count=_MAX_FOLLOWED_MESSAGES,
        read_timeout_millis=_LONG_POLL_MILLIS,
    )
    try:
        return client.read_messages(stream, options)
    except NotEnoughMessagesException:
        # A server may answer without waiting: pause before the next request.
        time.sleep(_PAUSE_SECONDS)
        return []
