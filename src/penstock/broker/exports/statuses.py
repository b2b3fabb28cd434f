"""Status messages of S3 tasks, appended to the status stream of their export.

A status stream that accepts no messages does not delay its export.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.broker.streams import Stream, Streams
from penstock.errors import StreamManagerException
from penstock.model.exporting import TaskEvent
from penstock.model.status_message import EventType, Status, StatusConfig, StatusLevel
from penstock.model.validation import to_wire

logger = logging.getLogger(__name__)

_LEVELS = {
    Status.Failure: StatusLevel.ERROR,
    Status.Warning: StatusLevel.WARN,
    Status.Canceled: StatusLevel.WARN,
    Status.Success: StatusLevel.INFO,
    # By default this is not written: programs expect the next status to be the result of the task.
    Status.InProgress: StatusLevel.DEBUG,
}
# Recent tasks: of each export, and the number of exports.
_MAX_RECENT_TASKS = 100
_MAX_RECENT_EXPORTS = 256


class Origin(NamedTuple):
    """The export of an event. It may no longer exist."""

    stream: str
    identifier: str
    status_config: StatusConfig | None

    def wants(self, status: Status) -> bool:
        """Whether statuses of this kind are written."""
        config = self.status_config
        # A stream that receives its own statuses would never be up to date.
        if config is None or config.status_stream_name in (None, self.stream):
            return False
        return _LEVELS[status] <= (config.status_level or StatusLevel.INFO)


class RecentTasks:
    """The latest event of each task, in memory only. Called from the event loop only."""

    def __init__(self) -> None:
        self._by_export: dict[tuple[str, str], dict[int, TaskEvent]] = {}
        # Tasks in progress: stream, export and sequence number.
        self._begun: set[tuple[str, str, int]] = set()
        # Events by the name of their status.
        self.counts: Counter[str] = Counter({status.name: 0 for status in Status})

    def note(self, stream: str, identifier: str, events: Sequence[TaskEvent]) -> list[TaskEvent]:
        """Returns the events without repeats: each retry reports that its task is in progress."""
        events = [event for event in events if self._is_new(stream, identifier, event)]
        if events:
            self.counts.update(event.status.name for event in events)
            # Entries are in the order of their last event, so that the first one is evicted.
            tasks = self._by_export.pop((stream, identifier), {})
            self._by_export[stream, identifier] = tasks
            for event in events[-_MAX_RECENT_TASKS:]:
                tasks.pop(event.sequence_number, None)
                tasks[event.sequence_number] = event
            _evict_first(tasks, _MAX_RECENT_TASKS)
            _evict_first(self._by_export, _MAX_RECENT_EXPORTS)
        return events

    def _is_new(self, stream: str, identifier: str, event: TaskEvent) -> bool:
        task = (stream, identifier, event.sequence_number)
        if event.status is Status.InProgress:
            is_new = task not in self._begun
            self._begun.add(task)
            return is_new
        if event.ends_task:
            self._begun.discard(task)
        return True

    def forget(self, stream: str, identifier: str) -> None:
        """Forgets the tasks of an export that was removed or moved."""
        self._by_export.pop((stream, identifier), None)
        self._begun = {each for each in self._begun if each[:2] != (stream, identifier)}

    def of(self, stream: str, identifier: str) -> Iterator[TaskEvent]:
        """The latest first."""
        return reversed(self._by_export.get((stream, identifier), {}).values())


def _evict_first(entries: dict[Any, Any], max_entries: int) -> None:
    while len(entries) > max_entries:
        del entries[next(iter(entries))]


class Statuses:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._unsynced: set[Stream] = set()
        self.recent = RecentTasks()
        # Exports whose status stream fails. A failure is logged once.
        self._failing: set[tuple[str, str]] = set()

    def write(self, origin: Origin, events: Sequence[TaskEvent], now: int) -> None:
        """Appends the statuses that the export wants."""
        events = self.recent.note(origin.stream, origin.identifier, events)
        payloads = [_encode(origin, event) for event in events if origin.wants(event.status)]
        if not payloads:
            return
        assert origin.status_config is not None
        name = origin.status_config.status_stream_name or ""
        problem = self._append(name, payloads, now)
        export = (origin.stream, origin.identifier)
        if problem and export not in self._failing:
            self._failing.add(export)
            logger.warning("stream %r, export %r: statuses are lost: %s", *export, problem)
        elif not problem and export in self._failing:
            self._failing.discard(export)
            logger.info("stream %r, export %r: status stream %r works again", *export, name)

    def _append(self, name: str, payloads: list[bytes], now: int) -> str:
        """Returns why some payloads could not be stored; empty if all are."""
        problem = ""
        try:
            stream = self._streams.find(name)
        except StreamManagerException as error:
            return error.message
        while payloads:
            count = stream.log.count_fitting(payloads)
            try:
                stream.append(payloads[:count], now, keeps_min_free=False)
                self._unsynced.add(stream)
            except StreamManagerException as error:
                problem = error.message
            payloads = payloads[count:]
        return problem

    def sync(self) -> Callable[[], None]:
        """Returns a function that syncs all statuses written so far; it may run in any thread."""
        logs = [stream.log for stream in self._unsynced if self._streams.is_served(stream)]
        self._unsynced.clear()

        def sync_all() -> None:
            for log in logs:
                log.sync()

        return sync_all


def _encode(origin: Origin, event: TaskEvent) -> bytes:
    context = {
        "s3ExportTaskDefinition": event.task,
        "exportIdentifier": origin.identifier,
        "streamName": origin.stream,
        "sequenceNumber": event.sequence_number,
    }
    status = {
        "eventType": EventType.S3Task,
        "statusLevel": _LEVELS[event.status],
        "status": event.status,
        "statusContext": context,
        "message": event.message,
        "timestampEpochMs": event.time,
    }
    # `to_wire` omits unset fields, also of the task: AWS' clients crash on a null object.
    return msgspec.json.encode(to_wire(status))
