"""Tasks that nobody carries out any more, because they, their export or their stream go.

Each of them has a status, and its upload is aborted. What is told of a task is read before it goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable

from penstock.broker.exports.abandoned import AbandonedUploads
from penstock.broker.exports.export import Export
from penstock.broker.exports.registry import Registry
from penstock.broker.exports.statuses import Statuses
from penstock.broker.exports.tasks import Loss, cancel_tasks
from penstock.broker.streams import Stream
from penstock.model import MessageStreamDefinition
from penstock.model.exporting import Lane, TaskEvent
from penstock.model.status import Status

logger = logging.getLogger(__name__)


class Cancellations:
    """The witness of all streams. Called from the event loop only."""

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
        self._is_telling = False

    # What goes

    def before_drop(self, stream: Stream, end: int, are_expired: bool) -> None:
        for export in self._exports.of(stream).values():
            export.note_loss(end)
        # A status stream may have to drop something to take a status. Of that nothing is told, or
        # it might come back to a stream that is just about to drop something.
        if self._is_telling:
            return
        reason = "its time to live is over" if are_expired else "the stream was full and dropped it"
        for export in self._executors(stream):
            events = self._cancel(export, export.next_number, end, reason)
            # Whoever has a task on lease may have carried it out, and will say so.
            held = [event for event in events if event.sequence_number < export.held_end]
            export.dropped += held
            self._tell(export, events[len(held) :])

    def before_change(
        self, stream: Stream, definition: MessageStreamDefinition | None
    ) -> Callable[[], Callable[[], None] | None]:
        kept: set[str] = set()
        reason = "the stream was deleted"
        if definition is not None:
            reason = "the export was removed"
            executors = definition.export_definition.s3_task_executor or ()
            kept = {config.identifier for config in executors}
        canceled = [
            (export, self._cancel(export, export.undone_from, stream.log.end, reason))
            for export in self._executors(stream)
            if export.identifier not in kept
        ]

        def conclude() -> Callable[[], None] | None:
            for export, events in canceled:
                self._abandoned.abandon(export.track(export.uploads, are_abandoned=True))
                self.conclude_lease(export, export.settling_told)
                self._tell(export, events)
                self._statuses.recent.forget(export.stream.name, export.identifier)
            return self._sync_statuses() if canceled else None

        return conclude

    def _executors(self, stream: Stream) -> Iterable[Export]:
        if stream.definition.export_definition.s3_task_executor:
            for export in self._exports.of(stream).values():
                if export.lane is Lane.files:
                    yield export

    def _cancel(self, export: Export, first: int, end: int, reason: str) -> list[TaskEvent]:
        if first >= end or not export.origin.wants(Status.Canceled):
            return []
        events = cancel_tasks(export.stream.log, first, end, Loss(reason, self._now_millis()))
        return [event for event in events if event.sequence_number not in export.arrived]

    # What went while somebody had it

    def conclude_lease(self, export: Export, told: Container[int] = ()) -> None:
        """How these tasks ended was told. Others that went meanwhile are not carried out."""
        left = [event for event in export.dropped if event.sequence_number not in told]
        export.dropped = []
        self._tell(export, [event for event in left if event.sequence_number not in export.arrived])

    def give_up(self, export: Export) -> None:
        """Nobody has it any more: what went meanwhile is not carried out."""
        stale = [each for each in export.uploads if each.sequence_number < export.next_number]
        if not stale and not export.dropped:
            return
        # What is reported too late would be told twice.
        export.lease = None
        export.uploads = [each for each in export.uploads if each not in stale]
        self._abandoned.abandon(export.track(stale, are_abandoned=True))
        self.conclude_lease(export)

    def _tell(self, export: Export, events: list[TaskEvent]) -> None:
        self._is_telling = True
        try:
            self._statuses.write(export.origin, events, self._now_millis())
        finally:
            self._is_telling = False

    def _sync_statuses(self) -> Callable[[], None]:
        sync = self._statuses.sync()

        def attempt() -> None:
            try:
                sync()
            except OSError as error:
                logger.error("statuses of canceled tasks cannot be synced: %s", error)

        return attempt
