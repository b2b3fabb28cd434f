"""What became of the S3 tasks of late, for people who look: it is not stored anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from penstock.model.exporting import TaskEvent
from penstock.model.status import Status

K = TypeVar("K")
V = TypeVar("V")

# Of each export; and of so many exports.
_MOST_TASKS = 100
_MOST_EXPORTS = 256


class RecentTasks:
    """The last event of each task, by stream and export; called from the event loop only."""

    def __init__(self) -> None:
        self._by_export: dict[tuple[str, str], dict[int, TaskEvent]] = {}
        # Tasks in progress; an export has few of them at once.
        self._begun: dict[tuple[str, str], set[int]] = {}
        # By status, of all that was ever told.
        self.counts: Counter[str] = Counter({status.name: 0 for status in Status})

    def note(self, stream: str, identifier: str, events: Sequence[TaskEvent]) -> None:
        if not events:
            return
        self.counts.update(event.status.name for event in events)
        # The one that is heard of comes last, and the first one is forgotten.
        tasks = self._by_export.pop((stream, identifier), {})
        self._by_export[stream, identifier] = tasks
        for event in events[-_MOST_TASKS:]:
            tasks.pop(event.sequence_number, None)
            tasks[event.sequence_number] = event
        _forget_first(tasks, _MOST_TASKS)
        _forget_first(self._by_export, _MOST_EXPORTS)

    def drop_repeats(
        self, stream: str, identifier: str, events: Sequence[TaskEvent]
    ) -> list[TaskEvent]:
        """The events without those that report again, at a retry, that a task is in progress."""
        begun = self._begun.setdefault((stream, identifier), set())
        kept = []
        for event in events:
            number = event.sequence_number
            if event.status is Status.InProgress:
                if number in begun:
                    continue
                begun.add(number)
            elif event.status is not Status.Warning:
                begun.discard(number)
            kept.append(event)
        if not begun:
            del self._begun[stream, identifier]
        return kept

    def forget(self, stream: str, identifier: str) -> None:
        """The export is gone: another one of its name has tasks of its own."""
        self._by_export.pop((stream, identifier), None)
        self._begun.pop((stream, identifier), None)

    def of(self, stream: str, identifier: str) -> Iterator[TaskEvent]:
        """The latest first."""
        return reversed(self._by_export.get((stream, identifier), {}).values())


def _forget_first(known: dict[K, V], most: int) -> None:
    while len(known) > most:
        del known[next(iter(known))]
