"""Shows the progress of a long append on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TextIO

import click

from penstock.cli.message_input import Batch, MessageInput

# Shorter inputs show no progress.
_DELAY_SECONDS = 1.0


class Progress(ExitStack):
    """A bar if the size of the input is known, else a count. Without a file it shows nothing.

    It appears after a delay, because most inputs are short. At the end it prints a line break, so
    that later output starts on a new line.
    """

    def __init__(
        self, size: int | None, file: TextIO | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.file = file
        self._size = size
        self._clock = clock
        self._shown_from = clock() + _DELAY_SECONDS
        self._messages = 0
        self._bytes = 0
        self._bar: Any = None
        self._has_count = False

    def update(self, batch: Batch) -> None:
        self._messages += len(batch.messages)
        self._bytes += batch.input_bytes
        if self.file is None or self._clock() < self._shown_from:
            return
        if self._size:
            self._show_bar(self._size)
        else:
            self._show_count()

    def _show_bar(self, size: int) -> None:
        if self._bar is None:
            bar = click.progressbar(length=size, label="appending", file=self.file)
            self._bar = self.enter_context(bar)
        self._bar.update(self._bytes - self._bar.pos)

    def _show_count(self) -> None:
        if not self._has_count:
            self._has_count = True
            self.callback(click.echo, file=self.file)
        click.echo(f"\r{self._messages:,} messages", file=self.file, nl=False)


def make_progress(sources: Sequence[MessageInput], is_wanted: bool) -> Progress:
    sizes = [source.size for source in sources]
    size = None if None in sizes else sum(size or 0 for size in sizes)
    # A user who types needs no progress.
    is_typed = any(source.is_typed for source in sources)
    is_shown = is_wanted and bool(sources) and not is_typed and sys.stderr.isatty()
    return Progress(size, sys.stderr if is_shown else None)
