"""One export of one stream while the broker runs: its position, and what status tells of it."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from penstock.broker.exports.deliverable import NO_PRIORITY, Deliverable
from penstock.broker.exports.lease import Lease, ParsedId
from penstock.broker.streams import Stream
from penstock.model import ExportConfig
from penstock.model.exporting import DeliveryReport, ExportState
from penstock.model.statistics import ExportActivity
from penstock.model.validation import to_wire
from penstock.store.log import FileLog
from penstock.store.rows import ExportProgress

logger = logging.getLogger(__name__)


class Export(Deliverable):
    """Kept from one definition of the stream to the next.

    An export that is moved is replaced by another one, whose id differs: leases of messages at the
    old position, reports about them and uploads are not its own.
    """

    def __init__(self, stream: Stream, kind: str, config: ExportConfig) -> None:
        self.stream = stream
        self.config = config
        self._kind = kind
        self.id = self.progress.export_id
        # An export whose kind changes keeps its id, and not its leases.
        super().__init__(f"{self.id}/{kind}", stream.name, config.identifier)
        # Of the stream. A lease that was given before a restart has no messages behind it, unless
        # a crash has lost them.
        self._first_seen_end = stream.log.end
        # Messages behind the next one that have arrived.
        self.arrived: list[int] = []
        # Messages that were dropped or damaged before they were exported.
        self._lost = 0
        # A number, and when that message was appended.
        self._oldest_pending: tuple[int, int | None] = (-1, None)

    @property
    def kind(self) -> str:
        return self._kind

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
        """The number after the last exported message. The stream may no longer have it."""
        start = getattr(self.config, "start_sequence_number", None) or 0
        return max(self.progress.last_exported + 1, start)

    @property
    def next_number(self) -> int:
        return max(self.position, self.stream.log.oldest)

    @property
    def held_end(self) -> int:
        """Messages below may still be reported by the task that holds them."""
        return self.lease.end if self.lease is not None else 0

    def find_resumed(self, parsed: ParsedId) -> int | None:
        first = max(parsed.first, self.position)
        is_current = parsed.first <= self.next_number and first <= parsed.end
        return first if is_current and parsed.end <= self._first_seen_end else None

    def size_of(self, end: int) -> int:
        return self.stream.log.size_of(self.next_number, end)

    def slice_fields(self, lease: Lease) -> dict[str, Any]:
        """What the slices of all kinds have."""
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

    def within_lease(self, report: DeliveryReport, lease: Lease) -> DeliveryReport:
        """The report without what lies outside of its lease."""
        first, end = lease.first, lease.end
        return msgspec.structs.replace(
            report,
            settled_end=min(max(report.settled_end, first), end),
            arrived=[number for number in report.arrived if first <= number < end],
            skipped=[each for each in report.skipped if first <= each.sequence_number < end],
        )

    def advanced(self, report: DeliveryReport, now_millis: int) -> ExportProgress:
        """The progress after a report."""
        progress = self.progress
        last = progress.last_exported
        if report.settled_end > report.first:
            last = max(last, report.settled_end - 1)
        skipped = len(report.skipped)
        return progress._replace(
            last_exported=last,
            last_time=now_millis,
            error_message=describe_problem(report),
            exported_bytes=progress.exported_bytes + report.exported_bytes,
            processed_messages=progress.processed_messages + report.exported_messages + skipped,
            skipped_messages=progress.skipped_messages + skipped,
        )

    def note_settled(self, report: DeliveryReport) -> None:
        self.arrived = sorted(report.arrived)
        self._lost += report.missing
        if report.missing:
            # Tasks read files themselves: the broker learns of damage by their reports.
            self.stream.log.find_damage(report.first, report.settled_end)

    def log_result(self, report: DeliveryReport, had_failed: bool) -> None:
        # An outage may take days: its begin and its end are logged, and not each attempt.
        who = f"stream {self.stream.name!r}, export {self.identifier!r}"
        if report.error and not had_failed:
            logger.warning("%s: %s", who, report.error)
        elif report.error:
            logger.debug("%s, failure %d: %s", who, self.failures, report.error)
        elif had_failed and not self.failures:
            logger.info("%s: it works again", who)
        if report.skipped:
            logger.warning(
                "%s: %s", who, describe_problem(msgspec.structs.replace(report, error=""))
            )
        if report.missing:
            logger.warning("%s: messages that cannot be read are left out: %d", who, report.missing)

    # Changes from outside

    def change_config(self, config: ExportConfig) -> None:
        if config != self.config:
            self.config = config
            self.forget_failures()

    def replace(self, replaced: Export) -> None:
        """Takes the place of an export that was moved: its counters go on."""
        self._lost = replaced._lost

    def note_loss(self, end: int) -> None:
        """The messages below are about to be dropped; a task that holds some may deliver them."""
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
        # Status is computed every second: the disk is read only when the number changes.
        if self._oldest_pending[0] != number:
            self._oldest_pending = number, self.stream.log.time_of(number) or None
        return self._oldest_pending[1]


def describe_problem(report: DeliveryReport) -> str:
    """The last error, for the status of an export."""
    if report.error:
        return report.error
    if not report.skipped:
        return ""
    last = report.skipped[-1]
    count = f"{len(report.skipped)} messages were" if len(report.skipped) > 1 else "a message was"
    return f"{count} skipped; the last, {last.sequence_number}: {last.reason}"
