"""All exports of a broker: what is due, which task has it, and what its reports change.

Called from the event loop only. The progress that the broker has stored is the only truth: a task
that dies, or whose report is lost, delivers again what it had not reported, and nothing else.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.broker.exports.abandoned import AbandonedUpload, AbandonedUploads
from penstock.broker.exports.bandwidth import Bandwidth
from penstock.broker.exports.cancellations import Cancellations
from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.deliverable import Deliverable, Outcome
from penstock.broker.exports.export import Export
from penstock.broker.exports.lease import Holder, Lease, ParsedId, parse_id
from penstock.broker.exports.message_export import MessageExport
from penstock.broker.exports.progress import Settled, Settlement
from penstock.broker.exports.registry import Registry
from penstock.broker.exports.statuses import Statuses
from penstock.broker.exports.task_export import TaskExport, ended_tasks
from penstock.broker.statistics import ExportTotals
from penstock.broker.streams import Stream, Streams
from penstock.model import ExportConfig
from penstock.model.exporting import AnyWork, DeliveryReport, Upload
from penstock.model.statistics import ExportActivity
from penstock.store.store import Store
from penstock.wire.requests import PlanExportsRequest

logger = logging.getLogger(__name__)

# A task that has lost its connection keeps its leases for so long, to reconnect.
_GRACE_SECONDS = 3.0
# The task that holds a lease of the broker before a restart, until it asks for work.
_UNKNOWN = Holder("", "")


class Outlook(NamedTuple):
    """What a task waits for when nothing is due."""

    # On the loop's clock.
    at: float = math.inf
    # Streams, and the end at which each may have messages that are due.
    needed_ends: Sequence[tuple[Stream, int]] = ()


class Plan(NamedTuple):
    work: list[AnyWork]
    # The number of deliverables that are due and that no task has.
    waiting: int
    # Leases that the task no longer holds.
    lost: list[str]
    # Leases of paused exports: their deliveries end after the calls that they have begun.
    ending: Sequence[str] = ()
    # The task has given up leases: others may have them.
    frees_leases: bool = False


class _Survey(NamedTuple):
    """What may be leased now, with the end of what is due; and what to wait for."""

    due: list[tuple[Deliverable, int]]
    outlook: Outlook


class Exports:
    def __init__(
        self,
        store: Store,
        streams: Streams,
        bandwidth: Bandwidth,
        dead_letters: DeadLetters,
        statuses: Statuses,
        gather_seconds: float,
        clock: Callable[[], float],
        now_millis: Callable[[], int],
    ) -> None:
        self._bandwidth = bandwidth
        self._dead_letters = dead_letters
        self._statuses = statuses
        self._gather_seconds = gather_seconds
        self._clock = clock
        self._now_millis = now_millis
        self._turns = 0
        # Why nothing is planned: progress cannot be stored. Empty if it can.
        self.suspension = ""
        # By kind.
        self.totals: defaultdict[str, ExportTotals] = defaultdict(ExportTotals)
        # Part of the leases of this run of the broker.
        self._run_id = secrets.token_hex(4)
        uploads = store.uploads()
        # Uploads that had begun when the broker was stopped, by the id of their export.
        self._begun: defaultdict[str, list[Upload]] = defaultdict(list)
        for tracked in uploads:
            if not tracked.is_abandoned:
                self._begun[tracked.export_id].append(tracked.upload)
        self._all = Registry(streams, self._make)
        self._abandoned = AbandonedUploads(store, statuses)
        self._abandoned.add(each for each in uploads if each.is_abandoned)
        self._cancellations = Cancellations(self._all.of, statuses, self._abandoned, now_millis)
        streams.tell(self._cancellations)
        # They remember how far their streams go.
        for _ in self._all:
            pass

    def _make(self, stream: Stream, kind: str, config: ExportConfig) -> Export:
        if kind == "s3_task_executor":
            uploads = self._begun.pop(stream.stored.progress[config.identifier].export_id, [])
            return TaskExport(stream, kind, config, self._dead_letters, self._statuses, uploads)
        return MessageExport(stream, kind, config, self._dead_letters, self._gather_seconds)

    def _deliverables(self) -> Iterator[Deliverable]:
        yield from self._all
        yield from self._abandoned

    def finish(self) -> None:
        """The broker stops: write the statuses that would be written later."""
        for export in self._all.task_exports:
            # The next broker does not have the dropped messages.
            self._cancellations.cancel_dropped(export)

    def of(self, stream: Stream) -> Mapping[str, Export]:
        """The exports of one stream, by identifier."""
        return self._all.of(stream)

    def activities(self, stream: Stream) -> dict[str, ExportActivity]:
        now, now_millis = self._clock(), self._now_millis()
        exports = self._all.of(stream).items()
        return {name: export.activity(now, now_millis) for name, export in exports}

    # Plans

    def plan(
        self,
        request: PlanExportsRequest,
        sees: Callable[[str], bool],
        now_millis: int,
        *,
        leases: bool = True,
    ) -> tuple[Plan, Outlook]:
        """Renews the leases that the task holds, frees its others, and leases what is due.

        Returns what to wait for as well, in case that nothing is.
        """
        now = self._clock()
        holder = Holder(request.pipeline, request.task)
        ends_at = now + request.lease_millis / 1000
        renewed = self._renew(holder, request.holding, ends_at)
        if not leases or self.suspension:
            return renewed, Outlook()
        self._release_dropped(now)
        max_priority = request.max_priority or math.inf
        seen = (each for each in self._deliverables() if sees(each.stream_name))
        survey = self._survey(seen, now, now_millis, max_priority)
        work: list[AnyWork] = []
        waiting = 0
        room = request.max_bytes
        # Of equal urgency, in the order of streams.
        for each, due_end in sorted(survey.due, key=lambda found: found[0].urgency):
            is_full = len(work) == request.max_slices or room < 1
            wire_room = self._bandwidth.message_room(each.priority) if each.is_charged else math.inf
            if is_full or not wire_room or each.priority > max_priority:
                waiting += bool(wire_room)
                continue
            end = each.cut(due_end, room, wire_room)
            size = each.size_of(end)
            room -= size
            charged = each.wire_bytes_of(size)
            self._bandwidth.charge(charged)
            work.append(self._lease(each, holder, end, charged, ends_at, now))
        can_lease = request.max_slices and request.max_bytes
        outlook = survey.outlook if can_lease else Outlook()
        return renewed._replace(work=work, waiting=waiting), outlook

    def _survey(
        self,
        deliverables: Iterable[Deliverable],
        now: float,
        now_millis: int,
        max_priority: float = math.inf,
    ) -> _Survey:
        """Less urgent deliverables than the maximum are not waited for."""
        found = []
        at = math.inf
        needed: dict[Stream, int] = {}
        for each in deliverables:
            is_awaited = each.priority <= max_priority
            free_at = each.free_at()
            if free_at > now:
                # It is leased or paused: messages that arrive meanwhile change nothing.
                at = min(at, free_at) if is_awaited else at
                continue
            due = each.due(now, now_millis)
            is_due = due.end > each.next_number
            if is_due:
                found.append((each, due.end))
            if not is_awaited:
                continue
            if is_due:
                wait = self._bandwidth.seconds_until_message_room(each.priority)
                at = min(at, now + wait if each.is_charged else now)
                continue
            if due.at is not None:
                at = min(at, now + (due.at - now_millis) / 1000)
            if isinstance(each, Export):
                stream = each.stream
                needed[stream] = min(needed.get(stream, due.needed_end), due.needed_end)
        return _Survey(found, Outlook(at, tuple(needed.items())))

    def follow(self, settlement: Settlement, now_millis: int) -> Outlook | None:
        """What to wait for after these reports; None if something may be due now."""
        settled = [each.deliverable for each in settlement.settled]
        exports = [each for each in settled if isinstance(each, MessageExport)]
        # The tasks of other exports may have left uploads to be aborted; a report may give
        # bandwidth back.
        if self._bandwidth.is_limited or len(exports) < len(settled):
            return None
        # Exports that were removed meanwhile have no progress.
        served = [each for each in exports if self._all.has(each)]
        survey = self._survey(served, self._clock(), now_millis)
        return None if survey.due else survey.outlook

    def _release_dropped(self, now: float) -> None:
        """Cancels tasks that the stream has dropped, when no task of a pipeline holds them."""
        for export in self._all.task_exports:
            if not export.is_leased(now):
                self._cancellations.release_dropped(export)

    def _lease(
        self,
        each: Deliverable,
        holder: Holder,
        end: int,
        charged: float,
        ends_at: float,
        now: float,
    ) -> AnyWork:
        self._turns += 1
        serial = f"{self._run_id}-{self._turns:x}"
        lease = Lease.make(each.name, serial, holder, each.next_number, end, ends_at)
        lease = lease._replace(charged=charged)
        each.take_lease(lease, self._turns, now)
        return each.describe(lease, self._bandwidth.is_limited)

    # Leases

    def _renew(self, holder: Holder, holding: Sequence[str], ends_at: float) -> Plan:
        """Renews these leases and frees the holder's others; a plan without work."""
        unknown = set(holding)
        ending = []
        frees_leases = False
        for each in self._deliverables():
            lease = each.lease
            if lease is not None and lease.id in unknown:
                each.renew_lease(holder, ends_at)
                unknown.discard(lease.id)
                if each.is_disabled:
                    ending.append(lease.id)
            elif lease is not None and lease.holder == holder:
                each.end_lease(holder)
                frees_leases = True
            # The task reported it while its request waited.
            unknown.discard(each.finished_lease)
        lost = []
        for lease_id in (each for each in holding if each in unknown):
            export = self._adopt(lease_id, holder, ends_at)
            if export is None:
                lost.append(lease_id)
            elif export.is_disabled:
                ending.append(lease_id)
        return Plan([], 0, lost, tuple(ending), frees_leases)

    def _adopt(self, lease_id: str, holder: Holder, ends_at: float) -> Export | None:
        parsed = parse_id(lease_id)
        if parsed is None or self._is_of_this_run(parsed):
            return None
        for export in self._all:
            if export.name == parsed.name:
                is_adopted = export.adopt_lease(lease_id, parsed, holder, ends_at)
                return export if is_adopted else None
        return None

    def _is_of_this_run(self, parsed: ParsedId) -> bool:
        return parsed.serial.startswith(self._run_id)

    def depart(self, holder: Holder) -> None:
        """The connection of a task is gone; unless it reconnects, its leases end."""
        for each in self._deliverables():
            each.end_lease(holder, self._clock() + _GRACE_SECONDS)

    def find_lease(self, lease_id: str) -> Deliverable | None:
        """What a lease is of, while a task holds it."""
        for each in self._deliverables():
            if each.lease is not None and each.lease.id == lease_id:
                return each
        return self._adopt(lease_id, _UNKNOWN, self._clock() + _GRACE_SECONDS)

    # Reports

    def settle(self, reports: Sequence[DeliveryReport], now_millis: int) -> Settlement:
        """The outcomes of reports, to be stored and then applied, or canceled if that fails.

        A report is refused if the export was removed, or if another task has the lease.
        """
        settlement = Settlement()
        for report in reports:
            found = self._find(report)
            if found is not None and found.is_repeated(report):
                settlement.repeated.append((found, report))
                continue
            lease = found.begin_settling(report) if found is not None else None
            if found is None or lease is None:
                logger.info(
                    "stream %r, export %r: a report from %d on comes too late, and is ignored",
                    report.stream,
                    report.identifier,
                    report.first,
                )
                continue
            try:
                outcome = found.settle(report, lease, now_millis)
            except BaseException:
                found.cancel_settling()
                self.cancel(settlement)
                raise
            settlement.settled.append(Settled(found, lease, report, outcome))
        return settlement

    def _find(self, report: DeliveryReport) -> Deliverable | None:
        parsed = parse_id(report.lease)
        if parsed is None:
            return None
        for each in self._deliverables():
            # The names were checked against the token of the task.
            names = each.name, each.stream_name, each.identifier
            if names != (parsed.name, report.stream, report.identifier):
                continue
            if not self._is_of_this_run(parsed) and each.find_resumed(parsed) == report.first:
                ends_at = self._clock() + _GRACE_SECONDS
                each.adopt_lease(report.lease, parsed, _UNKNOWN, ends_at)
            return each
        return None

    def apply(self, settlement: Settlement) -> None:
        """The settlement is stored."""
        now = self._clock()
        for settled in settlement.settled:
            self._apply(settled, now)
            each = settled.deliverable
            is_gone = isinstance(each, Export) and not self._all.has(each)
            if not settled.report.is_final and (is_gone or settled.outcome.ends_lease):
                # The task must not begin an upload that is about to be aborted.
                settlement.lost.add(settled.lease.id)

    def _apply(self, settled: Settled, now: float) -> None:
        each, lease, outcome = settled.deliverable, settled.lease, settled.outcome
        report = outcome.report
        self._count(each.kind, report)
        if each.is_charged:
            unaccounted = lease.charged
            if not outcome.ends_lease:
                unaccounted = min(unaccounted, report.sent_bytes)
            self._bandwidth.charge(report.sent_bytes - unaccounted)
        chance = random.random()  # noqa: S311 - no secret
        each.finish_settling(settled.report, outcome, now, chance)
        if isinstance(each, AbandonedUpload):
            self._abandoned.remove(outcome.ended)
        elif isinstance(each, TaskExport):
            self._abandoned.add(outcome.abandoned)
            self._conclude(each, outcome)

    def _conclude(self, export: TaskExport, outcome: Outcome) -> None:
        ended = ended_tasks(outcome.report)
        self._cancellations.cancel_dropped(export, ended, is_leased=not outcome.ends_lease)
        if not self._all.has(export):
            # It was removed or moved while the report was stored.
            self._abandoned.abandon(export.track(export.uploads, are_abandoned=True))

    def _count(self, kind: str, report: DeliveryReport) -> None:
        totals = self.totals[kind]
        totals.deliveries += report.is_final
        totals.failures += bool(report.error)
        totals.messages += report.exported_messages
        totals.bytes += report.exported_bytes
        totals.skipped_messages += len(report.skipped)
        totals.sent_bytes += report.sent_bytes

    def cancel(self, settlement: Settlement) -> None:
        """The settlement could not be stored: its reports may come again."""
        for settled in settlement.settled:
            settled.deliverable.cancel_settling()
