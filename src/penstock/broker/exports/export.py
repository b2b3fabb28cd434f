"""One export while the broker runs: where it stands, and what of it may leave."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.broker.exports.pacing import (
    LONGEST_PAUSE_SECONDS,
    Due,
    backoff_seconds,
    plan_due,
)
from penstock.broker.exports.statuses import Origin
from penstock.broker.streams import Stream
from penstock.model import ExportConfig
from penstock.model.export import batch_size_of
from penstock.model.exporting import ExportReport, Lane, TaskEvent, Upload
from penstock.model.statistics import ExportActivity
from penstock.store.rows import ExportProgress, UploadProgress

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

# Whoever has S3 tasks reads and parses them all before the first file leaves.
_MOST_TASKS = 2000
_TASK_BYTES = 1024 * 1024

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
    # When the export was served before, in turns of the engine.
    turn: int = 0
    # How many parts of its uploads had arrived.
    parts: int = 0


class Taken(NamedTuple):
    """What a report is known by that has been taken: if it comes again, its answer was lost."""

    lease: str
    digest: bytes

    @classmethod
    def of(cls, report: ExportReport) -> Taken:
        return cls(report.lease, hashlib.sha256(msgspec.msgpack.encode(report)).digest())


class Export:
    """Where one export of one stream stands. Kept from one definition to the next."""

    def __init__(
        self, stream: Stream, kind: str, config: ExportConfig, uploads: Iterable[Upload] = ()
    ) -> None:
        self.stream = stream
        self.kind = kind
        self.config = config
        self.id = self.progress.export_id
        self.lease: Lease | None = None
        # Nobody was given a slice since the broker was started, nor reported one.
        self.is_untouched = True
        # What became of its slice is being stored: until then nobody knows where it goes on.
        self.is_settling = False
        # So far the slice is done if that works.
        self.settling_end = 0
        self.settling_told: frozenset[int] = frozenset()
        # When it was served last, in turns of the engine: those who waited longest come first.
        self.turn = 0
        self.failures = 0
        self.arrived: list[int] = []
        # The last report that was taken.
        self._taken: Taken | None = None
        # Of S3 tasks: uploads that have begun, and what is to be told of tasks that were dropped
        # from the stream while somebody had them, unless he has carried them out.
        self.uploads = list(uploads)
        self.dropped: list[TaskEvent] = []
        self.overhead = _USUAL_OVERHEAD
        # On the loop's clock.
        self._not_before = -math.inf
        self._allowance = _FIRST_ALLOWANCE
        # Messages that went, or were damaged, before they were exported.
        self._lost = 0
        # A number, and when that message was appended.
        self._looked_up: tuple[int, int | None] = (-1, None)
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

    @property
    def lease_name(self) -> str:
        """What its leases begin with: one whose kind changes keeps its id, and not its leases."""
        return f"{self.id}/{self.kind}"

    @property
    def undone_from(self) -> int:
        """The number of the first message of which nobody has reported yet that it is done."""
        return max(self.next_number, self.settling_end)

    @property
    def parts(self) -> int:
        """How many of its uploads have arrived."""
        return _count_parts(self.uploads)

    @property
    def held_end(self) -> int:
        """Messages below may be reported by somebody who has them, or has just reported them."""
        return max(self.lease.end if self.lease is not None else 0, self.settling_end)

    @property
    def origin(self) -> Origin:
        config = getattr(self.config, "status_config", None)
        return Origin(self.stream.name, self.config.identifier, config)

    def track(
        self, uploads: Iterable[Upload], *, are_abandoned: bool = False
    ) -> list[UploadProgress]:
        """Uploads as they are stored."""
        origin = self.origin
        return [
            UploadProgress(
                export_id=self.id,
                stream=origin.stream,
                identifier=origin.identifier,
                status_config=origin.status_config,
                upload=upload,
                is_abandoned=are_abandoned,
            )
            for upload in uploads
        ]

    def is_leased(self, now: float) -> bool:
        return self.lease is not None and self.lease.ends_at > now

    def free_at(self, now: float) -> float:
        """When it may be planned: not while it is leased or has to be left alone."""
        leased_until = self.lease.ends_at if self.lease is not None else -math.inf
        return max(leased_until, self._not_before, now)

    def activity(self, now: float) -> ExportActivity:
        retry_in = int(max(self._not_before - now, 0.0) * 1000) if self.failures else None
        return ExportActivity(
            self.lane.value,
            self.failures,
            retry_in,
            self._waiting_since(),
            self.is_leased(now),
            self._lost,
        )

    def note_loss(self, end: int) -> None:
        """The messages below are about to go; those that somebody has may arrive all the same."""
        self._lost += max(end - max(self.next_number, self.held_end), 0)

    def _waiting_since(self) -> int | None:
        number = self.next_number
        if number >= self.stream.log.end:
            return None
        # Whoever looks every second need not read it from the disk every second.
        if self._looked_up[0] != number:
            self._looked_up = number, self.stream.log.time_of(number) or None
        return self._looked_up[1]

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
        if self.lane is Lane.files:
            limit = max(int(min(_TASK_BYTES, room)), 1)
            end = min(due_end, first + _MOST_TASKS)
        else:
            limit = max(int(min(self._allowance, room)), 1)
            end = min(due_end, first + max(limit // _MESSAGE_BYTES, 1))
        end = self.stream.log.find_end(first, end, limit)
        # Those of a call that failed in part go together again.
        return max(end, min(self.arrived[-1] + 1, due_end)) if self.arrived else end

    def messages_for(self, allowed: float) -> float:
        """How many bytes of messages may leave where so many may be put on the wire."""
        # The bytes of a task say nothing about those of its file.
        return math.inf if self.lane is Lane.files else allowed / self.overhead

    def charge(self, size: int, allowed: float) -> float:
        """What messages of this size are charged with, until it is known what was sent."""
        if self.lane is not Lane.files:
            return size * self.overhead
        return allowed if allowed < math.inf else 0.0

    def has_taken(self, report: ExportReport) -> bool:
        """Whether it is the last one that counted, sent again."""
        taken = self._taken
        if taken is None or taken.lease != report.lease or taken != Taken.of(report):
            return False
        # Whoever has more to say of a slice is told if it is somebody else's by now.
        is_held = self.lease is not None and self.lease.id == report.lease
        return is_held or not report.is_interim

    def take(self, taken: Taken) -> None:
        self._taken = taken

    def adopt(self, report: ExportReport, now: float) -> None:
        """Whoever has this lease from a broker before this one has it, until it is planned."""
        end = self.stream.log.end
        self.lease = Lease(report.lease, "", self.lane, report.first, end, 0.0, now)

    def end_settling(self) -> None:
        self.is_settling = False
        self.settling_end = 0
        self.settling_told = frozenset()

    def change(self, config: ExportConfig) -> None:
        """Another configuration: whatever was wrong may be right now."""
        if config != self.config:
            self.config = config
            self.failures = 0
            self._not_before = -math.inf

    def settle(self, report: ExportReport, lease: Lease | None, now: float, chance: float) -> None:
        """What a delivery means for the next one; its progress is stored elsewhere."""
        self.is_untouched = False
        self.arrived = sorted(report.arrived)
        self._lost += report.missing
        if report.missing:
            # The pipeline reads by itself: what it could not read is damaged, or was dropped.
            self.stream.log.find_damage(report.first, report.settled_end)
        self.lane = self._lane(was_slow=report.was_slow)
        # Of what was sent in vain, nobody knows how much it was.
        if report.exported_bytes and report.sent_bytes and not report.error:
            self.overhead = min(report.sent_bytes / report.exported_bytes, _MOST_OVERHEAD)
        pause = report.pause_millis / 1000
        if report.error:
            got_on = (
                report.settled_end > report.first
                or report.exported_messages > 0
                or _count_parts(report.uploads) > (lease.parts if lease is not None else 0)
            )
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


def _count_parts(uploads: Iterable[Upload]) -> int:
    """How many have arrived."""
    return sum(bool(part) for upload in uploads for part in upload.parts)
