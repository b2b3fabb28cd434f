"""Shared by tests: brokers in a process or a thread, a raw peer, and `wait_until`.

Tests do not sleep for a fixed time: `wait_until` polls a condition.
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn, Self, TypeVar

import cbor2
import pytest

from penstock.broker.server import Broker
from penstock.broker.session import Session
from penstock.settings import Settings
from penstock.store.files import Disk
from penstock.wire.frames import HEADER, encode_frame
from penstock.wire.operations import Operation
from tests.raw_connection import RawConnection

T = TypeVar("T")
Json = dict[str, Any]

# The environment that runs the tests: `make test-pythons` has one for each version of Python.
VENV = Path(sys.prefix)
PENSTOCK = VENV / "bin" / "penstock"

# Far more than any test needs on a busy machine.
TIMEOUT_S = 240.0
# Max time of a small answer while other clients misbehave. It is less than the minute after which
# the broker drops those.
PROMPT_S = 45.0

# The class data archive of Spark, created by `make test`. Java silently ignores one that does not
# match.
JAVA_CLASSES = VENV / "spark.jsa"
# Full optimization does not pay off in a process that runs for a minute.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    f' -XX:SharedArchiveFile="{JAVA_CLASSES}" -Xlog:cds=off -Xlog:cds+dynamic=off'
)

# A directory in memory, if there is one, for tests that create hundreds of small stores and
# simulate power cuts themselves.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

MEBIBYTE = 1024 * 1024


def wait_until(condition: Callable[[], T], what: str = "", seconds: float = TIMEOUT_S) -> T:
    """Polls until the condition returns a true value, and returns it."""
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        if waited > seconds:
            pytest.fail(f"timed out after {seconds} seconds: {what or condition}")
        # Frequent polling would slow down a long operation.
        time.sleep(min(0.005 + waited / 50, 0.03))
    return value


def clean_environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment without variables that Penstock or the SDKs read."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STREAM_MANAGER_", "PENSTOCK_", "AWS_", "LOG_LEVEL"))
    } | variables


def bare_environment(**variables: str) -> dict[str, str]:
    """Returns the clean environment without variables of Spark and Java, except these."""
    return {
        name: value
        for name, value in clean_environment().items()
        if not name.startswith(("JAVA", "JDK", "SPARK", "PYSPARK", "HADOOP", "MASTER"))
    } | variables


def run_program(
    *command: str | Path, cwd: Path, env: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Runs a program until it exits, and captures its output."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


class Reachable:
    """A broker that listens on a port of this machine."""

    root: Path
    port: int

    @property
    def token(self) -> str:
        return (self.root / "token").read_text().strip()

    def connect(self, token: str | None = None) -> RawConnection:
        return RawConnection.open("127.0.0.1", self.port, self.token if token is None else token)

    def reach(self) -> Peer:
        """Opens a connection, before the handshake."""
        return Peer(socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S))

    def meet(self, **fields: Any) -> Peer:
        """Opens a connection, after a successful handshake."""
        peer = self.reach()
        answer = peer.introduce(self.token, **fields)
        assert answer["status"] == 0, answer
        return peer


class LocalBroker(Reachable):
    """A broker in a thread of this process, so that tests can inspect it."""

    def __init__(self, root: Path, disk: Disk | None = None, **settings: Any) -> None:
        self.root = root
        self._disk = disk
        self._settings = Settings(root=str(root), port=0, **settings)
        self.loop = asyncio.new_event_loop()
        self._is_stopped = False
        self._failures: list[Json] = []
        self.loop.set_exception_handler(lambda _, context: self._failures.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.broker = Broker(self._settings, self._disk)
        try:
            self.finish(self.broker.start())
        except BaseException:
            self._end_loop()
            raise
        self.port = self.broker.port
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._end_loop()
        assert not self._failures

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self.finish(self.broker.stop())

    def finish(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_S)

    def run(self, function: Callable[[], T]) -> T:
        """Calls a function in the broker's event loop, which owns the broker's state."""

        async def call() -> T:
            return function()

        return self.finish(call())

    @property
    def sessions(self) -> list[Session]:
        return self.run(lambda: list(self.broker._sessions))


class PenstockProcess(ABC):
    """A `penstock` command that runs until it is stopped, and can be restarted."""

    # Its name in error messages.
    what: ClassVar[str]

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self.process: subprocess.Popen[str] | None = None
        self._log = log
        self._environment = environment
        self._prefix: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Starts the process, and waits until it is ready."""

    def ensure_running(self) -> None:
        """Starts the process if an earlier test has stopped or killed it."""
        if self.process is None:
            self.start()

    def _spawn(self, *words: str) -> queue.SimpleQueue[str]:
        """Starts the command, and returns a queue of its output lines."""
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*self._prefix, str(PENSTOCK), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        assert self.process.stdout is not None
        return drain(self.process.stdout)

    def _fail(self) -> NoReturn:
        self.kill()
        pytest.fail(f"the {self.what} did not get ready:\n{self.log}")

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def log_lines(self) -> list[str]:
        return self.log.splitlines()

    def limit_descriptors(self, limit: int) -> None:
        """Sets the soft and the hard limit of open files for the next start."""
        self._prefix = ("sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh")

    def set_variable(self, name: str, value: str) -> None:
        """Sets an environment variable for the next start."""
        self._environment[name] = value

    def unset_variable(self, name: str) -> None:
        """Removes an environment variable for the next start."""
        self._environment.pop(name, None)

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait_for_end(self) -> int:
        """Waits until the process exits by itself, and returns its exit code."""
        assert self.process is not None
        code = self.process.wait(TIMEOUT_S)
        self.process = None
        return code

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        """Stops the process with SIGTERM, and checks its exit code and log."""
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert code == 0, f"the {self.what} ended with {code}:\n{self.log}"
        assert "Traceback" not in self.log, self.log


class BrokerProcess(PenstockProcess, Reachable):
    """`penstock serve` on a directory; a second `start` serves the same directory."""

    what = "broker"

    def __init__(self, root: Path, *flags: str, **environment: str) -> None:
        super().__init__(root.with_name(root.name + ".log"), clean_environment(**environment))
        self.root = root
        self.port = 0
        self._flags = flags

    @property
    def resident_bytes(self) -> int:
        assert self.process is not None
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def start(self) -> None:
        port = () if "--port" in self._flags else ("--port", str(self.port))
        try:
            self.port = _wait_for_ready(
                self._spawn("serve", "--root", str(self.root), *port, *self._flags)
            )
        except (queue.Empty, EOFError):
            self._fail()

    def signal_stop(self) -> None:
        self.send_signal(signal.SIGTERM)


def drain(stream: IO[str]) -> queue.SimpleQueue[str]:
    """Reads the lines of a pipe in a thread, because a full pipe blocks its writer."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    return lines


def _wait_for_ready(lines: queue.SimpleQueue[str]) -> int:
    while line := lines.get(timeout=TIMEOUT_S):
        if ready := re.fullmatch(r"penstock ready \S+:(\d+)\n", line):
            return int(ready[1])
    raise EOFError


class Peer:
    """A client that sends arbitrary bytes and receives raw answers."""

    def __init__(self, stream_socket: socket.socket) -> None:
        self.socket = stream_socket
        self._reader = stream_socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self.socket.close()

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def introduce(self, token: str = "", **fields: Any) -> Json:
        """Performs the handshake of a client without extensions, and returns the answer."""
        self.say(b"\x01" + connect_frame(token, **fields))
        return self.take_connect_answer()

    def take_connect_answer(self) -> Json:
        assert self.take(1) == b"\x01"
        operation, answer = self.take_answer()
        assert operation == Operation.ConnectResponse
        return answer

    def ask(self, operation: int, **fields: Any) -> tuple[int, Json]:
        self.say(frame(operation, **fields))
        return self.take_answer()

    def take_answer(self) -> tuple[int, Json]:
        length, operation = HEADER.unpack(self.take(HEADER.size))
        return operation, cbor2.loads(self.take(length - 1))

    def take(self, size: int) -> bytes:
        data = self._reader.read(size)
        assert len(data) == size, "the broker closed the connection"
        return data

    def take_rest(self) -> bytes:
        """Receives all bytes until the broker closes or resets the connection."""
        data = b""
        try:
            while piece := self._reader.read1():
                data += piece
        except ConnectionResetError:
            pass
        return data


def frame(operation: int, **fields: Any) -> bytes:
    return encode_frame(operation, cbor2.dumps({"requestId": "r", **fields}))


def connect_frame(token: str = "", **fields: Any) -> bytes:
    request = {"protocolVersion": "1.1.0", "otherSupportedProtocolVersions": ["1.0.0"]}
    if token:
        request["authToken"] = token
    return frame(Operation.Connect, **{**request, **fields})


def append_frame(name: str, payload: bytes, request_id: str = "r") -> bytes:
    """Encodes an append like the AWS Python client."""
    body = {"requestId": request_id, "name": name, "payload": payload}
    return encode_frame(Operation.AppendMessage, cbor2.dumps(body))


def create(connection: RawConnection, name: str, **fields: Any) -> str:
    """Creates a stream that overwrites its oldest messages when full."""
    connection.call(
        Operation.CreateMessageStream, definition={"name": name, "strategyOnFull": 1, **fields}
    )
    return name


def append(connection: RawConnection, name: str, payload: bytes) -> int:
    response = connection.call(Operation.AppendMessage, name=name, payload=payload)
    return int(response["sequenceNumber"])


def read(connection: RawConnection, name: str, **options: int) -> list[Json]:
    response = connection.call(Operation.ReadMessages, streamName=name, readMessagesOptions=options)
    messages: list[Json] = response["messages"]
    return messages


@contextmanager
def running(target: Callable[[], object]) -> Iterator[None]:
    """Runs a function in a thread during the block, and raises its error."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(TIMEOUT_S)
    assert not thread.is_alive(), "the function did not return"
    if errors:
        raise errors[0]
