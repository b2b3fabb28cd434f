"""An export of messages to a destination: when they leave, and how many at once."""

from __future__ import annotations

import math

from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.deliverable import Outcome
from penstock.broker.exports.export import Export
from penstock.broker.exports.lease import Lease
from penstock.broker.exports.pacing import Due, plan_due
from penstock.broker.streams import Stream
from penstock.model import ExportConfig
from penstock.model.export import batch_size_of
from penstock.model.exporting import DeliveryReport, MessageSlice

# Messages of these priorities, 1 to 3, are never gathered.
URGENT_PRIORITY = 3
# A task has the messages of its slices in memory.
_MAX_SLICE_BYTES = 8 * 1024 * 1024
_MAX_SLICE_MESSAGES = 65_536
# Bytes on the wire for each byte of a message until the first report: base64 and a frame. A ratio
# that was measured with few small messages may be far too large.
_USUAL_OVERHEAD = 1.5
_MAX_OVERHEAD = 100.0


class MessageExport(Export):
    def __init__(
        self,
        stream: Stream,
        kind: str,
        config: ExportConfig,
        dead_letters: DeadLetters,
        gather_seconds: float,
    ) -> None:
        super().__init__(stream, kind, config)
        self._dead_letters = dead_letters
        self._gather_seconds = gather_seconds
        self._overhead = _USUAL_OVERHEAD
        # On the loop's clock.
        self._last_leased = -math.inf
        # A batch that was due stays due when a part of it has left.
        self._due_end = 0

    def due(self, now: float, now_millis: int) -> Due:
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
        """When messages leave that follow closely on others.

        All exports share these moments, so that one plan serves all of them.
        """
        gather = self._gather_seconds
        is_urgent = self.priority <= URGENT_PRIORITY
        if is_urgent or not gather or now - self._last_leased >= gather:
            return now
        return math.floor(self._last_leased / gather + 1) * gather

    def cut(self, due_end: int, max_bytes: int, max_wire_bytes: float) -> int:
        first = self.next_number
        limit = max(int(min(_MAX_SLICE_BYTES, max_bytes, max_wire_bytes / self._overhead)), 1)
        end = self.stream.log.find_end(first, min(due_end, first + _MAX_SLICE_MESSAGES), limit)
        # The messages of a call that failed in part are sent again together.
        return max(end, min(self.arrived[-1] + 1, due_end)) if self.arrived else end

    @property
    def is_charged(self) -> bool:
        return True

    def wire_bytes_of(self, size: int) -> float:
        return size * self._overhead

    def take_lease(self, lease: Lease, turn: int, now: float) -> None:
        super().take_lease(lease, turn, now)
        self._last_leased = now

    def describe(self, lease: Lease, is_metered: bool) -> MessageSlice:  # noqa: ARG002 - charged
        return MessageSlice(**self.slice_fields(lease))

    def settle(self, report: DeliveryReport, lease: Lease, now_millis: int) -> Outcome:
        sound = self.within_lease(report, lease)
        sound = self._dead_letters.keep(self.stream, sound, now_millis)
        return Outcome(sound, self.advanced(sound, now_millis))

    def apply(self, outcome: Outcome) -> None:
        report = outcome.report
        self.note_settled(report)
        # The bytes of failed calls are not known.
        if report.exported_bytes and report.sent_bytes and not report.error:
            self._overhead = min(report.sent_bytes / report.exported_bytes, _MAX_OVERHEAD)
