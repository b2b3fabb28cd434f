"""The state machine of a source of work, with leases, reports and back-off.

free ──lease──▶ leased ──report──▶ storing ──stored──▶ free, after a failure with a pause
  ▲               │  ▲                │
  └─lease expires─┘  └────────────────┘ not stored, or more reports follow
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import msgspec

from penstock.model.exporting import AnyWork, DeliveryReport
from penstock.store.rows import ExportProgress, UploadProgress

logger = logging.getLogger(__name__)

# Less urgent than the priorities 1 to 10.
NO_PRIORITY = 11
_FIRST_BACKOFF_SECONDS = 0.5
# The limit also applies to pauses that a destination requests.
MAX_PAUSE_SECONDS = 300.0

_LEASE_ID = re.compile(r"(.+)/([0-9]{1,19})-([0-9]{1,19})/([0-9a-f-]+)")


class LeaseId(NamedTuple):
    # The name of the source.
    name: str
    first: int
    end: int
    # Unique, also over restarts of the broker.
    serial: str

    def __str__(self) -> str:
        return f"{self.name}/{self.first}-{self.end}/{self.serial}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        found = _LEASE_ID.fullmatch(text)
        return cls(found[1], int(found[2]), int(found[3]), found[4]) if found else None


class Holder(NamedTuple):
    """A task of a pipeline."""

    pipeline: str
    task: str


class Lease(NamedTuple):
    """Messages [first, end) of an export that a task holds until `ends_at`.

    Its reports are accepted even later, until another task has a lease.
    """

    id: str
    holder: Holder
    first: int
    end: int
    # On the loop's clock.
    ends_at: float
    # Bytes charged to the bandwidth that no report has accounted for.
    charged: float = 0.0
    # An earlier report contained exported or skipped messages, or parts of files.
    has_advanced: bool = False


class Due(NamedTuple):
    """The messages that may leave, and the condition for more."""

    # Messages below may leave.
    end: int
    # When more messages may leave, in milliseconds since 1970; None if that depends on appends.
    at: int | None
    # The end of the stream at which more messages may leave.
    needed_end: int


class SlicePlan(NamedTuple):
    end: int
    # Bytes of messages, and an estimate of the bytes on the wire.
    size: int = 0
    wire_bytes: float = 0.0


class AcceptedReport(NamedTuple):
    """An accepted report with the changes that follow from it, to be stored and applied."""

    source: WorkSource
    lease: Lease
    # As the task sent it.
    sent: DeliveryReport
    # Without messages outside of the lease or rejected by the dead-letter stream.
    report: DeliveryReport
    progress: ExportProgress | None = None
    # S3 tasks: uploads that continue, uploads to be aborted, and ids of uploads that have ended.
    uploads: Sequence[UploadProgress] = ()
    abandoned: Sequence[UploadProgress] = ()
    ended: Sequence[str] = ()

    @property
    def ends_lease(self) -> bool:
        """Messages that could not be kept are delivered again, also after an interim report."""
        return self.report.is_final or bool(self.report.error)

    @property
    def uncharged_bytes(self) -> float:
        """Bytes of messages to be charged, or refunded if negative."""
        if self.source.delivers_files:
            return 0.0
        sent, charged = self.report.sent_bytes, self.lease.charged
        return sent - (charged if self.ends_lease else min(charged, sent))


class WorkSource(ABC):
    """An export, or an upload to abort. One task at a time may lease its work.

    Subclasses decide which work is due, and apply reports.

    Called from the event loop only.
    """

    # Files: tasks reserve bandwidth for them, and reports are stored before they are accepted.
    # Messages: the bandwidth is charged for a lease, and reports may be stored later.
    delivers_files = True

    def __init__(self, name: str, kind: str, stream_name: str, identifier: str) -> None:
        # Stable over restarts of the broker: lease ids begin with it.
        self.name = name
        # The name of its list in an export definition.
        self.kind = kind
        self.stream_name = stream_name
        self.identifier = identifier
        # The engine's turn of the last lease: of equal priorities the oldest is leased first.
        self.turn = 0
        # On the loop's clock.
        self.last_leased = -math.inf
        self.failures = 0
        # A task may continue a lease of the broker before a restart, unless another lease followed.
        self.may_adopt = False
        self._lease: Lease | None = None
        # The report that is being stored. Until it is, the next position is unknown.
        self._storing: AcceptedReport | None = None
        # The end of a pause, on the loop's clock.
        self._not_before = -math.inf
        # The lease and the digest of the last accepted report. A task whose answer was lost
        # repeats the report.
        self._last_report = ("", b"")
        # The lease that the last accepted report has ended.
        self.finished_lease = ""

    def __str__(self) -> str:
        return f"stream {self.stream_name!r}, export {self.identifier!r}"

    # Decisions of subclasses

    @property
    @abstractmethod
    def priority(self) -> int:
        """1 is the most urgent."""

    @property
    @abstractmethod
    def next_number(self) -> int:
        """The first message of the next slice."""

    @property
    def is_disabled(self) -> bool:
        return False

    @abstractmethod
    def due(self, now: float, now_millis: int, /) -> Due:
        """Which messages may leave, and when more may."""

    @abstractmethod
    def plan_slice(self, due_end: int, max_bytes: int, max_wire_bytes: float, /) -> SlicePlan:
        """The next slice: the messages that are due, as far as they fit."""

    @abstractmethod
    def describe(self, lease: Lease) -> AnyWork:
        """The work for the task that has the lease."""

    @abstractmethod
    def find_changes(self, accepted: AcceptedReport, now_millis: int) -> AcceptedReport:
        """Adds the changes that follow from the valid part of the report."""

    def find_resumed(self, _id: LeaseId, /) -> int | None:
        """The first unreported message of a lease before a restart; None if it is not valid."""
        return None

    def has_advanced(self, report: DeliveryReport) -> bool:
        return report.settled_end > report.first or report.exported_messages > 0

    # Leases

    @property
    def urgency(self) -> tuple[int, int]:
        return self.priority, self.turn

    @property
    def lease(self) -> Lease | None:
        return self._lease

    @property
    def is_storing(self) -> bool:
        return self._storing is not None

    def is_leased(self, now: float) -> bool:
        return self._lease is not None and (self.is_storing or self._lease.ends_at > now)

    def free_at(self) -> float:
        """When it may be leased, on the loop's clock; inf if that depends on a report."""
        if self.is_disabled or self.is_storing:
            return math.inf
        return max(self._lease.ends_at if self._lease else -math.inf, self._not_before)

    def take_lease(self, lease: Lease, turn: int, now: float) -> None:
        assert not self.is_storing
        self.may_adopt = False
        self.turn = turn
        self.last_leased = now
        self._lease = lease

    def holds(self, lease_id: str) -> bool:
        return self._lease is not None and self._lease.id == lease_id

    def renew_lease(self, lease_id: str, holder: Holder, ends_at: float) -> bool:
        """Whether the task holds the lease, also since before a restart of the broker."""
        self.adopt_lease(lease_id, holder, ends_at)
        lease = self._lease
        if lease is None or lease.id != lease_id:
            return False
        self._lease = lease._replace(holder=holder, ends_at=ends_at)
        return True

    def adopt_lease(
        self, lease_id: str, holder: Holder, ends_at: float, first: int | None = None
    ) -> None:
        """Accepts a lease of the broker before a restart, if nothing was leased since.

        With `first`, only if this is its first unreported message.
        """
        parsed = LeaseId.parse(lease_id) if self.may_adopt else None
        resumed = self.find_resumed(parsed) if parsed is not None else None
        if parsed is not None and resumed is not None and first in (None, resumed):
            self.may_adopt = False
            self._lease = Lease(lease_id, holder, resumed, parsed.end, ends_at)

    def end_lease(self, holder: Holder, ends_at: float = -math.inf) -> bool:
        """Ends the lease of this task by `ends_at`. Returns whether that changes the lease."""
        lease = self._lease
        if lease is None or lease.holder != holder or lease.ends_at <= ends_at:
            return False
        self._lease = lease._replace(ends_at=ends_at)
        return True

    def revoke_lease(self) -> None:
        """Ends the lease. Reports about this and earlier leases are no longer accepted."""
        self.may_adopt = False
        self._lease = self._storing = None
        self._last_report = ("", b"")
        self.finished_lease = ""

    # Reports

    def is_repeated(self, report: DeliveryReport) -> bool:
        """Whether this is the last accepted report, sent again."""
        if self._last_report[0] != report.lease or self._last_report[1] != _digest(report):
            return False
        return report.is_final or self.holds(report.lease)

    def accept(self, report: DeliveryReport, now_millis: int) -> AcceptedReport | None:
        """Accepts a report, to be stored; None if the task no longer has the lease."""
        lease = self._lease
        if lease is None or self.is_storing:
            return None
        if (lease.id, lease.first) != (report.lease, report.first):
            return None
        self._storing = AcceptedReport(self, lease, report, report)
        try:
            self._storing = self.find_changes(self._storing, now_millis)
        except BaseException:
            self.cancel_storing()
            raise
        return self._storing

    def cancel_storing(self) -> None:
        """Discards a report that could not be stored. The task may send it again."""
        self._storing = None

    def apply(self, accepted: AcceptedReport, now: float, jitter: float) -> None:
        """Applies changes that are stored, or logged to be stored soon. `jitter` is in [0, 1)."""
        sent, report = accepted.sent, accepted.report
        had_failed = self.failures > 0
        has_advanced = accepted.lease.has_advanced or self.has_advanced(report)
        # The lease may have been renewed meanwhile, or revoked.
        if self._lease is not None and self._storing is accepted:
            self._storing = None
            self._last_report = sent.lease, _digest(sent)
            self.finished_lease = sent.lease if sent.is_final else ""
            continued = self._lease._replace(
                first=report.settled_end,
                charged=max(self._lease.charged - report.sent_bytes, 0.0),
                has_advanced=has_advanced,
            )
            self._lease = None if accepted.ends_lease else continued
        if accepted.ends_lease:
            self._pause(report, has_advanced, now, jitter)
        self.log_result(report, had_failed)

    def log_result(self, report: DeliveryReport, had_failed: bool) -> None:
        # An outage may last days: only its start and its end are logged.
        if report.error:
            level = logging.DEBUG if had_failed else logging.WARNING
            logger.log(level, "%s: %s", self, report.error)
        elif had_failed and not self.failures:
            logger.info("%s: works again", self)

    def _pause(self, report: DeliveryReport, has_advanced: bool, now: float, jitter: float) -> None:
        pause = report.pause_millis / 1000
        if report.error:
            self.failures = 1 if has_advanced else self.failures + 1
            pause = max(pause, backoff_seconds(self.failures, jitter))
        else:
            self.failures = 0
        self._not_before = now + min(pause, MAX_PAUSE_SECONDS)

    def retry_in(self, now: float) -> float:
        return max(self._not_before - now, 0.0)

    def forget_failures(self) -> None:
        """Ends the back-off after a change of the configuration."""
        self.failures = 0
        self._not_before = -math.inf


def _digest(report: DeliveryReport) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(report)).digest()


def backoff_seconds(failures: int, jitter: float) -> float:
    """The pause after consecutive failures; `jitter` is in [0, 1)."""
    # A larger shift overflows.
    doubled: float = _FIRST_BACKOFF_SECONDS * (1 << min(failures - 1, 16))
    # Exports that failed at the same time are not retried at the same time.
    return min(doubled, MAX_PAUSE_SECONDS) * (0.75 + 0.25 * jitter)
