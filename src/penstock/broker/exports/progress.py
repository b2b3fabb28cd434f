"""Accepted reports, and the writer that stores their progress."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from penstock.broker.exports.work_source import AcceptedReport, WorkSource
from penstock.model.exporting import DeliveryReport
from penstock.store.progress_log import ProgressLog
from penstock.store.rows import ExportProgress, UploadChange
from penstock.store.stored_stream import ProgressChange

logger = logging.getLogger(__name__)

# Progress of messages is stored after so long, together with all other reports since then.
_STORE_SECONDS = 1.0
_RETRY_SECONDS = 1.0


class ReportBatch:
    """The accepted reports of one request, to be stored and applied, or canceled on failure."""

    def __init__(self) -> None:
        self.accepted: list[AcceptedReport] = []
        # Reports that were accepted before and were sent again.
        self.repeated: list[tuple[WorkSource, DeliveryReport]] = []
        # Leases that end with an interim report: the export was removed or moved meanwhile, or the
        # dead-letter stream did not accept messages.
        self.lost: set[str] = set()

    def accepted_leases(self, *, are_stored: bool = True) -> list[str]:
        """The leases of accepted reports.

        After a report is accepted, a task deletes files and creates uploads: a report about files
        has to be stored first.
        """
        found = [*((each.source, each.sent) for each in self.accepted), *self.repeated]
        return [
            report.lease
            for source, report in found
            if report.lease not in self.lost and (are_stored or not source.delivers_files)
        ]

    @property
    def may_be_stored_later(self) -> bool:
        return not any(each.source.delivers_files for each in self.accepted)

    @property
    def has_skipped(self) -> bool:
        return any(each.report.skipped for each in self.accepted)

    @property
    def is_final(self) -> bool:
        return all(each.sent.is_final for each in self.accepted)

    def progress(self) -> dict[str, list[ExportProgress]]:
        """By the name of the stream."""
        progress: dict[str, list[ExportProgress]] = {}
        for each in self.accepted:
            if each.progress is not None:
                progress.setdefault(each.source.stream_name, []).append(each.progress)
        return progress

    def uploads(self) -> UploadChange:
        return UploadChange(
            [upload for each in self.accepted for upload in (*each.uploads, *each.abandoned)],
            [upload_id for each in self.accepted for upload_id in each.ended],
        )


class _Unstored(NamedTuple):
    change: ProgressChange
    # Syncs the messages that have to be on the disk before the change; in any thread.
    sync: Callable[[], None]
    # Called with the error, or None. Returns whether the change is kept despite an error.
    on_result: Callable[[BaseException | None], bool] | None


class ProgressWriter:
    """Stores changes in the catalog in their order, all pending ones in one transaction.

    Changes that may be stored later are logged, so that they survive a killed broker.

    When the disk fails, changes are kept in memory and stored when it works again. Until then
    exports are suspended: further progress could not be stored either, and after a crash its
    messages would be delivered again. Called from the event loop only.
    """

    def __init__(
        self, log: ProgressLog, executor: Executor, on_change: Callable[[str], None]
    ) -> None:
        """`on_change` is called with each new value of `error`."""
        self._log = log
        self._executor = executor
        self._on_change = on_change
        self._waiting: list[_Unstored] = []
        self._storing: list[_Unstored] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        # Why the last attempt failed; empty if no changes are kept because of a failure.
        self.error = ""

    def store_later(self, change: ProgressChange, sync: Callable[[], None]) -> None:
        """Logs the change, which is kept in any case."""
        try:
            self._log.append(change.rows())
        except OSError as error:
            # The catalog has reserved space on the disk, and the log has none.
            logger.debug("cannot log export progress: %s", error)
            self.store_now(change, sync, lambda error: error is not None)
        else:
            self._add(_Unstored(change, sync, None))

    def store_now(
        self,
        change: ProgressChange,
        sync: Callable[[], None],
        on_result: Callable[[BaseException | None], bool],
    ) -> None:
        """Calls `on_result` when the change is stored, or with an error.

        It returns whether the change is kept despite an error.
        """
        self._add(_Unstored(change, sync, on_result))

    def _add(self, unstored: _Unstored) -> None:
        self._waiting.append(unstored)
        self._schedule()

    def _schedule(self) -> None:
        if not self._waiting or self._storing or self._is_stopped:
            return
        is_urgent = any(each.on_result for each in self._waiting) and not self.error
        if is_urgent:
            self._store()
        elif self._timer is None:
            seconds = _RETRY_SECONDS if self.error else _STORE_SECONDS
            self._timer = asyncio.get_running_loop().call_later(seconds, self._store)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _store(self) -> None:
        self._cancel_timer()
        self._storing, self._waiting = self._waiting, []
        self._log.rotate()
        # The disk may be slow: requests are served meanwhile.
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, _store_all, self._storing)
        future.add_done_callback(self._note_result)

    def _note_result(self, future: asyncio.Future[None]) -> None:
        error = future.exception()
        if error is None:
            try:
                self._log.clear_rotated()
            except OSError as clearing:
                # Records that are also in the catalog do no harm.
                logger.debug("cannot clear the progress log: %s", clearing)
        stored, self._storing = self._storing, []
        kept = []
        for each in stored:
            is_kept = error is not None
            if each.on_result is not None:
                try:
                    is_kept = each.on_result(error)
                except Exception:
                    logger.exception("cannot apply a stored export report")
            if is_kept:
                kept.append(each._replace(on_result=None))
        self._waiting[:0] = kept
        self._set_error((str(error) or repr(error)) if kept else "")
        self._schedule()

    def _set_error(self, error: str) -> None:
        if error == self.error:
            return
        if not self.error:
            logger.error("cannot store export progress: %s; exports are suspended", error)
        elif not error:
            logger.info("export progress is stored: exports continue")
        self.error = error
        self._on_change(error)

    def stop(self) -> None:
        """Starts no further attempt. A running attempt continues."""
        self._is_stopped = True
        self._cancel_timer()

    def finish(self) -> None:
        """Makes the last attempt before the broker stops. No other attempt may be running."""
        is_stored = False
        try:
            _store_all([*self._storing, *self._waiting])
            is_stored = True
        except (OSError, sqlite3.Error) as error:
            logger.error(
                "cannot store export progress: %s; messages that were exported since the disk "
                "failed may be exported again",
                error,
            )
        self._log.close(is_stored=is_stored)


def _store_all(unstored: Sequence[_Unstored]) -> None:
    if unstored:
        for each in unstored:
            each.sync()
        ProgressChange.merge([each.change for each in unstored]).store()
