"""Exports of S3 tasks, and uploads that no task continues.

Such an upload is aborted, because S3 keeps and bills its parts. It is leased as exports are, also
when its stream was deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.export import Export
from penstock.broker.exports.statuses import Origin, Statuses
from penstock.broker.exports.work_source import (
    NO_PRIORITY,
    AcceptedReport,
    Due,
    Lease,
    LeaseId,
    SlicePlan,
    WorkSource,
)
from penstock.broker.streams import Stream
from penstock.model import ExportConfig, S3ExportTaskExecutorConfig
from penstock.model.export_definition import S3_TASK_EXECUTOR
from penstock.model.exporting import DeliveryReport, TaskEvent, TaskSlice, Upload, UploadAbort
from penstock.model.status_message import Status
from penstock.store.rows import UploadProgress
from penstock.store.store import Store

logger = logging.getLogger(__name__)

_MAX_REASON_LENGTH = 500


class TaskExport(Export):
    config: S3ExportTaskExecutorConfig
    # A task of the pipeline reads and parses all S3 tasks of a slice before the first upload.
    max_slice_bytes = 1024 * 1024
    max_slice_messages = 2000

    def __init__(
        self,
        stream: Stream,
        kind: str,
        config: ExportConfig,
        dead_letters: DeadLetters,
        statuses: Statuses,
        is_metered: bool,
    ) -> None:
        super().__init__(stream, kind, config, dead_letters)
        self._statuses = statuses
        self._is_metered = is_metered
        self.uploads: list[Upload] = []
        # Tasks that the stream dropped while they were leased. They are canceled unless a report
        # shows that they were carried out.
        self.dropped: list[TaskEvent] = []

    @property
    def origin(self) -> Origin:
        return Origin(self.stream.name, self.config.identifier, self.config.status_config)

    @property
    def pending_from(self) -> int:
        """The first task above all accepted reports, including the one that is being stored."""
        settled_end = self._storing.report.settled_end if self._storing is not None else 0
        return max(self.next_number, settled_end)

    @property
    def ended_in_report(self) -> frozenset[int]:
        """Tasks that end with the report that is being stored."""
        return ended_tasks(self._storing.report) if self._storing is not None else frozenset()

    def track(
        self, uploads: Iterable[Upload], *, are_abandoned: bool = False
    ) -> list[UploadProgress]:
        """Converts uploads to the form in which they are stored."""
        return [
            UploadProgress(
                export_id=self.id,
                stream=self.stream.name,
                identifier=self.identifier,
                status_config=self.config.status_config,
                upload=upload,
                is_abandoned=are_abandoned,
            )
            for upload in uploads
        ]

    # Leases

    def resume(self, uploads: Sequence[UploadProgress], /) -> None:
        super().resume(uploads)
        self.uploads = [each.upload for each in uploads if each.export_id == self.id]

    def find_resumed(self, lease_id: LeaseId, /) -> int | None:
        # Tasks that the stream dropped before the restart are canceled.
        first = super().find_resumed(lease_id)
        return first if first == self.next_number else None

    def due(self, _now: float, _now_millis: int, /) -> Due:
        end = self.stream.log.end
        return Due(end, None, max(end, self.next_number) + 1)

    def describe(self, lease: Lease) -> TaskSlice:
        return TaskSlice(
            **self.slice_fields(lease),
            uploads=_within(lease, self.uploads),
            time_to_live=self.stream.definition.time_to_live_millis,
            is_metered=self._is_metered,
        )

    # Reports

    def within_lease(self, report: DeliveryReport, lease: Lease) -> DeliveryReport:
        return msgspec.structs.replace(
            super().within_lease(report, lease),
            events=[each for each in report.events if _is_within(lease, each.sequence_number)],
            uploads=_within(lease, report.uploads),
            abandoned=_within(lease, report.abandoned),
        )

    def find_changes(self, accepted: AcceptedReport, now_millis: int) -> AcceptedReport:
        accepted = super().find_changes(accepted, now_millis)
        report, lease = accepted.report, accepted.lease
        self._statuses.write(self.origin, report.events, now_millis)
        abandoned = self.track(report.abandoned, are_abandoned=True)
        abandoned_ids = {each.id for each in abandoned}
        # A report has all uploads of its lease, and none of other messages.
        others = [each for each in self.uploads if not _is_within(lease, each.sequence_number)]
        uploads = [
            each for each in self.track([*others, *report.uploads]) if each.id not in abandoned_ids
        ]
        known_ids = abandoned_ids | {each.id for each in uploads}
        gone = [each for each in self.track(self.uploads) if each.id not in known_ids]
        ended = [each.id for each in gone if _has_ended(each.upload, uploads, report)]
        # An upload that the task did not know is not continued.
        unknown = [each.upload for each in gone if each.id not in ended]
        abandoned += self.track(unknown, are_abandoned=True)
        return accepted._replace(uploads=uploads, abandoned=abandoned, ended=ended)

    def has_advanced(self, report: DeliveryReport) -> bool:
        before, after = _count_parts(self.uploads), _count_parts(report.uploads)
        return super().has_advanced(report) or after > before

    def apply(self, accepted: AcceptedReport, now: float, jitter: float) -> None:
        super().apply(accepted, now, jitter)
        self.uploads = [each.upload for each in accepted.uploads]


def ended_tasks(report: DeliveryReport) -> frozenset[int]:
    return frozenset(each.sequence_number for each in report.events if each.ends_task)


def _is_within(lease: Lease, number: int) -> bool:
    return lease.first <= number < lease.end


def _within(lease: Lease, uploads: Iterable[Upload]) -> list[Upload]:
    return [each for each in uploads if _is_within(lease, each.sequence_number)]


def _has_ended(upload: Upload, uploads: list[UploadProgress], report: DeliveryReport) -> bool:
    """Whether an upload that is no longer reported was completed or aborted."""
    number = upload.sequence_number
    if number < report.settled_end or number in report.arrived:
        return True
    # An upload gets its id after its first report.
    return not upload.upload_id and any(each.upload.sequence_number == number for each in uploads)


def _count_parts(uploads: Iterable[Upload]) -> int:
    return sum(each.arrived_parts for each in uploads)


class AbandonedUpload(WorkSource):
    priority = NO_PRIORITY

    def __init__(self, progress: UploadProgress, serial: int, statuses: Statuses) -> None:
        name = f"abandoned-{serial}"
        super().__init__(name, S3_TASK_EXECUTOR, progress.stream, progress.identifier)
        self.progress = progress
        self._statuses = statuses

    @property
    def next_number(self) -> int:
        return self.progress.upload.sequence_number

    def due(self, _now: float, _now_millis: int, /) -> Due:
        return Due(self.next_number + 1, None, 0)

    def plan_slice(self, due_end: int, _max_bytes: int, _max_wire_bytes: float, /) -> SlicePlan:
        return SlicePlan(due_end)

    def describe(self, lease: Lease) -> UploadAbort:
        return UploadAbort(
            lease=lease.id,
            stream=self.stream_name,
            identifier=self.identifier,
            upload=self.progress.upload,
        )

    def find_changes(self, accepted: AcceptedReport, now_millis: int) -> AcceptedReport:
        report = msgspec.structs.replace(
            accepted.report, is_final=True, events=[], skipped=[], arrived=[]
        )
        if not report.error:
            return accepted._replace(report=report, ended=[self.progress.id])
        if not self.progress.has_failed:
            self._write_warning(report.error, now_millis)
        progress = msgspec.structs.replace(self.progress, has_failed=True)
        return accepted._replace(report=report, abandoned=[progress])

    def _write_warning(self, error: str, now_millis: int) -> None:
        upload = self.progress.upload
        where = f"s3://{upload.bucket}/{upload.key}"
        message = f"an unfinished upload of {where} could not be aborted; the abort is retried: "
        event = TaskEvent(
            sequence_number=upload.sequence_number,
            status=Status.Warning,
            message=message + error[:_MAX_REASON_LENGTH],
            time=now_millis,
        )
        origin = Origin(self.stream_name, self.identifier, self.progress.status_config)
        self._statuses.write(origin, [event], now_millis)

    def apply(self, accepted: AcceptedReport, now: float, jitter: float) -> None:
        super().apply(accepted, now, jitter)
        for progress in accepted.abandoned:
            self.progress = progress

    def log_result(self, report: DeliveryReport, had_failed: bool) -> None:
        if not report.error:
            logger.info("%s: aborted an unfinished upload", self)
        elif not had_failed:
            logger.warning("%s: cannot abort an unfinished upload: %s", self, report.error)


class AbandonedUploads:
    """All uploads to be aborted. Called from the event loop only."""

    def __init__(self, store: Store, statuses: Statuses) -> None:
        self._store = store
        self._statuses = statuses
        self._by_id: dict[str, AbandonedUpload] = {}
        self._serial = 0

    def __iter__(self) -> Iterator[AbandonedUpload]:
        return iter(self._by_id.values())

    def add(self, uploads: Iterable[UploadProgress]) -> None:
        """Adds uploads that are stored as abandoned."""
        for upload in uploads:
            if upload.id not in self._by_id:
                self._serial += 1
                self._by_id[upload.id] = AbandonedUpload(upload, self._serial, self._statuses)

    def abandon(self, uploads: Sequence[UploadProgress]) -> None:
        """Adds uploads, and stores them as abandoned in the background."""
        if uploads:
            self._store.abandon_uploads(uploads)
            self.add(uploads)

    def remove(self, ids: Iterable[str]) -> None:
        for upload_id in ids:
            self._by_id.pop(upload_id, None)
