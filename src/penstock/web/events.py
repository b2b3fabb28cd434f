"""The latest log records of the broker, for the dashboard."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import NamedTuple

_MAX_EVENTS = 500
_MAX_MESSAGE_CHARACTERS = 1000


class LoggedEvent(NamedTuple):
    id: int
    # In milliseconds since 1970.
    time: int
    level: str
    source: str
    message: str


class Events(logging.Handler):
    """A handler of the root logger that keeps records. Any thread may log and read."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._events: deque[LoggedEvent] = deque(maxlen=_MAX_EVENTS)
        self._next_id = 1
        self.counts: Counter[str] = Counter(INFO=0, WARN=0, ERROR=0)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - logging must not fail
            self.handleError(record)
            return
        level = _level(record.levelno)
        self.counts[level] += 1
        self._events.append(
            LoggedEvent(
                self._next_id,
                int(record.created * 1000),
                level,
                record.name.removeprefix("penstock."),
                message[:_MAX_MESSAGE_CHARACTERS],
            )
        )
        self._next_id += 1

    def since(self, event_id: int) -> list[LoggedEvent]:
        """Returns the events after this id, oldest first."""
        self.acquire()
        try:
            return [event for event in self._events if event.id > event_id]
        finally:
            self.release()


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "ERROR"
    return "WARN" if number >= logging.WARNING else "INFO"
