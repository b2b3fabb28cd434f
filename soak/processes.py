"""Processes of `penstock` commands that a soak starts, kills and restarts."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from tests.raw_connection import RawConnection
from tests.support import PENSTOCK, clean_environment, drain

# Far longer than a start takes on a busy machine.
READY_SECONDS = 90.0
STOP_SECONDS = 60.0


class SoakError(Exception):
    """The soak cannot continue, for example because a program does not start."""


def wait_for(condition: Callable[[], object], what: str, seconds: float = READY_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SoakError(f"timed out after {seconds:.0f} seconds: {what}")
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Program:
    """A `penstock` command that prints a ready line."""

    def __init__(
        self, name: str, words: list[str], ready: str, log: Path, variables: Mapping[str, str]
    ) -> None:
        self.name = name
        self._words = words
        self._ready = ready
        self.log = log
        self._environment = clean_environment(PYTHONUNBUFFERED="1", **variables)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start(self, wait: bool = True) -> None:
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [str(PENSTOCK), *self._words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._lines = drain(self._process.stdout)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        with contextlib.suppress(queue.Empty):
            while line := self._lines.get(timeout=max(deadline - time.monotonic(), 0.01)):
                if line.startswith(self._ready):
                    return
        raise SoakError(f"the {self.name} did not become ready; see {self.log}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def resident_bytes(self) -> int:
        with contextlib.suppress(psutil.Error, AssertionError):
            return int(psutil.Process(self.pid).memory_info().rss)
        return 0

    def children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> int:
        """Sends SIGTERM, like a service manager; returns the exit code."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise SoakError(f"the {self.name} did not end after SIGTERM") from None


class BrokerAddress:
    """The address and token of a broker, across restarts."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        self.port = port

    @property
    def token(self) -> str:
        return (self.root / "token").read_text().strip()

    def connect(self, timeout: float = 60) -> RawConnection:
        return RawConnection.open("127.0.0.1", self.port, self.token, timeout)


class BrokerProgram(Program, BrokerAddress):
    """`penstock serve` on a fixed root and port."""

    def __init__(self, root: Path, log: Path, **variables: str) -> None:
        BrokerAddress.__init__(self, root, free_port())
        self.http_port = free_port()
        words = [
            *("serve", "--root", str(root), "--port", str(self.port)),
            *("--http-port", str(self.http_port)),
        ]
        Program.__init__(self, "broker", words, "penstock ready", log, variables)
