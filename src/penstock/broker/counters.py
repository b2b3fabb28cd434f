"""Counters of a running broker."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import ResponseStatusCode
from penstock.model.exporting import DeliveryReport

# Bucket bounds, from an idle disk to an overloaded one.
_SYNC_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Distribution(NamedTuple):
    """A histogram of durations."""

    bounds: tuple[float, ...]
    # The last count is for durations above all bounds.
    counts: tuple[int, ...]
    sum: float


class Durations:
    """Collects durations from any thread."""

    def __init__(self, bounds: tuple[float, ...] = _SYNC_SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def note(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, seconds)] += 1
            self._sum += seconds

    def snapshot(self) -> Distribution:
        with self._lock:
            return Distribution(self._bounds, tuple(self._counts), self._sum)


@dataclass(slots=True)
class ExportTotals:
    """Totals of all exports of one kind, since the start."""

    deliveries: int = 0
    failures: int = 0
    messages: int = 0
    bytes: int = 0
    skipped_messages: int = 0
    # Bytes on the wire, including failed calls. For S3 tasks, the bytes of the files.
    sent_bytes: int = 0

    def add(self, report: DeliveryReport) -> None:
        self.deliveries += report.is_final
        self.failures += bool(report.error)
        self.messages += report.exported_messages
        self.bytes += report.exported_bytes
        self.skipped_messages += len(report.skipped)
        self.sent_bytes += report.sent_bytes


def _no_failures() -> Counter[str]:
    # All statuses start at 0, otherwise a rate in Prometheus misses the first failure.
    statuses = set(ResponseStatusCode) - {ResponseStatusCode.Success}
    return Counter({status.name: 0 for status in sorted(statuses)})


@dataclass(slots=True)
class Counters:
    """Totals since the start. Only the event loop changes the numbers."""

    messages_appended: int = 0
    bytes_appended: int = 0
    messages_read: int = 0
    bytes_read: int = 0
    requests_failed: int = 0
    # Failed requests by the name of their status.
    failures: Counter[str] = field(default_factory=_no_failures)
    connections_accepted: int = 0
    connections_refused: int = 0
    connections_dropped: int = 0
    # Background syncs of all streams, and flushes of appends that wait for the disk.
    syncs: Durations = field(default_factory=Durations)
    flushes: Durations = field(default_factory=Durations)
