"""The delivery of a slice of S3 tasks, in order.

The broker stores an upload before it is created, and its id before the first part is sent: after a
crash it is continued or aborted, and no parts stay in a bucket unnoticed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
from penstock.pipeline.uploads.input_files import (
    AllowedDirectories,
    InputError,
    InputFile,
    find_path,
)
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
        grant: Callable[[int], bool],
        # Reports to the broker at once; False if the lease is lost.
        report: Callable[[], bool],
        # Called when parts have arrived or tasks have ended.
        on_progress: Callable[[], None],
    ) -> None:
        assert isinstance(export.config, S3ExportTaskExecutorConfig)
        settings = export.settings
        self._export = export
        self._messages = messages
        self._time_to_live = found.time_to_live
        self._stop = stop
        self._grant = grant
        self._report = report
        self._on_progress = on_progress
        threshold = export.config.size_threshold_for_multipart_upload_bytes or _DEFAULT_THRESHOLD
        self._threshold = min(max(threshold, settings.s3_min_part_bytes), _MAX_WHOLE_BYTES)
        self._allowed = AllowedDirectories(settings.read_only_directories, export.root)
        zone = settings.s3_key_time_zone
        # UTC needs no time zone database.
        self._zone: tzinfo = UTC if zone == "UTC" else ZoneInfo(zone)
        self._settlements = Settlements(messages, found.end)
        self._uploads = {upload.sequence_number: upload for upload in found.uploads}
        self._abandoned: list[Upload] = []
        self._events: list[TaskEvent] = []
        self._uploaded: list[UploadedFile] = []
        self._sent_bytes = 0
        self._next = 0
        self._is_over = False
        self._error = ""
        self._pause = 0.0
        # Guards the results above.
        self._lock = threading.RLock()

    def run(self) -> None:
        if self._export.root is None:
            self._error = (
                "S3 tasks are about files of the broker's machine, and this pipeline runs on "
                "another one: run one there"
            )
            return
        threads = self._export.settings.s3_tasks_at_once
        with ThreadPoolExecutor(threads, "penstock-task") as pool:
            for _ in range(min(threads, len(self._messages.numbers)) - 1):
                pool.submit(self._work)
            self._work()

    def delivery(self) -> Delivery:
        with self._lock:
            return msgspec.structs.replace(
                self._settlements.describe(),
                sent_bytes=self._sent_bytes,
                error=self._error,
                pause=self._pause,
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
            self._end(str(error), error.retry_after or 0.0)
        except StoppedError:
            self._end()
        except (OSError, StreamManagerException) as error:
            # The broker is unavailable, or this machine has no descriptors left.
            self._end(f"{type(error).__name__}: {error}")
        except Exception as error:
            # The status of the export shows it.
            logger.exception("an S3 task of stream %r failed", self._export.stream)
            self._end(f"{type(error).__name__}: {error}")

    def _take(self) -> int | None:
        """The place of the next task; None if no further task may begin."""
        with self._lock:
            if (
                self._is_over
                or self._stop.is_set
                or self._next >= len(self._messages.numbers)
                or self._settlements.count_ahead() >= _MAX_AHEAD
            ):
                return None
            self._next += 1
            return self._next - 1

    def _end(self, error: str = "", pause: float = 0.0) -> None:
        """No further task begins: tasks are carried out in order."""
        with self._lock:
            self._is_over = True
            if not self._error:
                self._error, self._pause = error, pause

    # One task

    def _attempt(self, place: int) -> None:
        if self._time_to_live is not None:
            expires = self._messages.ingest_times[place] + self._time_to_live
            if expires < _now_millis():
                self._dismiss(place, Status.Canceled, "its time to live is over")
                return
        try:
            task = parse_task(self._messages.payloads[place])
            with self._allowed.open(find_path(task.input_url)) as file:
                where = self._upload(place, task, file)
                message = f"{file.size} bytes were uploaded to {where}"
                self._settle(place, Status.Success, message, file)
        except (TaskError, InputError, RefusedError) as error:
            self._dismiss(place, Status.Failure, str(error))

    def _dismiss(self, place: int, status: Status, reason: str) -> None:
        """The task will never be done: its upload is aborted."""
        upload = self._uploads.get(self._messages.numbers[place])
        if upload is not None:
            self._abort(place, upload)
        self._settle(place, status, reason)

    def _settle(
        self, place: int, status: Status, message: str, file: InputFile | None = None
    ) -> None:
        """Ends a task, with its file if that was uploaded.

        The event and the settled task become visible at once.
        """
        number = self._messages.numbers[place]
        with self._lock:
            self._uploads.pop(number, None)
            self._add_event(place, status, message)
            if file is None:
                self._settlements.note_skipped(place, message)
            else:
                self._settlements.note_arrived((place,))
                self._uploaded.append(UploadedFile(number, file.path, file.fingerprint))
        self._on_progress()

    def _abort(self, place: int, upload: Upload) -> None:
        try:
            abort(upload, self._export.timeout)
        except (UnavailableError, RefusedError) as error:
            with self._lock:
                self._abandoned.append(upload)
            self._add_event(
                place,
                Status.Warning,
                f"an unfinished upload of {_name(upload)} could not be aborted, and is aborted "
                f"later: {error}",
            )

    def _add_event(self, place: int, status: Status, message: str) -> None:
        event = TaskEvent(
            sequence_number=self._messages.numbers[place],
            status=status,
            message=message[:_MAX_MESSAGE_LENGTH],
            time=_now_millis(),
            task=find_task(self._messages.payloads[place]),
        )
        with self._lock:
            self._events.append(event)

    # Its file

    def _upload(self, place: int, task: Task, file: InputFile) -> str:
        """The place of the complete object; StoppedError if the delivery was stopped before."""
        upload = self._uploads.get(self._messages.numbers[place])
        if upload is None:
            key = resolve_key(task.key, time.time_ns(), self._zone)
            where = f"s3://{task.bucket}/{key}"
            self._add_event(
                place, Status.InProgress, f"{file.size} bytes are on their way to {where}"
            )
            if file.size <= self._threshold:
                if not self._reserve(file.size):
                    raise StoppedError
                # One that takes too long is sent in parts.
                with suppress(TooSlowError):
                    bucket = Bucket(task.bucket, self._export.timeout)
                    send_whole(file, bucket, key, task.user_metadata or {}, self._stop)
                    return where
            upload = self._create(place, task, key, file)
        elif upload.fingerprint != file.fingerprint:
            raise InputError(f"{file.path!r} has changed since its upload began")
        elif not upload.upload_id:
            # A crash may have happened before or after the upload was created.
            try:
                abort(upload, self._export.timeout)
            except RefusedError as error:
                self._add_event(
                    place,
                    Status.Warning,
                    f"an unfinished upload of {_name(upload)} may have been left, and cannot be "
                    f"looked for: {error}",
                )
            upload = self._create(place, task, upload.key, file)
        self._send_parts(place, file, upload)
        return _name(upload)

    def _create(self, place: int, task: Task, key: str, file: InputFile) -> Upload:
        upload = Upload(
            sequence_number=self._messages.numbers[place],
            bucket=task.bucket,
            key=key,
            began=_now_millis(),
            fingerprint=file.fingerprint,
            size=file.size,
            part_size=choose_part_size(file.size, self._export.settings.s3_min_part_bytes),
        )
        self._store(upload)
        bucket = Bucket(task.bucket, self._export.timeout)
        try:
            upload_id = bucket.create_upload(key, task.user_metadata or {})
        except RefusedError:
            # There is nothing to be aborted.
            self._forget(upload)
            raise
        created = msgspec.structs.replace(upload, upload_id=upload_id)
        try:
            self._store(created)
        except StoppedError:
            abort(created, self._export.timeout)
            raise
        return created

    def _store(self, upload: Upload) -> None:
        """StoppedError if the lease is lost: then the broker has not stored the upload."""
        with self._lock:
            self._uploads[upload.sequence_number] = upload
        if not self._report():
            raise StoppedError

    def _forget(self, upload: Upload) -> None:
        with self._lock:
            self._uploads.pop(upload.sequence_number, None)

    def _send_parts(self, place: int, file: InputFile, upload: Upload) -> None:
        bucket = Bucket(upload.bucket, self._export.timeout)
        transfer = PartsTransfer(
            file, bucket, upload, self._stop, self._reserve, self._keep_progress
        )
        try:
            transfer.run(self._export.settings.s3_parts_at_once)
        except GoneError:
            # It may be that only some of its parts are.
            self._abort(place, upload)
            self._forget(upload)
            raise UnavailableError(
                f"S3 no longer has the upload of {_name(upload)}: it begins anew"
            ) from None

    def _reserve(self, size: int) -> bool:
        """Waits until so many bytes may be sent, and counts them; False if it is stopped."""
        # Without a limit all is granted, also after a stop.
        if self._stop.is_set or not self._grant(size):
            return False
        with self._lock:
            self._sent_bytes += size
        return True

    def _keep_progress(self, upload: Upload) -> None:
        with self._lock:
            known = self._uploads[upload.sequence_number]
            # A thread that has sent a later part may have come first.
            if upload.arrived_parts > known.arrived_parts:
                self._uploads[upload.sequence_number] = upload
        self._on_progress()


def _now_millis() -> int:
    return time.time_ns() // 1_000_000


def _name(upload: Upload) -> str:
    return f"s3://{upload.bucket}/{upload.key}"
