"""The export engine: finds due work, leases it to tasks, and applies their reports.

Called from the event loop only. Only stored progress counts: after a task has died, or a report was
lost, exactly the unreported messages are delivered again.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.broker.counters import ExportTotals
from penstock.broker.exports.bandwidth import Bandwidth
from penstock.broker.exports.cancellations import Cancellations
from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.export import Export, MessageExport
from penstock.broker.exports.progress import ReportBatch
from penstock.broker.exports.statuses import Statuses
from penstock.broker.exports.task_export import (
    AbandonedUpload,
    AbandonedUploads,
    TaskExport,
    ended_tasks,
)
from penstock.broker.exports.work_source import (
    Holder,
    Lease,
    LeaseId,
    SlicePlan,
    WorkSource,
)
from penstock.broker.streams import Stream, Streams
from penstock.model import ExportConfig, MessageStreamDefinition
from penstock.model.export_definition import S3_TASK_EXECUTOR
from penstock.model.exporting import AnyWork, DeliveryReport
from penstock.model.statistics import ExportActivity
from penstock.store.store import Store
from penstock.wire.requests import PlanExportsRequest

logger = logging.getLogger(__name__)

# A task that has lost its connection keeps its leases for so long, to reconnect.
_GRACE_SECONDS = 3.0
# The holder of a lease from before a restart, until its task sends a request for work.
_UNKNOWN = Holder("", "")


class WakeCondition(NamedTuple):
    """When a request that waits for work has to be checked again."""

    # On the loop's clock.
    at: float = math.inf
    # Streams, and the end at which each may have messages that are due.
    needed_ends: Sequence[tuple[Stream, int]] = ()


class Plan(NamedTuple):
    work: list[AnyWork]
    # The number of sources that are due and not leased.
    waiting: int
    # Leases that the task no longer holds.
    lost: list[str]
    # Leases of paused exports: their deliveries end after the calls that they have begun.
    ending: Sequence[str] = ()
    # The task has released leases: other tasks may take them.
    frees_leases: bool = False


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
        self.bandwidth = bandwidth
        self.dead_letters = dead_letters
        self.statuses = statuses
        self._gather_seconds = gather_seconds
        self._clock = clock
        self._now_millis = now_millis
        self._turns = 0
        # Why nothing is planned: the error of storing progress. Empty if exports run.
        self.suspension = ""
        # By kind.
        self.totals: defaultdict[str, ExportTotals] = defaultdict(ExportTotals)
        # Part of the leases of this run of the broker.
        self._run_id = secrets.token_hex(4)
        self._registry = ExportRegistry(streams, self._make)
        self._abandoned = AbandonedUploads(store, statuses)
        self._cancellations = Cancellations(
            self._registry.of, statuses, self._abandoned, now_millis
        )
        streams.set_listener(self._cancellations)
        uploads = store.uploads()
        self._abandoned.add(each for each in uploads if each.is_abandoned)
        for export in self._registry:
            export.resume([each for each in uploads if not each.is_abandoned])

    def _make(self, stream: Stream, kind: str, config: ExportConfig) -> Export:
        if kind != S3_TASK_EXECUTOR:
            return MessageExport(stream, kind, config, self.dead_letters, self._gather_seconds)
        is_metered = self.bandwidth.is_limited
        return TaskExport(stream, kind, config, self.dead_letters, self.statuses, is_metered)

    def finish(self) -> None:
        """Writes pending statuses before the broker stops: after a restart they would be lost."""
        for export in self._task_exports():
            self._cancellations.cancel_dropped(export)

    def of(self, stream: Stream) -> Mapping[str, Export]:
        """The exports of one stream, by identifier."""
        return self._registry.of(stream)

    def activities(self, stream: Stream) -> dict[str, ExportActivity]:
        now, now_millis = self._clock(), self._now_millis()
        exports = self._registry.of(stream).items()
        return {name: export.activity(now, now_millis) for name, export in exports}

    def _sources(self) -> Iterator[WorkSource]:
        yield from self._registry
        yield from self._abandoned

    def _task_exports(self) -> Iterator[TaskExport]:
        return (export for export in self._registry if isinstance(export, TaskExport))

    # Plans

    def plan(
        self,
        request: PlanExportsRequest,
        sees: Callable[[str], bool],
        now_millis: int,
        *,
        leases: bool = True,
    ) -> tuple[Plan, WakeCondition]:
        """Renews the leases that the task holds, releases its others, and leases due work.

        The condition applies if nothing is due.
        """
        now = self._clock()
        holder = Holder(request.pipeline, request.task)
        ends_at = now + request.lease_millis / 1000
        renewed = self._renew(holder, request.holding, ends_at, sees)
        if not leases or self.suspension:
            return renewed, WakeCondition()
        for export in self._task_exports():
            if not export.is_leased(now):
                self._cancellations.release_dropped(export)
        max_priority = request.max_priority or math.inf
        seen = (each for each in self._sources() if sees(each.stream_name))
        found, condition = self._find_due(seen, now, now_millis, max_priority)
        work: list[AnyWork] = []
        waiting = 0
        room = request.max_bytes
        # Of equal urgency, in the order of streams.
        for each, due_end in sorted(found, key=lambda each: each[0].urgency):
            is_full = len(work) == request.max_slices or room < 1
            wire_room = math.inf
            if not each.delivers_files:
                wire_room = self.bandwidth.message_room(each.priority)
            if is_full or not wire_room or each.priority > max_priority:
                waiting += bool(wire_room)
                continue
            planned = each.plan_slice(due_end, room, wire_room)
            room -= planned.size
            self.bandwidth.charge(each.priority, planned.wire_bytes)
            work.append(self._lease(each, planned, holder, ends_at, now))
        can_lease = request.max_slices and request.max_bytes
        return renewed._replace(
            work=work, waiting=waiting
        ), condition if can_lease else WakeCondition()

    def _find_due(
        self,
        sources: Iterable[WorkSource],
        now: float,
        now_millis: int,
        max_priority: float = math.inf,
    ) -> tuple[list[tuple[WorkSource, int]], WakeCondition]:
        """Finds sources that may be leased now, each with the end of its due messages.

        The condition does not cover sources above the max priority.
        """
        found = []
        at = math.inf
        needed: dict[Stream, int] = {}
        for each in sources:
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
                if not each.delivers_files:
                    at = min(at, now + self.bandwidth.seconds_until_message_room(each.priority))
                else:
                    at = min(at, now)
                continue
            if due.at is not None:
                at = min(at, now + (due.at - now_millis) / 1000)
            # Uploads to be aborted are always due.
            assert isinstance(each, Export)
            needed[each.stream] = min(needed.get(each.stream, due.needed_end), due.needed_end)
        return found, WakeCondition(at, tuple(needed.items()))

    def find_wake_condition(self, batch: ReportBatch, now_millis: int) -> WakeCondition | None:
        """When to check again after these reports; None if work may be due now."""
        # Tasks may have left uploads to be aborted, and a report may refund bandwidth.
        if self.bandwidth.is_limited or not batch.may_be_stored_later:
            return None
        sources = [each.source for each in batch.accepted]
        # Exports that were removed meanwhile have no progress.
        served = filter(self._is_served, sources)
        found, condition = self._find_due(served, self._clock(), now_millis)
        return None if found else condition

    def _lease(
        self, each: WorkSource, planned: SlicePlan, holder: Holder, ends_at: float, now: float
    ) -> AnyWork:
        self._turns += 1
        first, end = each.next_number, planned.end
        lease_id = LeaseId(each.name, first, end, f"{self._run_id}-{self._turns:x}")
        lease = Lease(str(lease_id), holder, first, end, ends_at, planned.wire_bytes)
        each.take_lease(lease, self._turns, now)
        return each.describe(lease)

    # Leases

    def _renew(
        self,
        holder: Holder,
        holding: Sequence[str],
        ends_at: float,
        sees: Callable[[str], bool],
    ) -> Plan:
        """Renews these leases and releases the holder's others; returns a plan without work."""
        lost, ending = [], []
        for lease_id in holding:
            found = self._find(lease_id)
            if found is None or not sees(found.stream_name):
                lost.append(lease_id)
            elif found.renew_lease(lease_id, holder, ends_at):
                if found.is_disabled:
                    ending.append(lease_id)
            elif found.finished_lease != lease_id:
                # A finished lease was reported while the request was pending.
                lost.append(lease_id)
        held = set(holding)
        frees_leases = False
        for each in self._sources():
            is_other = each.lease is not None and each.lease.id not in held
            if is_other and sees(each.stream_name):
                frees_leases |= each.end_lease(holder)
        return Plan([], 0, lost, tuple(ending), frees_leases)

    def _find(self, lease_id: str) -> WorkSource | None:
        """The source of a lease, also of one that has ended."""
        name = lease_id.rsplit("/", 2)[0]
        found: WorkSource | None = self._registry.by_name.get(name)
        return found or next((each for each in self._abandoned if each.name == name), None)

    def find_lease(self, lease_id: str) -> WorkSource | None:
        """The source of a lease that a task holds."""
        found = self._find(lease_id)
        if found is None:
            return None
        found.adopt_lease(lease_id, _UNKNOWN, self._clock() + _GRACE_SECONDS)
        return found if found.holds(lease_id) else None

    def note_disconnect(self, holder: Holder) -> None:
        """The connection of a task is closed. Unless it reconnects, its leases end."""
        for each in self._sources():
            each.end_lease(holder, self._clock() + _GRACE_SECONDS)

    # Reports

    def accept(self, reports: Sequence[DeliveryReport], now_millis: int) -> ReportBatch:
        """Accepts reports, to be stored and then applied, or canceled if that fails.

        A report is refused if the export was removed, or if another task has the lease.
        """
        batch = ReportBatch()
        for report in reports:
            found = self._find(report.lease)
            # The names were checked against the token of the task.
            if found and (found.stream_name, found.identifier) == (
                report.stream,
                report.identifier,
            ):
                if found.is_repeated(report):
                    batch.repeated.append((found, report))
                    continue
                ends_at = self._clock() + _GRACE_SECONDS
                found.adopt_lease(report.lease, _UNKNOWN, ends_at, report.first)
                try:
                    accepted = found.accept(report, now_millis)
                except BaseException:
                    self.cancel(batch)
                    raise
                if accepted is not None:
                    batch.accepted.append(accepted)
                    continue
            logger.info(
                "stream %r, export %r: ignored a late report from sequence number %d on",
                report.stream,
                report.identifier,
                report.first,
            )
        return batch

    def apply(self, batch: ReportBatch) -> None:
        """The batch is stored, or logged to be stored soon."""
        now = self._clock()
        for accepted in batch.accepted:
            each = accepted.source
            self.totals[each.kind].add(accepted.report)
            self.bandwidth.charge(each.priority, accepted.uncharged_bytes)
            each.apply(accepted, now, random.random())  # noqa: S311 - no secret
            is_served = self._is_served(each)
            if isinstance(each, AbandonedUpload):
                self._abandoned.remove(accepted.ended)
            elif isinstance(each, TaskExport):
                self._abandoned.add(accepted.abandoned)
                ended = ended_tasks(accepted.report)
                self._cancellations.cancel_dropped(each, ended, is_leased=not accepted.ends_lease)
                if not is_served:
                    # It was removed or moved while the report was stored.
                    self._abandoned.abandon(each.track(each.uploads, are_abandoned=True))
            if not accepted.sent.is_final and (accepted.ends_lease or not is_served):
                # The task must not begin an upload that is about to be aborted.
                batch.lost.add(accepted.lease.id)

    def _is_served(self, each: WorkSource) -> bool:
        return not isinstance(each, Export) or self._registry.has(each)

    def cancel(self, batch: ReportBatch) -> None:
        """The batch could not be stored: its reports may be sent again."""
        for accepted in batch.accepted:
            accepted.source.cancel_storing()


class ExportRegistry:
    """The exports of all streams. Each is kept from one definition of its stream to the next."""

    def __init__(
        self, streams: Streams, make: Callable[[Stream, str, ExportConfig], Export]
    ) -> None:
        self._streams = streams
        self._make = make
        # By the id of the stream: its exports, and the definition that they follow.
        self._known: dict[str, tuple[MessageStreamDefinition, list[Export]]] = {}
        # The exports of all streams, after so many changes of streams.
        self._by_name: dict[str, Export] = {}
        self._changes = -1

    def __iter__(self) -> Iterator[Export]:
        return iter(self.by_name.values())

    @property
    def by_name(self) -> Mapping[str, Export]:
        if self._changes != self._streams.change_count:
            changes = self._streams.change_count
            streams = {stream.stored.id: stream for stream in self._streams}
            for stream_id in self._known.keys() - streams.keys():
                del self._known[stream_id]
            exports = (export for stream in streams.values() for export in self._of(stream))
            self._by_name = {export.name: export for export in exports}
            self._changes = changes
        return self._by_name

    def of(self, stream: Stream) -> dict[str, Export]:
        """The exports of one stream, by identifier."""
        return {export.identifier: export for export in self._of(stream)}

    def has(self, export: Export) -> bool:
        """False if the export was removed, also if another one has its identifier."""
        return self._streams.is_served(export.stream) and export in self._of(export.stream)

    def _of(self, stream: Stream) -> list[Export]:
        definition, exports = self._known.get(stream.stored.id, (None, []))
        if definition is stream.definition:
            return exports
        before = {export.identifier: export for export in exports}
        exports = []
        for kind, config in stream.definition.export_definition.configs_by_kind():
            known = export = before.get(config.identifier)
            export_id = stream.stored.progress[config.identifier].export_id
            if export is None or (export.id, export.kind) != (export_id, kind):
                export = self._make(stream, kind, config)
                if known is not None:
                    export.replace(known)
            export.change_config(config)
            exports.append(export)
        self._known[stream.stored.id] = stream.definition, exports
        return exports
