"""The broker's side of exports against lists of delivered messages, through random events.

Tasks deliver all messages of a slice, some or none. They report at the end or in between, late,
twice or never, disconnect, or deliver and report nothing. The broker restarts; streams and exports
are removed, added and moved. At any time no export is ahead of its destination, and in the end all
messages have arrived.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.streams import Stream
from penstock.model.exporting import DeliveryReport, MessageSlice
from tests.broker.exports.workbench import Commit, Workbench, report, skip
from tests.support import MEMORY

LEASE_SECONDS = 10.0
GRACE_SECONDS = 3.0

# Exports by stream, with the fields that differ from the defaults.
EXPORTS: dict[str, dict[str, dict[str, Any]]] = {
    "files": {"one": {}, "two": {"batchSize": 4, "batchIntervalMillis": 60_000}},
    "memory": {"one": {"priority": 3}, "two": {"startSequenceNumber": 5}},
}
PERSISTENCE = {"files": 0, "memory": 1}

names = st.sampled_from(sorted(EXPORTS))
identifiers = st.sampled_from(["one", "two"])
tasks = st.sampled_from(["a", "b"])


def is_refused(number: int) -> bool:
    """Whether no destination accepts this message."""
    return number % 7 == 3


class DeliveryMode(Enum):
    """How a task delivers and reports the messages of a slice."""

    whole = "whole"
    in_part = "in part"
    failing = "failing"
    interim = "interim"
    without_a_report = "without a report"
    to_a_slow_disk = "to a slow disk"
    interim_to_a_slow_disk = "interim, to a slow disk"
    before_it_is_replaced = "before the export is replaced"
    after_it_was_replaced = "after the export was replaced"


class Destination:
    """The messages that have arrived from one export, from its start to its end."""

    def __init__(self, start: int) -> None:
        self.start = start
        # In the order of their first arrival.
        self.arrived: list[int] = []
        self.refused: set[int] = set()
        self.holder: HeldMessages | None = None

    def take(self, number: int) -> None:
        if is_refused(number):
            self.refused.add(number)
        elif number not in self.arrived:
            self.arrived.append(number)

    def has(self, number: int) -> bool:
        return number in self.refused or number in self.arrived


class HeldMessages:
    """A slice of a task, with the state that the task knows."""

    def __init__(
        self, found: MessageSlice, destination: Destination, task: str, held_until: float
    ) -> None:
        self.slice = found
        self.destination = destination
        self.task = task
        # No other task gets the slice before this time.
        self.held_until = held_until
        self.export = (found.stream, found.identifier)
        # From the last accepted report.
        self.first = found.first
        self.arrived = list(found.arrived)
        # False after the task has released or lost the lease, or sent its final report.
        self.is_active = True


class Sent(NamedTuple):
    """A report and its delivery."""

    delivery: HeldMessages
    report: DeliveryReport


class PendingExportReport(NamedTuple):
    sent: Sent
    commit: Commit


class ExportsAgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-model-", dir=MEMORY))
        self.fields = {
            name: {identifier: dict(fields) for identifier, fields in exports.items()}
            for name, exports in EXPORTS.items()
        }
        self.destinations: dict[tuple[str, str], Destination] = {}
        self.deliveries: list[HeldMessages] = []
        self.sent: list[Sent] = []
        self.in_flight: list[PendingExportReport] = []

    @initialize(
        kilobits=st.sampled_from([None, 8]),
        letters=st.sampled_from(["", "letters"]),
        gather=st.sampled_from([0.0, 0.5]),
    )
    def begin(self, kilobits: int | None, letters: str, gather: float) -> None:
        self.bench = Workbench(
            self.root,
            kilobits_per_second=kilobits,
            dead_letter_stream=letters,
            gather_seconds=gather,
        )
        for name in EXPORTS:
            self._create(name)
            self.append(name, 6)

    def _create(self, name: str) -> None:
        asyncio.run(self.bench.streams.create(self._define(name)))
        for identifier in self.fields[name]:
            self._begin_destination(name, identifier)

    def _define(self, name: str) -> Any:
        exports = [
            {"identifier": identifier, "uri": "http://127.0.0.1/", **fields}
            for identifier, fields in self.fields[name].items()
        ]
        return self.bench.define(
            name,
            {"http": exports},
            maxSize=4096,
            streamSegmentSize=1024,
            persistence=PERSISTENCE[name],
        )

    def _begin_destination(self, name: str, identifier: str, start: int | None = None) -> None:
        if start is None:
            start = self.fields[name][identifier].get("startSequenceNumber", 0)
        self.destinations[name, identifier] = Destination(start)

    def _stream(self, name: str) -> Stream:
        return self.bench.streams.find(name)

    # Clients

    @rule(name=names, count=st.integers(1, 12))
    def append(self, name: str, count: int) -> None:
        self.bench.append(name, count, size=100)

    @rule(
        data=st.data(),
        fields=st.sampled_from([{"disabled": True}, {"disabled": False}, {"priority": 1}]),
    )
    def change_an_export(self, data: st.DataObject, fields: dict[str, Any]) -> None:
        name, identifier = self._draw_export(data)
        if identifier in self.fields[name]:
            self.fields[name][identifier] |= fields
            self._update(name)

    @rule(data=st.data(), is_added_again=st.booleans())
    def remove_an_export(self, data: st.DataObject, is_added_again: bool) -> None:
        """Removes an export and may add another of the same name at once."""
        name, identifier = self._draw_export(data)
        if identifier in self.fields[name]:
            self._remove(name, identifier)
            if is_added_again:
                self._add(name, identifier)

    @rule(name=names, identifier=identifiers)
    def add_an_export(self, name: str, identifier: str) -> None:
        if identifier not in self.fields[name]:
            self._add(name, identifier)

    @rule(data=st.data())
    def rewind_an_export(self, data: st.DataObject) -> None:
        """Reports about messages at the old position are no longer accepted."""
        name, identifier = self._draw_export(data)
        if identifier not in self.fields[name]:
            return
        log = self._stream(name).log
        number = data.draw(st.integers(log.oldest, log.end))
        asyncio.run(self.bench.streams.rewind(name, identifier, number))
        fields = self.fields[name][identifier]
        fields["startSequenceNumber"] = min(fields.get("startSequenceNumber", 0), number)
        self._begin_destination(name, identifier, number)

    def _remove(self, name: str, identifier: str) -> None:
        del self.fields[name][identifier]
        self._update(name)
        del self.destinations[name, identifier]

    def _add(self, name: str, identifier: str) -> None:
        self.fields[name][identifier] = {}
        self._update(name)
        self._begin_destination(name, identifier)

    def _update(self, name: str) -> None:
        asyncio.run(self.bench.streams.update(self._define(name)))

    def _draw_export(self, data: st.DataObject) -> tuple[str, str]:
        """Prefers an export that a task delivers."""
        if self.deliveries:
            return self._draw(data).export
        export: tuple[str, str] = data.draw(st.tuples(names, identifiers))
        return export

    @rule(name=names)
    def delete_and_create_again(self, name: str) -> None:
        self.bench.delete(name)
        self._create(name)

    # Tasks

    @rule(
        task=tasks,
        is_holding=st.booleans(),
        max_bytes=st.sampled_from([1, 500, 1 << 20]),
        max_slices=st.sampled_from([0, 1, 256]),
        max_priority=st.sampled_from([None, None, 3]),
    )
    def plan(
        self,
        task: str,
        is_holding: bool,
        max_bytes: int,
        max_slices: int,
        max_priority: int | None,
    ) -> None:
        """A task without leases may have been restarted, or has lost a plan."""
        self._plan(
            task,
            is_holding,
            max_bytes=max_bytes,
            max_slices=max_slices,
            max_priority=max_priority,
        )

    def _plan(self, task: str, is_holding: bool, **fields: Any) -> list[HeldMessages]:
        own = [each for each in self.deliveries if each.task == task and each.is_active]
        for each in own:
            each.is_active = is_holding
        plan = self.bench.request_plan(
            task=task,
            holding=[each.slice.lease for each in own if each.is_active],
            lease_millis=round(LEASE_SECONDS * 1000),
            **fields,
        )
        for each in own:
            self._learn_lease(each, is_lost=each.slice.lease in plan.lost)
        given = []
        for found in plan.work:
            assert isinstance(found, MessageSlice)
            given.append(self._give(found, task))
        return given

    def _learn_lease(self, delivery: HeldMessages, is_lost: bool) -> None:
        """Updates the lease of a delivery after a request of its task."""
        if not delivery.is_active:
            delivery.held_until = -math.inf
        elif is_lost:
            assert not self._is_held(delivery), "the broker has forgotten a lease"
            delivery.is_active = False
        else:
            # The broker had the lease, or has adopted it after a restart.
            assert self.destinations.get(delivery.export) is delivery.destination
            holder = delivery.destination.holder
            assert holder is delivery or holder is None or not self._is_held(holder)
            delivery.destination.holder = delivery
            delivery.held_until = self.bench.seconds + LEASE_SECONDS

    def _is_held(self, delivery: HeldMessages) -> bool:
        """Whether the broker must have the lease."""
        is_current = self.destinations.get(delivery.export) is delivery.destination
        is_holder = delivery.destination.holder is delivery
        return is_current and is_holder and delivery.held_until > self.bench.seconds

    def _knows_position(self, delivery: HeldMessages) -> bool:
        """Whether the task has the current position of the export.

        It may have missed an accepted report or a lease of another task. A restarted broker may
        adopt such a lease and refuse the report.
        """
        name, identifier = delivery.export
        progress = self._stream(name).stored.progress[identifier]
        return delivery.first == max(delivery.slice.first, progress.last_exported + 1)

    def _give(self, found: MessageSlice, task: str) -> HeldMessages:
        destination = self.destinations[found.stream, found.identifier]
        stream = self._stream(found.stream)
        assert not self.fields[found.stream][found.identifier].get("disabled")
        assert max(stream.log.oldest, destination.start) <= found.first < found.end
        assert found.end <= stream.log.end
        assert all(map(destination.has, found.arrived))
        holder = destination.holder
        assert holder is None or not self._is_held(holder), "another task has it"
        held_until = self.bench.seconds + LEASE_SECONDS
        delivery = HeldMessages(found, destination, task, held_until)
        destination.holder = delivery
        self.deliveries.append(delivery)
        return delivery

    @rule(task=tasks)
    def disconnect(self, task: str) -> None:
        self.bench.disconnect(task)
        for delivery in self.deliveries:
            if delivery.task == task:
                ends = self.bench.seconds + GRACE_SECONDS
                delivery.held_until = min(delivery.held_until, ends)

    def _deliver(self, delivery: HeldMessages, end: int) -> None:
        """Delivers the messages before `end` that the stream still has."""
        stream = self._stream(delivery.slice.stream)
        if stream.stored.id == delivery.slice.stream_id:
            for number in range(max(delivery.first, stream.log.oldest), end):
                if number not in delivery.arrived:
                    delivery.destination.take(number)

    # One rule for all modes: Hypothesis may disable rules, but not modes.
    @rule(data=st.data(), mode=st.sampled_from(DeliveryMode))
    def deliver(self, data: st.DataObject, mode: DeliveryMode) -> None:
        if not self.deliveries:
            self._plan("a", is_holding=True)
        if not self.deliveries:
            return
        delivery = self._draw(data)
        match mode:
            case DeliveryMode.whole:
                self._send(self._make_report(delivery, delivery.slice.end))
            case DeliveryMode.in_part | DeliveryMode.failing:
                error = "it is down" if mode is DeliveryMode.failing else ""
                self._send(self._deliver_a_part(data, delivery, error=error, is_final=True))
            case DeliveryMode.interim:
                self._report_in_parts(data, delivery)
            case DeliveryMode.without_a_report:
                self._deliver(delivery, delivery.slice.end)
            case DeliveryMode.to_a_slow_disk | DeliveryMode.interim_to_a_slow_disk:
                is_final = mode is DeliveryMode.to_a_slow_disk
                sent = self._deliver_a_part(data, delivery, is_final=is_final)
                self.sent.append(sent)
                self.in_flight.append(
                    PendingExportReport(sent, self.bench.begin_commit(sent.report))
                )
            case DeliveryMode.before_it_is_replaced | DeliveryMode.after_it_was_replaced:
                self._report_and_replace(data, delivery, mode)

    def _report_in_parts(self, data: st.DataObject, delivery: HeldMessages) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            self._send(self._deliver_a_part(data, delivery, is_final=False))

    def _deliver_a_part(
        self, data: st.DataObject, delivery: HeldMessages, *, error: str = "", is_final: bool
    ) -> Sent:
        """Delivers a part of a slice; with holes for the memory stream, like partial failures."""
        found = delivery.slice
        end = data.draw(st.integers(delivery.first, found.end))
        stream = self._stream(found.stream)
        more: set[int] = set()
        if found.stream == "memory" and stream.stored.id == found.stream_id:
            later = range(max(end, stream.log.oldest), found.end)
            more = data.draw(st.sets(st.sampled_from(later))) if later else set()
        return self._make_report(delivery, end, error=error, more=sorted(more), is_final=is_final)

    def _report_and_replace(
        self, data: st.DataObject, delivery: HeldMessages, mode: DeliveryMode
    ) -> None:
        name, identifier = delivery.export
        if identifier not in self.fields[name]:
            return
        is_final = data.draw(st.booleans())
        sent = self._make_report(delivery, delivery.slice.end, is_final=is_final)
        is_before = mode is DeliveryMode.before_it_is_replaced
        commit = self.bench.begin_commit(sent.report) if is_before else None
        self._remove(name, identifier)
        self._add(name, identifier)
        self._finish(PendingExportReport(sent, commit or self.bench.begin_commit(sent.report)))

    @precondition(lambda self: self.in_flight)
    @rule(works=st.booleans())
    def disk_answers(self, works: bool) -> None:
        in_flight = self.in_flight.pop(0)
        if works:
            self._finish(in_flight)
        else:
            self.bench.cancel_commit(in_flight.commit)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def report_again(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.sent[-20:]))
        self._finish(PendingExportReport(sent, self.bench.begin_commit(sent.report)))

    def _draw(self, data: st.DataObject) -> HeldMessages:
        delivery: HeldMessages = data.draw(st.sampled_from(self.deliveries[-8:]))
        return delivery

    def _make_report(
        self,
        delivery: HeldMessages,
        end: int,
        *,
        error: str = "",
        more: Sequence[int] = (),
        is_final: bool = True,
    ) -> Sent:
        """Delivers messages and makes the report."""
        first, before = delivery.first, delivery.arrived
        self._deliver(delivery, end)
        for number in more:
            delivery.destination.take(number)
        new = {*range(first, end), *more} - set(before)
        taken = [number for number in new if not is_refused(number)]
        message = report(
            delivery.slice,
            first=first,
            settled_end=end,
            arrived=sorted({*(number for number in before if number >= end), *more}),
            exported_messages=len(taken),
            exported_bytes=100 * len(taken),
            sent_bytes=150 * len(taken),
            skipped=[skip(number) for number in sorted(new) if is_refused(number)],
            error=error,
            is_final=is_final,
        )
        return Sent(delivery, message)

    def _send(self, sent: Sent) -> None:
        delivery = sent.delivery
        self.sent.append(sent)
        is_storing = any(each.sent.delivery is delivery for each in self.in_flight)
        is_due = delivery.is_active and not is_storing and self._is_held(delivery)
        has_to_be_accepted = is_due and self._knows_position(delivery)
        accepted = self._finish(PendingExportReport(sent, self.bench.begin_commit(sent.report)))
        assert accepted or not has_to_be_accepted, "the report of a lease is refused"

    def _finish(self, in_flight: PendingExportReport) -> bool:
        """Stores a report; returns whether it was accepted."""
        delivery, message = in_flight.sent
        self.bench.finish_commit(in_flight.commit)
        batch = in_flight.commit.batch
        if message.lease not in batch.accepted_leases():
            return False
        if batch.accepted and message.is_final:
            delivery.is_active = False
            delivery.held_until = -math.inf
        elif batch.accepted:
            delivery.first = message.settled_end
            delivery.arrived = message.arrived
        return True

    # The broker

    @rule(seconds=st.sampled_from([0.5, 4.0, 30.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.wait(seconds)

    @rule(seconds=st.sampled_from([10, 86_400]))
    def clock_is_set_back(self, seconds: int) -> None:
        self.bench.now -= seconds * 1000

    @rule(are_stored=st.booleans())
    def restart(self, are_stored: bool) -> None:
        """The broker loses leases until tasks send requests; commits may be stored or not."""
        for in_flight in self.in_flight:
            if are_stored:
                in_flight.commit.change.store()
        self.in_flight.clear()
        self.bench.restart()
        for delivery in self.deliveries:
            delivery.held_until = -math.inf

    @rule(data=st.data(), task=tasks, is_first=st.booleans())
    def restart_while_a_task_delivers(self, data: st.DataObject, task: str, is_first: bool) -> None:
        """A task whose request is the first keeps all of its leases, and continues to report."""
        self._plan(task, is_holding=True)
        held = [each for each in self.deliveries if each.task == task and self._is_held(each)]
        busy = {each.sent.delivery for each in self.in_flight}
        expected = [each for each in held if each.is_active and each not in busy]
        self.restart(are_stored=False)
        if not is_first:
            self._plan("b" if task == "a" else "a", is_holding=True)
        self._plan(task, is_holding=True, max_slices=0)
        for delivery in expected:
            assert self._is_held(delivery) or not is_first, "a lease is not adopted"
            if delivery.is_active:
                self._report_in_parts(data, delivery)

    # Invariants

    @invariant()
    def no_export_is_ahead_of_its_destination(self) -> None:
        for (name, identifier), destination in self.destinations.items():
            stream = self._stream(name)
            last = stream.stored.progress[identifier].last_exported
            assert last < stream.log.end
            for number in range(max(destination.start, stream.log.oldest), last + 1):
                assert destination.has(number), f"{name} {identifier}: {number} is missing"

    @invariant()
    def messages_without_holes_arrive_in_order(self) -> None:
        for (name, _), destination in self.destinations.items():
            if name == "files":
                assert destination.arrived == sorted(destination.arrived)

    def all_messages_arrive_in_the_end(self) -> None:
        while self.in_flight:
            self.disk_answers(works=True)
        for name, exports in self.fields.items():
            for fields in exports.values():
                fields["disabled"] = False
            self._update(name)
        # Longer than the max back-off and all intervals.
        self.time_passes(400.0)
        for _ in range(1000):
            given = self._plan("a", is_holding=False)
            for delivery in given:
                self._send(self._make_report(delivery, delivery.slice.end))
            at = self.bench.wake_condition(task="a").at
            if at < math.inf:
                self.time_passes(max(at - self.bench.seconds, 0.0) + 0.001)
            elif not given:
                break
        for (name, _), destination in self.destinations.items():
            log = self._stream(name).log
            for number in range(max(destination.start, log.oldest), log.end):
                assert destination.has(number), f"{name}: {number} never arrived"

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            try:
                self.all_messages_arrive_in_the_end()
            finally:
                self.bench.close()
        shutil.rmtree(self.root)


TestExportsAgainstAList = ExportsAgainstAList.TestCase
TestExportsAgainstAList.settings = settings(
    max_examples=settings().max_examples // 4,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
