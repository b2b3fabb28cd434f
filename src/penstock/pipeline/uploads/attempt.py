"""The tasks of a slice, carried out in their order for as long as there is time.

What has to be known of an upload after a crash, the broker is told before it matters: that one is
about to be created, and then what it is called. So nothing stays in a bucket that nobody knows of.
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
from penstock.model.exporting import TaskEvent, Upload
from penstock.model.s3 import find_task
from penstock.model.status import Status
from penstock.pipeline.destinations.destination import (
    Export,
    Messages,
    RefusedError,
    UnavailableError,
)
from penstock.pipeline.messenger import Echo
from penstock.pipeline.settlements import Delivery, Settlements, UploadedFile
from penstock.pipeline.uploads.aborting import abort
from penstock.pipeline.uploads.allowance import Allowance, LeftBehindError
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
# As much as S3 takes in one call.
_MOST_WHOLE = 5 * 1024 * 1024 * 1024
# Also if nobody waits, a batch of tasks has to end soon: until then they do not count as done.
_MOST_RENEWALS = 4
# So many tasks may be done behind one that is not.
_MOST_AHEAD = 512
_MESSAGE_LENGTH = 1000


class _LostError(Exception):
    """The tasks are somebody else's by now, or nobody's: the broker wants nothing of this."""


class TasksAttempt:
    """One attempt at the tasks of a slice. One thread runs it; another one may look at any time."""

    def __init__(
        self,
        export: Export,
        messages: Messages,
        end: int,
        uploads: list[Upload],
        time_to_live: int | None,
        allowance: Allowance,
        # Tells the broker at once.
        tell: Callable[[Delivery], Echo],
    ) -> None:
        assert isinstance(export.config, S3ExportTaskExecutorConfig)
        settings = export.settings
        self._export = export
        self._messages = messages
        self._time_to_live = time_to_live
        self._allowance = allowance
        self._tell = tell
        threshold = export.config.size_threshold_for_multipart_upload_bytes or _DEFAULT_THRESHOLD
        self._threshold = min(max(threshold, settings.s3_min_part_bytes), _MOST_WHOLE)
        self._enclosure = Enclosure(settings.read_only_directories, export.root)
        self._settlements = Settlements(messages, end)
        self._uploads = {upload.sequence_number: upload for upload in uploads}
        self._abandoned: list[Upload] = []
        self._events: list[TaskEvent] = []
        self._uploaded: list[UploadedFile] = []
        # The numbers of tasks that are over.
        self._concluded: set[int] = set()
        self._next = 0
        self._is_over = False
        self._error = ""
        self._retry_after: float | None = None
        self._timed_out = False
        # All that is noted above.
        self._lock = threading.Lock()
        # What is told to the broker at once, it is told in its order.
        self._telling = threading.Lock()

    # The attempt

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
                sent_bytes=self._allowance.sent_bytes,
                error=self._error,
                retry_after=self._retry_after,
                timed_out=self._timed_out,
                events=list(self._events),
                uploads=list(self._uploads.values()),
                abandoned=list(self._abandoned),
                uploaded=list(self._uploaded),
            )

    def leave_behind(self) -> None:
        self._allowance.leave_behind()

    def _work(self) -> None:
        try:
            while (place := self._take()) is not None:
                self._attempt(place)
        except UnavailableError as error:
            self._end(str(error), error)
        except (_LostError, LeftBehindError):
            self._end("")
        except (OSError, StreamManagerException) as error:
            # The broker is away, or this machine has no descriptors left.
            self._end(f"{type(error).__name__}: {error}")
        except Exception as error:
            # Whatever it is, the broker has to hear of it: it is what the user looks at.
            logger.exception("an S3 task of stream %r failed", self._export.stream)
            self._end(f"{type(error).__name__}: {error}")

    def _take(self) -> int | None:
        """The place of the next task."""
        if self._has_more() and self._allowance.may_renew(_MOST_RENEWALS):
            self._allowance.renew()
            self._give_way()
        with self._lock:
            if not self._has_more() or not self._allowance.may_begin():
                return None
            if self._settlements.count_ahead() >= _MOST_AHEAD:
                return None
            self._next += 1
            return self._next - 1

    def _has_more(self) -> bool:
        return not self._is_over and self._next < len(self._messages.numbers)

    def _end(self, error: str, unavailable: UnavailableError | None = None) -> None:
        """Nothing more is begun: tasks are carried out in their order."""
        with self._lock:
            self._is_over = True
            if error and not self._error:
                self._error = error
                if unavailable is not None:
                    self._retry_after = unavailable.retry_after
                    self._timed_out = unavailable.timed_out

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
                    # There is no time for more.
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
            self._uploaded.append(UploadedFile(file.path, file.fingerprint))

    def _dismiss(self, place: int, status: Status, reason: str) -> None:
        """It will never be done: nothing of it is left behind."""
        upload = self._uploads.get(self._messages.numbers[place])
        if upload is not None:
            self._abort(place, upload)
        with self._lock:
            self._conclude(place, status, reason)
            self._settlements.note_skipped(place, reason)

    def _conclude(self, place: int, status: Status, message: str) -> None:
        """Under the lock, at once with what is settled by it: or it might be told by itself."""
        number = self._messages.numbers[place]
        self._concluded.add(number)
        self._uploads.pop(number, None)
        self._events.append(self._make_event(place, status, message))

    def _abort(self, place: int, upload: Upload) -> None:
        try:
            abort(upload, self._export.patience)
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
        """Whoever was about to create it may have done so, and have ended then."""
        try:
            abort(upload, self._export.patience)
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
            message=message[:_MESSAGE_LENGTH],
            time=_now_millis(),
            task=find_task(self._messages.payloads[place]),
        )

    # Its file

    def _upload(self, place: int, task: Task, file: InputFile) -> str:
        """Where it is by now; empty if there is more of it to be sent."""
        upload = self._uploads.get(self._messages.numbers[place])
        if upload is None:
            if file.size > self._threshold and self._concluded:
                # What is over is told before something is begun that takes long.
                return ""
            key = self._resolve(task.key)
            where = f"s3://{task.bucket}/{key}"
            self._say(place, Status.InProgress, f"{file.size} bytes are on their way to {where}")
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
        """In one call; False if it is to go in parts."""
        if file.size > self._threshold:
            return False
        bucket = Bucket(task.bucket, self._export.patience)
        try:
            send_whole(file, bucket, key, task.user_metadata or {}, self._allowance)
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
        self._tell_at_once()
        return upload

    def _send_parts(self, place: int, task: Task, file: InputFile, upload: Upload) -> bool:
        bucket = Bucket(upload.bucket, self._export.patience)
        if not upload.upload_id:
            upload = self._create(bucket, upload, task.user_metadata or {})
        transfer = PartsTransfer(
            file, bucket, upload, self._allowance, self._keep, self._tell_progress
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
            self._tell_at_once()
        except _LostError:
            abort(created, self._export.patience)
            raise
        return created

    def _tell_progress(self, upload: Upload) -> None:
        self._keep(upload)
        self._give_way()

    def _give_way(self) -> None:
        """Ends the batch if others wait: exports, or tasks that are over beside a long one."""
        if self._tell_at_once() or (self._concluded and self._uploads):
            self._allowance.end()

    def _keep(self, upload: Upload) -> None:
        with self._lock:
            self._uploads[upload.sequence_number] = upload

    def _forget(self, upload: Upload) -> None:
        with self._lock:
            self._uploads.pop(upload.sequence_number, None)

    def _tell_at_once(self) -> bool:
        """Whether others wait for the end of the batch; _LostError if nobody waits for this.

        How tasks ended is not told before the broker takes them for done.
        """
        with self._telling:
            now = self.delivery()
            events = [each for each in now.events if each.sequence_number not in self._concluded]
            echo = self._tell(msgspec.structs.replace(now, events=events))
            if not echo.is_taken:
                raise _LostError
            with self._lock:
                self._events = [each for each in self._events if each not in events]
                del self._abandoned[: len(now.abandoned)]
        return echo.is_awaited


def _zone(name: str) -> tzinfo:
    # Where no zones are installed there is this one.
    return UTC if name == "UTC" else ZoneInfo(name)


def _now_millis() -> int:
    return time.time_ns() // 1_000_000


def _name(upload: Upload) -> str:
    return f"s3://{upload.bucket}/{upload.key}"
