"""What reports of a pipeline mean: progress and uploads, which are stored together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.broker.exports.abandoned import Attempt
from penstock.broker.exports.export import Export, Lease, Taken
from penstock.model.exporting import ExportReport, Lane, Upload
from penstock.model.status import Status
from penstock.store.rows import ExportProgress, UploadChange, UploadProgress

logger = logging.getLogger(__name__)


class Settled(NamedTuple):
    """A report, the export that it is about, and what follows from it."""

    export: Export
    lease: Lease | None
    report: ExportReport
    taken: Taken
    progress: ExportProgress
    # All uploads of the export that go on; those that nobody goes on with; ids of those that
    # are over.
    uploads: list[Upload]
    abandoned: list[UploadProgress]
    ended: list[str]

    def change(self) -> UploadChange:
        return UploadChange([*self.export.track(self.uploads), *self.abandoned], self.ended)


class Settlement:
    """Reports that count, to be stored and then to be applied, or forgotten if that fails."""

    def __init__(self) -> None:
        self.settled: list[Settled] = []
        self.attempts: list[Attempt] = []
        # Leases of reports that have counted before, and were sent again.
        self.repeated: list[str] = []

    def __bool__(self) -> bool:
        """Whether there is anything to be stored."""
        return bool(self.settled or self.attempts)

    @property
    def accepted(self) -> list[str]:
        """The leases of all reports that were taken."""
        return [
            *(settled.report.lease for settled in self.settled),
            *(attempt.report.lease for attempt in self.attempts),
            *self.repeated,
        ]

    def progress(self) -> dict[str, list[ExportProgress]]:
        """By the name of the stream."""
        progress: dict[str, list[ExportProgress]] = {}
        for each in self.settled:
            if not each.report.is_interim:
                progress.setdefault(each.report.stream, []).append(each.progress)
        return progress

    def uploads(self) -> UploadChange:
        changes = [settled.change() for settled in self.settled]
        changes += [attempt.change() for attempt in self.attempts]
        return UploadChange(
            [upload for change in changes for upload in change.stored],
            [name for change in changes for name in change.removed],
        )


def settle_report(
    export: Export, given: ExportReport, report: ExportReport, now_millis: int
) -> Settled:
    """What a report means, of which so much counts."""
    first, end = report.first, _end_of(export)
    abandoned = export.track(report.abandoned, are_abandoned=True)
    given_up = {each.id for each in abandoned}
    # Of uploads that the slice does not have, the report knows nothing.
    others = [each for each in export.uploads if not first <= each.sequence_number < end]
    current = [*others, *report.uploads]
    uploads = [
        upload
        for upload, tracked in zip(current, export.track(current), strict=True)
        if tracked.id not in given_up
    ]
    going_on = {each.id for each in export.track(uploads)} | given_up
    gone = [each for each in export.track(export.uploads) if each.id not in going_on]
    ended = [each.id for each in gone if _is_over(each.upload, uploads, report)]
    # Of the others whoever reported did not know: nobody goes on with them.
    lost = [each.upload for each in gone if each.id not in ended]
    abandoned += export.track(lost, are_abandoned=True)
    progress = export.advanced(report, now_millis, describe(report))
    return Settled(
        export, export.lease, report, Taken.of(given), progress, uploads, abandoned, ended
    )


def _is_over(upload: Upload, uploads: list[Upload], report: ExportReport) -> bool:
    """Whether an upload that is not reported any more has come to its end."""
    number = upload.sequence_number
    if number < report.settled_end or number in report.arrived:
        return True
    # One that was about to be created is another one once it has a name.
    return not upload.upload_id and number in [each.sequence_number for each in uploads]


def _end_of(export: Export) -> int:
    return export.lease.end if export.lease is not None else export.stream.log.end


def concluded_in(report: ExportReport) -> frozenset[int]:
    """The tasks of which a report says how they ended."""
    return frozenset(
        each.sequence_number
        for each in report.events
        if each.status in (Status.Success, Status.Failure, Status.Canceled)
    )


def within_slice(export: Export, report: ExportReport) -> ExportReport:
    """A report without what it says of messages that its slice does not have."""
    first, end = report.first, _end_of(export)
    has_tasks = export.lane is Lane.files

    def uploads_of(found: list[Upload]) -> Iterator[Upload]:
        return (each for each in found if has_tasks and first <= each.sequence_number < end)

    return msgspec.structs.replace(
        report,
        settled_end=min(report.settled_end, end),
        arrived=[number for number in report.arrived if number < end],
        skipped=[each for each in report.skipped if first <= each.sequence_number < end],
        events=[
            each for each in report.events if has_tasks and first <= each.sequence_number < end
        ],
        uploads=list(uploads_of(report.uploads)),
        abandoned=list(uploads_of(report.abandoned)),
    )


def describe(report: ExportReport) -> str:
    """The last error, as the status of an export tells it."""
    if report.error:
        return report.error
    if not report.skipped:
        return ""
    last = report.skipped[-1]
    count = f"{len(report.skipped)} messages were" if len(report.skipped) > 1 else "a message was"
    return f"{count} skipped; the last, {last.sequence_number}: {last.reason}"


def log_outcome(export: Export, report: ExportReport, *, had_failed: bool) -> None:
    # An outage may take days: it is said when it begins, and when it is over.
    who = f"stream {export.stream.name!r}, export {export.identifier!r}"
    if report.error and not had_failed:
        logger.warning("%s: %s", who, report.error)
    elif report.error:
        logger.debug("%s, failure %d: %s", who, export.failures, report.error)
    elif had_failed:
        logger.info("%s: it works again", who)
    if report.skipped:
        logger.warning("%s: %s", who, describe(msgspec.structs.replace(report, error="")))
    if report.missing:
        logger.warning("%s: messages that cannot be read are left out: %d", who, report.missing)
