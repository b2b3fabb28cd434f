"""The broker's part of exports against lists of what has arrived, through all that may happen.

A pipeline delivers as it likes: all, a part, nothing; it reports late, twice or never, vanishes, or
delivers and says nothing. The broker stops, streams and exports come and go. Whatever happens, an
export never says that it is further than its destination, and in the end everything is there.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.streams import Stream
from penstock.model.exporting import ExportReport, ExportSlice, Lane
from tests.broker.exports.workbench import Commit, Workbench, report, skip
from tests.support import MEMORY

PIPELINES = ("p", "q")
LANES = (Lane.steady, Lane.recovering)
LEASE_SECONDS = 10.0
GRACE_SECONDS = 3.0

# By stream: its exports, and what is special about them.
EXPORTS: dict[str, dict[str, dict[str, Any]]] = {
    "files": {"one": {}, "two": {"batchSize": 4, "batchIntervalMillis": 60_000}},
    "memory": {"one": {"priority": 3}, "two": {"startSequenceNumber": 5}},
}
PERSISTENCE = {"files": 0, "memory": 1}

names = st.sampled_from(sorted(EXPORTS))
identifiers = st.sampled_from(["one", "two"])
pipelines = st.sampled_from(PIPELINES)
lanes = st.sampled_from((Lane.steady, Lane.steady, Lane.recovering))


def is_refused(number: int) -> bool:
    """Whether no destination ever takes this message."""
    return number % 7 == 3


class Way(Enum):
    """How a slice is delivered and reported."""

    whole = "whole"
    slow = "slow"
    in_part = "in part"
    failing = "failing"
    in_silence = "in silence"
    to_a_slow_disk = "to a slow disk"
    before_it_is_replaced = "before the export is replaced"
    after_it_was_replaced = "after the export was replaced"


class Destination:
    """What has come to one export, from when it was added until it is removed."""

    def __init__(self, start: int) -> None:
        self.start = start
        # In the order in which they came for the first time.
        self.arrived: list[int] = []
        self.refused: set[int] = set()
        self.holder: Parcel | None = None

    def take(self, number: int) -> None:
        if is_refused(number):
            self.refused.add(number)
        elif number not in self.arrived:
            self.arrived.append(number)

    def has(self, number: int) -> bool:
        return number in self.refused or number in self.arrived


class Parcel:
    """A slice that a pipeline was given."""

    def __init__(
        self,
        found: ExportSlice,
        destination: Destination,
        owner: tuple[str, Lane],
        held_until: float,
    ) -> None:
        self.slice = found
        self.destination = destination
        self.owner = owner
        self.held_until = held_until
        # The names of the stream and of the export.
        self.export = (found.stream, str(found.config["identifier"]))


class ExportsAgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-model-", dir=MEMORY))
        self.fields = {
            name: {identifier: dict(fields) for identifier, fields in exports.items()}
            for name, exports in EXPORTS.items()
        }
        self.destinations: dict[tuple[str, str], Destination] = {}
        self.parcels: list[Parcel] = []
        self.reported: list[ExportReport] = []
        self.commits: list[Commit] = []

    @initialize(kilobits=st.sampled_from([None, 8]), letters=st.sampled_from(["", "letters"]))
    def begin(self, kilobits: int | None, letters: str) -> None:
        self.bench = Workbench(self.root, kilobits_a_second=kilobits, dead_letter_stream=letters)
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

    def _begin_destination(self, name: str, identifier: str) -> None:
        start = self.fields[name][identifier].get("startSequenceNumber", 0)
        self.destinations[name, identifier] = Destination(start)

    def _stream(self, name: str) -> Stream:
        return self.bench.streams.find(name)

    # What clients do

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
        """And add another one of the same name, maybe before anybody has looked."""
        name, identifier = self._draw_export(data)
        if identifier in self.fields[name]:
            self._remove(name, identifier)
            if is_added_again:
                self._add(name, identifier)

    @rule(name=names, identifier=identifiers)
    def add_an_export(self, name: str, identifier: str) -> None:
        if identifier not in self.fields[name]:
            self._add(name, identifier)

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
        """Rather one that somebody delivers to."""
        if self.parcels:
            return self._draw(data).export
        export: tuple[str, str] = data.draw(st.tuples(names, identifiers))
        return export

    @rule(name=names)
    def delete_and_create_again(self, name: str) -> None:
        self.bench.delete(name)
        self._create(name)

    # What pipelines do

    @rule(
        pipeline=pipelines,
        lane=lanes,
        max_bytes=st.sampled_from([1, 500, 1 << 20]),
        max_slices=st.sampled_from([1, 256]),
    )
    def plan(self, pipeline: str, lane: Lane, max_bytes: int, max_slices: int) -> None:
        self._plan(pipeline, lane, max_bytes, max_slices)

    def _plan(self, pipeline: str, lane: Lane, max_bytes: int, max_slices: int) -> list[Parcel]:
        for parcel in self.parcels:
            if parcel.owner == (pipeline, lane):
                parcel.held_until = -math.inf
        slices = self.bench.plan(
            lane,
            pipeline=pipeline,
            max_bytes=max_bytes,
            max_slices=max_slices,
            lease_millis=round(LEASE_SECONDS * 1000),
        )
        return [self._give(found, (pipeline, lane)) for found in slices]

    def _give(self, found: ExportSlice, owner: tuple[str, Lane]) -> Parcel:
        identifier = found.config["identifier"]
        destination = self.destinations[found.stream, identifier]
        stream = self._stream(found.stream)
        assert not self.fields[found.stream][identifier].get("disabled")
        assert max(stream.log.oldest, destination.start) <= found.first < found.end
        assert found.end <= stream.log.end
        assert all(map(destination.has, found.arrived))
        holder = destination.holder
        assert holder is None or holder.held_until <= self.bench.seconds, "somebody has it"
        parcel = Parcel(found, destination, owner, self.bench.seconds + LEASE_SECONDS)
        destination.holder = parcel
        self.parcels.append(parcel)
        return parcel

    @rule(pipeline=pipelines)
    def vanish(self, pipeline: str) -> None:
        for lane in LANES:
            self.bench.exports.depart(pipeline, lane)
        for parcel in self.parcels:
            if parcel.owner[0] == pipeline:
                ends = self.bench.seconds + GRACE_SECONDS
                parcel.held_until = min(parcel.held_until, ends)

    def _deliver(self, parcel: Parcel, end: int) -> None:
        """The messages before `end`, those of them that are still there."""
        found = parcel.slice
        stream = self._stream(found.stream)
        if stream.stored.id == found.stream_id:
            for number in range(max(found.first, stream.log.oldest), end):
                if number not in found.arrived:
                    parcel.destination.take(number)

    # One rule for all ways: a run that leaves out some of its rules still delivers in all of them.
    @rule(data=st.data(), how=st.sampled_from(Way))
    def deliver(self, data: st.DataObject, how: Way) -> None:
        if not self.parcels:
            self._plan("p", Lane.steady, 1 << 20, 256)
        if not self.parcels:
            return
        parcel = self._draw(data)
        match how:
            case Way.whole | Way.slow:
                was_slow = how is Way.slow
                self._commit(self._delivered(parcel, parcel.slice.end, was_slow=was_slow))
            case Way.in_part | Way.failing:
                error = "it is down" if how is Way.failing else ""
                self._deliver_a_part(data, parcel, error)
            case Way.in_silence:
                self._deliver(parcel, parcel.slice.end)
            case Way.to_a_slow_disk:
                message = self._delivered(parcel, parcel.slice.end)
                self.reported.append(message)
                self.commits.append(self.bench.begin_commit(message))
            case Way.before_it_is_replaced | Way.after_it_was_replaced:
                self._report_of_one_that_is_replaced(parcel, how)

    def _deliver_a_part(self, data: st.DataObject, parcel: Parcel, error: str) -> None:
        """To the exports of the memory stream also with holes, as when a call fails in part."""
        found = parcel.slice
        end = data.draw(st.integers(found.first, found.end))
        stream = self._stream(found.stream)
        more: set[int] = set()
        if found.stream == "memory" and stream.stored.id == found.stream_id:
            behind = range(max(end, stream.log.oldest), found.end)
            more = data.draw(st.sets(st.sampled_from(behind))) if behind else set()
        self._commit(self._delivered(parcel, end, error=error, more=sorted(more)))

    def _report_of_one_that_is_replaced(self, parcel: Parcel, how: Way) -> None:
        name, identifier = parcel.export
        if identifier not in self.fields[name]:
            return
        message = self._delivered(parcel, parcel.slice.end)
        is_on_its_way = how is Way.before_it_is_replaced
        commit = self.bench.begin_commit(message) if is_on_its_way else None
        self._remove(name, identifier)
        self._add(name, identifier)
        self._finish(commit or self.bench.begin_commit(message))

    @precondition(lambda self: self.commits)
    @rule(works=st.booleans())
    def disk_answers(self, works: bool) -> None:
        commit = self.commits.pop(0)
        if works:
            self._finish(commit)
        else:
            self.bench.exports.forget(commit.settlement)

    @precondition(lambda self: self.reported)
    @rule(data=st.data())
    def report_again(self, data: st.DataObject) -> None:
        self._commit(data.draw(st.sampled_from(self.reported)))

    def _draw(self, data: st.DataObject) -> Parcel:
        parcel: Parcel = data.draw(st.sampled_from(self.parcels[-8:]))
        return parcel

    def _delivered(
        self,
        parcel: Parcel,
        end: int,
        error: str = "",
        was_slow: bool = False,
        more: Sequence[int] = (),
    ) -> ExportReport:
        found = parcel.slice
        self._deliver(parcel, end)
        for number in more:
            parcel.destination.take(number)
        numbers = [*(n for n in range(found.first, end) if n not in found.arrived), *more]
        known = [number for number in found.arrived if number >= end]
        taken = [number for number in numbers if not is_refused(number)]
        return report(
            found,
            settled_end=end,
            arrived=sorted({*known, *more}),
            exported_messages=len(taken),
            exported_bytes=100 * len(taken),
            sent_bytes=150 * len(taken),
            skipped=[skip(number) for number in numbers if is_refused(number)],
            error=error,
            was_slow=was_slow,
        )

    def _commit(self, message: ExportReport) -> None:
        self.reported.append(message)
        self._finish(self.bench.begin_commit(message))

    def _finish(self, commit: Commit) -> None:
        self.bench.finish_commit(commit)
        leases = {each.report.lease for each in commit.settlement.settled}
        for parcel in self.parcels:
            if parcel.slice.lease in leases:
                parcel.held_until = -math.inf

    # What happens to a broker

    @rule(seconds=st.sampled_from([0.5, 4.0, 30.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.wait(seconds)

    @rule(seconds=st.sampled_from([10, 86_400]))
    def clock_is_put_back(self, seconds: int) -> None:
        self.bench.now -= seconds * 1000

    @rule(are_stored=st.booleans())
    def restart(self, are_stored: bool) -> None:
        """Leases are forgotten; what was about to be stored, may be."""
        for commit in self.commits:
            if are_stored:
                commit.change.store()
        self.commits.clear()
        self.bench.restart()
        for parcel in self.parcels:
            parcel.held_until = -math.inf

    # What always holds

    @invariant()
    def no_export_is_ahead_of_its_destination(self) -> None:
        for (name, identifier), destination in self.destinations.items():
            stream = self._stream(name)
            last = stream.stored.progress[identifier].last_exported
            assert last < stream.log.end
            for number in range(max(destination.start, stream.log.oldest), last + 1):
                assert destination.has(number), f"{name} {identifier}: {number} is missing"

    @invariant()
    def what_comes_in_whole_slices_comes_in_order(self) -> None:
        for (name, _), destination in self.destinations.items():
            if name == "files":
                assert destination.arrived == sorted(destination.arrived)

    def everything_arrives_when_all_is_well(self) -> None:
        while self.commits:
            self.disk_answers(works=True)
        for name, exports in self.fields.items():
            for fields in exports.values():
                fields["disabled"] = False
            self._update(name)
        # As long as the longest back-off, or an interval.
        self.time_passes(400.0)
        for _ in range(1000):
            given = [parcel for lane in LANES for parcel in self._plan("p", lane, 1 << 20, 256)]
            for parcel in given:
                self._commit(self._delivered(parcel, parcel.slice.end))
            outlooks = [
                self.bench.exports.outlook(lane, lambda _: True, self.bench.now) for lane in LANES
            ]
            at = min(outlook.at for outlook in outlooks)
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
                self.everything_arrives_when_all_is_well()
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
pytestmark = pytest.mark.timeout(300)
