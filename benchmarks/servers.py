"""Measured servers: processes on 127.0.0.1, each with its own directory.

The code that starts a server stops it. Other servers on the machine are not affected.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import psutil

from penstock.discovery import read_token

_TIMEOUT_SECONDS = 120.0
# Debian installs servers in a directory that is not on the PATH of an ordinary user.
_SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


class Server(ABC):
    """A server with a directory that outlives its processes, so that it can be restarted.

    A subclass defines the command, and patterns for the output lines with readiness and port.
    """

    name: ClassVar[str]
    ready_line: ClassVar[re.Pattern[str]]
    port_line: ClassVar[re.Pattern[str]]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Returns the command line of the server."""

    @property
    def variables(self) -> dict[str, str]:
        """Returns additional environment variables of the server."""
        return {}

    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def start(self) -> float:
        """Starts the process; returns the seconds until its ready line."""
        assert self._process is None
        lines: deque[str] = deque(maxlen=50)
        ready = threading.Event()
        ready_at = [0.0]
        started_at = time.perf_counter()
        process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env={**_clean_environment(), **self.variables},
        )

        def follow() -> None:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    lines.append(line)
                    if ready.is_set():
                        continue
                    port = self.port_line.search(line)
                    if port:
                        self.port = int(port[1])
                    if self.ready_line.search(line):
                        ready_at[0] = time.perf_counter()
                        ready.set()

        threading.Thread(target=follow, daemon=True).start()
        self._process = process
        deadline = started_at + _TIMEOUT_SECONDS
        # Short waits, so that a server that exits at once is detected.
        while not ready.wait(0.2):
            if process.poll() is not None or time.perf_counter() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} did not start:\n{''.join(lines)}")
        return ready_at[0] - started_at

    def stop(self) -> None:
        """Stops the server with SIGTERM."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pin_to(self, cores: set[int]) -> None:
        """Restricts all threads of the process to these cores."""
        assert self._process is not None
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)

    def resident_bytes(self) -> int:
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


class Penstock(Server):
    name = "Penstock"
    ready_line = re.compile(r"^penstock ready ")
    port_line = re.compile(r"^penstock ready .*:(\d+)$")

    @property
    def root(self) -> Path:
        return self.directory / "root"

    def command(self) -> list[str]:
        root = str(self.root)
        return [sys.executable, "-m", "penstock", "serve", "--root", root, "--port", "0"]

    @property
    def token(self) -> str:
        return read_token(self.root)


class Redis(Server):
    """Redis with an append-only file, without snapshots and rewrites of the file."""

    name = "Redis"
    ready_line = re.compile(r"Ready to accept connections")
    port_line = re.compile(r"port=(\d+)")

    def __init__(self, directory: Path, *, sync_always: bool = False) -> None:
        super().__init__(directory)
        self._sync = "always" if sync_always else "everysec"

    def command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(_free_port()),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._sync,
            "auto-aof-rewrite-percentage": "0",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [_program("redis-server"), *options]


class Nats(Server):
    name = "NATS"
    ready_line = re.compile(r"Server is ready")
    port_line = re.compile(r"Listening for client connections on .*:(\d+)")

    def __init__(self, directory: Path, *, sync_always: bool = False) -> None:
        super().__init__(directory)
        self._sync_always = sync_always

    def command(self) -> list[str]:
        return [_program("nats-server"), "-c", str(self.write_configuration())]

    def write_configuration(self) -> Path:
        sync = ", sync_interval: always" if self._sync_always else ""
        path = self.directory / "nats.conf"
        path.write_text(
            f'listen: "127.0.0.1:-1"\njetstream {{ store_dir: "{self.directory}"{sync} }}\n'
        )
        return path

    def can_sync_always(self) -> bool:
        """Returns whether this version can sync each message before it responds: 2.9 cannot."""
        self._sync_always = True
        configuration = str(self.write_configuration())
        checked = subprocess.run(
            [_program("nats-server"), "-c", configuration, "-t"], capture_output=True, check=False
        )
        return checked.returncode == 0


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in servers:
            server.stop()


def install_missing_peers() -> dict[str, str]:
    """Installs missing peers if possible; returns the versions of all peers."""
    missing = [name for name in ("redis-server", "nats-server") if _find(name) is None]
    if missing and os.geteuid() == 0 and _find("apt-get"):
        print(f"installing {' and '.join(missing)} with apt-get")
        subprocess.run(
            [_program("apt-get"), "install", "-y", "-q", "--no-install-recommends", *missing],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            check=False,
        )
    return {name: _version(name) for name in ("redis-server", "nats-server")}


def is_installed(name: str) -> bool:
    return _find(name) is not None


def _version(name: str) -> str:
    program = _find(name)
    if program is None:
        return "not installed, omitted"
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"v=?(\d+(?:\.\d+)+)", shown.stdout + shown.stderr)
    return found[1] if found else "unknown version"


def _find(name: str) -> str | None:
    return shutil.which(name, path=_SEARCH_PATH)


def _program(name: str) -> str:
    found = _find(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _clean_environment() -> dict[str, str]:
    """Returns the environment without variables that change settings of the broker."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "STREAM_MANAGER_", "LOG_"))
    }
