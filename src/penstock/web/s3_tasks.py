"""S3 tasks as JSON objects: pending, in progress, and ended."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.exports.statuses import RecentTasks
from penstock.broker.exports.task_export import TaskExport
from penstock.errors import StreamManagerException
from penstock.model.exporting import TaskEvent, Upload
from penstock.model.s3_task import find_task
from penstock.model.status_message import Status
from penstock.web.presentation import JsonObject

# The limits for each export. Further pending tasks are shown when these have ended.
_MAX_PENDING = 20
_MAX_PENDING_BYTES = 256 * 1024


def render_s3_tasks(export: TaskExport, recent: RecentTasks) -> Iterator[JsonObject]:
    """Yields the known tasks of an export, newest first."""
    events = {
        event.sequence_number: event for event in recent.of(export.stream.name, export.identifier)
    }
    uploads = {upload.sequence_number: upload for upload in export.uploads}
    pending = dict(_read_pending(export, export.pending_from))
    for number in sorted(pending, reverse=True):
        yield _render_s3_task(
            export, number, pending[number], events.get(number), uploads.get(number)
        )
    for number, event in events.items():
        if number not in pending:
            yield _render_s3_task(export, number, event.task, event, uploads.get(number))


def _read_pending(export: TaskExport, first: int) -> Iterator[tuple[int, JsonObject | None]]:
    end = min(export.stream.log.end, first + _MAX_PENDING)
    while first < end:
        try:
            run = export.stream.read(first, end, _MAX_PENDING_BYTES)
        except StreamManagerException:
            # The export reports the unreadable task when it reaches it.
            return
        for number, payload in enumerate(run.payloads, run.first_sequence_number):
            yield number, find_task(payload)
        first = run.first_sequence_number + len(run.payloads)


def _render_s3_task(
    export: TaskExport,
    number: int,
    task: JsonObject | None,
    event: TaskEvent | None,
    upload: Upload | None,
) -> JsonObject:
    task = task or {}
    return {
        "stream": export.stream.name,
        "exportIdentifier": export.identifier,
        "sequenceNumber": number,
        "state": _state(event, upload),
        "inputUrl": task.get("inputUrl"),
        "bucket": task.get("bucket"),
        "key": upload.key if upload else task.get("key"),
        "message": event.message if event else "",
        "time": event.time if event else upload.began if upload else None,
        "size": upload.size if upload else None,
        "parts": -(-upload.size // upload.part_size) if upload and upload.part_size else None,
        "partsArrived": upload.arrived_parts if upload else None,
    }


def _state(event: TaskEvent | None, upload: Upload | None) -> str:
    if event is not None:
        return event.status.name
    return Status.InProgress.name if upload is not None else "Waiting"
