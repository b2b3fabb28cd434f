"""The latest calls to the sandbox, and totals of all calls."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import msgspec

_MAX_CALLS = 10_000


class LoggedCall(msgspec.Struct, rename="camel"):
    """A call and its outcome."""

    service: str
    operation: str
    # The first name, if the call has several.
    name: str
    records: int
    stored: int
    refused: int
    body_bytes: int
    # Arrival, in milliseconds since 1970.
    time: float
    # `ok`, `partial`, an error code, `down`, or `gone` if the client disconnected.
    outcome: str


class CallTotals(msgspec.Struct, rename="camel"):
    calls: int = 0
    failed_calls: int = 0
    records: int = 0
    stored: int = 0
    refused: int = 0
    body_bytes: int = 0


class CallLog:
    """The calls of all services, in order of completion. Thread-safe."""

    def __init__(self, max_calls: int = _MAX_CALLS) -> None:
        self._entries: deque[LoggedCall] = deque(maxlen=max_calls)
        self._totals: dict[str, CallTotals] = {}
        self._lock = threading.Lock()

    def add(self, entry: LoggedCall) -> None:
        with self._lock:
            self._entries.append(entry)
            totals = self._totals.setdefault(entry.service, CallTotals())
            totals.calls += 1
            totals.failed_calls += entry.outcome not in ("ok", "partial")
            totals.records += entry.records
            totals.stored += entry.stored
            totals.refused += entry.refused
            totals.body_bytes += entry.body_bytes

    def calls(self, service: str | None = None, name: str | None = None) -> list[LoggedCall]:
        with self._lock:
            return [
                entry
                for entry in self._entries
                if service in (None, entry.service) and name in (None, entry.name)
            ]

    def totals(self) -> dict[str, Any]:
        """Returns totals by service, without services that were never called."""
        with self._lock:
            plain: dict[str, Any] = msgspec.to_builtins(self._totals)
            return plain

    def reset(self) -> None:
        with self._lock:
            self._entries.clear()
            self._totals.clear()
