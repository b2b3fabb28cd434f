"""Cancels S3 tasks that are dropped before they are carried out.

The stream drops a task by retention, or the task is removed with its export or its stream. Each
task gets the status Canceled, and its upload is aborted. A task is read before it is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from penstock.broker.exports.export import Export
from penstock.broker.exports.statuses import Statuses
from penstock.broker.exports.task_export import AbandonedUploads, TaskExport
from penstock.broker.streams import Stream
from penstock.model import MessageStreamDefinition
from penstock.model.exporting import TaskEvent
from penstock.model.s3_task import find_task
from penstock.model.status_message import Status
from penstock.store.log import Log
from penstock.store.segment import DamagedError

logger = logging.getLogger(__name__)

# More statuses at once would block the event loop for seconds, and take too much memory.
_MAX_CANCELED_TASKS = 20_000
_READ_BYTES = 1024 * 1024


class Cancellations:
    """Notified before messages are dropped and definitions change, from the event loop only."""

    def __init__(
        self,
        exports_of: Callable[[Stream], Mapping[str, Export]],
        statuses: Statuses,
        abandoned: AbandonedUploads,
        now_millis: Callable[[], int],
    ) -> None:
        self._exports_of = exports_of
        self._statuses = statuses
        self._abandoned = abandoned
        self._now_millis = now_millis
        self._is_writing = False

    # Messages and definitions that are about to be dropped

    def before_drop(self, stream: Stream, end: int, are_expired: bool) -> None:
        for export in self._exports_of(stream).values():
            export.note_loss(end)
        # A status stream may drop messages to accept a status. Statuses of these messages could be
        # written to a stream that is itself about to drop messages: none are written.
        if self._is_writing:
            return
        reason = (
            "its time to live has expired" if are_expired else "the stream was full and dropped it"
        )
        for export in self._executors(stream):
            events = self._cancel(export, export.next_number, end, reason)
            # A leased task may have been carried out: its report decides.
            held = [event for event in events if event.sequence_number < export.held_end]
            export.dropped += held
            self._write(export, events[len(held) :])

    def before_change(
        self, stream: Stream, definition: MessageStreamDefinition | None, moves: Mapping[str, int]
    ) -> Callable[[], Callable[[], None] | None]:
        kept: set[str] = set()
        reason = "the stream was deleted"
        if definition is not None:
            reason = "the export was removed"
            executors = definition.export_definition.s3_task_executor or ()
            kept = {config.identifier for config in executors}
        changed = []
        for export in self._executors(stream):
            name = export.identifier
            if name not in kept:
                events = self._cancel(export, export.pending_from, stream.log.end, reason)
            elif name in moves:
                passed = "the export was moved to a later task"
                events = self._cancel(export, export.pending_from, moves[name], passed)
            else:
                continue
            changed.append((export, events))

        def conclude() -> Callable[[], None] | None:
            for export, events in changed:
                recent, name = self._statuses.recent, export.identifier
                # The tasks of a moved export are carried out again.
                recent.forget(stream.name, name)
                # A task that is carried out again begins a new upload.
                self._abandoned.abandon(export.track(export.uploads, are_abandoned=True))
                self.cancel_dropped(export, export.ended_in_report)
                self._write(export, events)
                if name not in kept:
                    recent.forget(stream.name, name)
            return self._sync_statuses() if changed else None

        return conclude

    def _executors(self, stream: Stream) -> Iterable[TaskExport]:
        if stream.definition.export_definition.s3_task_executor:
            for export in self._exports_of(stream).values():
                if isinstance(export, TaskExport):
                    yield export

    def _cancel(self, export: TaskExport, first: int, end: int, reason: str) -> list[TaskEvent]:
        if first >= end or not export.origin.wants(Status.Canceled):
            return []
        events = cancel_tasks(export.stream.log, first, end, reason, self._now_millis())
        return [event for event in events if event.sequence_number not in export.arrived]

    # Tasks that were dropped while they were leased

    def cancel_dropped(
        self, export: TaskExport, ended: Container[int] = (), *, is_leased: bool = False
    ) -> None:
        """Cancels dropped tasks, except those that have ended or may still be reported."""
        left = [each for each in export.dropped if each.sequence_number not in ended]
        export.dropped = left if is_leased else []
        if not is_leased:
            unfinished = [each for each in left if each.sequence_number not in export.arrived]
            self._write(export, unfinished)

    def release_dropped(self, export: TaskExport) -> None:
        """Cancels dropped tasks of an export that no task of a pipeline has leased."""
        stale = [each for each in export.uploads if each.sequence_number < export.next_number]
        if not stale and not export.dropped:
            return
        # A late report would write a second status.
        export.revoke_lease()
        export.uploads = [each for each in export.uploads if each not in stale]
        self._abandoned.abandon(export.track(stale, are_abandoned=True))
        self.cancel_dropped(export)

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
                logger.error("cannot sync statuses of canceled tasks: %s", error)

        return attempt


def cancel_tasks(log: Log, first: int, end: int, reason: str, time: int) -> list[TaskEvent]:
    """The events of the tasks [first, end), which must be in the log."""
    if end - first > _MAX_CANCELED_TASKS:
        logger.warning(
            "%d S3 tasks are canceled (%s): only the first %d get a status",
            end - first,
            reason,
            _MAX_CANCELED_TASKS,
        )
        end = first + _MAX_CANCELED_TASKS
    return [
        TaskEvent(
            sequence_number=number, status=Status.Canceled, message=reason, time=time, task=task
        )
        for number, task in _read_tasks(log, first, end)
    ]


def _read_tasks(log: Log, first: int, end: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Tasks that cannot be read are None: they get a status as well."""
    while first < end:
        tasks: list[dict[str, Any] | None]
        try:
            tasks = [find_task(each) for each in log.read(first, end, _READ_BYTES).payloads]
        except DamagedError as error:
            tasks = [None] * (min(error.next_number, end) - first)
        except OSError as error:
            logger.error("cannot read canceled S3 tasks: %s", error)
            tasks = [None] * (end - first)
        yield from enumerate(tasks, first)
        first += len(tasks)
