"""Reads messages from arguments, and from lines or whole contents of files and standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from penstock.cli.main import Failure
from penstock.cli.payload import Encoding, decode_payload
from penstock.wire.frames import MAX_FRAME_BYTES

# The size of a batch: small enough for one request, which is stored atomically.
_BATCH_MESSAGES = 5000
_BATCH_BYTES = 1024 * 1024

# If Ctrl-C arrives just before a wait, Python handles it only after the wait.
_WAIT_MILLIS = 500


class MessageInputError(ValueError):
    """A part of the input is not a message. The text names the place."""


class Batch(NamedTuple):
    """Messages to send together, and how much of the input they used."""

    messages: list[bytes]
    input_bytes: int = 0
    empty_lines: int = 0


def decode_arguments(arguments: Sequence[str], encoding: Encoding) -> list[Batch]:
    """Decodes all arguments; UsageError if an argument is not a message."""
    messages = []
    for number, argument in enumerate(arguments, 1):
        try:
            # The bytes of the command line, even if they are not valid text.
            message = decode_payload(os.fsencode(argument), encoding)
        except ValueError as error:
            raise click.UsageError(f"message {number:,} is {error}") from None
        if not message:
            raise click.UsageError(f"message {number:,} is empty: a message has at least one byte")
        messages.append(message)
    return [
        Batch(messages[place : place + _BATCH_MESSAGES])
        for place in range(0, len(messages), _BATCH_MESSAGES)
    ]


class MessageInput(NamedTuple):
    """A source of messages: a file, or standard input if `path` is None."""

    path: str | None = None

    @property
    def name(self) -> str:
        return self.path or "standard input"

    @property
    def is_typed(self) -> bool:
        return self.path is None and _standard_input().isatty()

    @property
    def size(self) -> int | None:
        """The remaining bytes; None if unknown."""
        place = self.path or _standard_input().fileno()
        status = os.stat(place)  # noqa: PTH116 - a path or a descriptor
        if not stat.S_ISREG(status.st_mode):
            return None
        position = 0 if isinstance(place, str) else os.lseek(place, 0, os.SEEK_CUR)
        return max(status.st_size - position, 0)

    def batches(self, encoding: Encoding, as_blob: bool) -> Iterator[Batch]:
        """Reads the messages; MessageInputError for input that is not a message."""
        with self._open() as file:
            chunks = read_chunks(file.fileno())
            if as_blob:
                yield self._blob(chunks, encoding)
            else:
                yield from self._line_batches(chunks, encoding)

    def _open(self) -> AbstractContextManager[IO[Any]]:
        if self.path is None:
            return nullcontext(_standard_input())
        return Path(self.path).open("rb")

    def _blob(self, chunks: Iterator[bytes], encoding: Encoding) -> Batch:
        blob = _MessageBuffer(self.name)
        for chunk in chunks:
            blob.add(chunk)
        data = blob.take()
        message = _decode(data, self.name, encoding)
        if not message:
            raise MessageInputError(f"{self.name} is empty: a message has at least one byte")
        return Batch([message], len(data))

    def _line_batches(self, chunks: Iterator[bytes], encoding: Encoding) -> Iterator[Batch]:
        number = 1
        for lines in self._lines(chunks):
            # Only the first line can exceed a chunk. It gets its own batch.
            start = 1 if len(lines[0]) > _BATCH_BYTES else 0
            if start:
                yield self._batch(lines[:1], number, encoding)
            for place in range(start, len(lines), _BATCH_MESSAGES):
                batch = lines[place : place + _BATCH_MESSAGES]
                yield self._batch(batch, number + place, encoding)
            number += len(lines)

    def _lines(self, chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
        """Yields all complete lines of each chunk, at least one at a time."""
        partial = _MessageBuffer(f"a line of {self.name}")
        for chunk in chunks:
            lines = chunk.split(b"\n")
            partial.add(lines[0])
            if len(lines) > 1:
                lines[0] = partial.take()
                partial.add(lines.pop())
                yield lines
        if last := partial.take():
            yield [last]

    def _batch(self, lines: list[bytes], number: int, encoding: Encoding) -> Batch:
        messages = lines
        if encoding is not Encoding.TEXT:
            messages = [
                _decode(line, f"{self.name}, line {line_number:,}", encoding)
                for line_number, line in enumerate(lines, number)
            ]
        if not all(messages):
            messages = [message for message in messages if message]
        return Batch(messages, sum(map(len, lines)) + len(lines), len(lines) - len(messages))


def _standard_input() -> IO[str]:
    if sys.stdin is None:
        raise Failure("standard input is closed")
    return sys.stdin


def _decode(text: bytes, place: str, encoding: Encoding) -> bytes:
    try:
        return decode_payload(text, encoding)
    except ValueError as error:
        raise MessageInputError(f"{place}: {error}") from None


def read_chunks(descriptor: int, size: int = _BATCH_BYTES) -> Iterator[bytes]:
    """Yields the input in chunks: as much as is available without waiting, up to `size`."""
    more = select.poll()
    more.register(descriptor, select.POLLIN)
    is_over = False
    while not is_over:
        while not more.poll(_WAIT_MILLIS):
            pass
        chunks: list[bytes] = []
        room = size
        while room and not is_over and more.poll(0):
            chunk = os.read(descriptor, room)
            # Remembered: another read from a terminal would need a second Ctrl-D.
            is_over = not chunk
            chunks.append(chunk)
            room -= len(chunk)
        if any(chunks):
            yield b"".join(chunks)


class _MessageBuffer:
    """Collects the chunks of one message, up to the maximum size of a message."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > MAX_FRAME_BYTES:
            raise MessageInputError(
                f"{self._name} is larger than {MAX_FRAME_BYTES:,} bytes, the maximum for a message"
            )

    def take(self) -> bytes:
        message = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return message
