"""The delivery of a slice of S3 tasks, in order.

The broker stores an upload before it is created, and its id before the first part is sent: after a
crash it is continued or aborted, and no parts stay in a bucket unnoticed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from penstock.errors import StreamManagerException
from penstock.model import S3ExportTaskExecutorConfig
from penstock.model.exporting import TaskEvent, TaskSlice, Upload
from penstock.model.s3 import find_task
from penstock.model.status import Status
from penstock.pipeline.destinations.destination import (
    Export,
    Messages,
    RefusedError,
    UnavailableError,
)
from penstock.pipeline.settlements import Delivery, Settlements, UploadedFile
from penstock.pipeline.stopping import StoppedError, StopSignal
from penstock.pipeline.uploads.aborting import abort
from penstock.pipeline.uploads.bucket import Bucket, GoneError
from penstock.pipeline.uploads.inputs import Enclosure, InputError, InputFile, find_path
from penstock.pipeline.uploads.tasks import Task, TaskError, parse_task, resolve_key
from penstock.pipeline.uploads.transfer import (
    PartsTransfer,
    TooSlowError,
    choose_part_size,
    send_whole,
)

logger = logging.getLogger(__name__)

_DEFAULT_THRESHOLD = 5 * 1024 * 1024
# The maximum for one call to S3.
_MAX_WHOLE_BYTES = 5 * 1024 * 1024 * 1024
# So many tasks may be done behind one that is not.
_MAX_AHEAD = 512
_MAX_MESSAGE_LENGTH = 1000


class TaskDelivery:
    """A delivery of S3 tasks. One thread runs it, any thread may look."""

    def __init__(
        self,
        export: Export,
        messages: Messages,
        found: TaskSlice,
        stop: StopSignal,
        # Waits until so many bytes may be sent; False if the delivery was stopped.
        reserve: Callable[[int], bool],
        # Reports to the broker at once; False if the lease is lost.
        report: Callable[[], bool],
        # Called when parts have arrived or tasks have ended.
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        assert isinstance(export.config, S3ExportTaskExecutorConfig)
        settings = export.settings
        self._export = export
        self._messages = messages
        self._time_to_live = found.time_to_live
        self._stop = stop
        self._reserve = reserve
        self._report = report
        self._on_progress = on_progress
        threshold = export.config.size_threshold_for_multipart_upload_bytes or _DEFAULT_THRESHOLD
        self._threshold = min(max(threshold, settings.s3_min_part_bytes), _MAX_WHOLE_BYTES)
        self._enclosure = Enclosure(settings.read_only_directories, export.root)
        self._settlements = Settlements(messages, found.end)
        self._uploads = {upload.sequence_number: upload for upload in found.uploads}
        self._abandoned: list[Upload] = []
        self._events: list[TaskEvent] = []
        self._uploaded: list[UploadedFile] = []
        self._sent_bytes = 0
        self._next = 0
        self._is_over = False
        self._error = ""
        self._retry_after = 0.0
        # Guards the results above.
        self._lock = threading.Lock()

    def run(self) -> None:
        if self._export.root is None:
            self._error = (
                "S3 tasks are about files of the broker's machine, and this pipeline runs on "
                "another one: run one there"
            )
            return
        threads = min(self._export.settings.s3_tasks_at_once, len(self._messages.numbers))
        if threads <= 1:
            self._work()
            return
        with ThreadPoolExecutor(threads, "penstock-task") as pool:
            for _ in range(threads):
                pool.submit(self._work)

    def delivery(self) -> Delivery:
        with self._lock:
            return msgspec.structs.replace(
                self._settlements.describe(),
                sent_bytes=self._sent_bytes,
                error=self._error,
                pause=self._retry_after,
                events=list(self._events),
                uploads=list(self._uploads.values()),
                abandoned=list(self._abandoned),
                uploaded=list(self._uploaded),
            )

    def _work(self) -> None:
        try:
            while (place := self._take()) is not None:
                self._attempt(place)
        except UnavailableError as error:
            self._end(str(error), error)
        except StoppedError:
            self._end("")
        except (OSError, StreamManagerException) as error:
            # The broker is unavailable, or this machine has no descriptors left.
            self._end(f"{type(error).__name__}: {error}")
        except Exception as error:
            # The status of the export shows it.
            logger.exception("an S3 task of stream %r failed", self._export.stream)
            self._end(f"{type(error).__name__}: {error}")

    def _take(self) -> int | None:
        """The place of the next task."""
        with self._lock:
            if not self._has_more() or self._stop.is_set:
                return None
            if self._settlements.count_ahead() >= _MAX_AHEAD:
                return None
            self._next += 1
            return self._next - 1

    def _has_more(self) -> bool:
        return not self._is_over and self._next < len(self._messages.numbers)

    def _end(self, error: str, unavailable: UnavailableError | None = None) -> None:
        """No further task begins: tasks are carried out in order."""
        with self._lock:
            self._is_over = True
            if error and not self._error:
                self._error = error
                if unavailable is not None:
                    self._retry_after = unavailable.retry_after or 0.0

    # One task

    def _attempt(self, place: int) -> None:
        if self._time_to_live is not None:
            ended = self._messages.ingest_times[place] + self._time_to_live
            if ended < _now_millis():
                self._dismiss(place, Status.Canceled, "its time to live is over")
                return
        try:
            task = parse_task(self._messages.payloads[place])
            path = find_path(task.input_url)
            with self._enclosure.open(path) as file:
                where = self._upload(place, task, file)
                if not where:
                    self._end("")
                    return
                self._succeed(place, where, file)
        except (TaskError, InputError, RefusedError) as error:
            self._dismiss(place, Status.Failure, str(error))

    def _succeed(self, place: int, where: str, file: InputFile) -> None:
        message = f"{file.size} bytes were uploaded to {where}"
        with self._lock:
            self._conclude(place, Status.Success, message)
            self._settlements.note_arrived((place,))
            number = self._messages.numbers[place]
            self._uploaded.append(UploadedFile(number, file.path, file.fingerprint))
        self._on_progress()

    def _dismiss(self, place: int, status: Status, reason: str) -> None:
        """The task will never be done: its upload is aborted."""
        upload = self._uploads.get(self._messages.numbers[place])
        if upload is not None:
            self._abort(place, upload)
        with self._lock:
            self._conclude(place, status, reason)
            self._settlements.note_skipped(place, reason)
        self._on_progress()

    def _conclude(self, place: int, status: Status, message: str) -> None:
        """Under the lock: the event and the settled task become visible at once."""
        self._uploads.pop(self._messages.numbers[place], None)
        self._events.append(self._make_event(place, status, message))

    def _abort(self, place: int, upload: Upload) -> None:
        try:
            abort(upload, self._export.timeout)
        except (UnavailableError, RefusedError) as error:
            with self._lock:
                self._abandoned.append(upload)
            self._say(
                place,
                Status.Warning,
                f"an unfinished upload of {_name(upload)} could not be aborted, and is aborted "
                f"later: {error}",
            )

    def _abort_unknown(self, place: int, upload: Upload) -> None:
        """A crash may have happened before or after the upload was created."""
        try:
            abort(upload, self._export.timeout)
        except RefusedError as error:
            self._say(
                place,
                Status.Warning,
                f"an unfinished upload of {_name(upload)} may have been left, and cannot be looked "
                f"for: {error}",
            )

    def _say(self, place: int, status: Status, message: str) -> None:
        event = self._make_event(place, status, message)
        with self._lock:
            self._events.append(event)

    def _make_event(self, place: int, status: Status, message: str) -> TaskEvent:
        return TaskEvent(
            sequence_number=self._messages.numbers[place],
            status=status,
            message=message[:_MAX_MESSAGE_LENGTH],
            time=_now_millis(),
            task=find_task(self._messages.payloads[place]),
        )

    # Its file

    def _upload(self, place: int, task: Task, file: InputFile) -> str:
        """The place of the complete object; empty if the delivery was stopped before."""
        upload = self._uploads.get(self._messages.numbers[place])
        if upload is None:
            key = self._resolve(task.key)
            where = f"s3://{task.bucket}/{key}"
            self._say(place, Status.InProgress, f"{file.size} bytes are on their way to {where}")
            if file.size <= self._threshold:
                if not self._reserve(file.size):
                    return ""
                if self._put(task, key, file):
                    return where
            upload = self._plan_upload(place, task.bucket, key, file)
        elif upload.fingerprint != file.fingerprint:
            raise InputError(f"{file.path!r} has changed since its upload began")
        elif not upload.upload_id:
            self._abort_unknown(place, upload)
            upload = self._plan_upload(place, upload.bucket, upload.key, file)
        return _name(upload) if self._send_parts(place, task, file, upload) else ""

    def _resolve(self, key: str) -> str:
        return resolve_key(key, time.time_ns(), _zone(self._export.settings.s3_key_time_zone))

    def _put(self, task: Task, key: str, file: InputFile) -> bool:
        """In one call; False if that takes too long, and parts are better."""
        bucket = Bucket(task.bucket, self._export.timeout)
        self._note_sent(file.size)
        try:
            send_whole(file, bucket, key, task.user_metadata or {}, self._stop)
        except TooSlowError:
            return False
        return True

    def _plan_upload(self, place: int, bucket: str, key: str, file: InputFile) -> Upload:
        upload = Upload(
            sequence_number=self._messages.numbers[place],
            bucket=bucket,
            key=key,
            began=_now_millis(),
            fingerprint=file.fingerprint,
            size=file.size,
            part_size=choose_part_size(file.size, self._export.settings.s3_min_part_bytes),
        )
        self._keep(upload)
        self._report_upload()
        return upload

    def _send_parts(self, place: int, task: Task, file: InputFile, upload: Upload) -> bool:
        bucket = Bucket(upload.bucket, self._export.timeout)
        if not upload.upload_id:
            upload = self._create(bucket, upload, task.user_metadata or {})
        transfer = PartsTransfer(
            file, bucket, upload, self._stop, self._reserve_part, self._keep_progress
        )
        try:
            is_there = transfer.run(self._export.settings.s3_parts_at_once)
        except GoneError:
            # It may be that only some of its parts are.
            self._abort(place, upload)
            self._forget(upload)
            raise UnavailableError(
                f"S3 no longer has the upload of {_name(upload)}: it begins anew"
            ) from None
        return is_there

    def _create(self, bucket: Bucket, upload: Upload, metadata: Mapping[str, str]) -> Upload:
        try:
            upload_id = bucket.create_upload(upload.key, metadata)
        except RefusedError:
            # There is nothing to be aborted.
            self._forget(upload)
            raise
        created = msgspec.structs.replace(upload, upload_id=upload_id)
        try:
            self._keep(created)
            self._report_upload()
        except StoppedError:
            abort(created, self._export.timeout)
            raise
        return created

    def _reserve_part(self, size: int) -> bool:
        is_granted = not self._stop.is_set and self._reserve(size)
        if is_granted:
            self._note_sent(size)
        return is_granted

    def _note_sent(self, size: int) -> None:
        with self._lock:
            self._sent_bytes += size

    def _keep_progress(self, upload: Upload) -> None:
        with self._lock:
            known = self._uploads[upload.sequence_number]
            # A thread that has sent a later part may have come first.
            if upload.arrived_parts > known.arrived_parts:
                self._uploads[upload.sequence_number] = upload
        self._on_progress()

    def _keep(self, upload: Upload) -> None:
        with self._lock:
            self._uploads[upload.sequence_number] = upload

    def _forget(self, upload: Upload) -> None:
        with self._lock:
            self._uploads.pop(upload.sequence_number, None)

    def _report_upload(self) -> None:
        """StoppedError if the lease is lost: then the broker has not stored the upload."""
        if not self._report():
            raise StoppedError


def _zone(name: str) -> tzinfo:
    # Where no zones are installed there is this one.
    return UTC if name == "UTC" else ZoneInfo(name)


def _now_millis() -> int:
    return time.time_ns() // 1_000_000


def _name(upload: Upload) -> str:
    return f"s3://{upload.bucket}/{upload.key}"
