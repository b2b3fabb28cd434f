"""Status messages: what happens to S3 tasks, told in the status stream of their export.

Nothing that is wrong with a status stream holds up an export.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.exports.recent_tasks import RecentTasks
from penstock.broker.streams import Stream, Streams
from penstock.errors import StreamManagerException
from penstock.model.exporting import TaskEvent
from penstock.model.status import EventType, Status, StatusConfig, StatusLevel
from penstock.model.validation import to_wire

logger = logging.getLogger(__name__)

_LEVELS = {
    Status.Failure: StatusLevel.ERROR,
    Status.Warning: StatusLevel.WARN,
    Status.Canceled: StatusLevel.WARN,
    Status.Success: StatusLevel.INFO,
    # Programs that wait for the end of a task read the next status and take it for that.
    Status.InProgress: StatusLevel.DEBUG,
}


class Origin(NamedTuple):
    """The export that an event is about, which may be gone by now."""

    stream: str
    identifier: str
    status_config: StatusConfig | None

    def wants(self, status: Status) -> bool:
        """Whether its statuses of this kind are written anywhere."""
        config = self.status_config
        # One that tells itself would never come to an end; see the rules for definitions.
        if config is None or config.status_stream_name in (None, self.stream):
            return False
        return _LEVELS[status] <= (config.status_level or StatusLevel.INFO)


class Statuses:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._unsynced: set[Stream] = set()
        self.recent = RecentTasks()
        # Exports whose status stream takes nothing: that is said once.
        self._unheard: set[tuple[str, str]] = set()

    def write(self, origin: Origin, events: Sequence[TaskEvent], now: int) -> None:
        """Those that the export wants; whoever reads its status stream is woken."""
        events = self.recent.drop_repeats(origin.stream, origin.identifier, events)
        self.recent.note(origin.stream, origin.identifier, events)
        payloads = [_encode(origin, event) for event in events if origin.wants(event.status)]
        if not payloads:
            return
        assert origin.status_config is not None
        name = origin.status_config.status_stream_name or ""
        problem = self._append(name, payloads, now)
        export = (origin.stream, origin.identifier)
        who = f"stream {origin.stream!r}, export {origin.identifier!r}"
        if problem and export not in self._unheard:
            self._unheard.add(export)
            logger.warning("%s: statuses are lost: %s", who, problem)
        elif not problem and export in self._unheard:
            self._unheard.discard(export)
            logger.info("%s: the status stream %r works again", who, name)

    def _append(self, name: str, payloads: list[bytes], now: int) -> str:
        """Why some of them could not be stored; empty if all are."""
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
        """What brings all that was written so far to the disk; it may be called from a thread."""
        logs = [stream.log for stream in self._unsynced if self._streams.is_served(stream)]
        self._unsynced.clear()

        def sync_all() -> None:
            for log in logs:
                log.sync()

        return sync_all


def _encode(origin: Origin, event: TaskEvent) -> bytes:
    return msgspec.json.encode(
        # Without what is unset, also in the task: a null object kills AWS' clients.
        to_wire(
            {
                "eventType": EventType.S3Task,
                "statusLevel": _LEVELS[event.status],
                "status": event.status,
                "statusContext": {
                    "s3ExportTaskDefinition": event.task,
                    "exportIdentifier": origin.identifier,
                    "streamName": origin.stream,
                    "sequenceNumber": event.sequence_number,
                },
                "message": event.message,
                "timestampEpochMs": event.time,
            }
        )
    )
