"""Uploads that no task continues: they are aborted, because S3 keeps and bills their parts.

They are leased as exports are, also when their stream was deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.broker.exports.deliverable import NO_PRIORITY, Deliverable, Outcome
from penstock.broker.exports.lease import Lease
from penstock.broker.exports.pacing import Due
from penstock.broker.exports.statuses import Origin, Statuses
from penstock.model.exporting import DeliveryReport, TaskEvent, UploadAbort
from penstock.model.status import Status
from penstock.store.rows import UploadProgress
from penstock.store.store import Store

logger = logging.getLogger(__name__)

_MAX_REASON_LENGTH = 500


class AbandonedUpload(Deliverable):
    def __init__(self, progress: UploadProgress, serial: int, statuses: Statuses) -> None:
        super().__init__(f"abandoned-{serial}", progress.stream, progress.identifier)
        self.progress = progress
        self._statuses = statuses

    @property
    def priority(self) -> int:
        return NO_PRIORITY

    @property
    def kind(self) -> str:
        return "s3_task_executor"

    @property
    def next_number(self) -> int:
        return self.progress.upload.sequence_number

    def due(self, now: float, now_millis: int) -> Due:  # noqa: ARG002 - at once
        return Due(self.next_number + 1, None, 0)

    def cut(self, due_end: int, max_bytes: int, max_wire_bytes: float) -> int:  # noqa: ARG002
        return due_end

    def size_of(self, end: int) -> int:  # noqa: ARG002
        return 0

    def wire_bytes_of(self, size: int) -> float:  # noqa: ARG002
        return 0.0

    def describe(self, lease: Lease, is_metered: bool) -> UploadAbort:  # noqa: ARG002
        return UploadAbort(
            lease=lease.id,
            stream=self.stream_name,
            identifier=self.identifier,
            upload=self.progress.upload,
        )

    def settle(self, report: DeliveryReport, lease: Lease, now_millis: int) -> Outcome:  # noqa: ARG002
        report = msgspec.structs.replace(report, is_final=True, events=[], skipped=[], arrived=[])
        if not report.error:
            return Outcome(report, ended=[self.progress.id])
        progress = self.progress
        if not progress.has_failed:
            self._write_warning(report.error, now_millis)
            progress = msgspec.structs.replace(progress, has_failed=True)
        return Outcome(report, abandoned=[progress])

    def _write_warning(self, error: str, now_millis: int) -> None:
        upload = self.progress.upload
        where = f"s3://{upload.bucket}/{upload.key}"
        message = f"an unfinished upload of {where} could not be aborted and is tried again: "
        event = TaskEvent(
            sequence_number=upload.sequence_number,
            status=Status.Warning,
            message=message + error[:_MAX_REASON_LENGTH],
            time=now_millis,
        )
        origin = Origin(self.stream_name, self.identifier, self.progress.status_config)
        self._statuses.write(origin, [event], now_millis)

    def apply(self, outcome: Outcome) -> None:
        for progress in outcome.abandoned:
            self.progress = progress

    def log_result(self, report: DeliveryReport, had_failed: bool) -> None:
        who = f"stream {self.stream_name!r}, export {self.identifier!r}"
        if not report.error:
            logger.info("%s: an unfinished upload was aborted", who)
        elif not had_failed:
            logger.warning("%s: an unfinished upload cannot be aborted: %s", who, report.error)


class AbandonedUploads:
    """All of them. Called from the event loop only."""

    def __init__(self, store: Store, statuses: Statuses) -> None:
        self._store = store
        self._statuses = statuses
        self._all: dict[str, AbandonedUpload] = {}
        self._serial = 0

    def __iter__(self) -> Iterator[AbandonedUpload]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def add(self, uploads: Iterable[UploadProgress]) -> None:
        """Uploads that are stored as abandoned."""
        for upload in uploads:
            if upload.id not in self._all:
                self._serial += 1
                self._all[upload.id] = AbandonedUpload(upload, self._serial, self._statuses)

    def abandon(self, uploads: Sequence[UploadProgress]) -> None:
        """Abort these, and store that in the background."""
        if uploads:
            self._store.abandon_uploads(uploads)
            self.add(uploads)

    def remove(self, ids: Iterable[str]) -> None:
        for upload_id in ids:
            self._all.pop(upload_id, None)
