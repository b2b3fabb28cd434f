"""S3 tasks that are dropped before they are carried out, with their export or their stream.

Each gets the status Canceled, and its upload is aborted. A task is read before it is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping

from penstock.broker.exports.abandoned import AbandonedUploads
from penstock.broker.exports.registry import Registry
from penstock.broker.exports.statuses import Statuses
from penstock.broker.exports.task_export import TaskExport
from penstock.broker.exports.tasks import Loss, cancel_tasks
from penstock.broker.streams import Stream
from penstock.model import MessageStreamDefinition
from penstock.model.exporting import TaskEvent
from penstock.model.status import Status

logger = logging.getLogger(__name__)

_PASSED = "the export was moved to a later task"


class Cancellations:
    """Is notified before messages are dropped and definitions change, by the event loop only."""

    def __init__(
        self,
        exports: Registry,
        statuses: Statuses,
        abandoned: AbandonedUploads,
        now_millis: Callable[[], int],
    ) -> None:
        self._exports = exports
        self._statuses = statuses
        self._abandoned = abandoned
        self._now_millis = now_millis
        self._is_writing = False

    # Messages and definitions that are about to go

    def before_drop(self, stream: Stream, end: int, are_expired: bool) -> None:
        for export in self._exports.of(stream).values():
            export.note_loss(end)
        # A status stream may drop messages to accept a status. That writes no further statuses,
        # or it could come back to a stream that is about to drop messages.
        if self._is_writing:
            return
        reason = "its time to live is over" if are_expired else "the stream was full and dropped it"
        for export in self._executors(stream):
            events = self._cancel(export, export.next_number, end, reason)
            # A task that is leased may have been carried out: a report decides.
            held = [event for event in events if event.sequence_number < export.held_end]
            export.dropped += held
            self._write(export, events[len(held) :])

    def before_change(
        self,
        stream: Stream,
        definition: MessageStreamDefinition | None,
        moves: Mapping[str, int],
    ) -> Callable[[], Callable[[], None] | None]:
        kept: set[str] = set()
        reason = "the stream was deleted"
        if definition is not None:
            reason = "the export was removed"
            executors = definition.export_definition.s3_task_executor or ()
            kept = {config.identifier for config in executors}
        removed = [
            (export, self._cancel(export, export.pending_from, stream.log.end, reason))
            for export in self._executors(stream)
            if export.identifier not in kept
        ]
        # The upload of a task that is carried out again is begun anew.
        moved = [
            (export, self._cancel(export, export.pending_from, moves[export.identifier], _PASSED))
            for export in self._executors(stream)
            if export.identifier in kept and export.identifier in moves
        ]

        def conclude() -> Callable[[], None] | None:
            for export, _ in moved:
                # Its tasks are carried out again.
                self._statuses.recent.forget(export.stream.name, export.identifier)
            for export, events in (*removed, *moved):
                self._abandoned.abandon(export.track(export.uploads, are_abandoned=True))
                self.conclude_lease(export, export.ended_in_report)
                self._write(export, events)
            for export, _ in removed:
                self._statuses.recent.forget(export.stream.name, export.identifier)
            return self._sync_statuses() if removed or moved else None

        return conclude

    def _executors(self, stream: Stream) -> Iterable[TaskExport]:
        if stream.definition.export_definition.s3_task_executor:
            for export in self._exports.of(stream).values():
                if isinstance(export, TaskExport):
                    yield export

    def _cancel(self, export: TaskExport, first: int, end: int, reason: str) -> list[TaskEvent]:
        if first >= end or not export.origin.wants(Status.Canceled):
            return []
        events = cancel_tasks(export.stream.log, first, end, Loss(reason, self._now_millis()))
        return [event for event in events if event.sequence_number not in export.arrived]

    # Messages that were dropped while they were leased

    def conclude_lease(self, export: TaskExport, ended: Container[int] = ()) -> None:
        """The lease is over: dropped tasks are canceled, but for those that have ended."""
        self.forget_dropped(export, ended)
        left = export.dropped
        export.dropped = []
        self._write(
            export, [event for event in left if event.sequence_number not in export.arrived]
        )

    def forget_dropped(self, export: TaskExport, ended: Container[int]) -> None:
        """These tasks have ended: their status is written."""
        export.dropped = [each for each in export.dropped if each.sequence_number not in ended]

    def give_up(self, export: TaskExport) -> None:
        """No task of a pipeline holds the export: dropped tasks are not carried out."""
        stale = [each for each in export.uploads if each.sequence_number < export.next_number]
        if not stale and not export.dropped:
            return
        # A report that comes late would write a second status.
        export.revoke_lease()
        export.uploads = [each for each in export.uploads if each not in stale]
        self._abandoned.abandon(export.track(stale, are_abandoned=True))
        self.conclude_lease(export)

    def _write(self, export: TaskExport, events: list[TaskEvent]) -> None:
        self._is_writing = True
        try:
            self._statuses.write(export.origin, events, self._now_millis())
        finally:
            self._is_writing = False

    def _sync_statuses(self) -> Callable[[], None]:
        sync = self._statuses.sync()

        def attempt() -> None:
            try:
                sync()
            except OSError as error:
                logger.error("statuses of canceled tasks cannot be synced: %s", error)

        return attempt
