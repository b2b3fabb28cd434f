"""All exports of a broker: what is due in a lane, who has it, and what became of it.

Called from the event loop only. The broker's progress is the only truth: a pipeline that dies, or
is asked twice, sends again what it had not reported, and nothing else.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.broker.exports.abandoned import AbandonedUploads
from penstock.broker.exports.cancellations import Cancellations
from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.export import Export, Lease
from penstock.broker.exports.pacing import Account, Bandwidth
from penstock.broker.exports.registry import Registry
from penstock.broker.exports.settlement import (
    Settled,
    Settlement,
    concluded_in,
    log_outcome,
    settle_report,
    within_slice,
)
from penstock.broker.exports.statuses import Statuses
from penstock.broker.statistics import ExportTotals
from penstock.broker.streams import Stream, Streams
from penstock.errors import StreamManagerException
from penstock.model.exporting import ExportReport, ExportSlice, Lane
from penstock.model.statistics import ExportActivity
from penstock.model.validation import to_wire
from penstock.store.log import FileLog
from penstock.store.store import Store
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


class Exports:
    def __init__(
        self,
        store: Store,
        streams: Streams,
        bandwidth: Bandwidth,
        dead_letters: DeadLetters,
        statuses: Statuses,
        clock: Callable[[], float],
        now_millis: Callable[[], int],
    ) -> None:
        self._streams = streams
        self._bandwidth = bandwidth
        self._dead_letters = dead_letters
        self._statuses = statuses
        self._clock = clock
        self._turns = 0
        # Why nothing is planned: progress cannot be stored. Empty if it can.
        self.suspension = ""
        # By kind.
        self.totals: defaultdict[str, ExportTotals] = defaultdict(ExportTotals)
        # In the leases that it gives.
        self._id = secrets.token_hex(4)
        uploads = store.uploads()
        self._all = Registry(streams, (each for each in uploads if not each.is_abandoned))
        self._abandoned = AbandonedUploads(store, statuses)
        self._abandoned.add(each for each in uploads if each.is_abandoned)
        self._cancellations = Cancellations(self._all, statuses, self._abandoned, now_millis)
        streams.tell(self._cancellations)

    def finish(self) -> None:
        """The broker stops: what would be told later is told now."""
        for export in self._all:
            # A report of it comes too late for the next broker, which does not have the messages.
            self._cancellations.conclude_lease(export)

    def of(self, stream: Stream) -> Mapping[str, Export]:
        """Those of one stream, by identifier."""
        return self._all.of(stream)

    def activities(self, stream: Stream) -> dict[str, ExportActivity]:
        now = self._clock()
        return {name: export.activity(now) for name, export in self._all.of(stream).items()}

    def lanes(self, sees: Callable[[str], bool]) -> list[Lane]:
        """Those in which there is anything to do, now or later."""
        lanes = {
            export.lane
            for export in self._all
            if not export.config.disabled and sees(export.stream.name)
        }
        if self._abandoned.next_at(sees) < math.inf:
            lanes.add(Lane.files)
        return [lane for lane in Lane if lane in lanes]

    # What is due

    def plan(
        self, request: PlanExportsRequest, sees: Callable[[str], bool], now_millis: int
    ) -> list[ExportSlice]:
        """Slices for a pipeline, the most urgent first; those that it had in this lane are free."""
        now = self._clock()
        self.release(request.pipeline, request.lane)
        if self.suspension:
            return []
        slices = self._plan_aborts(request, sees, now) if request.lane is Lane.files else []
        account = self._account(request.lane)
        room: float = request.max_bytes
        for export in sorted(self._waiting(request.lane, sees), key=lambda it: it.urgency):
            if export.free_at(now) > now:
                continue
            due = export.due(now_millis)
            if due.end <= export.next_number:
                continue
            allowed = account.room(now)
            if room < 1 or not allowed or len(slices) == request.max_slices:
                break
            end = export.cut(due.end, min(room, export.messages_for(allowed)))
            size = export.stream.log.size_of(export.next_number, end)
            room -= size
            charged = export.charge(size, allowed)
            account.take(charged)
            slices.append(self._lease(export, end, charged, request, now))
        return slices

    def _plan_aborts(
        self, request: PlanExportsRequest, sees: Callable[[str], bool], now: float
    ) -> list[ExportSlice]:
        for export in self._all:
            if export.lane is Lane.files and not export.is_settling and not export.is_leased(now):
                self._cancellations.give_up(export)
        return self._abandoned.plan(request, sees, now)

    def _account(self, lane: Lane) -> Account:
        return self._bandwidth.files if lane is Lane.files else self._bandwidth.messages

    def _waiting(self, lane: Lane, sees: Callable[[str], bool]) -> Iterator[Export]:
        for export in self._all:
            is_free = not export.config.disabled and not export.is_settling
            if export.lane is lane and is_free and sees(export.stream.name):
                yield export

    def _lease(
        self, export: Export, end: int, charged: float, request: PlanExportsRequest, now: float
    ) -> ExportSlice:
        first = export.next_number
        turn = export.turn
        self._turns += 1
        export.turn = self._turns
        export.is_untouched = False
        export.lease = Lease(
            f"{export.lease_name}-{self._id}-{self._turns}",
            request.pipeline,
            request.lane,
            first,
            end,
            charged,
            now + request.lease_millis / 1000,
            turn,
            export.parts,
        )
        stream, log = export.stream, export.stream.log
        has_tasks = export.lane is Lane.files
        return ExportSlice(
            lease=export.lease.id,
            stream=stream.name,
            stream_id=stream.stored.id,
            kind=export.kind,
            config=to_wire(export.config),
            first=first,
            end=end,
            arrived=[number for number in export.arrived if first <= number < end],
            has_files=isinstance(log, FileLog),
            segments=log.summaries(first, end),
            uploads=[each for each in export.uploads if first <= each.sequence_number < end],
            time_to_live=stream.definition.time_to_live_millis if has_tasks else None,
            max_sent_bytes=int(charged) if has_tasks and charged else None,
        )

    def is_awaited(self, lane: Lane, sees: Callable[[str], bool], now_millis: int) -> bool:
        """Whether there is something due that nobody has."""
        now = self._clock()
        return not self.suspension and any(
            export.free_at(now) <= now and export.due(now_millis).end > export.next_number
            for export in self._waiting(lane, sees)
        )

    def outlook(self, lane: Lane, sees: Callable[[str], bool], now_millis: int) -> Outlook:
        """What to wait for, when there is nothing due."""
        if self.suspension:
            return Outlook(math.inf, [])
        now = self._clock()
        at = max(self._abandoned.next_at(sees), now) if lane is Lane.files else math.inf
        needed: dict[Stream, int] = {}
        for export in self._waiting(lane, sees):
            stream = export.stream
            free_at = export.free_at(now)
            due = export.due(now_millis)
            if due.end > export.next_number:
                at = min(at, max(free_at, now + self._account(lane).seconds_until_room(now)))
                continue
            needed[stream] = min(needed.get(stream, due.needed_end), due.needed_end)
            if due.at is not None:
                at = min(at, max(free_at, now + (due.at - now_millis) / 1000))
        return Outlook(at, list(needed.items()))

    # Who has it

    def release(self, pipeline: str, lane: Lane) -> None:
        """A pipeline that asks anew has nothing of what it had."""
        # Nobody knows how much of it was sent: what was charged for it stays charged.
        for export in self._end_leases(pipeline, lane, -math.inf):
            # It was not even begun, or it was lost: its turn is still to come.
            export.turn = export.lease.turn if export.lease is not None else export.turn

    def depart(self, pipeline: str, lane: Lane) -> None:
        """The connection of a pipeline is gone; unless it comes back, so is the pipeline."""
        self._end_leases(pipeline, lane, self._clock() + _GRACE_SECONDS)

    def _end_leases(self, pipeline: str, lane: Lane, ends_at: float) -> list[Export]:
        """Those that it had."""
        self._abandoned.end_leases(pipeline, lane, ends_at)
        held = []
        for export in self._all.known():
            lease = export.lease
            if lease is not None and (lease.pipeline, lease.lane) == (pipeline, lane):
                export.lease = lease._replace(ends_at=min(lease.ends_at, ends_at))
                held.append(export)
        return held

    # What became of it

    def settle(self, reports: Sequence[ExportReport], now_millis: int) -> Settlement:
        """What deliveries mean, to be stored and then to be applied, or forgotten if that fails.

        Of an export that is gone, or whose slice went to somebody else, nothing is taken.
        """
        settlement = Settlement()
        for report in reports:
            if self._abandoned.is_about(report):
                settlement.attempts += self._abandoned.settle(report, now_millis)
                continue
            export = self._find(report)
            if export is not None and export.has_taken(report):
                settlement.repeated.append(report.lease)
            elif export is not None and self._holds(export, report):
                settlement.settled.append(self._settle(export, report, now_millis))
            else:
                logger.info(
                    "stream %r, export %r: a report from %d on comes too late, and is ignored",
                    report.stream,
                    report.identifier,
                    report.first,
                )
        return settlement

    def _settle(self, export: Export, report: ExportReport, now_millis: int) -> Settled:
        sound = within_slice(export, report)
        if not report.is_interim:
            sound = self._dead_letters.keep(export.stream, sound, now_millis)
            export.settling_end = sound.settled_end
            export.settling_told = concluded_in(sound)
        export.is_settling = True
        self._statuses.write(export.origin, sound.events, now_millis)
        settled = settle_report(export, report, sound, now_millis)
        if report.is_interim and export.lease is None:
            export.adopt(report, self._clock())
        return settled

    def apply(self, settlement: Settlement) -> None:
        """What was settled is stored: what is due next is decided by it."""
        now = self._clock()
        for attempt in settlement.attempts:
            self._abandoned.apply(attempt, now, random.random())  # noqa: S311 - no secret
        for settled in settlement.settled:
            export, report = settled.export, settled.report
            export.end_settling()
            export.take(settled.taken)
            if not report.is_interim:
                self._apply_delivery(settled, now)
            self._apply_uploads(settled)

    def _apply_uploads(self, settled: Settled) -> None:
        export = settled.export
        export.uploads = settled.uploads
        self._abandoned.add(settled.abandoned)
        if not self._all.has(export):
            # It was removed while that was stored.
            self._abandoned.abandon(export.track(export.uploads, are_abandoned=True))

    def _apply_delivery(self, settled: Settled, now: float) -> None:
        export, lease, report = settled.export, settled.lease, settled.report
        self._count(export.kind, report)
        charged = lease.charged if lease is not None else 0
        self._account(export.lane).take(report.sent_bytes - charged)
        export.lease = None
        had_failed = export.failures > 0
        export.settle(report, lease, now, random.random())  # noqa: S311 - no secret
        self._cancellations.conclude_lease(export, concluded_in(report))
        log_outcome(export, report, had_failed=had_failed)

    def _count(self, kind: str, report: ExportReport) -> None:
        totals = self.totals[kind]
        totals.deliveries += 1
        totals.failures += bool(report.error)
        totals.messages += report.exported_messages
        totals.bytes += report.exported_bytes
        totals.skipped_messages += len(report.skipped)
        totals.sent_bytes += report.sent_bytes

    def forget(self, settlement: Settlement) -> None:
        """What was settled could not be stored: it may be reported again."""
        for attempt in settlement.attempts:
            self._abandoned.forget(attempt)
        for settled in settlement.settled:
            settled.export.end_settling()

    def _find(self, report: ExportReport) -> Export | None:
        try:
            stream = self._streams.find(report.stream)
        except StreamManagerException:
            return None
        if stream.stored.id != report.stream_id:
            return None
        return self._all.of(stream).get(report.identifier)

    def _holds(self, export: Export, report: ExportReport) -> bool:
        """Whether a report is about where the export stands."""
        if export.is_settling:
            return False
        if export.lease is not None:
            return (export.lease.id, export.lease.first) == (report.lease, report.first)
        # A broker before this one gave the lease: it holds if nothing happened since. What this
        # one gave was settled before.
        name, _, rest = report.lease.partition("-")
        is_earlier = name == export.lease_name and not rest.startswith(self._id)
        return is_earlier and export.is_untouched and export.next_number == report.first
