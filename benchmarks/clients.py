"""Benchmark clients of Penstock: its own Python client, and the unmodified AWS client.

Each uses one stream and one connection, and checks every response.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock import (
    MessageStreamDefinition,
    ReadMessagesOptions,
    StrategyOnFull,
    StreamManagerClient,
)

STREAM = "measured"

_PROJECT = Path(__file__).resolve().parents[1]
_AWS_PYTHON = _PROJECT / ".sdks" / "stream-manager-1.1.2" / "bin" / "python"
_AWS_PROGRAM = Path(__file__).with_name("aws_client.py")


class WrongAnswerError(Exception):
    """A response has an error, or its sequence numbers do not increase."""


class PenstockPy:
    """Penstock's client, in one thread."""

    def __init__(self, root: Path) -> None:
        self.client = StreamManagerClient(root=root)

    def close(self) -> None:
        self.client.close()

    def create_stream(self, *, flush_on_write: bool = False) -> None:
        self.client.create_message_stream(
            MessageStreamDefinition(
                name=STREAM,
                max_size=1 << 34,
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                flush_on_write=flush_on_write,
            )
        )

    def empty(self) -> None:
        """Does nothing: stored messages do not affect the measurement."""

    def append_one_at_a_time(self, payloads: Sequence[bytes]) -> None:
        last = -1
        append = self.client.append_message
        for payload in payloads:
            number = append(STREAM, payload)
            if number <= last:
                raise WrongAnswerError(f"sequence number {number} after {last}")
            last = number

    def append_many(self, payloads: Sequence[bytes]) -> None:
        numbers = self.client.append_messages(STREAM, payloads)
        if len(numbers) != len(payloads) or not all(a < b for a, b in pairwise(numbers)):
            raise WrongAnswerError("sequence numbers are not unique and increasing")

    def read(self, total: int, count: int) -> None:
        for start in range(0, total, count):
            messages = self.client.read_messages(
                STREAM, ReadMessagesOptions(start, min_message_count=count, max_message_count=count)
            )
            numbers = messages[0].sequence_number, messages[-1].sequence_number
            if len(messages) != count or numbers != (start, start + count - 1):
                raise WrongAnswerError(f"{len(messages)} messages, {numbers}, from {start} on")

    def read_all(self, total: int) -> None:
        """Reads all messages with the iterator."""
        read = sum(1 for _ in self.client.read_all(STREAM, 0, total))
        if read != total:
            raise WrongAnswerError(f"{read} of {total} messages")


class AwsPy:
    """The AWS client in a separate process that executes commands line by line.

    It requires another version of a library that Penstock uses.
    """

    def __init__(self, port: int, token: str) -> None:
        self._process = subprocess.Popen(
            [str(_AWS_PYTHON), str(_AWS_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "STREAM_MANAGER_SERVER_PORT": str(port),
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": token,
            },
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def empty(self) -> None:
        """Does nothing: stored messages do not affect the measurement."""

    def pin_to(self, cores: set[int]) -> None:
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)

    def append_one_at_a_time(self, payloads: Sequence[bytes]) -> None:
        self._execute(command="append", count=len(payloads), size=len(payloads[0]))

    def append_many(self, payloads: Sequence[bytes]) -> None:
        """Appends from eight threads that share the client, because it cannot pipeline requests."""
        self._execute(command="append", count=len(payloads), size=len(payloads[0]), threads=8)

    def read(self, total: int, count: int) -> None:
        self._execute(command="read", total=total, count=count)

    def _execute(self, **arguments: Any) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if answer != "done\n":
            raise WrongAnswerError(f"the AWS client answered {answer!r}")


def has_aws_client() -> bool:
    return _AWS_PYTHON.exists()
