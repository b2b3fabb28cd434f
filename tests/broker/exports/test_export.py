"""Exports: their position, losses and status, and when messages leave."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from penstock.broker.exports.export import MessageExport, plan_due
from penstock.broker.exports.work_source import Due
from penstock.model.exporting import ExportState
from tests.broker.exports.workbench import Workbench, failure, interim, report, skip, to_http

GATHER = 0.5
NOW = 1_000_000
INTERVAL = 60_000


@pytest.fixture
def gathering(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench(tmp_path / "gathering", gather_seconds=GATHER)
    yield bench
    bench.close()


def deliver(bench: Workbench, **fields: Any) -> list[tuple[str, int, int]]:
    """Delivers all messages that are due; returns the stream, first and end of each slice."""
    delivered = []
    for found in bench.plan(**fields):
        bench.commit(report(found))
        delivered.append((found.stream, found.first, found.end))  # type: ignore[union-attr]
    return delivered


def seconds_to_wait(bench: Workbench) -> float:
    return bench.wake_condition().at - bench.seconds


def state(bench: Workbench) -> str:
    return bench.activity("s").state


# Position


def test_export_continues_after_the_last_exported_message(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    assert bench.export("s").next_number == 0
    bench.commit(report(bench.plan_one(), settled_end=3))
    assert bench.export("s").next_number == 3


def test_export_begins_at_its_start_also_if_that_message_is_not_appended_yet(
    bench: Workbench,
) -> None:
    stream = bench.create("s", to_http(startSequenceNumber=7), 5)
    assert bench.plan() == []
    assert bench.wake_condition().needed_ends == ((stream, 8),)
    bench.append("s", 5)
    found = bench.plan_one()
    assert (found.first, found.end) == (7, 10)


def test_export_continues_after_dropped_messages(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 0, maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 20, size=500)
    assert stream.log.oldest > 0
    assert bench.plan_one().first == stream.log.oldest


# Losses


def test_messages_dropped_before_their_export_are_counted(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 0, maxSize=4096, streamSegmentSize=1024)

    def lost() -> int:
        return bench.activity("s").lost_messages

    bench.append("s", 8, size=500)
    assert lost() == 0
    bench.append("s", 12, size=500)
    assert lost() == stream.log.oldest
    # Messages of a lease may arrive, and messages that have arrived are not lost.
    before = lost()
    found = bench.plan_one()
    bench.append("s", 2, size=500)
    bench.commit(report(found))
    bench.append("s", 6, size=500)
    assert lost() == before
    bench.append("s", 20, size=500)
    assert lost() == before + stream.log.oldest - found.end


def test_unreadable_messages_are_counted_and_logged(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.commit(interim(found, settled_end=2, missing=1))
    bench.commit(report(found, first=2, missing=2))

    assert bench.activity("s").lost_messages == 3
    assert "stream 's', export 'e': 2 messages are unreadable and were not exported" in caplog.text


def test_damage_reported_by_a_task_is_recorded(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 5)
    (data,) = bench.store.root.glob("streams/*/*.data")
    with data.open("r+b") as file:
        file.write(b"!")

    bench.commit(report(bench.plan_one(), missing=1))

    assert [(each.first, each.end) for each in stream.log.damage.ranges()] == [(0, 1)]


# Progress


def test_progress_counts_exported_and_skipped_messages(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    found = bench.plan_one()
    bench.commit(
        report(found, settled_end=6, exported_messages=5, exported_bytes=50, skipped=[skip(2)])
    )
    progress = bench.progress("s")
    assert (progress.last_exported, progress.last_time) == (5, bench.now)
    assert (progress.processed_messages, progress.exported_bytes) == (6, 50)
    assert progress.skipped_messages == 1
    assert progress.error_message == "a message was skipped; the last, 2: 2 is malformed"
    bench.wait(5)
    bench.commit(failure(bench.plan_one(), error="no way"))
    progress = bench.progress("s")
    assert (progress.last_exported, progress.last_time) == (5, bench.now)
    assert (progress.processed_messages, progress.error_message) == (6, "no way")
    bench.wait(5)
    bench.commit(report(bench.plan_one()))
    assert bench.progress("s").error_message == ""


def test_progress_of_interim_reports_adds_up(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    found = bench.plan_one()
    bench.commit(
        interim(found, settled_end=4, exported_messages=3, exported_bytes=30, skipped=[skip(1)])
    )
    bench.commit(report(found, first=4, exported_messages=5, exported_bytes=50, skipped=[skip(8)]))
    progress = bench.progress("s")
    assert (progress.last_exported, progress.exported_bytes) == (9, 80)
    assert (progress.processed_messages, progress.skipped_messages) == (10, 2)


def test_arrived_messages_are_kept_until_the_position_passes_them(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    bench.commit(failure(bench.plan_one(), arrived=[2, 5]))
    bench.wait(1)
    found = bench.plan_one()
    assert found.arrived == [2, 5]
    bench.commit(report(found, settled_end=4, arrived=[5]))
    found = bench.plan_one()
    assert (found.first, found.arrived) == (4, [5])


# State


def test_state_follows_messages_and_leases(bench: Workbench) -> None:
    bench.create("s", to_http())
    assert state(bench) == ExportState.up_to_date
    bench.append("s", 5)
    assert state(bench) == ExportState.due
    found = bench.plan_one()
    assert state(bench) == ExportState.exporting
    commit = bench.begin_commit(interim(found, settled_end=2))
    assert state(bench) == ExportState.exporting
    bench.finish_commit(commit)
    assert state(bench) == ExportState.exporting
    bench.wait(10)
    assert state(bench) == ExportState.due
    bench.commit(report(found, first=2))
    assert state(bench) == ExportState.up_to_date


def test_state_of_an_incomplete_batch_is_waiting(bench: Workbench) -> None:
    bench.create("s", to_http(batchSize=4, batchIntervalMillis=60_000), 3)
    assert state(bench) == ExportState.waiting
    bench.append("s", 1)
    assert state(bench) == ExportState.due


def test_state_paused_takes_precedence(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one()))
    bench.update("s", to_http(disabled=True))
    assert state(bench) == ExportState.paused


def test_failing_export_is_exporting_after_a_report_with_progress(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one()))
    assert state(bench) == ExportState.failing
    bench.wait(1)
    found = bench.plan_one()
    assert state(bench) == ExportState.failing
    bench.commit(interim(found))
    assert state(bench) == ExportState.failing
    bench.commit(interim(found, settled_end=1))
    assert state(bench) == ExportState.exporting
    bench.commit(failure(found, first=1))
    assert state(bench) == ExportState.failing


def test_status_has_the_time_of_the_oldest_pending_message(bench: Workbench) -> None:
    bench.create("s", to_http())
    assert bench.activity("s").waiting_since is None
    began = bench.now
    bench.append("s", 2)
    bench.wait(60)
    bench.append("s", 1)
    assert bench.activity("s").waiting_since == began
    bench.commit(report(bench.plan_one(), settled_end=2))
    assert bench.activity("s").waiting_since == bench.now


# Batches


def due(first: int, end: int, interval: int | None, age: int = 0) -> Due:
    return plan_due(first, end, 4, interval, lambda _: NOW - age, NOW)


def test_without_an_interval_all_messages_may_leave() -> None:
    assert due(3, 5, None) == Due(5, None, 6)


def test_with_an_interval_whole_batches_leave_and_others_wait_for_time_or_more_messages() -> None:
    assert due(0, 11, INTERVAL) == Due(8, NOW + INTERVAL, 12)
    assert due(0, 3, INTERVAL, age=10) == Due(0, NOW - 10 + INTERVAL, 4)


def test_age_does_not_matter_if_all_batches_are_whole() -> None:
    assert due(2, 10, INTERVAL, age=2 * INTERVAL) == Due(10, None, 11)


@pytest.mark.parametrize(("age", "end"), [(INTERVAL - 1, 4), (INTERVAL, 6), (10 * INTERVAL, 6)])
def test_messages_leave_after_their_interval(age: int, end: int) -> None:
    assert due(0, 6, INTERVAL, age).end == end


def test_interval_begins_with_the_first_message_of_the_incomplete_batch() -> None:
    times = {10: NOW - 2 * INTERVAL, 18: NOW - 1}
    assert plan_due(10, 19, 4, INTERVAL, times.__getitem__, NOW) == Due(18, NOW - 1 + INTERVAL, 22)


def test_message_with_a_time_in_the_future_leaves_at_once() -> None:
    assert due(0, 3, INTERVAL, age=-1) == Due(3, None, 4)


@hypothesis.given(
    first=st.integers(0, 100),
    count=st.integers(1, 50),
    size=st.integers(1, 20),
    interval=st.none() | st.integers(60_000, 100_000),
    age=st.integers(-10, 200_000),
)
def test_more_messages_are_due_exactly_at_the_returned_time_or_end(
    first: int, count: int, size: int, interval: int | None, age: int
) -> None:
    def plan(end: int, now: int) -> Due:
        return plan_due(first, end, size, interval, lambda _: NOW - age, now)

    end = first + count
    found = plan(end, NOW)
    assert first <= found.end <= end < found.needed_end
    if found.at is not None:
        assert plan(end, found.at).end == end
        assert plan(end, found.at - 1).end == found.end
        assert plan(found.needed_end, NOW).end == found.needed_end
        assert plan(found.needed_end - 1, NOW).end == found.end
    else:
        assert found.end == end


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


def test_message_larger_than_all_limits_is_sent_alone(bench: Workbench) -> None:
    bench.create("s", to_http())
    bench.append("s", 2, size=3_000_000)
    found = bench.plan_one(max_bytes=1000)
    assert (found.first, found.end) == (0, 1)


def test_messages_of_a_partly_failed_call_are_resent_together(bench: Workbench) -> None:
    bench.create("s", to_http(), 500)
    bench.commit(failure(bench.plan_one(), arrived=[450, 499], exported_messages=2))
    bench.wait(1)
    again = bench.plan_one(max_bytes=10)
    assert (again.first, again.end, again.arrived) == (0, 500, [450, 499])


@pytest.mark.parametrize("sent", [1, 10**12])
def test_overhead_on_the_wire_is_measured_within_limits(tmp_path: Path, sent: int) -> None:
    bench = Workbench(tmp_path / "b", kilobits_per_second=8)
    bench.create("s", to_http(), 3)

    def wire_bytes() -> float:
        """The estimated bytes of the first message on the wire."""
        return bench.export("s").plan_slice(1, 10, math.inf).wire_bytes

    assert wire_bytes() == 15
    bench.commit(failure(bench.plan_one(), exported_bytes=10, sent_bytes=sent))
    # Bytes of failed calls are not counted.
    assert wire_bytes() == 15
    bench.wait(10**10)
    bench.commit(report(bench.plan_one(), settled_end=0, exported_bytes=10, sent_bytes=sent))
    assert wire_bytes() == min(sent, 1000)
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
    # Before that, a message does not wake a task, unless a batch is full.
    assert dict(gathering.wake_condition().needed_ends) == {stream: 5}
    assert seconds_to_wait(gathering) == pytest.approx(0.3)
    gathering.wait(0.3)
    assert dict(gathering.wake_condition().needed_ends) == {stream: 2}
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
    assert gathering.wake_condition().needed_ends == ((stream, 5),)
    gathering.append("s", 1)
    assert deliver(gathering) == [("s", 1, 5)]


def test_gathering_does_not_affect_the_batch_interval(gathering: Workbench) -> None:
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
    """The answer did not reach the task, which repeats its request."""
    gathering.create("s", to_http(), 1)
    gathering.plan_one()
    assert deliver(gathering) == [("s", 0, 1)]


def test_messages_appended_during_a_delivery_leave_after_its_report(gathering: Workbench) -> None:
    gathering.create("s", to_http(), 1)
    found = gathering.plan_one()
    gathering.append("s", 1)
    gathering.wait(GATHER)
    gathering.commit(report(found))
    assert deliver(gathering) == [("s", 1, 2)]


def test_messages_are_not_gathered_without_the_setting(bench: Workbench) -> None:
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


def test_message_export_delivers_no_files(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    export = bench.export("s")
    assert isinstance(export, MessageExport)
    assert not export.delivers_files
