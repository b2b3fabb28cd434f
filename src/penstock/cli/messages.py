"""Messages into a stream and out of it: `penstock append`, `read` and `tail`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, TextIO

import click

from penstock.cli.completion import complete_streams
from penstock.cli.main import Failure, json_option
from penstock.cli.output import echo_json
from penstock.cli.payload import FIELDS, SHOW, WRITE, Encoding, Format, decode_payload
from penstock.cli.target import Target, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.client.failures import may_pass
from penstock.client.reading import first_number
from penstock.errors import (
    ConnectFailedException,
    InvalidRequestException,
    NotEnoughMessagesException,
    StreamManagerException,
    UnansweredException,
)
from penstock.model import (
    Message,
    MessageStreamDefinition,
    ReadMessagesOptions,
    StrategyOnFull,
)
from penstock.wire.frames import MAX_FRAME_BYTES

# As a shell has it for what a signal ended.
INTERRUPTED = 128 + signal.SIGINT

# What is sent at once: well within one request, which is stored whole or not at all.
_BATCH_MESSAGES = 5000
_BATCH_BYTES = 1024 * 1024

# Output leaves in pieces of this size: a call of the system for each message would cost more than
# all the rest.
_WRITE_BYTES = 64 * 1024

# Up to a million messages stand in straight columns.
_NUMBER_WIDTH = 6

# What takes no longer needs no progress bar.
_MOMENT_SECONDS = 1.0

_FOLLOWED_MESSAGES = 1000
_LONG_POLL_MILLIS = 20_000
_PAUSE_SECONDS = 0.05
_DEFAULT_TAIL = 10


# Input


class InputError(ValueError):
    """Something in the input that is no message; it says where."""


class Batch(NamedTuple):
    """Messages to be sent together, and how much of the input they took."""

    messages: list[bytes]
    input_bytes: int = 0
    empty_lines: int = 0


def read_chunks(descriptor: int, size: int = _BATCH_BYTES) -> Iterator[bytes]:
    """The input in pieces as large as can be had without waiting for more of it."""
    more = select.poll()
    more.register(descriptor, select.POLLIN)
    is_over = False
    while not is_over:
        pieces: list[bytes] = []
        room = size
        while room and not is_over and (not pieces or more.poll(0)):
            piece = os.read(descriptor, room)
            # Remembered, not read once more: at a terminal that would ask for a second Ctrl-D.
            is_over = not piece
            pieces.append(piece)
            room -= len(piece)
        if any(pieces):
            yield b"".join(pieces)


class Source(NamedTuple):
    """A place that messages come from: a file, or standard input if it has no path."""

    path: str | None = None

    @property
    def name(self) -> str:
        return self.path or "standard input"

    @property
    def is_typed(self) -> bool:
        return self.path is None and os.isatty(_standard_input())

    @property
    def size(self) -> int | None:
        """How many bytes are to come, if that is known."""
        status = Path(self.path).stat() if self.path else os.fstat(_standard_input())
        if not stat.S_ISREG(status.st_mode):
            return None
        position = 0 if self.path else os.lseek(_standard_input(), 0, os.SEEK_CUR)
        return max(status.st_size - position, 0)

    def batches(self, encoding: Encoding, as_blob: bool) -> Iterator[Batch]:
        """What the input holds; InputError for what does not hold messages."""
        with self._open() as descriptor:
            chunks = read_chunks(descriptor)
            if as_blob:
                yield self._blob(chunks, encoding)
            else:
                yield from self._line_batches(chunks, encoding)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        if self.path is None:
            yield _standard_input()
            return
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _blob(self, chunks: Iterator[bytes], encoding: Encoding) -> Batch:
        blob = _Growing(self.name)
        for chunk in chunks:
            blob.add(chunk)
        data = blob.take()
        message = self._decode(data, self.name, encoding)
        if not message:
            raise InputError(f"{self.name} is empty: a message has at least one byte")
        return Batch([message], len(data))

    def _line_batches(self, chunks: Iterator[bytes], encoding: Encoding) -> Iterator[Batch]:
        number = 1
        for lines in self._lines(chunks):
            # Only the first can be larger than what is read at once, and then it goes alone.
            start = 1 if len(lines[0]) > _BATCH_BYTES else 0
            if start:
                yield self._batch(lines[:1], number, encoding)
            for place in range(start, len(lines), _BATCH_MESSAGES):
                some = lines[place : place + _BATCH_MESSAGES]
                yield self._batch(some, number + place, encoding)
            number += len(lines)

    def _lines(self, chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
        """Each time all lines that are complete, and one at least."""
        begun = _Growing(f"a line of {self.name}")
        for chunk in chunks:
            lines = chunk.split(b"\n")
            begun.add(lines[0])
            if len(lines) > 1:
                lines[0] = begun.take()
                begun.add(lines.pop())
                yield lines
        if last := begun.take():
            yield [last]

    def _batch(self, lines: list[bytes], number: int, encoding: Encoding) -> Batch:
        messages = lines
        if encoding is not Encoding.TEXT:
            messages = [
                self._decode(line, f"{self.name}, line {line_number:,}", encoding)
                for line_number, line in enumerate(lines, number)
            ]
        if not all(messages):
            messages = [message for message in messages if message]
        return Batch(messages, sum(map(len, lines)) + len(lines), len(lines) - len(messages))

    def _decode(self, text: bytes, place: str, encoding: Encoding) -> bytes:
        try:
            return decode_payload(text, encoding)
        except ValueError as error:
            raise InputError(f"{place}: {error}") from None


def _standard_input() -> int:
    if sys.stdin is None:
        raise Failure("standard input is closed")
    return sys.stdin.fileno()


class _Growing:
    """A message that comes in pieces, and is refused before it fills the memory."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > MAX_FRAME_BYTES:
            raise InputError(
                f"{self._name} has more than {MAX_FRAME_BYTES:,} bytes: no message may"
            )

    def take(self) -> bytes:
        message = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return message


def _decode_arguments(messages: Sequence[str], encoding: Encoding) -> Batch:
    payloads = []
    for number, message in enumerate(messages, 1):
        try:
            # The bytes as they stood on the command line, whatever they are.
            payload = decode_payload(os.fsencode(message), encoding)
        except ValueError as error:
            raise click.UsageError(f"message {number:,} is {error}") from None
        if not payload:
            raise click.UsageError(f"message {number:,} is empty: a message has at least one byte")
        payloads.append(payload)
    return Batch(payloads)


# Progress


class Progress:
    """How far a long input is: a bar if its size is known, else a count. Nothing without a file.

    It stays silent for a moment, within which most inputs are done.
    """

    def __init__(
        self, size: int | None, file: TextIO | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size = size
        self.file = file
        self._clock = clock
        self._shown_from = clock() + _MOMENT_SECONDS
        self._messages = 0
        self._new_bytes = 0
        self._open = contextlib.ExitStack()
        self._bar: Any = None
        self._has_count = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the line, so that whatever comes next has its own."""
        self._open.close()
        if self._has_count:
            click.echo(file=self.file)

    def update(self, batch: Batch) -> None:
        self._messages += len(batch.messages)
        self._new_bytes += batch.input_bytes
        if self.file is None or self._clock() < self._shown_from:
            return
        if not self._size:
            self._has_count = True
            click.echo(f"\r{self._messages:,} messages", file=self.file, nl=False)
            return
        if self._bar is None:
            bar = click.progressbar(length=self._size, label="appending", file=self.file)
            self._bar = self._open.enter_context(bar)
        self._bar.update(self._new_bytes)
        self._new_bytes = 0


def make_progress(sources: Sequence[Source], is_wanted: bool) -> Progress:
    sizes = [source.size for source in sources]
    size = None if None in sizes else sum(size or 0 for size in sizes)
    # Nobody needs to be told how much they have typed.
    is_typed = any(source.is_typed for source in sources)
    is_shown = is_wanted and bool(sources) and not is_typed and sys.stderr.isatty()
    return Progress(size, sys.stderr if is_shown else None)


# Append


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
            # The broker did not come back. What was to be sent again has left before, all else has
            # not.
            self._on_its_way = len(batch.messages) if retry else 0
            if self.count or retry:
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


@click.command()
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
    tally = Tally(stream)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_telling(tally))
        decode = Encoding(encoding)
        if messages:
            sources: list[Source] = []
            batches: Iterable[Batch] = _split(_decode_arguments(messages, decode))
        else:
            sources = [Source(None if path == "-" else path) for path in files or ("-",)]
            batches = (batch for source in sources for batch in source.batches(decode, blob))
        client = stack.enter_context(target.connect())
        if create:
            _create_if_missing(client, stream)
        progress = stack.enter_context(make_progress(sources, is_wanted=not (quiet or as_json)))
        if any(source.is_typed for source in sources) and not quiet:
            click.echo(f"penstock: type {_WHAT_TO_TYPE[blob]}; Ctrl-D ends", err=True)
        for batch in batches:
            tally.append(client, batch, retry)
            progress.update(batch)
    if tally.empty_lines and not quiet:
        click.echo(f"penstock: {_number_of(tally.empty_lines, 'empty line')} skipped", err=True)
    if as_json or not quiet:
        tally.echo(as_json)


_WHAT_TO_TYPE = {False: "messages, each on a line", True: "the message"}


def _split(batch: Batch) -> Iterator[Batch]:
    messages = iter(batch.messages)
    while some := list(islice(messages, _BATCH_MESSAGES)):
        yield Batch(some)


@contextlib.contextmanager
def _telling(tally: Tally) -> Iterator[None]:
    """Ends the command, when its input is bad or a user has enough, with what was done before."""
    try:
        yield
    except InputError as error:
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


# Output


Render = Callable[[Message], bytes]


class Display(NamedTuple):
    """How messages are to be printed."""

    form: Format
    payload_only: bool
    as_json: bool

    def renderer(self, stream: str, on_terminal: bool) -> Render:
        if self.as_json:
            return _render_json(stream, FIELDS[self.form])
        if self.form is Format.RAW:
            return lambda message: message.payload
        if not self.payload_only:
            return _render_line(SHOW[self.form])
        if on_terminal:
            show = SHOW[self.form]
            return lambda message: show(message.payload, True).encode() + b"\n"
        write = WRITE[self.form]
        return lambda message: write(message.payload) + b"\n"


def _render_line(show: Callable[[bytes, bool], str]) -> Render:
    def render(message: Message) -> bytes:
        number = str(message.sequence_number).rjust(_NUMBER_WIDTH)
        text = show(message.payload, False)
        return f"{number}  {local_time(message.ingest_time)}  {text}\n".encode()

    return render


def _render_json(stream: str, fields: Callable[[bytes], str]) -> Render:
    begin = f'{{"streamName": {json.dumps(stream)}, "sequenceNumber": '

    def render(message: Message) -> bytes:
        return (
            f'{begin}{message.sequence_number}, "ingestTime": {message.ingest_time}, '
            f"{fields(message.payload)}}}\n"
        ).encode()

    return render


# Messages that were appended together have one time.
@functools.lru_cache(maxsize=1024)
def local_time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000).astimezone().isoformat(timespec="milliseconds")


_DISPLAY_OPTIONS = (
    click.option(
        "--format",
        "form",
        type=click.Choice([form.value for form in Format]),
        default=Format.AUTO.value,
        show_default=True,
        help="How payloads are shown.",
    ),
    click.option("--payload-only", is_flag=True, help="Only payloads, each with a line break."),
    json_option,
)


def display_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say how messages are printed; the command gets them as `display`."""

    @functools.wraps(command)
    def with_display(form: str, payload_only: bool, as_json: bool, **values: Any) -> None:
        if as_json and (payload_only or form == Format.RAW):
            other = "--payload-only" if payload_only else "--format raw"
            raise click.UsageError(f"--json and {other} exclude each other: choose one")
        command(display=Display(Format(form), payload_only, as_json), **values)

    for option in reversed(_DISPLAY_OPTIONS):
        with_display = option(with_display)
    return with_display


class Printer:
    """Writes messages in large pieces."""

    def __init__(self, render: Render, output: BinaryIO) -> None:
        self._render = render
        self._output = output

    def print(self, messages: Iterable[Message]) -> None:
        """Writes all of them before it returns, or as many as there were before an error."""
        render = self._render
        pieces: list[bytes] = []
        size = 0
        try:
            for message in messages:
                piece = render(message)
                pieces.append(piece)
                size += len(piece)
                if size >= _WRITE_BYTES:
                    self._write(pieces)
                    size = 0
        finally:
            self._write(pieces)
            self._output.flush()

    def _write(self, pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        # First: what could not be written once is not to be tried again.
        pieces.clear()
        self._output.write(data)


def _printer(stream: str, display: Display) -> Printer:
    if sys.stdout is None:
        raise Failure("standard output is closed")
    return Printer(display.renderer(stream, sys.stdout.isatty()), sys.stdout.buffer)


@contextlib.contextmanager
def _ending_on_interrupt() -> Iterator[None]:
    """Ctrl-C is how a user says that this is enough: nothing is wrong, and nothing is said."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


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
        _printer(stream, display).print(islice(messages, limit))


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
        printer = _printer(stream, display)
        info = client.describe_message_stream(stream)
        first = first_number(start, info)
        if follow:
            follow_stream(client, stream, first, printer)
        else:
            end = info.storage_status.newest_sequence_number + 1
            printer.print(client.read_all(stream, first, end))


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
