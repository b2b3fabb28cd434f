"""All exports of a broker: what is due in a lane, who has it, and what became of it.

Called from the event loop only. The broker's progress is the only truth: a pipeline that dies, or
is asked twice, sends again what it had not reported, and nothing else.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.export import Export, Lease
from penstock.broker.exports.pacing import Bandwidth
from penstock.broker.streams import Stream, Streams
from penstock.errors import StreamManagerException
from penstock.model import MessageStreamDefinition
from penstock.model.exporting import ExportReport, ExportSlice, Lane
from penstock.model.statistics import ExportActivity
from penstock.model.validation import to_wire
from penstock.store.catalog import ExportProgress
from penstock.store.log import FileLog
from penstock.wire.requests import PlanExportsRequest

logger = logging.getLogger(__name__)

# A pipeline whose connection is gone may be on its way back: so long its slices stay its own.
_GRACE_SECONDS = 3.0


class Outlook(NamedTuple):
    """What a lane with nothing to do waits for."""

    # On the loop's clock.
    at: float
    # Streams, and the end at which each may have something.
    needed_ends: Sequence[tuple[Stream, int]]


class _Known(NamedTuple):
    """The exports of a stream, under one definition."""

    definition: MessageStreamDefinition
    exports: list[Export]


class Exports:
    def __init__(
        self,
        streams: Streams,
        bandwidth: Bandwidth,
        dead_letters: DeadLetters,
        clock: Callable[[], float],
    ) -> None:
        self._streams = streams
        self._bandwidth = bandwidth
        self._dead_letters = dead_letters
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._turns = 0
        # In the leases that it gives.
        self._id = secrets.token_hex(4)

    # Which there are

    def _all(self) -> Iterator[Export]:
        """Those of the streams as they are defined now, with what is known of each."""
        streams = {stream.stored.id: stream for stream in self._streams}
        for stream_id in self._known.keys() - streams.keys():
            del self._known[stream_id]
        for stream_id, stream in streams.items():
            known = self._known.get(stream_id)
            if known is None or known.definition is not stream.definition:
                known = self._known[stream_id] = _learn(stream, known)
            yield from known.exports

    def _of(self, stream: Stream) -> dict[str, Export]:
        known = self._known.get(stream.stored.id)
        if known is None or known.definition is not stream.definition:
            known = self._known[stream.stored.id] = _learn(stream, known)
        return {export.identifier: export for export in known.exports}

    def activities(self, stream: Stream) -> dict[str, ExportActivity]:
        now = self._clock()
        return {name: export.activity(now) for name, export in self._of(stream).items()}

    # What is due

    def plan(
        self, request: PlanExportsRequest, sees: Callable[[str], bool], now_millis: int
    ) -> list[ExportSlice]:
        """Slices for a pipeline, the most urgent first; those that it had in this lane are free."""
        now = self._clock()
        self.release(request.pipeline, request.lane)
        room: float = request.max_bytes
        slices: list[ExportSlice] = []
        for export in sorted(self._waiting(request.lane, sees), key=lambda it: it.urgency):
            if export.free_at(now) > now:
                continue
            due = export.due(now_millis)
            if due.end <= export.next_number:
                continue
            allowed = self._bandwidth.room(now)
            if room < 1 or not allowed or len(slices) == request.max_slices:
                break
            end = export.cut(due.end, min(room, allowed / export.overhead))
            size = export.stream.log.size_of(export.next_number, end)
            room -= size
            ends_at = now + request.lease_millis / 1000
            slices.append(self._lease(export, end, size, request, ends_at))
        return slices

    def _waiting(self, lane: Lane, sees: Callable[[str], bool]) -> Iterator[Export]:
        for export in self._all():
            is_free = not export.config.disabled and not export.is_settling
            if export.lane is lane and is_free and sees(export.stream.name):
                yield export

    def _lease(
        self, export: Export, end: int, size: int, request: PlanExportsRequest, ends_at: float
    ) -> ExportSlice:
        first = export.next_number
        charged = size * export.overhead
        self._bandwidth.take(charged)
        self._turns += 1
        export.turn = self._turns
        export.lease = Lease(
            f"{export.id}-{self._id}-{self._turns}",
            request.pipeline,
            request.lane,
            first,
            end,
            charged,
            ends_at,
        )
        log = export.stream.log
        return ExportSlice(
            lease=export.lease.id,
            stream=export.stream.name,
            stream_id=export.stream.stored.id,
            kind=export.kind,
            config=to_wire(export.config),
            first=first,
            end=end,
            arrived=[number for number in export.arrived if first <= number < end],
            has_files=isinstance(log, FileLog),
            segments=log.summaries(first, end),
        )

    def outlook(self, lane: Lane, sees: Callable[[str], bool], now_millis: int) -> Outlook:
        """What to wait for, when there is nothing due."""
        now = self._clock()
        at = math.inf
        needed: dict[Stream, int] = {}
        for export in self._waiting(lane, sees):
            stream = export.stream
            free_at = export.free_at(now)
            due = export.due(now_millis)
            if due.end > export.next_number:
                at = min(at, max(free_at, now + self._bandwidth.seconds_until_room(now)))
                continue
            needed[stream] = min(needed.get(stream, due.needed_end), due.needed_end)
            if due.at is not None:
                at = min(at, max(free_at, now + (due.at - now_millis) / 1000))
        return Outlook(at, list(needed.items()))

    # Who has it

    def release(self, pipeline: str, lane: Lane) -> None:
        """A pipeline that asks anew has nothing of what it had."""
        # Nobody knows how much of it was sent: what was charged for it stays charged.
        self._end_leases(pipeline, lane, -math.inf)

    def depart(self, pipeline: str, lane: Lane) -> None:
        """The connection of a pipeline is gone; unless it comes back, so is the pipeline."""
        self._end_leases(pipeline, lane, self._clock() + _GRACE_SECONDS)

    def _end_leases(self, pipeline: str, lane: Lane, ends_at: float) -> None:
        for known in self._known.values():
            for export in known.exports:
                lease = export.lease
                if lease is not None and (lease.pipeline, lease.lane) == (pipeline, lane):
                    export.lease = lease._replace(ends_at=min(lease.ends_at, ends_at))

    # What became of it

    def settle(self, reports: Sequence[ExportReport], now_millis: int) -> list[Settled]:
        """What deliveries mean, to be stored and then to be applied, or forgotten if that fails.

        Of an export that is gone, or whose slice went to somebody else, nothing is taken.
        """
        settled = []
        for report in reports:
            export = self._find(report)
            if export is None:
                logger.info(
                    "stream %r, export %r: a report from %d on comes too late, and is ignored",
                    report.stream,
                    report.identifier,
                    report.first,
                )
                continue
            stream, lease = export.stream, export.lease
            sound = _before(lease.end if lease is not None else stream.log.end, report)
            kept = self._dead_letters.keep(stream, sound, now_millis)
            progress = export.advanced(kept, now_millis, _message(kept))
            export.is_settling = True
            settled.append(Settled(export, lease, kept, progress))
        return settled

    def apply(self, settled: Sequence[Settled]) -> None:
        """What was settled is stored: what is due next is decided by it."""
        now = self._clock()
        for export, lease, report, _ in settled:
            self._bandwidth.take(report.sent_bytes - (lease.charged if lease is not None else 0))
            export.lease = None
            export.is_settling = False
            had_failed = export.failures > 0
            export.settle(report, lease, now, random.random())  # noqa: S311 - no secret
            _log(export, report, had_failed=had_failed)

    def forget(self, settled: Sequence[Settled]) -> None:
        """What was settled could not be stored: it may be reported again."""
        for each in settled:
            each.export.is_settling = False

    def _find(self, report: ExportReport) -> Export | None:
        try:
            stream = self._streams.find(report.stream)
        except StreamManagerException:
            return None
        export = self._of(stream).get(report.identifier)
        if export is None or stream.stored.id != report.stream_id or export.is_settling:
            return None
        return export if self._holds(export, report) else None

    def _holds(self, export: Export, report: ExportReport) -> bool:
        """Whether a report is about where the export stands."""
        if export.lease is not None:
            return (export.lease.id, export.lease.first) == (report.lease, report.first)
        # A broker before this one gave the lease: it holds if nothing happened since. What this
        # one gave was settled before.
        export_id, _, rest = report.lease.partition("-")
        is_earlier = export_id == export.id and not rest.startswith(self._id)
        return is_earlier and export.next_number == report.first


class Settled(NamedTuple):
    """A report, the export that it is about, and the progress that follows from it."""

    export: Export
    lease: Lease | None
    report: ExportReport
    progress: ExportProgress


def _learn(stream: Stream, known: _Known | None) -> _Known:
    """The exports of a definition; those that were there before go on."""
    before = {export.identifier: export for export in known.exports} if known else {}
    exports = []
    for kind, config in stream.definition.export_definition.configs_by_kind():
        export = before.get(config.identifier)
        export_id = stream.stored.progress[config.identifier].export_id
        if export is None or (export.id, export.kind) != (export_id, kind):
            export = Export(stream, kind, config)
        export.change(config)
        exports.append(export)
    return _Known(stream.definition, exports)


def _before(end: int, report: ExportReport) -> ExportReport:
    """A report without what it says of messages that its slice does not have."""
    return msgspec.structs.replace(
        report,
        settled_end=min(report.settled_end, end),
        arrived=[number for number in report.arrived if number < end],
        skipped=[
            skipped for skipped in report.skipped if report.first <= skipped.sequence_number < end
        ],
    )


def _message(report: ExportReport) -> str:
    """The last error, as the status of an export tells it."""
    if report.error:
        return report.error
    if not report.skipped:
        return ""
    last = report.skipped[-1]
    count = f"{len(report.skipped)} messages were" if len(report.skipped) > 1 else "a message was"
    return f"{count} skipped; the last, {last.sequence_number}: {last.reason}"


def _log(export: Export, report: ExportReport, *, had_failed: bool) -> None:
    # An outage may take days: it is said when it begins, and when it is over.
    who = f"stream {export.stream.name!r}, export {export.identifier!r}"
    if report.error and not had_failed:
        logger.warning("%s: %s", who, report.error)
    elif report.error:
        logger.debug("%s, failure %d: %s", who, export.failures, report.error)
    elif had_failed:
        logger.info("%s: it works again", who)
    if report.skipped:
        logger.warning("%s: %s", who, _message(msgspec.structs.replace(report, error="")))
