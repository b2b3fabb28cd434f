"""An export of messages: when they leave, and how many at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.exports.message_export import MessageExport
from penstock.model.exporting import ExportState
from tests.broker.exports.workbench import Workbench, failure, interim, report, to_http

GATHER = 0.5


@pytest.fixture
def gathering(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench(tmp_path / "gathering", gather_seconds=GATHER)
    yield bench
    bench.close()


def deliver(bench: Workbench, **fields: Any) -> list[tuple[str, int, int]]:
    """Delivers all messages that are due: the stream, first and end of each slice."""
    delivered = []
    for found in bench.plan(**fields):
        bench.commit(report(found))
        delivered.append((found.stream, found.first, found.end))  # type: ignore[union-attr]
    return delivered


def seconds_to_wait(bench: Workbench) -> float:
    return bench.outlook().at - bench.seconds


# Batches


def test_batch_that_was_due_stays_due(bench: Workbench) -> None:
    bench.create("s", to_http(batchSize=4, batchIntervalMillis=60_000), 5)
    found = bench.plan_one()
    assert (found.first, found.end) == (0, 4)
    bench.commit(report(found, settled_end=2))
    rest = bench.plan_one()
    assert (rest.first, rest.end) == (2, 4)
    bench.commit(report(rest))
    assert bench.plan() == []
    bench.wait(60)
    assert bench.plan_one().end == 5


def test_slice_is_limited_in_bytes_and_messages(bench: Workbench) -> None:
    stream = bench.create("s", to_http())
    for _ in range(10):
        bench.append("s", 1, size=1_000_000)
    found = bench.plan_one()
    assert (found.first, found.end) == (0, 8)
    bench.commit(report(found, settled_end=10))
    bench.commit(report(bench.plan_one()))
    stream.append([b""] * 70_000, bench.now)
    found = bench.plan_one()
    assert found.end - found.first == 65_536


def test_message_larger_than_all_limits_goes_alone(bench: Workbench) -> None:
    bench.create("s", to_http())
    bench.append("s", 2, size=3_000_000)
    found = bench.plan_one(max_bytes=1000)
    assert (found.first, found.end) == (0, 1)


def test_messages_of_a_call_that_failed_in_part_go_together_again(bench: Workbench) -> None:
    bench.create("s", to_http(), 500)
    bench.commit(failure(bench.plan_one(), arrived=[450, 499], exported_messages=2))
    bench.wait(1)
    again = bench.plan_one(max_bytes=10)
    assert (again.first, again.end, again.arrived) == (0, 500, [450, 499])


@pytest.mark.parametrize("sent", [1, 10**12])
def test_overhead_on_the_wire_is_learnt_within_limits(tmp_path: Path, sent: int) -> None:
    bench = Workbench(tmp_path / "b", kilobits_per_second=8)
    bench.create("s", to_http(), 3)
    export = bench.export("s")
    assert export.wire_bytes_of(10) == 15
    bench.commit(failure(bench.plan_one(), exported_bytes=10, sent_bytes=sent))
    # Bytes of failed calls are not counted.
    assert export.wire_bytes_of(10) == 15
    bench.wait(10**10)
    bench.commit(report(bench.plan_one(), exported_bytes=10, sent_bytes=sent))
    assert export.wire_bytes_of(10) == min(sent, 1000)
    bench.close()


# Gathering


def test_first_message_after_idling_leaves_at_once(gathering: Workbench) -> None:
    gathering.create("s", to_http())
    for _ in range(3):
        gathering.append("s", 1)
        assert len(deliver(gathering)) == 1
        gathering.wait(GATHER)


def test_export_that_is_up_to_date_waits_for_its_next_moment(gathering: Workbench) -> None:
    stream = gathering.create("s", to_http(batchSize=4), 1)
    gathering.wait(0.1)
    deliver(gathering)
    gathering.wait(0.1)
    # A message does not wake the broker before that, unless a batch is full.
    assert dict(gathering.outlook().needed_ends) == {stream: 5}
    assert seconds_to_wait(gathering) == pytest.approx(0.3)
    gathering.wait(0.3)
    assert dict(gathering.outlook().needed_ends) == {stream: 2}
    assert seconds_to_wait(gathering) == math.inf


def test_messages_that_follow_closely_are_gathered(gathering: Workbench) -> None:
    gathering.create("s", to_http(), 1)
    gathering.wait(0.1)
    deliver(gathering)
    gathering.wait(0.1)
    gathering.append("s", 1)
    assert gathering.plan() == []
    assert gathering.activity("s").state == ExportState.waiting
    assert seconds_to_wait(gathering) == pytest.approx(0.3)
    gathering.wait(0.2)
    gathering.append("s", 1)
    assert gathering.plan() == []
    gathering.wait(0.11)
    assert deliver(gathering) == [("s", 1, 3)]


def test_gathered_messages_of_all_exports_leave_at_the_same_moments(gathering: Workbench) -> None:
    for number, name in enumerate("abc"):
        gathering.create(name, to_http(), 1)
        deliver(gathering)
        gathering.append(name, 1)
        gathering.wait(0.1 + number / 100)
    assert gathering.plan() == []
    gathering.wait(seconds_to_wait(gathering))
    assert [name for name, *_ in deliver(gathering)] == ["a", "b", "c"]
    assert gathering.seconds % GATHER == pytest.approx(0, abs=0.01)


def test_steady_messages_leave_once_per_moment(gathering: Workbench) -> None:
    gathering.create("s", to_http())
    slices = []
    for _ in range(200):
        gathering.append("s", 1)
        slices += deliver(gathering)
        gathering.wait(0.05)
    assert 19 <= len(slices) <= 22
    assert slices[-1][2] >= 190


@pytest.mark.parametrize(
    ("priority", "is_urgent"), [(1, True), (3, True), (4, False), (None, False)]
)
def test_urgent_messages_are_never_gathered(
    gathering: Workbench, priority: int | None, is_urgent: bool
) -> None:
    gathering.create("s", to_http(priority=priority))
    for _ in range(3):
        gathering.append("s", 1)
        delivered = deliver(gathering)
        gathering.wait(0.01)
    assert bool(delivered) is is_urgent


def test_full_batch_leaves_early(gathering: Workbench) -> None:
    stream = gathering.create("s", to_http(batchSize=4), 1)
    deliver(gathering)
    gathering.append("s", 3)
    assert gathering.plan() == []
    assert gathering.outlook().needed_ends == ((stream, 5),)
    gathering.append("s", 1)
    assert deliver(gathering) == [("s", 1, 5)]


def test_batch_interval_is_not_affected(gathering: Workbench) -> None:
    gathering.create("s", to_http(batchSize=4, batchIntervalMillis=60_000), 4)
    assert deliver(gathering) == [("s", 0, 4)]
    gathering.append("s", 4)
    assert deliver(gathering) == [("s", 4, 8)]
    gathering.append("s", 3)
    assert seconds_to_wait(gathering) == pytest.approx(60)
    gathering.wait(59.9)
    assert gathering.plan() == []
    gathering.wait(0.1)
    assert deliver(gathering) == [("s", 8, 11)]


def test_rest_of_messages_that_were_due_is_not_gathered(gathering: Workbench) -> None:
    gathering.create("s", to_http(), 10)
    found = gathering.plan_one(max_bytes=40)
    assert found.end == 4
    gathering.commit(report(found))
    gathering.append("s", 1)
    assert deliver(gathering)[0][1] == 4


def test_retry_is_not_gathered(gathering: Workbench) -> None:
    gathering.create("s", to_http(), 1)
    gathering.wait(0.01)
    gathering.commit(failure(gathering.plan_one()))
    gathering.wait(gathering.export("s").retry_in(gathering.seconds))
    assert deliver(gathering) == [("s", 0, 1)]


def test_messages_of_a_lost_plan_are_not_gathered(gathering: Workbench) -> None:
    """The answer did not reach the task, which asks again."""
    gathering.create("s", to_http(), 1)
    gathering.plan_one()
    assert deliver(gathering) == [("s", 0, 1)]


def test_messages_that_come_during_a_delivery_leave_after_its_report(gathering: Workbench) -> None:
    gathering.create("s", to_http(), 1)
    found = gathering.plan_one()
    gathering.append("s", 1)
    gathering.wait(GATHER)
    gathering.commit(report(found))
    assert deliver(gathering) == [("s", 1, 2)]


def test_no_setting_gathers_nothing(bench: Workbench) -> None:
    bench.create("s", to_http())
    for _ in range(3):
        bench.append("s", 1)
        assert len(deliver(bench)) == 1


def test_gathering_is_measured_from_the_lease_and_not_from_its_reports(
    gathering: Workbench,
) -> None:
    gathering.create("s", to_http(), 2)
    found = gathering.plan_one()
    gathering.wait(0.4)
    gathering.commit(interim(found, settled_end=1))
    gathering.wait(0.1)
    gathering.commit(report(found, first=1))
    gathering.append("s", 1)
    assert len(deliver(gathering)) == 1


def test_messages_are_charged_and_never_metered(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    export = bench.export("s")
    assert isinstance(export, MessageExport)
    assert export.is_charged
