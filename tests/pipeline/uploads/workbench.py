"""Attempts at S3 tasks as the courier makes them, with a broker that takes what it is told."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mypy_boto3_s3.client import S3Client

from penstock import S3ExportTaskExecutorConfig
from penstock.model.exporting import TaskEvent, Upload
from penstock.pipeline.delivery import Budget
from penstock.pipeline.destinations.destination import DestinationSettings, Export, Messages
from penstock.pipeline.messenger import Echo
from penstock.pipeline.settlements import Delivery
from penstock.pipeline.uploads.allowance import Allowance
from penstock.pipeline.uploads.attempt import TasksAttempt
from tests.support import PATIENCE_S

MEBIBYTE = 1024 * 1024
FIRST = 100

_numbers = itertools.count()


class Workbench:
    """One export, its tasks, and the bucket that they go to."""

    def __init__(self, client: S3Client, directory: Path) -> None:
        self.client = client
        self.directory = directory
        self.bucket = f"bucket-{next(_numbers)}-{time.time_ns()}"
        client.create_bucket(Bucket=self.bucket)
        # What the broker was told before the end of an attempt.
        self.told: list[Delivery] = []
        self.wants_to_know: Callable[[Delivery], bool] = lambda _: True
        self.is_awaited = False
        self.tasks: list[bytes] = []
        self.settings: dict[str, Any] = {}
        self.threshold: int | None = None

    def write(self, name: str, content: bytes) -> Path:
        path = self.directory / name
        path.write_bytes(content)
        return path

    def add(self, path: Path | str, key: str, **fields: Any) -> int:
        """A task; its number."""
        url = str(path) if isinstance(path, str) else path.as_uri()
        task = {"inputUrl": url, "bucket": self.bucket, "key": key, **fields}
        return self.add_payload(json.dumps(task).encode())

    def add_payload(self, payload: bytes) -> int:
        self.tasks.append(payload)
        return FIRST + len(self.tasks) - 1

    def attempt(
        self,
        *,
        seconds: float = PATIENCE_S,
        max_bytes: int | None = None,
        uploads: Sequence[Upload] = (),
        time_to_live: int | None = None,
        is_remote: bool = False,
    ) -> TasksAttempt:
        count = len(self.tasks)
        now = time.time_ns() // 1_000_000
        messages = Messages(
            "tasks", FIRST, range(FIRST, FIRST + count), [now - 1000] * count, self.tasks
        )
        export = Export(
            "tasks",
            "id",
            S3ExportTaskExecutorConfig(
                "to-s3", size_threshold_for_multipart_upload_bytes=self.threshold
            ),
            DestinationSettings(**self.settings),
            None if is_remote else str(self.directory / "root"),
            patience=5.0,
        )
        return TasksAttempt(
            export,
            messages,
            FIRST + count,
            list(uploads),
            time_to_live,
            Allowance(Budget(seconds), max_bytes),
            self._tell,
        )

    def _tell(self, delivery: Delivery) -> Echo:
        self.told.append(delivery)
        return Echo(self.wants_to_know(delivery), self.is_awaited)

    def run(self, **how: Any) -> Delivery:
        attempt = self.attempt(**how)
        attempt.run()
        return attempt.delivery()

    def all_events(self, delivery: Delivery) -> list[TaskEvent]:
        """Those of an attempt, told at once or in the end."""
        return [event for told in (*self.told, delivery) for event in told.events]

    def content(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def list_keys(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return [each["Key"] for each in found]

    def unfinished(self) -> list[str]:
        """The keys of uploads that were begun and neither completed nor aborted."""
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [each["Key"] for each in found]


def said(events: Sequence[TaskEvent]) -> list[tuple[int, str]]:
    return [(event.sequence_number, event.status.name) for event in events]
