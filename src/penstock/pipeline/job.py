"""A job: a lease, its delivery, and its reports to the broker."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

import msgspec

from penstock.client.internal import InternalClient
from penstock.errors import StreamManagerException
from penstock.model.export_definition import CONFIG_OF_KIND
from penstock.model.exporting import (
    MAX_ARRIVED,
    MAX_PAUSE_MILLIS,
    AnyWork,
    DeliveryReport,
    MessageSlice,
    SkippedMessage,
    TaskSlice,
)
from penstock.model.validation import convert
from penstock.pipeline.delivery import (
    Delivery,
    DeliveryTotals,
    MessageDelivery,
    StopSignal,
    UploadedFile,
)
from penstock.pipeline.destinations import import_destination
from penstock.pipeline.destinations.destination import (
    DestinationSettings,
    ExportContext,
    UnavailableError,
)
from penstock.pipeline.slice_reader import read_slice

logger = logging.getLogger(__name__)

# The interval of reports while a delivery continues.
_REPORT_SECONDS = 1.0
_MAX_REASON_LENGTH = 1000
# Seconds for one call to a destination, and for one call to S3.
_CALL_TIMEOUT = 30.0
_S3_CALL_TIMEOUT = 60.0


class Job:
    """Delivers and reports in one thread; other threads may stop it."""

    def __init__(
        self,
        work: AnyWork,
        # The broker's directory; None if the broker runs on another machine.
        root: str | None,
        client: InternalClient,
        # Sends a report; False if the broker does not accept it.
        commit: Callable[[DeliveryReport], bool],
        settings: DestinationSettings,
    ) -> None:
        self.work = work
        self.began = time.monotonic()
        # Bytes of messages in memory.
        self.size = work.size if isinstance(work, MessageSlice) else 0
        self._root = root
        self._client = client
        self._commit = commit
        self._settings = settings
        self._stop = StopSignal()
        self._delivery: Delivery | None = None
        # Sequence numbers of the slice that were read, or had arrived before.
        self._known: list[int] = []
        # Serializes the reports of the lease.
        self._reporting = threading.Lock()
        self._reported_at = self.began
        # The totals that the broker has accepted.
        self._reported = DeliveryTotals(
            settled_end=work.first, uploads=work.uploads if isinstance(work, TaskSlice) else []
        )

    @property
    def lease(self) -> str:
        return self.work.lease

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended: a call may still run, but nothing is reported."""
        return self._stop.is_lost

    def stop(self, *, is_lost: bool = False) -> None:
        """Begins no further call; if the lease is lost, reports nothing."""
        self._stop.stop(is_lost=is_lost)

    def run(self) -> None:
        error = ""
        try:
            self._delivery = self._open()
            self._delivery.run()
        except Exception as problem:
            # The status of the export shows the error.
            error = f"{type(problem).__name__}: {problem}"
            # No traceback if the broker is unavailable, or this machine has no descriptors left.
            if not isinstance(problem, (StreamManagerException, OSError)):
                logger.exception("an export of stream %r failed", self.work.stream)
        try:
            self._report_end(error)
        except (StreamManagerException, OSError) as problem:
            # The lease expires, and the messages are delivered again.
            logger.warning("cannot report a delivery of stream %r: %s", self.work.stream, problem)

    def _report_end(self, error: str) -> None:
        try:
            with self._reporting:
                self._report(error, is_final=True)
        except (StreamManagerException, OSError):
            raise
        except Exception as problem:
            # Without any report the export would be delivered again at once.
            logger.exception("cannot report a delivery of stream %r", self.work.stream)
            failed = msgspec.structs.replace(self._reported, pause=0.0)
            error = f"cannot report: {type(problem).__name__}: {problem}"
            self._commit(self._make_report(failed, error, is_final=True))

    def _open(self) -> Delivery:
        # Imported here: boto3, which uploads need, takes a second to import.
        work = self.work
        if not isinstance(work, MessageSlice):
            from penstock.pipeline.uploads.task_delivery import UploadAbortion

            return UploadAbortion(work.upload, _S3_CALL_TIMEOUT)
        messages = read_slice(work, self._root, self._client)
        self._known = sorted([*messages.numbers, *work.arrived])
        export = ExportContext(
            work.stream,
            work.stream_id,
            convert(work.config, CONFIG_OF_KIND[work.kind]),
            self._settings,
            self._root,
            _S3_CALL_TIMEOUT if isinstance(work, TaskSlice) else _CALL_TIMEOUT,
            self._holds_lease,
        )
        if isinstance(work, TaskSlice):
            from penstock.pipeline.uploads.task_delivery import TaskDelivery

            return TaskDelivery(
                export,
                messages,
                work,
                self._stop,
                self._reserve if work.is_metered else lambda _: True,
                self._report_now,
                self._report_progress,
            )
        destination = import_destination(work.kind)(export)
        return MessageDelivery(destination, messages, work.end, self._stop, self._report_progress)

    def _holds_lease(self) -> bool:
        try:
            is_held = self._client.reserve_bandwidth(self.lease, 0).is_held
        except (StreamManagerException, OSError) as error:
            raise UnavailableError(f"the broker does not confirm the lease: {error}") from None
        if not is_held:
            self.stop(is_lost=True)
        return is_held

    def _reserve(self, size: int) -> bool:
        """Waits until `size` bytes may be sent; False if the delivery is stopped."""
        while not self._stop.is_set:
            answer = self._client.reserve_bandwidth(self.lease, size, wait_millis=1000)
            if not answer.is_held:
                self.stop(is_lost=True)
            elif answer.is_granted:
                return True
        return False

    # Reports

    def _report_progress(self) -> None:
        """Reports about once a second, so that little is repeated after a crash."""
        is_due = time.monotonic() - self._reported_at >= _REPORT_SECONDS
        # Other threads of the delivery continue while one thread reports.
        if not is_due or not self._reporting.acquire(blocking=False):
            return
        try:
            self._report()
        except (StreamManagerException, OSError) as error:
            # The next report includes these changes.
            logger.debug("cannot report progress of stream %r: %s", self.work.stream, error)
            self._reported_at = time.monotonic()
        finally:
            self._reporting.release()

    def _report_now(self) -> bool:
        """Reports at once; False if the lease is lost."""
        with self._reporting:
            return self._report()

    def _report(self, error: str = "", *, is_final: bool = False) -> bool:
        """Reports the changes since the last report; False if the report is not accepted."""
        if self.is_lost:
            return False
        totals = self._delivery.totals() if self._delivery else self._reported
        if is_final:
            error = error or totals.error
        report = self._make_report(totals, error, is_final=is_final)
        is_accepted = self._commit(report)
        self._reported_at = time.monotonic()
        if is_accepted:
            uploaded = totals.uploaded[len(self._reported.uploaded) :]
            self._reported = totals
            self._delete_files(uploaded, report)
        elif not is_final:
            self.stop(is_lost=True)
        return is_accepted

    def _make_report(self, totals: DeliveryTotals, error: str, *, is_final: bool) -> DeliveryReport:
        work, before, end = self.work, self._reported, totals.settled_end
        stream_id, arrived = "", set(totals.arrived)
        if isinstance(work, MessageSlice):
            stream_id = work.stream_id
            arrived.update(number for number in work.arrived if number >= end)
        return DeliveryReport(
            lease=work.lease,
            stream=work.stream,
            stream_id=stream_id,
            identifier=work.identifier,
            first=before.settled_end,
            settled_end=end,
            arrived=sorted(arrived)[:MAX_ARRIVED],
            exported_messages=totals.exported_messages - before.exported_messages,
            exported_bytes=totals.exported_bytes - before.exported_bytes,
            skipped=[
                SkippedMessage(number, reason[:_MAX_REASON_LENGTH])
                for number, reason in sorted(totals.skipped[len(before.skipped) :])
            ],
            missing=self._count_missing(before.settled_end, end),
            sent_bytes=totals.sent_bytes - before.sent_bytes,
            error=error[:_MAX_REASON_LENGTH],
            pause_millis=int(min(totals.pause * 1000, MAX_PAUSE_MILLIS)),
            events=totals.events[len(before.events) :],
            uploads=totals.uploads,
            abandoned=totals.abandoned[len(before.abandoned) :],
            is_final=is_final,
        )

    def _count_missing(self, first: int, end: int) -> int:
        """The number of messages [first, end) that could not be read."""
        return end - first - bisect_left(self._known, end) + bisect_left(self._known, first)

    def _delete_files(self, uploaded: Iterable[UploadedFile], report: DeliveryReport) -> None:
        """If configured, deletes uploaded files whose tasks the report contains."""
        if not self._settings.s3_delete_uploaded_files:
            return
        from penstock.pipeline.uploads.input_files import delete_files

        finished = {*range(report.first, report.settled_end), *report.arrived}
        files = [each for each in uploaded if each.sequence_number in finished]
        delete_files(files, self._settings.read_only_directories)
