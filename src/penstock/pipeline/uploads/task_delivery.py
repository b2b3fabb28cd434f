"""The delivery of a slice of S3 tasks, in order.

The broker stores an upload before S3 creates it, and its id before the first part is sent. So the
upload is continued or aborted after a crash, and no parts are left in a bucket.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, timezone
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from penstock.model import S3ExportTaskExecutorConfig
from penstock.model.exporting import TaskEvent, TaskSlice, Upload
from penstock.model.s3_task import find_task
from penstock.model.status_message import Status
from penstock.pipeline.delivery import (
    DeliveryTotals,
    SliceProgress,
    StoppedError,
    StopSignal,
    UploadedFile,
)
from penstock.pipeline.destinations.destination import (
    ExportContext,
    Messages,
    RefusedError,
    UnavailableError,
)
from penstock.pipeline.uploads import transfer
from penstock.pipeline.uploads.input_files import AllowedDirectories, InputFile, InputFileError
from penstock.pipeline.uploads.s3_calls import GoneError, S3Calls
from penstock.pipeline.uploads.task_parsing import S3Task, TaskError, parse_task, resolve_key

_DEFAULT_THRESHOLD = 5 * 1024 * 1024
# The maximum for one call to S3.
_MAX_WHOLE_BYTES = 5 * 1024 * 1024 * 1024
# The maximum number of finished tasks after the first unfinished one.
_MAX_AHEAD = 512
_MAX_MESSAGE_LENGTH = 1000


class UploadAbortion:
    """The delivery of an `UploadAbort`, because S3 bills the parts of unfinished uploads."""

    def __init__(self, upload: Upload, timeout: float) -> None:
        self._upload = upload
        self._s3 = S3Calls(timeout)
        self._totals = DeliveryTotals(settled_end=upload.sequence_number)

    def run(self) -> None:
        try:
            self._s3.abort(self._upload)
        except (UnavailableError, RefusedError) as error:
            pause = getattr(error, "retry_after", None) or 0.0
            self._totals = replace(self._totals, error=str(error), pause=pause)

    def totals(self) -> DeliveryTotals:
        return self._totals


class TaskDelivery:
    """A delivery of S3 tasks. One thread runs it; any thread may call `totals`."""

    def __init__(
        self,
        export: ExportContext,
        messages: Messages,
        found: TaskSlice,
        stop: StopSignal,
        # Waits until this many bytes may be sent; False if the delivery was stopped.
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
        self._s3 = S3Calls(export.timeout)
        zone = settings.s3_key_time_zone
        # UTC needs no time zone database.
        self._zone: ZoneInfo | timezone = UTC if zone == "UTC" else ZoneInfo(zone)
        self._pending_places: Iterator[int] = iter(range(len(messages.numbers)))
        # Guards the results.
        self._lock = threading.RLock()
        self._progress = SliceProgress(messages, found.end)
        self._uploads = {upload.sequence_number: upload for upload in found.uploads}
        self._abandoned: list[Upload] = []
        self._events: list[TaskEvent] = []
        self._uploaded: list[UploadedFile] = []
        self._sent_bytes = 0
        self._error = ""
        self._pause = 0.0

    def run(self) -> None:
        """Delivers the tasks. Raises errors that neither S3 nor a task causes."""
        if self._export.root is None:
            self._error = "S3 tasks need a pipeline on the broker's machine, not on another machine"
            return
        threads = self._export.settings.s3_tasks_at_once
        with ThreadPoolExecutor(threads, "penstock-task") as pool:
            working = [pool.submit(self._work) for _ in range(threads)]
        for each in working:
            each.result()

    def totals(self) -> DeliveryTotals:
        with self._lock:
            return replace(
                self._progress.describe(),
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
        except Exception as error:
            with self._lock:
                # Tasks are carried out in order: no task begins after a failed task.
                self._pending_places = iter(())
                if isinstance(error, UnavailableError):
                    self._error, self._pause = str(error), error.retry_after or 0.0
                elif not isinstance(error, StoppedError):
                    raise

    def _take(self) -> int | None:
        """The place of the next task; None if no further task may begin."""
        with self._lock:
            if self._stop.is_set or self._progress.count_ahead() >= _MAX_AHEAD:
                return None
            return next(self._pending_places, None)

    # One task

    def _attempt(self, place: int) -> None:
        if self._time_to_live is not None:
            expires = self._messages.ingest_times[place] + self._time_to_live
            if expires < _now_millis():
                self._end_task(place, Status.Canceled, "its time to live has expired")
                return
        try:
            task = parse_task(self._messages.payloads[place])
            with self._allowed.open(task.input_url) as file:
                url = self._upload(place, task, file)
                message = f"{file.size} bytes were uploaded to {url}"
                self._end_task(place, Status.Success, message, file)
        except (TaskError, InputFileError, RefusedError) as error:
            self._end_task(place, Status.Failure, str(error))

    def _end_task(
        self, place: int, status: Status, message: str, file: InputFile | None = None
    ) -> None:
        """Ends a task. Without `file` the task has failed, and its upload is aborted."""
        number = self._messages.numbers[place]
        upload = self._uploads.get(number)
        if file is None and upload is not None:
            self._abort(place, upload)
        # Under the lock: a report has both the event and the end of the task, or neither.
        with self._lock:
            self._uploads.pop(number, None)
            self._add_event(place, status, message)
            if file is None:
                self._progress.note_skipped(place, message)
            else:
                self._progress.note_arrived((place,))
                self._uploaded.append(UploadedFile(number, file.path, file.fingerprint))
        self._on_progress()

    def _abort(self, place: int, upload: Upload) -> None:
        try:
            self._s3.abort(upload)
        except (UnavailableError, RefusedError) as error:
            with self._lock:
                self._abandoned.append(upload)
            problem = f"an unfinished upload of {_url(upload)} is aborted later: {error}"
            self._add_event(place, Status.Warning, problem)

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

    # The upload of a task

    def _upload(self, place: int, task: S3Task, file: InputFile) -> str:
        """Uploads a file, and returns the URL of the object. StoppedError if stopped before."""
        metadata = task.user_metadata or {}
        number = self._messages.numbers[place]
        upload = self._uploads.get(number)
        if upload is None:
            min_part_size = self._export.settings.s3_min_part_bytes
            upload = Upload(
                sequence_number=number,
                bucket=task.bucket,
                key=resolve_key(task.key, time.time_ns(), self._zone),
                began=_now_millis(),
                fingerprint=file.fingerprint,
                size=file.size,
                part_size=transfer.choose_part_size(file.size, min_part_size),
            )
            message = f"uploading {file.size} bytes to {_url(upload)}"
            self._add_event(place, Status.InProgress, message)
            if file.size <= self._threshold:
                self._reserve(file.size)
                with suppress(transfer.TooSlowError):
                    transfer.send_whole(file, upload, metadata, self._s3, self._stop)
                    return _url(upload)
        elif upload.fingerprint != file.fingerprint:
            raise InputFileError(f"{file.path!r} has changed since its upload began")
        elif not upload.upload_id:
            # A crash happened before or after S3 created the upload.
            try:
                self._s3.abort(upload)
            except RefusedError as error:
                problem = f"an unfinished upload of {_url(upload)} may remain: {error}"
                self._add_event(place, Status.Warning, problem)
        if not upload.upload_id:
            upload = self._create(upload, metadata)
        self._send_parts(place, file, upload)
        return _url(upload)

    def _create(self, upload: Upload, metadata: Mapping[str, str]) -> Upload:
        upload = replace(upload, began=_now_millis())
        if not self._store(upload):
            raise StoppedError
        try:
            upload = replace(upload, upload_id=self._s3.create(upload, metadata))
        except RefusedError:
            # There is nothing to abort.
            with self._lock:
                del self._uploads[upload.sequence_number]
            raise
        if not self._store(upload):
            self._s3.abort(upload)
            raise StoppedError
        return upload

    def _store(self, upload: Upload) -> bool:
        """Reports an upload; False if the lease is lost, and the broker has not stored it."""
        with self._lock:
            self._uploads[upload.sequence_number] = upload
        return self._report()

    def _send_parts(self, place: int, file: InputFile, upload: Upload) -> None:
        def note_part(index: int, part: str) -> None:
            with self._lock:
                known = self._uploads[upload.sequence_number]
                parts = [*known.parts, *[""] * (index + 1 - len(known.parts))]
                parts[index] = part
                self._uploads[upload.sequence_number] = replace(known, parts=parts)
            self._on_progress()

        threads = self._export.settings.s3_parts_at_once
        try:
            transfer.send_parts(
                file, upload, self._s3, threads, self._stop, self._reserve, note_part
            )
            self._stop.check()
            file.check()
            self._s3.complete(self._uploads[upload.sequence_number])
        except GoneError:
            # S3 may have the upload without some of its parts.
            self._abort(place, upload)
            with self._lock:
                del self._uploads[upload.sequence_number]
            message = f"S3 no longer has the upload of {_url(upload)}: it is restarted"
            raise UnavailableError(message) from None

    def _reserve(self, size: int) -> None:
        """Waits until `size` bytes may be sent, and counts them; StoppedError if stopped."""
        # Without a bandwidth limit, `grant` never returns False.
        if self._stop.is_set or not self._grant(size):
            raise StoppedError
        with self._lock:
            self._sent_bytes += size


def _now_millis() -> int:
    return time.time_ns() // 1_000_000


def _url(upload: Upload) -> str:
    return f"s3://{upload.bucket}/{upload.key}"
