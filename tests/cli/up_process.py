"""A running `penstock up`, for tests."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import psutil

from tests.raw_connection import RawConnection
from tests.support import PENSTOCK, TIMEOUT_S, clean_environment, drain


class Up:
    """A running `penstock up`."""

    def __init__(
        self, root: Path, *flags: str, program: Path = PENSTOCK, **environment: str
    ) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [str(program), "up", "--root", str(root), *flags],
            env=clean_environment(PYTHONUNBUFFERED="1", **environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.lines = drain(self.process.stdout)
        self.errors = drain(self.process.stderr)
        self.port = 0

    def read_until(self, text: str, seconds: float = TIMEOUT_S) -> str:
        shown = ""
        while text not in shown:
            line = self.lines.get(timeout=seconds)
            assert line, f"{text!r} was not printed, but:\n{shown}{self.end()}"
            shown += line
        ready = re.search(r"penstock ready \S+:(\d+)", shown)
        if ready:
            self.port = int(ready[1])
        return shown

    def connect(self) -> RawConnection:
        return RawConnection.open("127.0.0.1", self.port, (self.root / "token").read_text().strip())

    @property
    def broker_pid(self) -> int:
        return int((self.root / "lock").read_text())

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def children_of(self, word: str) -> list[psutil.Process]:
        """Children with this word in their command line. Processes may end at any time."""
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if word in (child.name(), *child.cmdline()):
                    found.append(child)
        return found

    def end(self) -> tuple[int, str]:
        """Waits for its end. Returns its exit code and its standard error."""
        code = self.process.wait(TIMEOUT_S)
        errors = ""
        while line := self.errors.get(timeout=TIMEOUT_S):
            errors += line
        return code, errors
