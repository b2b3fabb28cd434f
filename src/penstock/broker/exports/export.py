"""One export while the broker runs: where it stands, and what of it may leave."""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock.broker.exports.pacing import (
    LONGEST_PAUSE_SECONDS,
    Due,
    backoff_seconds,
    plan_due,
)
from penstock.broker.streams import Stream
from penstock.model import ExportConfig
from penstock.model.export import batch_size_of
from penstock.model.exporting import ExportReport, Lane
from penstock.model.statistics import ExportActivity
from penstock.store.catalog import ExportProgress

# Less urgent than all that have a priority.
_NO_PRIORITY = 11

# How much of a backlog is handed out at once, in bytes: as much as was delivered in the time that a
# batch may take, which is found out by trying.
_FIRST_ALLOWANCE = 1024 * 1024
_LEAST_ALLOWANCE = 16 * 1024
_MOST_ALLOWANCE = 32 * 1024 * 1024
# What a message costs beside its bytes.
_MESSAGE_BYTES = 64
# A slice that was delivered faster might as well have been larger.
_QUICK_MILLIS = 500

# Bytes on the wire for each of a payload, until it is known: base64 and some. Of what was measured
# with a few small messages no more is believed than the other.
_USUAL_OVERHEAD = 1.5
_MOST_OVERHEAD = 100.0


class Lease(NamedTuple):
    """A slice that a pipeline has; by `ends_at`, on the loop's clock, it is free again.

    What is reported of it counts also afterwards, until somebody else has it.
    """

    id: str
    pipeline: str
    lane: Lane
    first: int
    end: int
    # What the bandwidth was charged with.
    charged: float
    ends_at: float


class Export:
    """Where one export of one stream stands. Kept from one definition to the next."""

    def __init__(self, stream: Stream, kind: str, config: ExportConfig) -> None:
        self.stream = stream
        self.kind = kind
        self.config = config
        self.id = self.progress.export_id
        self.lease: Lease | None = None
        # What became of its slice is being stored: until then nobody knows where it goes on.
        self.is_settling = False
        # When it was served last, in turns of the engine: those who waited longest come first.
        self.turn = 0
        self.failures = 0
        self.arrived: list[int] = []
        self.overhead = _USUAL_OVERHEAD
        # On the loop's clock.
        self._not_before = -math.inf
        self._allowance = _FIRST_ALLOWANCE
        # What was due once stays due, also if only a part of it has left.
        self._due_end = 0
        # It may have been slow when the broker was stopped: in this lane that harms nobody.
        self.lane = self._lane(was_slow=bool(self.progress.error_message))

    def _lane(self, *, was_slow: bool) -> Lane:
        if self.kind == "s3_task_executor":
            return Lane.files
        return Lane.recovering if was_slow else Lane.steady

    @property
    def identifier(self) -> str:
        return self.config.identifier

    @property
    def progress(self) -> ExportProgress:
        return self.stream.stored.progress[self.config.identifier]

    @property
    def urgency(self) -> tuple[int, int]:
        return self.config.priority or _NO_PRIORITY, self.turn

    @property
    def position(self) -> int:
        """The number behind what was exported: where it goes on, unless that is gone by now."""
        start = getattr(self.config, "start_sequence_number", None) or 0
        return max(self.progress.last_exported + 1, start)

    @property
    def next_number(self) -> int:
        return max(self.position, self.stream.log.oldest)

    def free_at(self, now: float) -> float:
        """When it may be planned: not while it is leased or has to be left alone."""
        leased_until = self.lease.ends_at if self.lease is not None else -math.inf
        return max(leased_until, self._not_before, now)

    def activity(self, now: float) -> ExportActivity:
        retry_in = int(max(self._not_before - now, 0.0) * 1000) if self.failures else None
        return ExportActivity(self.lane.value, self.failures, retry_in)

    def due(self, now_millis: int) -> Due:
        log = self.stream.log
        first = self.next_number
        if first >= log.end:
            return Due(first, None, first + 1)
        interval = getattr(self.config, "batch_interval_millis", None)
        size = batch_size_of(self.config)
        due = plan_due(first, log.end, size, interval, log.time_of, now_millis)
        self._due_end = max(self._due_end, due.end)
        return due._replace(end=max(due.end, min(self._due_end, log.end)))

    def cut(self, due_end: int, room: float) -> int:
        """The end of the next slice: what is due, as far as it fits."""
        first = self.next_number
        limit = max(int(min(self._allowance, room)), 1)
        end = min(due_end, first + max(limit // _MESSAGE_BYTES, 1))
        end = self.stream.log.find_end(first, end, limit)
        # Those of a call that failed in part go together again.
        return max(end, min(self.arrived[-1] + 1, due_end)) if self.arrived else end

    def change(self, config: ExportConfig) -> None:
        """Another configuration: whatever was wrong may be right now."""
        if config != self.config:
            self.config = config
            self.failures = 0
            self._not_before = -math.inf

    def settle(self, report: ExportReport, lease: Lease | None, now: float, chance: float) -> None:
        """What a delivery means for the next one; its progress is stored elsewhere."""
        self.arrived = sorted(report.arrived)
        self.lane = self._lane(was_slow=report.was_slow)
        # Of what was sent in vain, nobody knows how much it was.
        if report.exported_bytes and report.sent_bytes and not report.error:
            self.overhead = min(report.sent_bytes / report.exported_bytes, _MOST_OVERHEAD)
        pause = report.pause_millis / 1000
        if report.error:
            got_on = report.settled_end > report.first or report.exported_messages > 0
            self.failures = 1 if got_on else self.failures + 1
            pause = max(pause, backoff_seconds(self.failures, chance))
        else:
            self.failures = 0
        self._not_before = now + min(pause, LONGEST_PAUSE_SECONDS)
        if lease is not None and not report.error:
            self._adapt(report, lease)
        elif report.was_slow:
            self._allowance = max(self._allowance // 4, _LEAST_ALLOWANCE)

    def _adapt(self, report: ExportReport, lease: Lease) -> None:
        if report.was_slow:
            self._allowance = max(self._allowance // 2, _LEAST_ALLOWANCE)
            return
        cost = report.exported_bytes + report.exported_messages * _MESSAGE_BYTES
        if report.settled_end < lease.end and not report.pause_millis:
            # Not all at once: it may have been a bad moment.
            self._allowance = max(cost, self._allowance // 4, _LEAST_ALLOWANCE)
        elif cost > self._allowance // 2 and report.elapsed_millis < _QUICK_MILLIS:
            self._allowance = min(self._allowance * 2, _MOST_ALLOWANCE)

    def advanced(self, report: ExportReport, now_millis: int, error: str) -> ExportProgress:
        """The progress after a delivery."""
        progress = self.progress
        last = progress.last_exported
        if report.settled_end > report.first:
            last = max(last, report.settled_end - 1)
        skipped = len(report.skipped)
        return progress._replace(
            last_exported=last,
            last_time=now_millis,
            error_message=error,
            exported_bytes=progress.exported_bytes + report.exported_bytes,
            processed_messages=progress.processed_messages + report.exported_messages + skipped,
            skipped_messages=progress.skipped_messages + skipped,
        )
