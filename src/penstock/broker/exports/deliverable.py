"""What tasks lease and deliver: a state machine that alone decides who may have it.

    free ──lease──▶ leased ──report──▶ settling ──stored──▶ free, after a failure with a pause
      ▲               │  ▲                │
      └─lease expires─┘  └──not stored, or more reports follow
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import msgspec

from penstock.broker.exports.lease import Holder, Lease, ParsedId
from penstock.broker.exports.pacing import MAX_PAUSE_SECONDS, Due, backoff_seconds
from penstock.model.exporting import AnyWork, DeliveryReport, Upload
from penstock.store.rows import ExportProgress, UploadProgress

# Less urgent than the priorities 1 to 10.
NO_PRIORITY = 11


class _Free(NamedTuple):
    """No task has it."""


class _Leased(NamedTuple):
    lease: Lease


class _Settling(NamedTuple):
    """A report is being stored. Until it is, the next position is unknown."""

    lease: Lease


class Outcome(NamedTuple):
    """The changes that follow from a report, to be stored and then applied."""

    # Without what lies outside of the lease, or could not be kept as a dead letter.
    report: DeliveryReport
    progress: ExportProgress | None = None
    # S3 tasks: uploads that continue, uploads to be aborted, and ids of uploads that are over.
    uploads: list[UploadProgress] = []
    abandoned: list[UploadProgress] = []
    ended: list[str] = []

    @property
    def continued(self) -> list[Upload]:
        return [each.upload for each in self.uploads]


class Deliverable(ABC):
    """Work that one task at a time may lease. Its subclasses say what is due and what it means.

    Called from the event loop only.
    """

    def __init__(self, name: str, stream_name: str, identifier: str) -> None:
        # Stable over restarts of the broker: lease ids begin with it.
        self.name = name
        self.stream_name = stream_name
        self.identifier = identifier
        # The engine's turn at which it was leased last: of equal priorities the oldest comes first.
        self.turn = 0
        self.failures = 0
        self._state: _Free | _Leased | _Settling = _Free()
        # On the loop's clock: the end of a pause.
        self._not_before = -math.inf
        # Nothing was leased or reported since the broker started.
        self._is_untouched = True
        # The lease and the digest of the last accepted report: it may come again if its answer was
        # lost.
        self._last_report = ("", b"")

    # What subclasses decide

    @property
    @abstractmethod
    def priority(self) -> int:
        """1 is the most urgent."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """For metrics: the name of its list in an export definition."""

    @property
    @abstractmethod
    def next_number(self) -> int:
        """The first message of the next slice."""

    @abstractmethod
    def due(self, now: float, now_millis: int) -> Due:
        """Which messages may leave, and what to wait for if none may."""

    @abstractmethod
    def cut(self, due_end: int, max_bytes: int, max_wire_bytes: float) -> int:
        """The end of the next slice: the messages that are due, as far as they fit."""

    @abstractmethod
    def size_of(self, end: int) -> int:
        """The bytes of the next slice if it has this end."""

    @abstractmethod
    def wire_bytes_of(self, size: int) -> float:
        """An estimate of the bytes on the wire for so many bytes of messages."""

    @abstractmethod
    def describe(self, lease: Lease, is_metered: bool) -> AnyWork:
        """The work for the task that has the lease."""

    @abstractmethod
    def settle(self, report: DeliveryReport, lease: Lease, now_millis: int) -> Outcome:
        """The changes that follow from a report."""

    @abstractmethod
    def apply(self, outcome: Outcome) -> None:
        """The outcome is stored: continue from there."""

    @abstractmethod
    def log_result(self, report: DeliveryReport, had_failed: bool) -> None:
        """Log a failure when it begins and when it ends."""

    # Leases

    @property
    def urgency(self) -> tuple[int, int]:
        return self.priority, self.turn

    @property
    def is_disabled(self) -> bool:
        return False

    @property
    def is_charged(self) -> bool:
        """Whether bandwidth is charged for a lease, and not reserved by its task."""
        return False

    @property
    def lease(self) -> Lease | None:
        match self._state:
            case _Leased(lease) | _Settling(lease):
                return lease
        return None

    @property
    def is_settling(self) -> bool:
        return isinstance(self._state, _Settling)

    def is_leased(self, now: float) -> bool:
        lease = self.lease
        return lease is not None and (self.is_settling or lease.ends_at > now)

    def free_at(self) -> float:
        """When it may be leased, on the loop's clock; inf if that depends on a report."""
        if self.is_disabled:
            return math.inf
        match self._state:
            case _Settling():
                return math.inf
            case _Leased(lease):
                return max(lease.ends_at, self._not_before)
            case _Free():
                return self._not_before

    def take_lease(self, lease: Lease, turn: int, now: float) -> None:  # noqa: ARG002 - for subclasses
        assert not self.is_settling
        self._is_untouched = False
        self.turn = turn
        self._state = _Leased(lease)

    def renew_lease(self, lease_id: str, ends_at: float) -> bool:
        """False if the task no longer has it."""
        match self._state:
            case _Leased(lease) if lease.id == lease_id:
                self._state = _Leased(lease._replace(ends_at=ends_at))
                return True
            case _Settling(lease):
                return lease.id == lease_id
        return False

    def adopt_lease(self, lease_id: str, parsed: ParsedId, holder: Holder, ends_at: float) -> bool:
        """Accept a lease of the broker before a restart, if nothing was leased since."""
        number = self.next_number
        is_free = isinstance(self._state, _Free) and self._is_untouched and not self.is_disabled
        if not is_free or not parsed.first <= number <= parsed.end:
            return False
        self._is_untouched = False
        self._state = _Leased(Lease(lease_id, holder, number, parsed.end, ends_at))
        return True

    def end_lease(self, holder: Holder, ends_at: float = -math.inf) -> None:
        """The task has given it up, or is gone unless it comes back before `ends_at`."""
        match self._state:
            case _Leased(lease) if lease.holder == holder:
                self._state = _Leased(lease._replace(ends_at=min(lease.ends_at, ends_at)))

    def revoke_lease(self) -> None:
        """Reports about earlier leases are no longer accepted."""
        self._state = _Free()
        self._is_untouched = False
        self._last_report = ("", b"")

    # Reports

    def is_repeated(self, report: DeliveryReport) -> bool:
        """Whether it is the last accepted report, sent again."""
        if self._last_report[0] != report.lease or self._last_report[1] != _digest(report):
            return False
        lease = self.lease
        return report.is_final or (lease is not None and lease.id == report.lease)

    def begin_settling(self, report: DeliveryReport) -> Lease | None:
        """The lease that the report is about; None if the task no longer has it."""
        match self._state:
            case _Leased(lease) if (lease.id, lease.first) == (report.lease, report.first):
                self._state = _Settling(lease)
                return lease
        return None

    def cancel_settling(self) -> None:
        """The report could not be stored, and may come again."""
        match self._state:
            case _Settling(lease):
                self._state = _Leased(lease)

    def finish_settling(
        self, given: DeliveryReport, outcome: Outcome, now: float, chance: float
    ) -> None:
        """The outcome is stored. `given` is the report as it came, and `chance` is in [0, 1)."""
        report = outcome.report
        had_failed = self.failures > 0
        if isinstance(self._state, _Settling):
            self._last_report = given.lease, _digest(given)
            self._release(self._state.lease, report)
        if report.is_final or report.error:
            self._pause(report, now, chance)
        self.apply(outcome)
        self.log_result(report, had_failed)

    def _release(self, lease: Lease, report: DeliveryReport) -> None:
        # What could not be kept is delivered again, also if the task has more to report.
        if report.is_final or report.error:
            self._state = _Free()
            return
        charged = max(lease.charged - report.sent_bytes, 0.0)
        self._state = _Leased(lease._replace(first=report.settled_end, charged=charged))

    def _pause(self, report: DeliveryReport, now: float, chance: float) -> None:
        pause = report.pause_millis / 1000
        if report.error:
            self.failures = 1 if self._has_advanced(report) else self.failures + 1
            pause = max(pause, backoff_seconds(self.failures, chance))
        else:
            self.failures = 0
        self._not_before = now + min(pause, MAX_PAUSE_SECONDS)

    def _has_advanced(self, report: DeliveryReport) -> bool:
        return report.settled_end > report.first or report.exported_messages > 0

    def retry_in(self, now: float) -> float:
        return max(self._not_before - now, 0.0)

    def forget_failures(self) -> None:
        """The configuration has changed: the next delivery need not wait."""
        self.failures = 0
        self._not_before = -math.inf


def _digest(report: DeliveryReport) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(report)).digest()
