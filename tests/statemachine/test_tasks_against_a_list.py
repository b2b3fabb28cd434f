"""S3 tasks against a list, while pipelines come and go, tasks expire and exports are removed.

Whatever happens in whatever order: of each task something is told in the end, either that it was
carried out or that it was canceled; and no upload that was begun is left in a bucket.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.model.exporting import ABANDONED_UPLOAD, ExportReport, ExportSlice, Lane, Upload
from penstock.model.status import Status
from tests.broker.exports.workbench import (
    Commit,
    Workbench,
    event,
    interim,
    report,
    to_http,
    to_s3,
    told_in,
    upload,
)
from tests.support import MEMORY

TTL = 60_000

pipelines = st.sampled_from(["p", "q"])
# What a stream may be defined with: statuses go to another stream, always.
definitions = st.sampled_from([to_s3(**told_in()), to_s3(priority=1, **told_in()), {}, to_http()])


class Held:
    """A slice that a pipeline has, and the uploads that it goes on with."""

    def __init__(self, found: ExportSlice) -> None:
        self.slice = found
        self.uploads = {each.sequence_number: each for each in found.uploads}


class TasksAgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-model-", dir=MEMORY))
        self.bench = Workbench(self.root)
        # One that is deleted and created again begins another life.
        self.life = 0
        self.ids = itertools.count()
        # Tasks of which something has to be told, by the life of the stream and their number.
        self.owed: set[tuple[int, int]] = set()
        # The uploads that there are in the bucket.
        self.bucket: set[str] = set()
        self.held: list[Held] = []
        self.commits: list[Commit] = []
        self.bench.create("status", {})
        self.exports: dict[str, Any] = to_s3(**told_in())
        self._create()

    # What clients do

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
            self.owed |= {(self.life, number) for number in range(first, first + count)}
        self.bench.append_tasks("s", count)

    @rule(exports=definitions)
    def update(self, exports: dict[str, Any]) -> None:
        had_tasks = "s3TaskExecutor" in self.exports
        self.exports = exports
        self.bench.update("s", exports, **self._fields())
        if "s3TaskExecutor" in exports and not had_tasks:
            log = self.bench.streams.find("s").log
            first = self.bench.export("s").next_number
            self.owed |= {(self.life, number) for number in range(first, log.end)}

    @rule()
    def delete_and_create_again(self) -> None:
        self.bench.delete("s")
        self._collect()
        assert not self.owed, "the stream is gone, and of these nothing was told"
        self.life += 1
        self._create()

    # What pipelines do

    @rule(pipeline=pipelines, max_bytes=st.sampled_from([200, 1 << 20]))
    def plan(self, pipeline: str, max_bytes: int) -> None:
        for found in self.bench.plan(Lane.files, pipeline=pipeline, max_bytes=max_bytes):
            self.held.append(Held(found))

    def _draw(self, data: st.DataObject) -> Held:
        held: Held = data.draw(st.sampled_from(self.held[-6:]))
        return held

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def begin_an_upload(self, data: st.DataObject) -> None:
        """It is told before it is created, and again when it has a name."""
        held = self._draw(data)
        found = held.slice
        if found.kind == ABANDONED_UPLOAD:
            return
        number = data.draw(st.integers(found.first, found.end - 1))
        if number in held.uploads:
            return
        began = upload(number, "", key=f"key/{next(self.ids)}")
        held.uploads[number] = began
        if not self._is_accepted(interim(found, uploads=list(held.uploads.values()))):
            self.held.remove(held)
            return
        self.bucket.add(began.key)
        held.uploads[number] = upload(number, f"id of {began.key}", key=began.key)
        if not self._is_accepted(interim(found, uploads=list(held.uploads.values()))):
            self.held.remove(held)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), waits=st.booleans())
    def finish_a_slice(self, data: st.DataObject, waits: bool) -> None:
        held = self._draw(data)
        self.held.remove(held)
        found = held.slice
        if found.kind == ABANDONED_UPLOAD:
            self._abort(found, data.draw(st.booleans()))
            return
        end = data.draw(st.integers(found.first, found.end))
        done = {number for number in range(found.first, end) if number not in found.arrived}
        finished = [each for each in held.uploads.values() if each.sequence_number in done]
        self.bucket -= {each.key for each in finished}
        left = [each for each in held.uploads.values() if each.sequence_number not in done]
        given_up: list[Upload] = (
            data.draw(st.lists(st.sampled_from(left), unique_by=id)) if left else []
        )
        message = report(
            found,
            settled_end=end,
            arrived=[number for number in found.arrived if number >= end],
            events=[event(number) for number in sorted(done)],
            uploads=[each for each in left if each not in given_up],
            abandoned=given_up,
            error=data.draw(st.sampled_from(["", "it is down"])),
        )
        self.commits.append(self.bench.begin_commit(message))
        if not waits:
            self.disk_answers(works=True)

    def _abort(self, found: ExportSlice, works: bool) -> None:
        (abandoned,) = found.uploads
        if works:
            self.bucket.discard(abandoned.key)
        self._is_accepted(report(found, error="" if works else "it is down"))

    def _is_accepted(self, message: ExportReport) -> bool:
        commit = self.bench.begin_commit(message)
        self.bench.finish_commit(commit)
        return message.lease in commit.settlement.accepted

    @precondition(lambda self: self.commits)
    @rule(works=st.booleans())
    def disk_answers(self, works: bool) -> None:
        while self.commits:
            commit = self.commits.pop(0)
            if works:
                self.bench.finish_commit(commit)
            else:
                self.bench.exports.forget(commit.settlement)

    # What happens to a broker

    @rule(seconds=st.sampled_from([1.0, 12.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.wait(seconds)
        self.bench.streams.trim(self.bench.now)

    @rule(are_stored=st.booleans())
    def restart(self, are_stored: bool) -> None:
        self.disk_answers(works=are_stored)
        self.bench.restart()

    # What holds

    def _collect(self) -> None:
        """Statuses are read, and what they are about is no longer owed."""
        ends = (Status.Success.name, Status.Canceled.name)
        for status, number, _ in self.bench.told():
            if status in ends:
                self.owed.discard((self.life, number))
        self.bench.delete("status")
        self.bench.create("status", {})

    @invariant()
    def what_is_owed_is_still_to_come(self) -> None:
        """Whoever asks later gets every task of which nothing was told yet."""
        if self.commits:
            return
        self._collect()
        if "s3TaskExecutor" not in self.exports:
            assert not self.owed
            return
        export = self.bench.export("s")
        dropped = {each.sequence_number for each in export.dropped}
        log = self.bench.streams.find("s").log
        for life, number in self.owed:
            assert life == self.life
            assert number in dropped or export.next_number <= number < log.end, number

    def teardown(self) -> None:
        try:
            self.disk_answers(works=True)
            self.held.clear()
            for _ in range(200):
                self.bench.wait(301)
                slices = self.bench.plan(Lane.files)
                if not slices:
                    break
                for found in slices:
                    if found.kind == ABANDONED_UPLOAD:
                        self._abort(found, works=True)
                        continue
                    self.bucket -= {each.key for each in found.uploads}
                    events = [event(number) for number in range(found.first, found.end)]
                    assert self._is_accepted(report(found, events=events))
            self._collect()
            assert not self.owed, "nobody tells what became of these"
            assert not self.bucket, "these are left in the bucket"
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
