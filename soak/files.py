"""Files that S3 tasks upload, and the final status of each task."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

from penstock import (
    S3ExportTaskDefinition,
    Status,
    StatusMessage,
    StreamManagerClient,
    Util,
)
from penstock.errors import StreamManagerException
from soak.checks import Defect, Finding
from soak.processes import BrokerAddress

_ENDED = (Status.Success, Status.Failure, Status.Canceled)
_SIZES = (0, 1000, 300_000, 300_000, 6_000_000)


class Task(NamedTuple):
    key: str
    digest: str


class FileProducer(threading.Thread):
    """Writes files and appends a task for each until it is ended."""

    def __init__(
        self,
        broker: BrokerAddress,
        stream: str,
        bucket: str,
        directory: Path,
        seed: int,
        pause_seconds: float,
    ) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._stream = stream
        self._bucket = bucket
        self._directory = directory
        self._random = Random(seed)
        self._pause_seconds = pause_seconds
        self._is_over = threading.Event()
        self._made = 0
        # By sequence number.
        self.tasks: dict[int, Task] = {}
        self.reused: list[int] = []

    def end(self) -> None:
        """Ends the thread; may be called before it is started."""
        self._is_over.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        while not self._is_over.wait(self._pause_seconds):
            content = self._random.randbytes(self._random.choice(_SIZES))
            key = f"file-{self._made}"
            self._made += 1
            path = self._directory / key
            path.write_bytes(content)
            task = S3ExportTaskDefinition(path.as_uri(), self._bucket, key)
            payload = Util.validate_and_serialize_to_json_bytes(task)
            try:
                with StreamManagerClient(
                    "127.0.0.1", self._broker.port, token=self._broker.token, reconnect_timeout=0
                ) as client:
                    number = client.append_message(self._stream, payload)
            except (OSError, StreamManagerException):
                # The task may be stored, so its file is kept.
                time.sleep(0.2)
                continue
            if number in self.tasks:
                self.reused.append(number)
            self.tasks[number] = Task(key, hashlib.sha256(content).hexdigest())


def read_statuses(payloads: list[bytes], stream: str) -> dict[int, list[Status]]:
    """Returns the statuses in order, by the sequence number of their task."""
    statuses: dict[int, list[Status]] = {}
    for payload in payloads:
        message: StatusMessage = Util.deserialize_json_bytes_to_obj(payload, StatusMessage)
        context = message.status_context
        if context is not None and context.stream_name == stream:
            assert context.sequence_number is not None
            statuses.setdefault(context.sequence_number, []).append(message.status)
    return statuses


def describe_failures(payloads: list[bytes]) -> str:
    """Returns the messages of failed tasks."""
    texts = [json.loads(payload) for payload in payloads]
    return "; ".join(
        str(text.get("message")) for text in texts if text["status"] == Status.Failure.value
    )[:500]


def compare_tasks(
    name: str,
    tasks: Mapping[int, Task],
    statuses: Mapping[int, list[Status]],
    digests: Mapping[str, str],
) -> list[Finding]:
    """Checks that each task succeeded and that its object has the bytes of its file."""
    findings = []
    for number, task in tasks.items():
        ends = [status for status in statuses.get(number, []) if status in _ENDED]
        if not ends:
            findings.append(Finding(Defect.LOST, name, f"task {number}, {task.key}, did not end"))
        elif Status.Success not in ends:
            detail = f"task {number}, {task.key}, ended as {ends[-1].name}"
            findings.append(Finding(Defect.WRONG, name, detail))
        elif task.key not in digests:
            detail = f"task {number}: object {task.key} is missing"
            findings.append(Finding(Defect.LOST, name, detail))
        elif digests[task.key] != task.digest:
            detail = f"task {number}: object {task.key} differs from its file"
            findings.append(Finding(Defect.WRONG, name, detail))
    return findings
