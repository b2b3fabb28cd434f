"""Deliveries of S3 tasks as a job runs them, and a broker that accepts their reports."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mypy_boto3_s3.client import S3Client

from penstock import S3ExportTaskExecutorConfig
from penstock.model.exporting import TaskEvent, TaskSlice, Upload
from penstock.pipeline.delivery import DeliveryTotals, StopSignal
from penstock.pipeline.destinations.destination import DestinationSettings, ExportContext, Messages
from penstock.pipeline.uploads.task_delivery import TaskDelivery
from tests.support import TIMEOUT_S

MEBIBYTE = 1024 * 1024
FIRST = 100

_numbers = itertools.count()


class Workbench:
    """One export, its tasks, and their bucket."""

    def __init__(self, client: S3Client, directory: Path) -> None:
        self.client = client
        self.directory = directory
        self.bucket = f"bucket-{next(_numbers)}-{time.time_ns()}"
        client.create_bucket(Bucket=self.bucket)
        # The results that deliveries had to report at once.
        self.reported: list[DeliveryTotals] = []
        # For each progress of a delivery, the number of parts that have arrived.
        self.parts: list[int] = []
        # Whether the broker accepts a report; it may raise.
        self.accepts: Callable[[DeliveryTotals], bool] = lambda _: True
        self.tasks: list[bytes] = []
        self.settings: dict[str, Any] = {}
        self.threshold: int | None = None
        self.stop = StopSignal()

    def write(self, name: str, content: bytes) -> Path:
        path = self.directory / name
        path.write_bytes(content)
        return path

    def add(self, path: Path | str, key: str, **fields: Any) -> int:
        """Adds a task, and returns its number."""
        url = str(path) if isinstance(path, str) else path.as_uri()
        task = {"inputUrl": url, "bucket": self.bucket, "key": key, **fields}
        return self.add_payload(json.dumps(task).encode())

    def add_payload(self, payload: bytes) -> int:
        self.tasks.append(payload)
        return FIRST + len(self.tasks) - 1

    def begin(
        self,
        *,
        # The number of calls with bytes of files before the delivery is stopped; None: it is not.
        calls: int | None = None,
        reserve: Callable[[int], bool] | None = None,
        uploads: Sequence[Upload] = (),
        time_to_live: int | None = None,
        is_remote: bool = False,
    ) -> TaskDelivery:
        count = len(self.tasks)
        now = time.time_ns() // 1_000_000
        messages = Messages(
            "tasks", FIRST, range(FIRST, FIRST + count), [now - 1000] * count, self.tasks
        )
        config = S3ExportTaskExecutorConfig(
            "to-s3", size_threshold_for_multipart_upload_bytes=self.threshold
        )
        root = None if is_remote else str(self.directory / "root")
        settings = DestinationSettings(**self.settings)
        export = ExportContext("tasks", "id", config, settings, root, timeout=TIMEOUT_S)
        found = TaskSlice(
            lease="lease",
            stream="tasks",
            identifier="to-s3",
            stream_id="id",
            kind="s3_task_executor",
            config={},
            first=FIRST,
            end=FIRST + count,
            arrived=[],
            has_files=True,
            segments=[],
            uploads=list(uploads),
            time_to_live=time_to_live,
        )
        self.stop = StopSignal()
        if reserve is None:
            reserve = self._limited(calls)

        def report() -> bool:
            self.reported.append(delivery.totals())
            return self.accepts(self.reported[-1])

        looking = threading.Lock()

        def note_progress() -> None:
            # Threads of several parts: none appends an older number after a newer one.
            with looking:
                uploads = delivery.totals().uploads
                self.parts.append(sum(upload.arrived_parts for upload in uploads))

        delivery = TaskDelivery(export, messages, found, self.stop, reserve, report, note_progress)
        return delivery

    def _limited(self, calls: int | None) -> Callable[[int], bool]:
        remaining = itertools.repeat(True) if calls is None else iter([True] * calls)

        def reserve(_: int) -> bool:
            if not next(remaining, False):
                self.stop.stop()
            return not self.stop.is_set

        return reserve

    def run(self, **options: Any) -> DeliveryTotals:
        delivery = self.begin(**options)
        delivery.run()
        return delivery.totals()

    def content(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def list_keys(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return [each["Key"] for each in found]

    def unfinished(self) -> list[str]:
        """The keys of uploads that were neither completed nor aborted."""
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [each["Key"] for each in found]


def statuses(events: Sequence[TaskEvent]) -> list[tuple[int, str]]:
    return [(event.sequence_number, event.status.name) for event in events]
