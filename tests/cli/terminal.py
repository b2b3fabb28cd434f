"""Runs a program on a pseudo terminal, reads its output and types keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from typing import Self

from tests.support import TIMEOUT_S, clean_environment


class Terminal:
    """A program on a pseudo terminal, with all of its output."""

    def __init__(self, *command: str, rows: int = 40, columns: int = 120, **variables: str) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(rows, columns)
        self._attributes = termios.tcgetattr(self._slave)
        self._written = bytearray()
        environment = {"TERM": "xterm", **variables}
        self.process = subprocess.Popen(
            command,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            cwd="/",
            env={
                name: value
                for name, value in clean_environment(**environment).items()
                if name not in ("COLUMNS", "LINES") and (name != "NO_COLOR" or name in variables)
            },
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - two system calls
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._slave)
        self._reader.join(TIMEOUT_S)
        os.close(self._master)

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65_536):
                self._written += data
        except OSError:
            pass  # the other side is closed

    def resize(self, rows: int, columns: int) -> None:
        """Resizes the terminal. The program gets a SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def text(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def frame(self) -> str:
        """The last complete page, without colors."""
        frames = re.findall(r"\x1b\[H(.*?)\x1b\[J", self.text, re.DOTALL)
        return re.sub(r"\x1b\[[\d;]*[mK]", "", frames[-1]) if frames else ""

    @property
    def lines(self) -> list[str]:
        return self.frame.split("\r\n")

    def cells(self, first: str) -> list[str]:
        """The cells of the row that begins with `first`; empty if there is no such row."""
        for line in self.lines:
            if line.startswith(first + "  "):
                return re.split(r"\s{2,}", line)
        return []

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def has_its_attributes(self) -> bool:
        """Whether the terminal attributes are those before the program."""
        return termios.tcgetattr(self._slave) == self._attributes

    def is_restored(self) -> bool:
        """Whether the attributes, the main screen and the cursor are restored."""
        return self.has_its_attributes() and self.text.endswith("\x1b[?25h\x1b[?1049l")


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # If the tests run in the background, the shell made their children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
