"""S3 tasks as the page shows them: those that wait, those under way, and what became of others."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.exports.statuses import RecentTasks
from penstock.broker.exports.task_export import TaskExport
from penstock.errors import StreamManagerException
from penstock.model.exporting import TaskEvent, Upload
from penstock.model.s3_task import find_task
from penstock.model.status_message import Status
from penstock.web.presentation import Plain

# Of each export; others follow when these are done.
_MAX_WAITING = 20
_WAITING_BYTES = 256 * 1024


def draw_tasks(export: TaskExport, recent: RecentTasks) -> Iterator[Plain]:
    """The newest first, as far as they are known."""
    events = list(recent.of(export.stream.name, export.identifier))
    told = {event.sequence_number: event for event in events}
    uploads = {upload.sequence_number: upload for upload in export.uploads}
    undone = dict(_waiting(export, export.pending_from))
    for number in sorted(undone, reverse=True):
        yield _draw(export, number, undone[number], told.get(number), uploads.get(number))
    for number, event in told.items():
        if number not in undone:
            yield _draw(export, number, event.task, event, uploads.get(number))


def _waiting(export: TaskExport, first: int) -> Iterator[tuple[int, Plain | None]]:
    stop = min(export.stream.log.end, first + _MAX_WAITING)
    while first < stop:
        try:
            run = export.stream.read(first, stop, _WAITING_BYTES)
        except StreamManagerException:
            # What cannot be read will not be uploaded either; its export tells so in time.
            return
        for number, payload in enumerate(run.payloads, run.first_sequence_number):
            yield number, find_task(payload)
        first = run.first_sequence_number + len(run.payloads)


def _draw(
    export: TaskExport,
    number: int,
    task: Plain | None,
    event: TaskEvent | None,
    upload: Upload | None,
) -> Plain:
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
