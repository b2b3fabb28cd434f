"""What tasks lease and deliver: a state machine that alone decides who may have it.

free ──lease──▶ leased ──report──▶ settling ──stored──▶ free, after a failure with a pause
  ▲               │  ▲                │
  └─lease expires─┘  └────────────────┘ not stored, or more reports follow
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
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

    lease: None = None


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
    uploads: Sequence[UploadProgress] = ()
    abandoned: Sequence[UploadProgress] = ()
    ended: Sequence[str] = ()

    @property
    def ends_lease(self) -> bool:
        """What could not be kept is delivered again, also if the task has more to report."""
        return self.report.is_final or bool(self.report.error)

    @property
    def continued(self) -> list[Upload]:
        return [each.upload for each in self.uploads]


class _Reported(NamedTuple):
    """A report that was accepted."""

    lease: str
    digest: bytes
    is_final: bool


_NO_REPORT = _Reported("", b"", is_final=False)


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
        # It may come again if its answer was lost.
        self._last_report = _NO_REPORT

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
        return self._state.lease

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

    def renew_lease(self, holder: Holder, ends_at: float) -> None:
        """The task holds it, also if the broker did not know until now which task that is."""
        match self._state:
            case _Leased(lease) | _Settling(lease):
                self._state = self._state._replace(
                    lease=lease._replace(holder=holder, ends_at=ends_at)
                )

    def find_resumed(self, parsed: ParsedId) -> int | None:  # noqa: ARG002 - for subclasses
        """The first unsettled message of a lease of the broker before a restart.

        None if the lease is not valid any more.
        """
        return None

    def adopt_lease(self, lease_id: str, parsed: ParsedId, holder: Holder, ends_at: float) -> bool:
        """Accept a lease of the broker before a restart, if nothing was leased since."""
        first = self.find_resumed(parsed)
        if first is None or not self._is_untouched:
            return False
        self._is_untouched = False
        self._state = _Leased(Lease(lease_id, holder, first, parsed.end, ends_at))
        return True

    def end_lease(self, holder: Holder, ends_at: float = -math.inf) -> None:
        """The task has given it up, or is gone unless it comes back before `ends_at`."""
        match self._state:
            case _Leased(lease) | _Settling(lease) if lease.holder == holder:
                lease = lease._replace(ends_at=min(lease.ends_at, ends_at))
                self._state = self._state._replace(lease=lease)

    def revoke_lease(self) -> None:
        """Reports about earlier leases are no longer accepted."""
        self._state = _Free()
        self._is_untouched = False
        self._last_report = _NO_REPORT

    # Reports

    def is_repeated(self, report: DeliveryReport) -> bool:
        """Whether it is the last accepted report, sent again."""
        last = self._last_report
        if last.lease != report.lease or last.digest != _digest(report):
            return False
        lease = self.lease
        return report.is_final or (lease is not None and lease.id == report.lease)

    @property
    def finished_lease(self) -> str | None:
        """The lease that the last accepted report has ended."""
        return self._last_report.lease if self._last_report.is_final else None

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
        has_advanced = self._has_advanced(report)
        match self._state:
            case _Settling(lease):
                has_advanced = has_advanced or lease.has_advanced
                self._last_report = _Reported(given.lease, _digest(given), given.is_final)
                self._state = (
                    _Free()
                    if outcome.ends_lease
                    else _Leased(
                        lease._replace(
                            first=report.settled_end,
                            charged=max(lease.charged - report.sent_bytes, 0.0),
                            has_advanced=has_advanced,
                        )
                    )
                )
        if outcome.ends_lease:
            self._pause(report, has_advanced, now, chance)
        self.apply(outcome)
        self.log_result(report, had_failed)

    def _pause(self, report: DeliveryReport, has_advanced: bool, now: float, chance: float) -> None:
        pause = report.pause_millis / 1000
        if report.error:
            self.failures = 1 if has_advanced else self.failures + 1
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
