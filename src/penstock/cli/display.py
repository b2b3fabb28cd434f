"""Prints messages: a line each, payloads only, or JSON."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple

import click

from penstock.cli.main import Failure, json_option
from penstock.cli.payload import FIELDS, SHOW, WRITE, Format
from penstock.model import Message

Render = Callable[[Message], bytes]

# Output is written in chunks of this size: a system call for each message would dominate.
_WRITE_BYTES = 64 * 1024

# Columns are aligned up to a million messages.
_NUMBER_WIDTH = 6


class Display(NamedTuple):
    """The output format that the options of a command select."""

    form: Format = Format.AUTO
    payload_only: bool = False
    as_json: bool = False

    def printer(self, stream: str) -> Printer:
        """A printer to standard output."""
        if sys.stdout is None:
            raise Failure("standard output is closed")
        return Printer(self.renderer(stream, sys.stdout.isatty()), sys.stdout.buffer)

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
        return f"{number}  {_local_time(message.ingest_time)}  {text}\n".encode()

    return render


# Messages that were appended together have the same time.
@functools.lru_cache(maxsize=1024)
def _local_time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000).astimezone().isoformat(timespec="milliseconds")


def _render_json(stream: str, fields: Callable[[bytes], str]) -> Render:
    begin = f'{{"streamName": {json.dumps(stream)}, "sequenceNumber": '

    def render(message: Message) -> bytes:
        return (
            f'{begin}{message.sequence_number}, "ingestTime": {message.ingest_time}, '
            f"{fields(message.payload)}}}\n"
        ).encode()

    return render


class Printer:
    """Writes messages in large chunks."""

    def __init__(self, render: Render, output: BinaryIO) -> None:
        self._render = render
        self._output = output

    def print(self, messages: Iterable[Message]) -> None:
        """Writes all messages. After an error in `messages`, writes the messages before it."""
        render = self._render
        chunks: list[bytes] = []
        size = 0
        try:
            for message in messages:
                chunk = render(message)
                chunks.append(chunk)
                size += len(chunk)
                if size >= _WRITE_BYTES:
                    self._write(chunks)
                    size = 0
        finally:
            self._write(chunks)
            self._output.flush()

    def _write(self, chunks: list[bytes]) -> None:
        data = b"".join(chunks)
        # Cleared before the write: a chunk that failed is not written again.
        chunks.clear()
        self._output.write(data)


_OPTIONS = (
    click.option(
        "--format",
        "form",
        type=click.Choice([form.value for form in Format]),
        default=Format.AUTO.value,
        show_default=True,
        help="How payloads are printed; see `penstock read --help`.",
    ),
    click.option(
        "--payload-only", is_flag=True, help="Print payloads only, each followed by a line break."
    ),
    json_option,
)


def display_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options for the output format. The command gets them as `display`."""

    @functools.wraps(command)
    def with_display(form: str, payload_only: bool, as_json: bool, **values: Any) -> None:
        if as_json and (payload_only or form == Format.RAW):
            other = "--payload-only" if payload_only else "--format raw"
            raise click.UsageError(f"--json and {other} exclude each other: choose one")
        command(display=Display(Format(form), payload_only, as_json), **values)

    for option in reversed(_OPTIONS):
        with_display = option(with_display)
    return with_display
