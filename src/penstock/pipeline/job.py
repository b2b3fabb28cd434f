"""A job: one piece of leased work, its delivery, and its reports to the broker."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from penstock.client.blocking import StreamManagerClient
from penstock.errors import StreamManagerException
from penstock.model.export import CONFIG_OF_KIND
from penstock.model.exporting import (
    MAX_ARRIVED,
    AnyWork,
    DeliveryReport,
    MessageSlice,
    SkippedMessage,
    TaskSlice,
    UploadAbort,
)
from penstock.model.validation import convert
from penstock.pipeline.delivery import MessageDelivery
from penstock.pipeline.destinations import open_destination
from penstock.pipeline.destinations.destination import (
    DestinationSettings,
    Export,
    Messages,
    UnavailableError,
)
from penstock.pipeline.reading import read_slice
from penstock.pipeline.settlements import Delivery, UploadedFile
from penstock.pipeline.stopping import StopSignal

logger = logging.getLogger(__name__)

# How often a delivery that goes on reports its progress.
_REPORT_SECONDS = 1.0
_MAX_REASON_LENGTH = 1000
# Seconds for one call to a destination, and for one to S3.
_CALL_TIMEOUT = 30.0
_S3_CALL_TIMEOUT = 60.0


class Delivering(Protocol):
    """A delivery. One thread runs it, and any thread may look how far it got."""

    def run(self) -> None: ...
    def delivery(self) -> Delivery: ...


class Job:
    """Delivers and reports in one thread; other threads may stop it."""

    def __init__(
        self,
        work: AnyWork,
        # The broker's directory; None if the broker runs on another machine.
        root: str | None,
        client: StreamManagerClient,
        # Whether the broker accepts a report.
        commit: Callable[[DeliveryReport], bool],
        settings: DestinationSettings,
    ) -> None:
        self.work = work
        self.began = time.monotonic()
        # Bytes of messages that it has in memory.
        self.size = work.size if isinstance(work, MessageSlice) else 0
        self._root = root
        self._client = client
        self._commit = commit
        self._settings = settings
        self._stop = StopSignal()
        self._delivering: Delivering | None = None
        self._messages = Messages(work.stream, 0, [], [], [])
        # Reports about one lease follow one another.
        self._reporting = threading.Lock()
        self._reported_at = self.began
        # The result as the broker has accepted it.
        self._reported = Delivery(settled_end=work.first if isinstance(work, MessageSlice) else 0)

    @property
    def lease(self) -> str:
        return self.work.lease

    @property
    def is_lost(self) -> bool:
        """Its lease has ended: a call may run, and nothing is reported."""
        return self._stop.is_lost

    def stop(self, *, is_lost: bool = False) -> None:
        """Begin no further call; if the lease is lost, report nothing."""
        self._stop.stop(is_lost=is_lost)

    def run(self) -> None:
        error = ""
        try:
            with self._begin() as self._delivering:
                self._delivering.run()
        except UnavailableError as unavailable:
            error = str(unavailable)
        except (StreamManagerException, OSError) as problem:
            # The broker is unavailable, or this machine has no descriptors left.
            error = f"{type(problem).__name__}: {problem}"
        except Exception as unexpected:
            # The status of the export shows it.
            error = f"{type(unexpected).__name__}: {unexpected}"
            logger.exception("an export of stream %r failed", self.work.stream)
        if not self._stop.is_lost:
            self._finish(error)

    @contextlib.contextmanager
    def _begin(self) -> Iterator[Delivering]:
        match self.work:
            case UploadAbort(upload=upload):
                from penstock.pipeline.uploads.task_delivery import UploadAbortion

                yield UploadAbortion(upload, _S3_CALL_TIMEOUT)
            case TaskSlice() as found:
                from penstock.pipeline.uploads.task_delivery import TaskDelivery

                self._read(found)
                yield TaskDelivery(
                    self._export(found, _S3_CALL_TIMEOUT),
                    self._messages,
                    found,
                    self._stop,
                    self._reserve if found.is_metered else _grant,
                    self._report_now,
                    self._report_progress,
                )
            case MessageSlice() as found:
                self._read(found)
                opened = open_destination(found.kind, self._export(found, _CALL_TIMEOUT))
                with contextlib.closing(opened):
                    yield MessageDelivery(
                        opened, self._messages, found.end, self._stop, self._report_progress
                    )

    def _read(self, found: MessageSlice) -> None:
        self._messages = read_slice(found, self._root, self._client)

    def _export(self, found: MessageSlice, timeout: float) -> Export:
        return Export(
            found.stream,
            found.stream_id,
            convert(found.config, CONFIG_OF_KIND[found.kind]),
            self._settings,
            self._root,
            timeout,
            self._holds_lease,
        )

    def _holds_lease(self) -> bool:
        try:
            is_held = self._client.reserve_bandwidth(self.lease, 0).is_held
        except (StreamManagerException, OSError) as error:
            raise UnavailableError(f"the broker does not confirm the lease: {error}") from None
        if not is_held:
            self.stop(is_lost=True)
        return is_held

    def _reserve(self, size: int) -> bool:
        """Waits until so many bytes may be sent; False if the delivery is stopped meanwhile."""
        while not self._stop.is_set:
            answer = self._client.reserve_bandwidth(self.lease, size, wait_millis=1000)
            if not answer.is_held:
                self.stop(is_lost=True)
            elif answer.is_granted:
                return True
        return False

    # Reports

    def _report_progress(self) -> None:
        """Reports about once a second how far it got, so that a crash repeats little."""
        is_due = time.monotonic() - self._reported_at >= _REPORT_SECONDS
        # Other threads of the delivery go on while one reports.
        if not is_due or not self._reporting.acquire(blocking=False):
            return
        try:
            self._report_interim()
        except (StreamManagerException, OSError) as error:
            # The next report tells the same.
            logger.debug("progress of stream %r is not reported: %s", self.work.stream, error)
            self._reported_at = time.monotonic()
        finally:
            self._reporting.release()

    def _report_now(self) -> bool:
        """Reports how far it got; False if the lease is lost."""
        with self._reporting:
            return self._report_interim()

    def _report_interim(self) -> bool:
        assert self._delivering is not None
        if self._stop.is_lost:
            return False
        return self._report(self._delivering.delivery(), "", is_final=False)

    def _finish(self, error: str) -> None:
        with self._reporting:
            delivery = self._reported
            if self._delivering is not None:
                delivery = self._delivering.delivery()
            elif isinstance(self.work, TaskSlice):
                delivery = msgspec.structs.replace(delivery, uploads=self.work.uploads)
            try:
                self._report(delivery, error or delivery.error, is_final=True)
            except (StreamManagerException, OSError) as problem:
                # The lease expires, and the messages are delivered again.
                logger.warning(
                    "a delivery of stream %r is not reported: %s", self.work.stream, problem
                )

    def _report(self, delivery: Delivery, error: str, *, is_final: bool) -> bool:
        report = self._make_report(delivery, error, is_final=is_final)
        is_accepted = self._commit(report)
        self._reported_at = time.monotonic()
        if is_accepted:
            uploaded = delivery.uploaded[len(self._reported.uploaded) :]
            self._reported = delivery
            self._delete_files(uploaded, report)
        elif not is_final:
            self.stop(is_lost=True)
        return is_accepted

    def _make_report(self, delivery: Delivery, error: str, *, is_final: bool) -> DeliveryReport:
        """What is new since the last report."""
        work, before = self.work, self._reported
        report = DeliveryReport(
            lease=work.lease,
            stream=work.stream,
            identifier=work.identifier,
            error=error[:_MAX_REASON_LENGTH],
            pause_millis=int(delivery.pause * 1000),
            is_final=is_final,
        )
        if not isinstance(work, MessageSlice):
            return msgspec.structs.replace(report, first=work.upload.sequence_number)
        end = delivery.settled_end
        known = [number for number in work.arrived if number >= end]
        return msgspec.structs.replace(
            report,
            stream_id=work.stream_id,
            first=before.settled_end,
            settled_end=end,
            arrived=sorted({*known, *delivery.arrived})[:MAX_ARRIVED],
            exported_messages=delivery.exported_messages - before.exported_messages,
            exported_bytes=delivery.exported_bytes - before.exported_bytes,
            skipped=[
                SkippedMessage(number, reason[:_MAX_REASON_LENGTH])
                for number, reason in sorted(delivery.skipped[len(before.skipped) :])
            ],
            missing=self._count_missing(end) - self._count_missing(before.settled_end),
            sent_bytes=delivery.sent_bytes - before.sent_bytes,
            events=delivery.events[len(before.events) :],
            uploads=delivery.uploads,
            abandoned=delivery.abandoned[len(before.abandoned) :],
        )

    def _count_missing(self, end: int) -> int:
        """The messages of the slice below `end` that could not be read."""
        work = self.work
        if not isinstance(work, MessageSlice) or self._delivering is None:
            return 0
        arrived = sum(number < end for number in work.arrived)
        return end - work.first - bisect_left(self._messages.numbers, end) - arrived

    def _delete_files(self, uploaded: Iterable[UploadedFile], report: DeliveryReport) -> None:
        """Deletes uploaded files whose tasks are settled by a report, if a setting asks for it."""
        if not self._settings.s3_delete_uploaded_files:
            return
        from penstock.pipeline.uploads.input_files import delete_files

        settled = {*range(report.first, report.settled_end), *report.arrived}
        files = [each for each in uploaded if each.sequence_number in settled]
        delete_files(files, self._settings.read_only_directories)


def _grant(_: int) -> bool:
    return True
