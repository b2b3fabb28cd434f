"""What was asked of the sandbox: the latest calls, and totals of all."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import msgspec

_CALLS_KEPT = 10_000


class LedgerEntry(msgspec.Struct, rename="camel"):
    """A call and what became of it."""

    service: str
    operation: str
    # Where it was for several, the first of them.
    name: str
    records: int
    stored: int
    refused: int
    body_bytes: int
    # When it came, in milliseconds since 1970.
    time: float
    # `ok`, `partial`, the code of an error, `down`, or `gone` if its caller did not wait.
    outcome: str


class Totals(msgspec.Struct, rename="camel"):
    calls: int = 0
    failed_calls: int = 0
    records: int = 0
    stored: int = 0
    refused: int = 0
    body_bytes: int = 0


class Ledger:
    """Calls of all services in the order in which they ended; used by many threads."""

    def __init__(self, calls_kept: int = _CALLS_KEPT) -> None:
        self._entries: deque[LedgerEntry] = deque(maxlen=calls_kept)
        self._totals: dict[str, Totals] = {}
        self._lock = threading.Lock()

    def add(self, entry: LedgerEntry) -> None:
        with self._lock:
            self._entries.append(entry)
            totals = self._totals.setdefault(entry.service, Totals())
            totals.calls += 1
            totals.failed_calls += entry.outcome not in ("ok", "partial")
            totals.records += entry.records
            totals.stored += entry.stored
            totals.refused += entry.refused
            totals.body_bytes += entry.body_bytes

    def calls(self, service: str | None = None, name: str | None = None) -> list[LedgerEntry]:
        with self._lock:
            return [
                entry
                for entry in self._entries
                if service in (None, entry.service) and name in (None, entry.name)
            ]

    def totals(self) -> dict[str, Any]:
        """By service; one that was never called has none."""
        with self._lock:
            plain: dict[str, Any] = msgspec.to_builtins(self._totals)
            return plain

    def reset(self) -> None:
        with self._lock:
            self._entries.clear()
            self._totals.clear()
