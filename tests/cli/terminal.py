"""A program on a terminal of its own: what it draws there, and keys for it."""

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
    """A program on a terminal of its own, and all that it has written there."""

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
            preexec_fn=_take_terminal,  # noqa: PLW1509 - two calls of the system
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
            pass  # nobody has the other end any more

    def resize(self, rows: int, columns: int) -> None:
        """The program gets a SIGWINCH, as from a window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def text(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def frame(self) -> str:
        """What was last drawn as a whole, without colours."""
        frames = re.findall(r"\x1b\[H(.*?)\x1b\[J", self.text, re.DOTALL)
        return re.sub(r"\x1b\[[\d;]*[mK]", "", frames[-1]) if frames else ""

    @property
    def lines(self) -> list[str]:
        return self.frame.split("\r\n")

    def cells(self, first: str) -> list[str]:
        """Those of the row that begins so; none if there is no such row."""
        for line in self.lines:
            if line.startswith(first + "  "):
                return re.split(r"\s{2,}", line)
        return []

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def has_its_attributes(self) -> bool:
        """Lines are edited and keys echoed, as before the program began."""
        return termios.tcgetattr(self._slave) == self._attributes

    def is_restored(self) -> bool:
        """Its attributes are as they were, and the page of before is shown, with a cursor."""
        return self.has_its_attributes() and self.text.endswith("\x1b[?25h\x1b[?1049l")


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Whoever runs the tests in the background has made all that they start deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
