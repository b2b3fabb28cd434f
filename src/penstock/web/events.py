"""The log of late: what a broker has told, for people who look at its page."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import NamedTuple

_MOST = 500
_LONGEST = 1000


class LoggedEvent(NamedTuple):
    id: int
    # In milliseconds since 1970.
    time: int
    level: str
    source: str
    message: str


class Events(logging.Handler):
    """A handler of the root logger. It may be told by any thread, and is asked by the loop."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: deque[LoggedEvent] = deque(maxlen=_MOST)
        self._next_id = 1
        self.counts: Counter[str] = Counter(INFO=0, WARN=0, ERROR=0)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - whoever logs is not to fail for it
            self.handleError(record)
            return
        level = _level(record.levelno)
        self.counts[level] += 1
        self._kept.append(
            LoggedEvent(
                self._next_id,
                int(record.created * 1000),
                level,
                record.name.removeprefix("penstock."),
                message[:_LONGEST],
            )
        )
        self._next_id += 1

    def since(self, event_id: int) -> list[LoggedEvent]:
        """Those after it, the oldest first."""
        self.acquire()
        try:
            return [event for event in self._kept if event.id > event_id]
        finally:
            self.release()


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "ERROR"
    return "WARN" if number >= logging.WARNING else "INFO"
