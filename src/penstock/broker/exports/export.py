"""Exports of one stream: their position and state, and when messages leave."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.work_source import (
    NO_PRIORITY,
    AcceptedReport,
    Due,
    Lease,
    LeaseId,
    SlicePlan,
    WorkSource,
)
from penstock.broker.streams import Stream
from penstock.model import ExportConfig
from penstock.model.export_definition import batch_size_of
from penstock.model.exporting import (
    URGENT_PRIORITY,
    DeliveryReport,
    ExportState,
    MessageSlice,
)
from penstock.model.statistics import ExportActivity
from penstock.model.validation import to_wire
from penstock.store.log import FileLog
from penstock.store.rows import ExportProgress, UploadProgress

logger = logging.getLogger(__name__)

# Bytes on the wire for each byte of a message until the first report: base64 and a frame. A ratio
# that was measured with few small messages may be far too large.
_DEFAULT_OVERHEAD = 1.5
_MAX_OVERHEAD = 100.0


class Export(WorkSource):
    """One export of one stream. It is kept when its configuration changes.

    When an export is moved, an export with another id replaces it. Leases, reports and uploads of
    the old position do not apply to the new export.
    """

    # A task holds the messages of its slices in memory.
    max_slice_bytes = 8 * 1024 * 1024
    max_slice_messages = 65_536

    def __init__(
        self, stream: Stream, kind: str, config: ExportConfig, dead_letters: DeadLetters
    ) -> None:
        self.stream = stream
        self.config = config
        self.id = self.progress.export_id
        # An export whose kind changes keeps its id, but not its leases.
        super().__init__(f"{self.id}/{kind}", kind, stream.name, config.identifier)
        self._dead_letters = dead_letters
        # A lease from before a restart does not end above it, unless a crash has lost messages.
        self._first_seen_end = stream.log.end
        # Messages after the next one that have arrived.
        self.arrived: list[int] = []
        # The number of messages that were dropped or damaged before they were exported.
        self._lost = 0
        # Cached for the status: a number, and the time of that message.
        self._oldest_pending: tuple[int, int | None] = (-1, None)

    @property
    def progress(self) -> ExportProgress:
        return self.stream.stored.progress[self.config.identifier]

    @property
    def priority(self) -> int:
        return self.config.priority or NO_PRIORITY

    @property
    def is_disabled(self) -> bool:
        return bool(self.config.disabled)

    @property
    def position(self) -> int:
        """The number after the last exported message. The stream may have dropped it."""
        start = getattr(self.config, "start_sequence_number", None) or 0
        return max(self.progress.last_exported + 1, start)

    @property
    def next_number(self) -> int:
        return max(self.position, self.stream.log.oldest)

    @property
    def held_end(self) -> int:
        """The end of the lease: the task may still report messages below it."""
        return self.lease.end if self.lease is not None else 0

    # Leases

    def resume(self, _uploads: Sequence[UploadProgress], /) -> None:
        """Restores the state after a start of the broker, from the unfinished uploads."""
        self.may_adopt = True

    def find_resumed(self, lease_id: LeaseId, /) -> int | None:
        first = max(lease_id.first, self.position)
        is_current = lease_id.first <= self.next_number and first <= lease_id.end
        return first if is_current and lease_id.end <= self._first_seen_end else None

    def plan_slice(self, due_end: int, max_bytes: int, _max_wire_bytes: float, /) -> SlicePlan:
        first, log = self.next_number, self.stream.log
        limit = max(min(self.max_slice_bytes, max_bytes), 1)
        end = log.find_end(first, min(due_end, first + self.max_slice_messages), limit)
        if self.arrived:
            # The messages of a call that failed in part are sent again together.
            end = max(end, min(self.arrived[-1] + 1, due_end))
        return SlicePlan(end, log.size_of(first, end))

    def slice_fields(self, lease: Lease) -> dict[str, Any]:
        """The fields of slices of all kinds."""
        stream, log = self.stream, self.stream.log
        return {
            "lease": lease.id,
            "stream": stream.name,
            "identifier": self.identifier,
            "stream_id": stream.stored.id,
            "kind": self.kind,
            "config": to_wire(self.config),
            "first": lease.first,
            "end": lease.end,
            "arrived": [number for number in self.arrived if lease.first <= number < lease.end],
            "has_files": isinstance(log, FileLog),
            "segments": log.summaries(lease.first, lease.end),
            "size": log.size_of(max(lease.first, log.oldest), lease.end),
        }

    # Reports

    def find_changes(self, accepted: AcceptedReport, now_millis: int) -> AcceptedReport:
        report = self.within_lease(accepted.report, accepted.lease)
        report = self._dead_letters.keep(self.stream, report, now_millis)
        return accepted._replace(report=report, progress=self._advance(report, now_millis))

    def within_lease(self, report: DeliveryReport, lease: Lease) -> DeliveryReport:
        """The report without messages outside of its lease."""
        first, end = lease.first, lease.end
        return msgspec.structs.replace(
            report,
            settled_end=min(max(report.settled_end, first), end),
            arrived=[number for number in report.arrived if first <= number < end],
            skipped=[each for each in report.skipped if first <= each.sequence_number < end],
        )

    def _advance(self, report: DeliveryReport, now_millis: int) -> ExportProgress:
        progress = self.progress
        last = progress.last_exported
        if report.settled_end > report.first:
            last = max(last, report.settled_end - 1)
        skipped = len(report.skipped)
        return progress._replace(
            last_exported=last,
            last_time=now_millis,
            error_message=report.error or _describe_skipped(report),
            exported_bytes=_add(progress.exported_bytes, report.exported_bytes),
            processed_messages=_add(progress.processed_messages, report.exported_messages, skipped),
            skipped_messages=_add(progress.skipped_messages, skipped),
        )

    def apply(self, accepted: AcceptedReport, now: float, jitter: float) -> None:
        super().apply(accepted, now, jitter)
        report = accepted.report
        self.arrived = sorted(report.arrived)
        self._lost += report.missing
        if report.missing:
            # Tasks read files themselves: only their reports show damage to the broker.
            self.stream.log.find_damage(report.first, report.settled_end)
            logger.warning(
                "%s: %d messages are unreadable and were not exported", self, report.missing
            )
        if report.skipped:
            logger.warning("%s: %s", self, _describe_skipped(report))

    # Changes from outside

    def change_config(self, config: ExportConfig) -> None:
        if config != self.config:
            self.config = config
            self.forget_failures()

    def replace(self, replaced: Export) -> None:
        """Continues the counters of an export that was moved."""
        self._lost = replaced._lost

    def note_loss(self, end: int) -> None:
        """Counts unexported messages below `end`, which are about to be dropped.

        Leased messages are not counted: their task may still deliver them.
        """
        self._lost += max(end - max(self.next_number, self.held_end), 0)

    # Status

    def state(self, now: float, now_millis: int) -> ExportState:
        if self.is_disabled:
            return ExportState.paused
        has_advanced = self.lease is not None and self.lease.has_advanced
        if self.failures and not has_advanced:
            return ExportState.failing
        if self.next_number >= self.stream.log.end:
            return ExportState.up_to_date
        if self.is_leased(now):
            return ExportState.exporting
        is_due = self.due(now, now_millis).end > self.next_number
        return ExportState.due if is_due else ExportState.waiting

    def activity(self, now: float, now_millis: int) -> ExportActivity:
        return ExportActivity(
            self.state(now, now_millis).value,
            self.failures,
            int(self.retry_in(now) * 1000) if self.failures else None,
            self._pending_since(),
            self.is_leased(now),
            self._lost,
        )

    def _pending_since(self) -> int | None:
        number = self.next_number
        if number >= self.stream.log.end:
            return None
        # The status is computed every second: the disk is read only when the number changes.
        if self._oldest_pending[0] != number:
            self._oldest_pending = number, self.stream.log.time_of(number) or None
        return self._oldest_pending[1]


def _add(*counts: int) -> int:
    # The catalog stores 64 bits.
    return min(sum(counts), 2**63 - 1)


def _describe_skipped(report: DeliveryReport) -> str:
    if not report.skipped:
        return ""
    last = report.skipped[-1]
    count = f"{len(report.skipped)} messages were" if len(report.skipped) > 1 else "a message was"
    return f"{count} skipped; the last, {last.sequence_number}: {last.reason}"


class MessageExport(Export):
    """An export of messages to a destination, in batches or gathered for a short time."""

    delivers_files = False

    def __init__(
        self,
        stream: Stream,
        kind: str,
        config: ExportConfig,
        dead_letters: DeadLetters,
        gather_seconds: float,
    ) -> None:
        super().__init__(stream, kind, config, dead_letters)
        self._gather_seconds = gather_seconds
        self._overhead = _DEFAULT_OVERHEAD
        # A batch that was due stays due when a part of it has left.
        self._due_end = 0

    def due(self, now: float, now_millis: int, /) -> Due:
        log = self.stream.log
        first = self.next_number
        interval = getattr(self.config, "batch_interval_millis", None)
        size = batch_size_of(self.config)
        is_gathered = interval is None and first >= self._due_end and log.end - first < size
        if is_gathered and (leaves_at := self._leaves_at(now)) > now:
            wait_millis = math.ceil((leaves_at - now) * 1000)
            return Due(first, now_millis + wait_millis, first + size)
        if first >= log.end:
            return Due(first, None, first + 1)
        due = plan_due(first, log.end, size, interval, log.time_of, now_millis)
        self._due_end = max(self._due_end, due.end)
        return due._replace(end=max(due.end, min(self._due_end, log.end)))

    def _leaves_at(self, now: float) -> float:
        """When messages may leave that follow closely on others.

        All exports share these moments, so that one plan serves all of them.
        """
        gather = self._gather_seconds
        is_urgent = self.priority <= URGENT_PRIORITY
        if is_urgent or not gather or now - self.last_leased >= gather:
            return now
        return math.floor(self.last_leased / gather + 1) * gather

    def plan_slice(self, due_end: int, max_bytes: int, max_wire_bytes: float, /) -> SlicePlan:
        max_bytes = int(min(self.max_slice_bytes, max_bytes, max_wire_bytes / self._overhead))
        plan = super().plan_slice(due_end, max_bytes, max_wire_bytes)
        return plan._replace(wire_bytes=plan.size * self._overhead)

    def describe(self, lease: Lease) -> MessageSlice:
        return MessageSlice(**self.slice_fields(lease))

    def apply(self, accepted: AcceptedReport, now: float, jitter: float) -> None:
        super().apply(accepted, now, jitter)
        report = accepted.report
        # The bytes of failed calls are not known.
        if report.exported_bytes and report.sent_bytes and not report.error:
            self._overhead = min(report.sent_bytes / report.exported_bytes, _MAX_OVERHEAD)


def plan_due(
    first: int,
    end: int,
    batch_size: int,
    interval_millis: int | None,
    time_of: Callable[[int], int],
    now: int,
) -> Due:
    """Finds which of [first, end) may leave: whole batches, and messages above the interval."""
    all_due = Due(end, None, end + 1)
    if interval_millis is None:
        return all_due
    whole = first + (end - first) // batch_size * batch_size
    if whole == end:
        # The next message begins a batch, and its interval.
        return all_due
    began = time_of(whole)
    # A time in the future was stored while the clock was wrong: the age is unknown.
    if began > now or began + interval_millis <= now:
        return all_due
    return Due(whole, began + interval_millis, whole + batch_size)
