"""A full-screen terminal page that a command redraws, and its keys."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from enum import Enum, auto
from typing import Self


def is_screen() -> bool:
    """Whether standard output is a terminal that supports full-screen output."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class ScreenEvent(Enum):
    time = auto()
    redraw = auto()
    end = auto()


class Screen:
    """Shows a page on the terminal's alternate screen, and restores the terminal at the end.

    A signal wakes `wait`: the window was resized, or the program continues after Ctrl-Z.
    """

    # Alternate screen, no cursor, no line wrapping; and the reverse.
    _ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
    _LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

    def __enter__(self) -> Self:
        self._has_keys = sys.stdin.isatty()
        if self._has_keys:
            self._attributes = termios.tcgetattr(sys.stdin)
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._wakeup_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._handlers_before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGWINCH, lambda *_: None),
                (signal.SIGTERM, lambda *_: sys.exit(0)),
                (signal.SIGTSTP, lambda *_: self._suspend()),
            )
        }
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._woken)
        os.close(self._waker)

    def _begin(self) -> None:
        if self._has_keys:
            tty.setcbreak(sys.stdin, termios.TCSADRAIN)
        _write(self._ENTER)

    def _end(self) -> None:
        _write(self._LEAVE)
        if self._has_keys:
            # Discards pending keys, which were not typed for the shell.
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, self._attributes)

    def _suspend(self) -> None:
        self._end()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._begin()

    @property
    def size(self) -> tuple[int, int]:
        """The usable columns and lines."""
        width, height = shutil.get_terminal_size()
        # Clearing the rest of a full line would erase its last character.
        return width - 1, height

    def draw(self, lines: Sequence[str]) -> None:
        # One write that overwrites the page without erasing it first, to avoid flicker.
        _write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")

    def wait(self, seconds: float) -> ScreenEvent:
        sources = [self._woken, *([sys.stdin.fileno()] if self._has_keys else [])]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._woken in ready:
            os.read(self._woken, 4096)
            return ScreenEvent.redraw
        if not ready:
            return ScreenEvent.time
        keys = os.read(sys.stdin.fileno(), 1024)
        if not keys or b"q" in keys or b"Q" in keys:
            return ScreenEvent.end
        return ScreenEvent.redraw


def _write(text: str) -> None:
    # Bypasses the buffer of standard output: it is not reentrant, and signal handlers write too.
    data = text.encode(sys.stdout.encoding, "replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]
