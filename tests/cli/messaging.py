"""Helpers for tests of `append`, `read` and `tail`: streams, running commands, a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import queue
import signal
import struct
import subprocess
import sys
import termios
import threading
from typing import Any, TextIO

import pytest

from penstock.cli.main import main
from penstock.wire.operations import Operation
from tests.client.servers import Relay
from tests.support import (
    PENSTOCK,
    TIMEOUT_S,
    Reachable,
    clean_environment,
    create,
    drain,
    read,
    wait_until,
)

from .command import Finished, penstock

Server = Reachable | Relay

# The exit code that shells report after Ctrl-C.
INTERRUPTED = 130

_names = itertools.count()


# Streams


def new_name() -> str:
    return f"stream-{next(_names)}"


def make_stream(broker: Reachable, **definition: Any) -> str:
    with broker.connect() as client:
        return create(client, new_name(), **definition)


def fill(broker: Reachable, stream: str, *payloads: bytes) -> None:
    with broker.connect() as client:
        client.append_many(stream, payloads)


def stored(broker: Reachable, stream: str) -> list[bytes]:
    """The stored payloads of the stream."""
    with broker.connect() as client:
        info = client.call(Operation.DescribeMessageStream, name=stream)["messageStreamInfo"]
        count = info["storageStatus"]["newestSequenceNumber"] + 1
        found: list[bytes] = []
        while len(found) < count:
            options = {"desiredStartSequenceNumber": len(found), "maxMessageCount": count}
            found += [message["payload"] for message in read(client, stream, **options)]
        return found


# The command


def command_line(server: Server, *words: str) -> list[str]:
    command, *rest = words
    return [command, "--host", "127.0.0.1", "--port", str(server.port), *rest]


def environment(server: Server) -> dict[str, str]:
    return clean_environment(AWS_CONTAINER_AUTHORIZATION_TOKEN=server.token)


def run(server: Server, *words: str, token: str = "") -> Finished:
    return penstock(
        *command_line(server, *words), AWS_CONTAINER_AUTHORIZATION_TOKEN=token or server.token
    )


def run_with_files(server: Server, *words: str, **files: TextIO) -> None:
    """Runs the command in this process with these files as `stdin`, `stdout` or `stderr`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", environment(server))
        for name, file in files.items():
            patch.setattr(sys, name, file)
        main.main(command_line(server, *words), standalone_mode=False)


def run_in_pipes(server: Server, data: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(PENSTOCK), *command_line(server, *words)],
        input=data,
        env=environment(server),
        cwd="/",
        check=False,
        capture_output=True,
        timeout=TIMEOUT_S,
    )


class Started:
    """A running command with pipes for input and output."""

    def __init__(self, server: Server, *words: str) -> None:
        self.process = subprocess.Popen(
            [str(PENSTOCK), *command_line(server, *words)],
            env=environment(server),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A new process group: its Ctrl-C must not reach the tests.
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.lines = drain(self.process.stdout)
        self._errors = drain(self.process.stderr)

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def next_line(self) -> str:
        line = self.lines.get(timeout=TIMEOUT_S)
        assert line, f"the command ended: {_rest_of(self._errors)}"
        return line.rstrip("\n")

    def interrupt(self) -> Finished:
        """Sends SIGINT to the process group, as a terminal does for Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(TIMEOUT_S)
        return self.end()

    def end(self) -> Finished:
        """Closes its input, waits for its end, and returns the remaining output."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(TIMEOUT_S)
        return Finished(code, _rest_of(self.lines), _rest_of(self._errors))

    def wait_until_input_is_read(self) -> None:
        """Waits until the command has read all input. Earlier appends are answered then."""
        assert self.process.stdin is not None
        descriptor = self.process.stdin.fileno()

        def is_empty() -> bool:
            (left,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
            return bool(left == 0)

        wait_until(is_empty)


def _rest_of(lines: queue.SimpleQueue[str]) -> str:
    text = ""
    while line := lines.get(timeout=TIMEOUT_S):
        text += line
    return text


class BareTerminal:
    """A terminal, and the text that was written to it."""

    def __init__(self) -> None:
        self._side, inner = pty.openpty()
        self.file: TextIO = os.fdopen(inner, "w")
        self._shown = b""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        # Linux raises an error when the other side is closed.
        with contextlib.suppress(OSError):
            while data := os.read(self._side, 65_536):
                self._shown += data

    @property
    def shown(self) -> str:
        return self._shown.decode()

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def keyboard(self) -> TextIO:
        """The standard input of a program on this terminal."""
        return os.fdopen(os.dup(self.file.fileno()))

    def close(self) -> str:
        """Closes the terminal and returns all text."""
        if not self.file.closed:
            self.file.close()
            self._thread.join(TIMEOUT_S)
            os.close(self._side)
        return self.shown
