"""S3 tasks against a list, while tasks of a pipeline fail, S3 tasks expire and exports are removed.

In any order of events each S3 task gets a final status, Success or Canceled, and no unfinished
upload stays in the bucket.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.model.exporting import DeliveryReport, TaskSlice, Upload, UploadAbort
from penstock.model.status_message import Status
from tests.broker.exports.workbench import (
    Commit,
    Workbench,
    event,
    report,
    status_config,
    to_http,
    to_s3,
    upload,
)
from tests.support import MEMORY

TTL = 60_000

workers = st.sampled_from(["a", "b"])
# Definitions of the stream. Statuses go to another stream.
definitions = st.sampled_from(
    [to_s3(**status_config()), to_s3(priority=1, **status_config()), {}, to_http()]
)


class HeldSlice:
    """A slice of a task of the pipeline, with the state that the task knows."""

    def __init__(self, found: TaskSlice, worker: str) -> None:
        self.slice = found
        self.worker = worker
        self.uploads = {each.sequence_number: each for each in found.uploads}
        # From the last accepted report.
        self.first = found.first
        self.ended = set(found.arrived)


class PendingTaskReport(NamedTuple):
    """A report that is being stored."""

    held: HeldSlice
    report: DeliveryReport
    commit: Commit


class TasksAgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-model-", dir=MEMORY))
        self.bench = Workbench(self.root)
        # Incremented when the stream is deleted and created again.
        self.generation = 0
        self.ids = itertools.count()
        # Tasks without a final status: the generation of the stream and the sequence number.
        self.unfinished: set[tuple[int, int]] = set()
        # The uploads in the bucket.
        self.bucket: set[str] = set()
        self.held: list[HeldSlice] = []
        self.aborts: list[UploadAbort] = []
        self.in_flight: list[PendingTaskReport] = []
        self.bench.create("status", {})
        self.exports: dict[str, Any] = to_s3(**status_config())
        self._create()

    # Clients

    def _create(self) -> None:
        self.bench.create("s", self.exports, **self._fields())

    @staticmethod
    def _fields() -> dict[str, Any]:
        return {"maxSize": 4096, "streamSegmentSize": 1024, "timeToLiveMillis": TTL}

    @rule(count=st.integers(1, 15))
    def append(self, count: int) -> None:
        stream = self.bench.streams.find("s")
        first = stream.log.end
        if "s3TaskExecutor" in self.exports:
            self.unfinished |= {(self.generation, number) for number in range(first, first + count)}
        self.bench.append_tasks("s", count)

    @rule(exports=definitions)
    def update(self, exports: dict[str, Any]) -> None:
        had_tasks = "s3TaskExecutor" in self.exports
        self.exports = exports
        self.bench.update("s", exports, **self._fields())
        if "s3TaskExecutor" in exports and not had_tasks:
            log = self.bench.streams.find("s").log
            first = self.bench.export("s").next_number
            self.unfinished |= {(self.generation, number) for number in range(first, log.end)}

    @rule()
    def delete_and_create_again(self) -> None:
        self.bench.delete("s")
        self._read_statuses()
        assert not self.unfinished, "the stream is deleted, and these tasks have no status"
        self.generation += 1
        self._create()

    # Tasks of the pipeline

    @rule(
        worker=workers,
        is_holding=st.booleans(),
        max_bytes=st.sampled_from([200, 1 << 20]),
        max_slices=st.sampled_from([0, 256, 256]),
    )
    def plan(self, worker: str, is_holding: bool, max_bytes: int, max_slices: int) -> None:
        """A worker without leases still has its deliveries, and reports them late."""
        own = [each for each in self.held if each.worker == worker and is_holding]
        plan = self.bench.request_plan(
            task=worker,
            holding=[each.slice.lease for each in own],
            max_bytes=max_bytes,
            max_slices=max_slices,
        )
        self.held = [each for each in self.held if each.slice.lease not in plan.lost]
        for found in plan.work:
            match found:
                case UploadAbort():
                    self.aborts.append(found)
                case TaskSlice():
                    self.held.append(HeldSlice(found, worker))
                case _:
                    self._is_accepted(report(found))

    @rule(worker=workers)
    def disconnect(self, worker: str) -> None:
        self.bench.disconnect(worker)

    def _draw(self, data: st.DataObject) -> HeldSlice | None:
        busy = [each.held for each in self.in_flight]
        free = [each for each in self.held[-6:] if each not in busy]
        return data.draw(st.sampled_from(free)) if free else None

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def begin_an_upload(self, data: st.DataObject) -> None:
        """An upload is reported before it is created, and again with its id."""
        held = self._draw(data)
        if held is None or held.first == held.slice.end:
            return
        number = data.draw(st.integers(held.first, held.slice.end - 1))
        if number in held.uploads or number in held.ended:
            return
        began = upload(number, "", key=f"key/{next(self.ids)}")
        held.uploads[number] = began
        if not self._commit(held, self._make_report(held, held.first, is_final=False)):
            return
        self.bucket.add(began.key)
        held.uploads[number] = upload(number, f"id of {began.key}", key=began.key)
        self._commit(held, self._make_report(held, held.first, is_final=False))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_final=st.booleans(), waits=st.booleans())
    def carry_out_tasks(self, data: st.DataObject, is_final: bool, waits: bool) -> None:
        """Some tasks end, in any order, and more reports may follow."""
        held = self._draw(data)
        if held is None:
            return
        end = data.draw(st.integers(held.first, held.slice.end))
        later = range(end, held.slice.end)
        ended = set(data.draw(st.sets(st.sampled_from(later), max_size=3))) if later else set()
        ended |= {number for number in held.ended if number >= end}
        self._complete(held, {*range(held.first, end), *ended})
        left = list(held.uploads.values())
        abandoned: list[Upload] = (
            data.draw(st.lists(st.sampled_from(left), unique_by=id)) if left else []
        )
        for each in abandoned:
            del held.uploads[each.sequence_number]
        error = data.draw(st.sampled_from(["", "it is down"])) if is_final else ""
        message = self._make_report(
            held, end, ended, abandoned=abandoned, error=error, is_final=is_final
        )
        if is_final:
            self.held.remove(held)
        self.in_flight.append(PendingTaskReport(held, message, self.bench.begin_commit(message)))
        if not waits:
            self.disk_answers(works=True)

    def _complete(self, held: HeldSlice, numbers: Iterable[int]) -> None:
        """Completes the uploads of these tasks."""
        for number in numbers:
            done = held.uploads.pop(number, None)
            if done is not None:
                self.bucket.discard(done.key)

    def _make_report(
        self, held: HeldSlice, end: int, ended: Iterable[int] | None = None, **fields: Any
    ) -> DeliveryReport:
        arrived = held.ended if ended is None else set(ended)
        new = ({*range(held.first, end)} | arrived) - held.ended
        return report(
            held.slice,
            first=held.first,
            settled_end=end,
            arrived=sorted(number for number in arrived if number >= end),
            events=[event(number) for number in sorted(new)],
            uploads=list(held.uploads.values()),
            **fields,
        )

    @precondition(lambda self: self.aborts)
    @rule(data=st.data(), works=st.booleans())
    def abort_an_upload(self, data: st.DataObject, works: bool) -> None:
        found = data.draw(st.sampled_from(self.aborts[-6:]))
        self.aborts.remove(found)
        self._abort(found, works)

    def _abort(self, found: UploadAbort, works: bool) -> None:
        if works:
            self.bucket.discard(found.upload.key)
        self._is_accepted(report(found, error="" if works else "it is down"))

    def _is_accepted(self, message: DeliveryReport) -> bool:
        return message.lease in self.bench.accepted(message)

    def _commit(self, held: HeldSlice, message: DeliveryReport) -> bool:
        return self._finish(PendingTaskReport(held, message, self.bench.begin_commit(message)))

    def _finish(self, in_flight: PendingTaskReport) -> bool:
        """Stores a report. A task whose report is refused has lost its lease."""
        held, message, commit = in_flight
        self.bench.finish_commit(commit)
        is_accepted = message.lease in commit.batch.accepted_leases()
        if is_accepted:
            held.first = message.settled_end
            held.ended = set(message.arrived)
        elif held in self.held:
            self.held.remove(held)
        return is_accepted

    @precondition(lambda self: self.in_flight)
    @rule(works=st.booleans())
    def disk_answers(self, works: bool) -> None:
        while self.in_flight:
            in_flight = self.in_flight.pop(0)
            if works:
                self._finish(in_flight)
            else:
                self.bench.cancel_commit(in_flight.commit)
                if in_flight.held in self.held:
                    self.held.remove(in_flight.held)

    # The broker

    @rule(seconds=st.sampled_from([1.0, 12.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.wait(seconds)
        self.bench.streams.trim(self.bench.now)

    @rule(are_stored=st.booleans())
    def restart(self, are_stored: bool) -> None:
        """Deliveries continue. Their leases are adopted, unless another task has the slice."""
        self.disk_answers(works=are_stored)
        self.bench.restart()

    # Invariants

    def _read_statuses(self) -> None:
        """Reads the statuses, and removes their tasks from `unfinished`."""
        ends = (Status.Success.name, Status.Canceled.name)
        for status, number, _ in self.bench.written_statuses():
            if status in ends:
                self.unfinished.discard((self.generation, number))
        self.bench.delete("status")
        self.bench.create("status", {})

    @invariant()
    def tasks_without_a_status_are_pending(self) -> None:
        if self.in_flight:
            return
        self._read_statuses()
        if "s3TaskExecutor" not in self.exports:
            assert not self.unfinished
            return
        export = self.bench.task_export("s")
        dropped = {each.sequence_number for each in export.dropped}
        log = self.bench.streams.find("s").log
        for generation, number in self.unfinished:
            assert generation == self.generation
            assert number in dropped or export.next_number <= number < log.end, number

    def teardown(self) -> None:
        try:
            self.disk_answers(works=True)
            self.held.clear()
            for _ in range(200):
                self.bench.wait(301)
                work = self.bench.plan()
                if not work:
                    break
                for found in work:
                    if isinstance(found, UploadAbort):
                        self._abort(found, works=True)
                        continue
                    events = []
                    if isinstance(found, TaskSlice):
                        self.bucket -= {each.key for each in found.uploads}
                        numbers = range(found.first, found.end)
                        events = [event(each) for each in numbers if each not in found.arrived]
                    assert self._is_accepted(report(found, events=events))
            self._read_statuses()
            assert not self.unfinished, "these tasks have no status"
            assert not self.bucket, "these uploads are left in the bucket"
            assert self.bench.store.catalog.uploads() == []
        finally:
            self.bench.close()
            shutil.rmtree(self.root)


TestTasksAgainstAList = TasksAgainstAList.TestCase
TestTasksAgainstAList.settings = settings(
    max_examples=settings().max_examples // 4,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
