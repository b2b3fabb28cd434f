"""S3 tasks as they stand in a stream: what is told of those that nobody carries out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.model.exporting import TaskEvent
from penstock.model.s3 import find_task
from penstock.model.status import Status
from penstock.store.log import Log
from penstock.store.segment import DamagedError

logger = logging.getLogger(__name__)

# Of so many tasks that go at once something is told: more would take seconds in which nobody is
# served, and more memory than there may be.
_MOST_TASKS = 20_000
_BYTES_AT_ONCE = 1024 * 1024


class Loss(NamedTuple):
    """Why tasks go."""

    reason: str
    # In milliseconds since 1970.
    time: int


def cancel_tasks(log: Log, first: int, end: int, loss: Loss) -> list[TaskEvent]:
    """What is told of the tasks [first, end), which must be in the log and are about to go."""
    if end - first > _MOST_TASKS:
        logger.warning(
            "%d S3 tasks are canceled (%s): only of the first %d there are statuses",
            end - first,
            loss.reason,
            _MOST_TASKS,
        )
    return [
        TaskEvent(
            sequence_number=number,
            status=Status.Canceled,
            message=loss.reason,
            time=loss.time,
            task=task,
        )
        for number, task in _tasks(log, first, min(end, first + _MOST_TASKS))
    ]


def _tasks(log: Log, first: int, end: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
    while first < end:
        try:
            run = log.read(first, end, _BYTES_AT_ONCE)
        except DamagedError as error:
            # What cannot be read is told of all the same.
            stop = min(error.next_number, end)
            yield from ((number, None) for number in range(first, stop))
            first = stop
            continue
        except OSError as error:
            # Nor does it keep a change from being made, which is stored already.
            logger.error("S3 tasks that are canceled cannot be read: %s", error)
            yield from ((number, None) for number in range(first, end))
            return
        for number, payload in enumerate(run.payloads, first):
            yield number, find_task(payload)
        first += len(run.payloads)
