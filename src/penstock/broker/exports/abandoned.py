"""Uploads that nobody goes on with: they are aborted, or S3 keeps their parts and bills them.

They are planned and leased as slices of exports are, also when their stream is long gone.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.exports.export import Lease
from penstock.broker.exports.pacing import LONGEST_PAUSE_SECONDS, backoff_seconds
from penstock.broker.exports.statuses import Origin, Statuses
from penstock.model.exporting import (
    ABANDONED_UPLOAD,
    ExportReport,
    ExportSlice,
    Lane,
    TaskEvent,
)
from penstock.model.status import Status
from penstock.store.rows import UploadChange, UploadProgress
from penstock.store.store import Store
from penstock.wire.requests import PlanExportsRequest

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 16
_LEASE_PREFIX = "abandoned-"
_REASON_LENGTH = 500


class AbandonedUpload:
    """One of them, while the broker runs."""

    def __init__(self, progress: UploadProgress) -> None:
        self.progress = progress
        self.lease: Lease | None = None
        # What became of it is being stored.
        self.is_settling = False
        self.failures = 0
        # On the loop's clock.
        self.not_before = -math.inf

    @property
    def free_at(self) -> float:
        """When it may be planned: not while it is leased or has to be left alone."""
        leased_until = self.lease.ends_at if self.lease is not None else -math.inf
        return max(leased_until, self.not_before)

    def slice(self, lease: Lease) -> ExportSlice:
        progress = self.progress
        return ExportSlice(
            lease=lease.id,
            stream=progress.stream,
            # Of a stream that may be gone there is nothing to find.
            stream_id="",
            kind=ABANDONED_UPLOAD,
            config={"identifier": progress.identifier},
            first=lease.first,
            end=lease.end,
            arrived=[],
            has_files=False,
            segments=[],
            uploads=[progress.upload],
        )


class Attempt(NamedTuple):
    """A report of an upload that was to be aborted; `told` is what is kept of it if it failed."""

    abandoned: AbandonedUpload
    report: ExportReport
    told: UploadProgress

    def change(self) -> UploadChange:
        if not self.report.error:
            return UploadChange(removed=[self.told.id])
        return UploadChange(stored=[self.told])


class AbandonedUploads:
    """All of them. Called from the event loop only."""

    def __init__(self, store: Store, statuses: Statuses) -> None:
        self._store = store
        self._statuses = statuses
        self._all: dict[str, AbandonedUpload] = {}

    def add(self, uploads: Iterable[UploadProgress]) -> None:
        """Those that are stored as abandoned."""
        for upload in uploads:
            self._all.setdefault(upload.id, AbandonedUpload(upload))

    def abandon(self, uploads: Sequence[UploadProgress]) -> None:
        """Nobody goes on with these from now on."""
        if uploads:
            self._store.abandon_uploads(uploads)
            self.add(uploads)

    # What is due

    def plan(
        self, request: PlanExportsRequest, sees: Callable[[str], bool], now: float
    ) -> list[ExportSlice]:
        count = min(_MOST_AT_ONCE, request.max_slices)
        free = [each for each in self._waiting(sees) if each.free_at <= now]
        # Those that waited longest come first, and no failing one keeps others from their turn.
        free.sort(key=lambda each: each.not_before)
        return [self._lease(each, request, now) for each in free[:count]]

    def next_at(self, sees: Callable[[str], bool]) -> float:
        """When one of them may be planned, on the loop's clock."""
        return min((each.free_at for each in self._waiting(sees)), default=math.inf)

    def _waiting(self, sees: Callable[[str], bool]) -> Iterator[AbandonedUpload]:
        for each in self._all.values():
            if not each.is_settling and sees(each.progress.stream):
                yield each

    def _lease(self, each: AbandonedUpload, request: PlanExportsRequest, now: float) -> ExportSlice:
        number = each.progress.upload.sequence_number
        each.lease = Lease(
            _LEASE_PREFIX + secrets.token_hex(8),
            request.pipeline,
            request.lane,
            number,
            number,
            0.0,
            now + request.lease_millis / 1000,
        )
        return each.slice(each.lease)

    def end_leases(self, pipeline: str, lane: Lane, ends_at: float) -> None:
        for each in self._all.values():
            lease = each.lease
            if lease is not None and (lease.pipeline, lease.lane) == (pipeline, lane):
                each.lease = lease._replace(ends_at=min(lease.ends_at, ends_at))

    # What became of it

    @staticmethod
    def is_about(report: ExportReport) -> bool:
        return report.lease.startswith(_LEASE_PREFIX)

    def settle(self, report: ExportReport, now_millis: int) -> Iterator[Attempt]:
        """What a report means; nothing if nobody holds the lease that it is of."""
        for each in self._all.values():
            if _holds(each, report):
                each.is_settling = True
                progress = each.progress
                if report.error and not progress.has_failed:
                    self._tell(progress, report.error, now_millis)
                    progress = msgspec.structs.replace(progress, has_failed=True)
                yield Attempt(each, report, progress)

    def _tell(self, progress: UploadProgress, error: str, now_millis: int) -> None:
        upload = progress.upload
        where = f"s3://{upload.bucket}/{upload.key}"
        message = f"an unfinished upload of {where} could not be aborted and is tried again: "
        event = TaskEvent(
            sequence_number=upload.sequence_number,
            status=Status.Warning,
            message=message + error[:_REASON_LENGTH],
            time=now_millis,
        )
        origin = Origin(progress.stream, progress.identifier, progress.status_config)
        self._statuses.write(origin, [event], now_millis)

    def apply(self, attempt: Attempt, now: float, chance: float) -> None:
        """It is stored."""
        each, report = attempt.abandoned, attempt.report
        each.is_settling = False
        each.lease = None
        who = f"stream {attempt.told.stream!r}, export {attempt.told.identifier!r}"
        if not report.error:
            del self._all[each.progress.id]
            logger.info("%s: an unfinished upload was aborted", who)
            return
        if not each.failures:
            logger.warning("%s: an unfinished upload cannot be aborted: %s", who, report.error)
        each.progress = attempt.told
        each.failures += 1
        pause = max(report.pause_millis / 1000, backoff_seconds(each.failures, chance))
        each.not_before = now + min(pause, LONGEST_PAUSE_SECONDS)

    @staticmethod
    def forget(attempt: Attempt) -> None:
        """It could not be stored: it may be reported again."""
        attempt.abandoned.is_settling = False


def _holds(each: AbandonedUpload, report: ExportReport) -> bool:
    is_held = each.lease is not None and each.lease.id == report.lease
    return is_held and not each.is_settling and not report.is_interim
