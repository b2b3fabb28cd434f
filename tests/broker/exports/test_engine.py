"""The engine: due work, leases, and accepted reports."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.exports.engine import ExportRegistry, Plan, WakeCondition
from penstock.broker.exports.export import Export, MessageExport
from penstock.broker.exports.task_export import TaskExport
from penstock.broker.streams import Stream
from penstock.model import ExportConfig
from penstock.model.exporting import AnyWork, MessageSlice, TaskSlice, UploadAbort
from tests.broker.exports.workbench import (
    Workbench,
    failure,
    interim,
    report,
    skip,
    status_config,
    task,
    to_http,
    to_s3,
    upload,
)

NOTHING = Plan([], 0, [])


def order(work: list[AnyWork]) -> list[str]:
    return [each.stream for each in work]


# Due work


def test_slice_describes_its_messages_and_export(bench: Workbench) -> None:
    stream = bench.create("s", to_http(priority=2), 3)
    found = bench.plan_one()
    assert (found.stream, found.stream_id, found.kind) == ("s", stream.stored.id, "http")
    assert found.config == {"identifier": "e", "uri": "http://127.0.0.1/", "priority": 2}
    assert (found.first, found.end, found.arrived, found.has_files) == (0, 3, [], True)
    assert [(segment.first, segment.end) for segment in found.segments] == [(0, 3)]


def test_memory_stream_has_no_files(bench: Workbench) -> None:
    bench.create("s", to_http(), 3, persistence=1)
    assert not bench.plan_one().has_files


def test_most_urgent_exports_come_first_and_those_without_a_priority_last(
    bench: Workbench,
) -> None:
    for name, priority in (("none", None), ("ten", 10), ("one", 1), ("two", 2)):
        bench.create(name, to_http(priority=priority), 1)
    assert order(bench.plan()) == ["one", "two", "ten", "none"]


def test_one_plan_orders_messages_files_and_aborts_by_priority(bench: Workbench) -> None:
    bench.create("gone", to_s3(priority=1))
    bench.append_tasks("gone", 1)
    bench.commit(interim(bench.plan_file(), uploads=[upload(0)]))
    bench.delete("gone")
    for name, exports in (
        ("messages 9", to_http(priority=9)),
        ("file 10", to_s3(priority=10)),
        ("file 1", to_s3(priority=1)),
        ("messages 2", to_http(priority=2)),
    ):
        bench.create(name, exports, 1)

    plan = bench.plan()

    assert order(plan) == ["file 1", "messages 2", "messages 9", "file 10", "gone"]
    kinds = [TaskSlice, MessageSlice, MessageSlice, TaskSlice, UploadAbort]
    assert [type(each) for each in plan] == kinds


def test_plan_has_no_work_above_the_max_priority(bench: Workbench) -> None:
    for priority in (1, 3, 4, None):
        bench.create(str(priority), to_http(priority=priority), 1)
    plan = bench.request_plan(max_priority=3)
    assert order(plan.work) == ["1", "3"]
    assert plan.waiting == 2
    condition = bench.wake_condition(max_priority=3, task="other")
    assert condition.at == bench.seconds + 10
    assert order(bench.plan(task="other")) == ["4", "None"]


def test_exports_of_equal_priority_take_turns(bench: Workbench) -> None:
    for name in "abc":
        bench.create(name, to_http(), 5)
    seen = []
    for _ in range(6):
        found = bench.plan_one(max_slices=1)
        bench.commit(report(found, settled_end=found.first + 1))
        seen.append(found.stream)
    assert seen == ["a", "b", "c", "a", "b", "c"]


def test_plan_respects_the_limits_of_its_request(bench: Workbench) -> None:
    for name in "abc":
        bench.create(name, to_http(), 10)
    found = bench.plan(max_bytes=150)
    sizes = [10 * (each.end - each.first) for each in found if isinstance(each, MessageSlice)]
    assert 0 < sum(sizes) <= 150
    assert len(bench.plan(max_slices=2)) == 2
    assert bench.plan(max_bytes=0) == []


@pytest.mark.parametrize("limits", [{"max_slices": 0}, {"max_bytes": 0}])
def test_request_without_slices_counts_due_exports_and_leases_none(
    bench: Workbench, limits: dict[str, Any]
) -> None:
    for name in "abc":
        bench.create(name, to_http(), 1)
    bench.create("idle", to_http())
    bench.create("paused", to_http(disabled=True), 1)
    bench.plan(max_slices=1)
    plan = bench.request_plan(task="driver", **limits)
    assert (plan.work, plan.waiting) == ([], 2)
    assert bench.wake_condition(task="driver", **limits) == WakeCondition()
    assert len(bench.plan(task="another")) == 2


def test_plan_counts_due_exports_that_are_not_leased(bench: Workbench) -> None:
    for name in "abc":
        bench.create(name, to_http(), 1)
    assert bench.request_plan(max_slices=1).waiting == 2


def test_paused_export_ends_its_delivery_and_leases_nothing(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.create("t", to_http(), 5)
    found, other = bench.plan()
    held = [found.lease, other.lease]
    bench.update("s", to_http(disabled=True))
    for _ in range(2):
        plan = bench.request_plan(holding=held)
        assert (plan.ending, plan.lost) == ((found.lease,), [])
    assert bench.commit(report(found, settled_end=2)) == 1
    assert bench.request_plan(holding=held).ending == ()
    assert bench.plan(holding=held) == []
    bench.update("s", to_http(disabled=False))
    assert bench.plan_one(holding=held).first == 2


def test_pause_ends_a_delivery_whose_report_is_being_stored(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    commit = bench.begin_commit(interim(found, settled_end=2))
    bench.update("s", to_http(disabled=True))
    assert bench.request_plan(holding=[found.lease]).ending == (found.lease,)
    bench.finish_commit(commit)
    assert bench.request_plan(holding=[found.lease]).ending == (found.lease,)
    assert bench.commit(report(found, first=2)) == 1


def test_pause_ends_a_delivery_also_after_a_restart(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.update("s", to_http(disabled=True))
    bench.restart()
    plan = bench.request_plan(holding=[found.lease])
    assert (plan.ending, plan.lost) == ((found.lease,), [])
    assert bench.wake_condition() == WakeCondition()


def test_plan_excludes_streams_that_the_token_does_not_see(bench: Workbench) -> None:
    for name in ("mine", "yours"):
        bench.create(name, to_http(), 1)
    assert order(bench.plan(sees=lambda name: name == "mine")) == ["mine"]
    assert bench.request_plan(max_slices=0, task="d", sees=lambda name: name == "mine").waiting == 0
    assert bench.wake_condition(sees=lambda name: name == "yours").at <= bench.seconds


def test_two_exports_of_a_stream_are_independent(bench: Workbench) -> None:
    exports = {"http": [{"identifier": name, "uri": "http://127.0.0.1/"} for name in "ab"]}
    bench.create("s", exports, 4)
    first, second = bench.plan()
    bench.commit(report(first), failure(second))
    assert bench.progress("s", "a").last_exported == 3
    assert bench.progress("s", "b").last_exported == -1


def test_nothing_is_leased_while_progress_cannot_be_stored(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.create("t", to_http(), 5)
    bench.exports.suspension = "the disk is full"
    assert bench.request_plan(holding=[found.lease]) == NOTHING
    assert bench.wake_condition() == WakeCondition()
    bench.exports.suspension = ""
    assert order(bench.plan(holding=[found.lease])) == ["t"]


# Bandwidth


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Workbench]:
    """1000 bytes per second."""
    bench = Workbench(tmp_path / "slow", kilobits_per_second=8)
    yield bench
    bench.close()


def send(bench: Workbench, **fields: Any) -> int:
    """Delivers all messages that are due; returns the bytes on the wire."""
    sent = 0
    for found in bench.plan(**fields):
        assert isinstance(found, MessageSlice)
        size = 20 * (found.end - found.first)
        bench.commit(report(found, exported_bytes=size // 2, sent_bytes=size))
        sent += size
    return sent


def wait_for_work(bench: Workbench) -> None:
    bench.wait(max(bench.wake_condition().at - bench.seconds, 0) + 0.001)


def test_all_exports_share_the_bandwidth(slow: Workbench) -> None:
    for name in "ab":
        slow.create(name, to_http(), 1000)
    sent, began = 0, slow.seconds
    while sent < 20_000:
        sent += send(slow)
        wait_for_work(slow)
    assert 17 <= slow.seconds - began <= 22


def test_urgent_messages_get_the_bandwidth_first(slow: Workbench) -> None:
    slow.create("bulk", to_http(priority=10), 1000)
    slow.create("urgent", to_http(priority=1), 1000)
    sent = {"bulk": 0, "urgent": 0}
    while sent["urgent"] < 10_000:
        for found in slow.plan():
            assert isinstance(found, MessageSlice)
            size = 15 * (found.end - found.first)
            slow.commit(report(found, exported_bytes=size // 2, sent_bytes=size))
            sent[found.stream] += size
        wait_for_work(slow)
    assert sent["bulk"] < 1000


def test_costly_export_blocks_neither_itself_nor_others(slow: Workbench) -> None:
    for name in "ab":
        slow.create(name, to_http(), 3)
    costly, _ = slow.plan()
    slow.commit(report(costly, settled_end=1, exported_bytes=1, sent_bytes=2000))
    served = set()
    for _ in range(2):
        slow.wait(10)
        found = slow.plan_one(max_slices=1)
        slow.commit(report(found, exported_bytes=20, sent_bytes=30))
        served.add(found.stream)
    assert served == {"a", "b"}


def test_lease_without_a_report_stays_charged(slow: Workbench) -> None:
    slow.create("s", to_http())
    slow.append("s", 3, size=900)
    slow.plan_one()
    assert slow.plan() == []
    slow.wait(1)
    assert slow.plan_one().first == 0


@pytest.mark.parametrize("sent", [(0, 0), (50, 0), (50, 100), (400, 0), (0, 400)])
def test_charge_is_corrected_by_the_bytes_of_all_reports(
    slow: Workbench, sent: tuple[int, int]
) -> None:
    slow.create("s", to_http())
    slow.append("s", 10, size=20)
    found = slow.plan_one()
    assert slow.bandwidth.room(1) == 700
    first, last = sent
    slow.commit(interim(found, settled_end=5, exported_messages=5, sent_bytes=first))
    assert slow.bandwidth.room(1) == min(700, 1000 - first)
    slow.commit(report(found, first=5, sent_bytes=last))
    assert slow.bandwidth.room(1) == 1000 - first - last


def test_report_that_loses_its_lease_is_refunded(tmp_path: Path) -> None:
    bench = Workbench(tmp_path / "b", kilobits_per_second=8, dead_letter_stream="letters")
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create("s", to_http(), 10)
    found = bench.plan_one()
    bench.commit(interim(found, settled_end=5, skipped=[skip(2)], sent_bytes=100))
    assert bench.bandwidth.room(1) == 900
    bench.close()


def test_files_are_metered_only_if_bandwidth_is_limited(slow: Workbench, bench: Workbench) -> None:
    for each in (slow, bench):
        each.create("s", to_s3(), 5)
    assert slow.plan_file().is_metered
    assert not bench.plan_file().is_metered


def test_plan_of_files_is_not_charged(slow: Workbench) -> None:
    slow.create("s", to_s3())
    slow.append("s", 100, size=1000)
    found = slow.plan_file()
    slow.commit(report(found, settled_end=1, sent_bytes=10**9))
    assert slow.bandwidth.room(1) == 1000
    assert slow.plan_file().first == 1


def reserve(
    bench: Workbench, priority: int, size: int, answer: Callable[[bool], None] = lambda _: None
) -> None:
    bench.bandwidth.reserve(priority, size, math.inf, lambda: True, answer)


def test_file_gets_bandwidth_before_less_urgent_messages(slow: Workbench) -> None:
    slow.create("s", to_http(priority=10), 1000)
    slow.bandwidth.charge(5, 1000)
    granted: list[bool] = []
    reserve(slow, 1, 10_000, granted.append)
    slow.wait(0.5)
    assert slow.plan() == []
    # Only a grant makes the messages due.
    assert slow.wake_condition().at == math.inf
    slow.bandwidth._grant_pending()
    assert granted == [True]
    # Then its debt is paid first.
    assert slow.wake_condition().at == pytest.approx(slow.seconds + 9.7)
    slow.wait(9.8)
    assert slow.plan_one().stream == "s"


def test_more_urgent_messages_do_not_wait_for_files(slow: Workbench) -> None:
    slow.create("s", to_http(priority=1), 1000)
    reserve(slow, 5, 100_000)
    reserve(slow, 5, 100_000)
    slow.wait(0.5)
    assert slow.plan_one().stream == "s"


def test_equally_urgent_files_and_messages_share_the_bandwidth(slow: Workbench) -> None:
    """Messages come first whenever both may be sent."""
    slow.create("s", to_http(priority=5), 5000)
    files, messages = 0, 0

    def grant(_: bool) -> None:
        nonlocal files
        files += 10_000
        reserve(slow, 5, 10_000, grant)

    reserve(slow, 5, 10_000, grant)
    for _ in range(1000):
        slow.wait(0.1)
        messages += send(slow)
        slow.bandwidth._grant_pending()
    assert 40_000 <= messages <= 60_000
    assert 40_000 <= files <= 60_000


# Leases


def test_slice_is_leased_to_one_task_at_a_time(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.plan_one(task="a")
    bench.append("s", 5)
    assert bench.plan(task="b") == []
    assert bench.plan(task="a", pipeline="another") == []
    bench.wait(10)
    assert bench.plan_one(task="b").end == 10


def test_request_renews_the_leases_that_its_task_holds(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    for _ in range(5):
        bench.wait(9)
        assert bench.request_plan(task="a", holding=[found.lease]) == NOTHING
        assert bench.plan(task="b") == []
    bench.wait(10)
    assert bench.plan_one(task="b").first == 0
    assert bench.request_plan(task="a", holding=[found.lease]).lost == [found.lease]


def test_expired_lease_is_renewed_unless_another_task_has_it(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    bench.wait(100)
    assert bench.request_plan(task="a", holding=[found.lease]).lost == []
    assert bench.plan(task="b") == []


def test_lease_is_renewed_while_a_report_is_stored(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    commit = bench.begin_commit(interim(found, settled_end=2))
    bench.wait(9)
    assert bench.request_plan(task="a", holding=[found.lease]).lost == []
    bench.finish_commit(commit)
    bench.wait(9)
    assert bench.plan(task="b") == []


def test_request_releases_leases_that_its_task_does_not_hold(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.create("t", to_http(), 5)
    first, other = bench.plan()
    second = bench.plan_one(holding=[other.lease])
    assert second.stream == "s"
    assert first.lease != second.lease
    assert bench.commit(report(first)) == 0
    assert bench.commit(report(second), report(other)) == 2


def test_lease_of_a_finished_delivery_is_not_lost(bench: Workbench) -> None:
    """The task may report it while its request is pending, which does not answer the request."""
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.commit(report(found))
    assert bench.request_plan(holding=[found.lease]).lost == []
    bench.append("s", 1)
    bench.plan_one(task="b")
    assert bench.request_plan(holding=[found.lease]).lost == []


@pytest.mark.parametrize("lease", ["", "x", "e/0-5/x", "e/0-5/1"])
def test_unknown_leases_are_lost(bench: Workbench, lease: str) -> None:
    bench.create("s", to_http(), 5)
    plan = bench.request_plan(holding=[lease])
    assert plan.lost == [lease]
    assert order(plan.work) == ["s"]


def test_lease_of_a_removed_export_is_lost(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.update("s", {})
    assert bench.request_plan(holding=[found.lease]).lost == [found.lease]


def test_leases_of_a_disconnected_task_end_after_a_moment(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.plan_one(task="a", lease_millis=600_000)
    bench.disconnect("other")
    bench.disconnect("a", pipeline="another")
    bench.wait(5)
    assert bench.plan(task="b") == []
    bench.disconnect("a")
    assert bench.plan(task="b") == []
    bench.wait(3)
    assert bench.plan_one(task="b").first == 0


def test_task_that_reconnects_keeps_its_leases(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    bench.disconnect("a")
    bench.wait(2)
    assert bench.request_plan(task="a", holding=[found.lease]).lost == []
    bench.wait(9)
    assert bench.plan(task="b") == []


def test_task_that_disconnects_while_its_report_is_stored_loses_the_lease(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a", lease_millis=600_000)
    commit = bench.begin_commit(interim(found, settled_end=2))
    bench.disconnect("a")
    bench.finish_commit(commit)
    bench.wait(3)
    assert bench.plan_one(task="b").first == 2


def test_lease_is_found_while_a_task_holds_it(bench: Workbench) -> None:
    bench.create("s", to_s3(), 5)
    found = bench.plan_file()
    assert bench.exports.find_lease(found.lease) is bench.export("s")
    bench.commit(interim(found))
    assert bench.exports.find_lease(found.lease) is bench.export("s")
    bench.commit(report(found))
    assert bench.exports.find_lease(found.lease) is None
    assert bench.exports.find_lease("x") is None


# Restarts of the broker


def test_restarted_broker_adopts_leases_that_tasks_hold(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.create("t", to_s3(), 5)
    first, second = bench.plan(task="a")
    bench.restart()
    leases = [first.lease, second.lease]
    assert bench.request_plan(task="a", holding=leases) == NOTHING
    assert bench.plan(task="b") == []
    assert bench.accepted(report(first), report(second)) == leases
    assert bench.progress("s").last_exported == bench.progress("t").last_exported == 4


def test_adopted_lease_expires_and_can_be_lost(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    bench.restart()
    bench.request_plan(task="a", holding=[found.lease])
    bench.wait(10)
    assert bench.plan_one(task="b").first == 0
    assert bench.request_plan(task="a", holding=[found.lease]).lost == [found.lease]
    assert bench.commit(report(found)) == 0


@pytest.mark.parametrize("adopts_by_plan", [True, False])
def test_adopted_lease_continues_after_interim_reports(
    bench: Workbench, adopts_by_plan: bool
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    bench.commit(interim(found, settled_end=2, exported_messages=2))
    bench.restart()
    if adopts_by_plan:
        assert bench.request_plan(task="a", holding=[found.lease]).lost == []
    assert bench.commit(interim(found, first=2, settled_end=3)) == 1
    assert bench.commit(report(found, first=3)) == 1
    assert bench.progress("s").last_exported == 4


def test_lease_that_a_report_has_adopted_is_renewed_by_its_task(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    bench.restart()
    assert bench.accepted(interim(found, settled_end=2)) == [found.lease]
    # The task has some seconds to send a request.
    assert bench.plan(task="b") == []
    bench.wait(2)
    assert bench.request_plan(task="a", holding=[found.lease]).lost == []
    bench.wait(9)
    assert bench.plan(task="b") == []
    bench.disconnect("a")
    bench.wait(3)
    assert bench.plan_one(task="b").first == 2


def test_lease_that_a_report_has_adopted_expires_without_a_request(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.restart()
    bench.commit(interim(found, settled_end=2))
    bench.wait(3)
    assert bench.plan_one(task="b").first == 2


def test_reservation_adopts_a_lease(bench: Workbench) -> None:
    bench.create("s", to_s3(), 5)
    found = bench.plan_file()
    bench.restart()
    assert bench.exports.find_lease(found.lease) is bench.export("s")
    assert bench.commit(report(found)) == 1


def test_lease_is_not_adopted_once_another_task_has_the_slice(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    bench.restart()
    other = bench.plan_one(task="b")
    assert bench.request_plan(task="a", holding=[found.lease]).lost == [found.lease]
    assert bench.exports.find_lease(found.lease) is None
    assert bench.commit(report(found)) == 0
    assert bench.commit(report(other)) == 1
    # Nor after it was reported, or released.
    assert bench.request_plan(task="a", holding=[found.lease]).lost == [found.lease]


@pytest.mark.parametrize("is_final", [True, False])
def test_of_two_earlier_leases_the_first_one_is_adopted(bench: Workbench, is_final: bool) -> None:
    bench.create("s", to_http(), 5)
    first, second = bench.plan_one(), bench.plan_one()
    bench.restart()
    assert bench.commit(failure(first, is_final=is_final, error="")) == 1
    assert bench.request_plan(holding=[second.lease], max_slices=0).lost == [second.lease]
    assert bench.commit(report(second)) == 0


def test_report_that_does_not_continue_the_progress_adopts_nothing(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.commit(interim(found, settled_end=3))
    bench.restart()
    # The previous broker has accepted more than the task knows.
    assert bench.commit(report(found)) == 0
    assert bench.request_plan(holding=[found.lease]).lost == []
    assert bench.commit(report(found, first=3)) == 1


def test_lease_is_not_adopted_when_its_export_has_advanced(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    old = bench.plan_one()
    bench.commit(report(bench.plan_one()))
    bench.append("s", 5)
    bench.commit(report(bench.plan_one(), settled_end=7))
    bench.restart()
    assert bench.request_plan(holding=[old.lease], max_slices=0).lost == [old.lease]
    assert bench.commit(report(old)) == 0


def test_lease_of_a_paused_export_is_adopted(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.update("s", to_http(disabled=True))
    bench.restart()
    assert bench.commit(report(found)) == 1


def test_lease_is_adopted_although_messages_were_dropped(
    bench: Workbench,
) -> None:
    stream = bench.create("s", to_http(), maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 6, size=500)
    found = bench.plan_one()
    bench.append("s", 4, size=500)
    assert found.first < stream.log.oldest < found.end
    bench.restart()
    assert bench.request_plan(holding=[found.lease]).lost == []
    assert bench.commit(report(found)) == 1
    assert bench.progress("s").last_exported == found.end - 1


def test_lease_of_messages_that_a_crash_has_lost_is_not_adopted(
    bench: Workbench, tmp_path: Path
) -> None:
    """New messages get the lost sequence numbers, and have not been delivered."""
    bench.create("s", to_http(), 3)
    found = bench.plan_one()
    crashed = found.lease.replace("/0-3/", "/0-5/")
    bench.restart()
    bench.append("s", 5)
    late = report(found, lease=crashed, settled_end=5)
    assert bench.commit(late) == 0
    assert bench.request_plan(holding=[crashed], max_slices=0).lost == [crashed]
    assert bench.plan_one().first == 0


# Reports


def test_interim_report_continues_the_lease_from_its_end(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    found = bench.plan_one()
    assert bench.accepted(interim(found, settled_end=4, exported_messages=4)) == [found.lease]
    assert bench.progress("s").last_exported == 3
    assert bench.plan(task="b") == []
    # The next report has to begin there.
    for first in (0, 3, 5):
        assert bench.commit(interim(found, first=first, settled_end=6)) == 0
    assert bench.commit(interim(found, first=4, settled_end=6, exported_messages=2)) == 1
    assert bench.commit(report(found, first=6)) == 1
    progress = bench.progress("s")
    assert (progress.last_exported, progress.processed_messages) == (9, 10)
    assert bench.plan() == []


def test_task_that_dies_after_an_interim_report_loses_only_the_rest(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    found = bench.plan_one(task="a")
    bench.commit(interim(found, settled_end=4, arrived=[6]))
    bench.wait(10)
    again = bench.plan_one(task="b")
    assert (again.first, again.end, again.arrived) == (4, 10, [6])
    assert bench.commit(interim(found, first=4, settled_end=10)) == 0


def test_interim_report_with_the_whole_slice_keeps_the_lease(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.commit(interim(found, settled_end=5))
    bench.append("s", 5)
    assert bench.plan(task="b") == []
    assert bench.commit(report(found, first=5)) == 1
    assert bench.plan_one(task="b").first == 5


def test_report_is_accepted_once(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    failed = failure(found, exported_messages=1, arrived=[3])
    assert bench.commit(failed) == 1
    assert bench.commit(failed) == 0
    assert bench.commit(report(found)) == 0
    assert bench.progress("s").processed_messages == 1
    assert bench.export("s").failures == 1


def test_second_concurrent_report_of_a_lease_is_refused(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    assert bench.commit(report(found), report(found, settled_end=2)) == 1
    assert bench.progress("s").last_exported == 4


def test_report_after_the_lease_is_accepted_until_another_task_has_the_slice(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    bench.wait(100)
    assert bench.commit(report(found, settled_end=2)) == 1
    found = bench.plan_one(task="a")
    bench.wait(100)
    other = bench.plan_one(task="b")
    assert bench.commit(report(found)) == 0
    assert bench.progress("s").last_exported == 1
    assert bench.commit(report(other)) == 1


@pytest.mark.parametrize("is_final", [True, False])
def test_slice_is_neither_leased_nor_reported_while_a_report_is_stored(
    bench: Workbench, is_final: bool
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    commit = bench.begin_commit(report(found, settled_end=3, is_final=is_final))
    assert bench.commit(report(found)) == 0
    bench.wait(100)
    assert bench.plan(task="a") == bench.plan(task="b") == []
    assert bench.wake_condition() == WakeCondition()
    bench.finish_commit(commit)
    assert bench.plan_one().first == 3
    assert bench.commit(report(found)) == 0


@pytest.mark.parametrize("is_final", [True, False])
def test_report_that_could_not_be_stored_may_be_repeated(bench: Workbench, is_final: bool) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    given = report(found, settled_end=3, is_final=is_final)
    bench.cancel_commit(bench.begin_commit(given))
    assert bench.progress("s").last_exported == -1
    assert bench.commit(given) == 1
    assert bench.progress("s").last_exported == 2


def test_failed_report_cancels_its_batch(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        bench.create(name, to_http(), 5)
    first, second = bench.plan()

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as broken:
        broken.setattr(bench.export("b"), "within_lease", fail)
        with pytest.raises(RuntimeError):
            bench.commit(report(first), report(second))
    assert bench.commit(report(first), report(second)) == 2


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("looks_between", [False, True])
def test_report_of_a_replaced_export_is_refused(
    bench: Workbench, restarts: bool, looks_between: bool
) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one(), arrived=[3]))
    bench.wait(1)
    found = bench.plan_one()
    bench.update("s", {})
    if looks_between:
        assert bench.plan() == []
    bench.update("s", to_http())
    if restarts:
        bench.restart()
    assert bench.commit(report(found)) == 0
    assert bench.progress("s").last_exported == -1
    again = bench.plan_one()
    assert (again.first, again.end, again.arrived) == (0, 5, [])


@pytest.mark.parametrize("is_final", [True, False])
def test_report_being_stored_does_not_change_an_export_that_replaces_its_own(
    bench: Workbench, is_final: bool
) -> None:
    bench.create("s", to_http(), 5)
    commit = bench.begin_commit(report(bench.plan_one(), is_final=is_final))
    bench.update("s", {})
    bench.update("s", to_http())
    bench.finish_commit(commit)
    assert bench.plan_one().first == 0
    bench.restart()
    assert bench.plan_one().first == 0


def test_report_of_a_deleted_stream_is_refused(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.delete("s")
    assert bench.commit(report(found)) == 0
    bench.create("s", to_http(), 5)
    assert bench.commit(report(found)) == 0
    assert bench.progress("s").last_exported == -1


@pytest.mark.parametrize("restarts", [False, True])
def test_export_whose_kind_changes_keeps_only_its_progress(
    bench: Workbench, restarts: bool
) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(report(bench.plan_one(), settled_end=1, arrived=[3]))
    found = bench.plan_one()
    bench.update("s", {"kinesis": [{"identifier": "e", "kinesisStreamName": "k"}]})
    if restarts:
        bench.restart()
    assert bench.commit(report(found)) == 0
    assert bench.request_plan(holding=[found.lease], max_slices=0).lost == [found.lease]
    again = bench.plan_one()
    assert (again.kind, again.first, again.arrived) == ("kinesis", 1, [])


@pytest.mark.parametrize("restarts", [False, True])
def test_report_does_not_move_an_export_beyond_its_slice(bench: Workbench, restarts: bool) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    if restarts:
        bench.restart()
    else:
        bench.append("s", 5)
    wrong = report(found, settled_end=10**9, arrived=[7, 10**9], skipped=[skip(2), skip(10**9)])
    assert bench.commit(wrong) == 1
    progress = bench.progress("s")
    assert (progress.last_exported, progress.skipped_messages) == (4, 1)
    assert bench.export("s").arrived == []


def test_report_with_another_first_message_is_refused(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    assert bench.commit(report(found, first=2)) == 0


@pytest.mark.parametrize("names", [{"stream": "t"}, {"identifier": "f"}])
def test_report_under_other_names_than_those_of_its_lease_is_refused(
    bench: Workbench, names: dict[str, str]
) -> None:
    """Tokens are checked against the names."""
    bench.create("t", to_http("f"))
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    assert bench.commit(report(found, **names)) == 0
    assert bench.commit(report(found)) == 1


def test_report_is_accepted_although_messages_were_dropped(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 8, size=500)
    found = bench.plan_one()
    bench.append("s", 8, size=500)
    assert stream.log.oldest > found.first
    assert bench.commit(interim(found, settled_end=2)) == 1
    assert bench.commit(report(found, first=2, settled_end=3)) == 1
    assert bench.progress("s").last_exported == 2
    assert bench.plan_one().first == stream.log.oldest


def test_totals_count_by_kind(bench: Workbench) -> None:
    bench.create("s", to_http(), 6)
    found = bench.plan_one()
    bench.commit(interim(found, settled_end=2, exported_messages=2, sent_bytes=30))
    bench.commit(
        failure(
            found, first=2, settled_end=4, exported_messages=1, exported_bytes=10, skipped=[skip(3)]
        )
    )
    totals = bench.exports.totals["http"]
    assert (totals.deliveries, totals.failures, totals.messages) == (1, 1, 3)
    assert (totals.bytes, totals.sent_bytes, totals.skipped_messages) == (10, 30, 1)


def test_outage_is_logged_when_it_begins_and_when_it_ends(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.broker.exports")
    bench.create("s", to_http(), 5)
    for _ in range(3):
        bench.commit(failure(bench.plan_one()))
        bench.wait(10)
    bench.commit(report(bench.plan_one(), skipped=[skip(1), skip(2)]))
    assert [record.getMessage() for record in caplog.records] == [
        "stream 's', export 'e': it is down",
        "stream 's', export 'e': works again",
        "stream 's', export 'e': 2 messages were skipped; the last, 2: 2 is malformed",
    ]


# Wake conditions


def test_idle_task_waits_for_the_next_message_of_each_stream(bench: Workbench) -> None:
    a = bench.create("a", to_http())
    b = bench.create("b", to_http(batchSize=4, batchIntervalMillis=60_000), 1)
    bench.create("c", {}, 1)
    bench.create("d", to_http(disabled=True), 1)
    e = bench.create("e", to_s3())
    condition = bench.wake_condition()
    assert dict(condition.needed_ends) == {a: 1, b: 4, e: 1}
    assert condition.at == bench.seconds + 60


@pytest.mark.parametrize(("fields", "seconds"), [({}, 10.0), ({"lease_millis": 200_000}, 200.0)])
def test_task_waits_for_a_lease_to_end(
    bench: Workbench, fields: dict[str, Any], seconds: float
) -> None:
    bench.create("s", to_http(), 5)
    bench.plan_one(**fields)
    # Messages that arrive before that wake no task.
    assert bench.wake_condition() == WakeCondition(bench.seconds + seconds)


def test_task_waits_for_the_end_of_a_pause(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one(), pause_millis=7000))
    assert bench.wake_condition() == WakeCondition(bench.seconds + 7)


def test_clock_that_is_set_back_delays_no_export(bench: Workbench) -> None:
    bench.create("s", to_http(batchSize=4, batchIntervalMillis=60_000), 1)
    assert bench.plan() == []
    bench.now -= 86_400_000
    assert bench.plan_one().end == 1


def test_dropped_tasks_are_canceled_when_the_broker_stops(bench: Workbench) -> None:
    bench.create("status", {})
    bench.create("s", to_s3(**status_config()), timeToLiveMillis=60_000)
    bench.append_tasks("s", 1)
    found = bench.plan_file(lease_millis=3_600_000)
    bench.wait(61)
    bench.streams.trim(bench.now)
    assert bench.written_statuses() == []
    bench.restart()
    assert bench.written_statuses() == [("Canceled", 0, "its time to live has expired")]
    assert bench.status_messages()[0]["statusContext"]["s3ExportTaskDefinition"] == task(0)
    # A report would write a second status.
    assert bench.commit(report(found)) == 0


def test_wake_condition_ignores_removed_exports(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    stream = bench.create("t", to_http(), 5)
    commit = bench.begin_commit(*map(report, bench.plan()))
    bench.update("s", {})
    bench.finish_commit(commit)
    followed = bench.exports.find_wake_condition(commit.batch, bench.now)
    assert followed == WakeCondition(needed_ends=((stream, 6),))


# Released and adopted leases


def test_lease_that_is_not_held_is_released_once(bench: Workbench) -> None:
    """Each plan that releases leases wakes all pending plans, including itself."""
    bench.create("s", to_http(), 5)
    bench.plan_one()
    bench.update("s", to_http(disabled=True))
    assert [bench.request_plan().frees_leases for _ in range(3)] == [True, False, False]


def test_export_that_was_added_after_the_start_adopts_no_lease(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.restart()
    bench.update("s", to_s3())
    bench.update("s", to_http())
    assert bench.request_plan(holding=[found.lease], max_slices=0).lost == [found.lease]
    assert bench.commit(report(found)) == 0


# ExportRegistry


def make_registry(bench: Workbench) -> ExportRegistry:
    def make(stream: Stream, kind: str, config: ExportConfig) -> Export:
        return MessageExport(stream, kind, config, bench.dead_letters, 0.0)

    return ExportRegistry(bench.streams, make)


def names(registry: ExportRegistry) -> list[tuple[str, str]]:
    return [(export.stream.name, export.identifier) for export in registry]


def test_registry_has_the_exports_of_the_current_definitions(bench: Workbench) -> None:
    registry = make_registry(bench)
    bench.create("a", to_http("one"))
    bench.create("b", {**to_http("two"), **to_s3("three")})
    assert names(registry) == [("a", "one"), ("b", "two"), ("b", "three")]
    bench.update("b", to_http("two"))
    bench.delete("a")
    assert names(registry) == [("b", "two")]
    assert list(registry.of(bench.streams.find("b"))) == ["two"]


def test_changed_export_is_kept(bench: Workbench) -> None:
    registry = make_registry(bench)
    stream = bench.create("s", to_http())
    (export,) = registry
    bench.update("s", to_http(priority=3))
    assert registry.of(stream) == {"e": export}
    assert export.config.priority == 3
    assert registry.has(export)


def test_export_that_is_added_again_or_changes_its_kind_is_new(bench: Workbench) -> None:
    registry = make_registry(bench)
    bench.create("s", to_http())
    (export,) = registry
    bench.update("s", to_s3())
    (other,) = registry
    assert export is not other
    assert export.name != other.name
    assert not registry.has(export)
    bench.update("s", {})
    bench.update("s", to_s3())
    assert not registry.has(other)
    (last,) = registry
    bench.delete("s")
    assert not registry.has(last)
    bench.create("s", to_s3())
    assert not registry.has(last)
    assert next(iter(registry)).name != last.name


def test_each_kind_has_its_class(bench: Workbench) -> None:
    stream = bench.create("s", {**to_http("a"), **to_s3("b")})
    exports = bench.exports.of(stream)
    assert isinstance(exports["a"], MessageExport)
    assert isinstance(exports["b"], TaskExport)


def test_unfinished_uploads_are_assigned_to_their_export(bench: Workbench) -> None:
    bench.create("s", {"s3TaskExecutor": [{"identifier": "a"}, {"identifier": "b"}]}, 3)
    (found,) = [each for each in bench.plan() if each.identifier == "b"]
    bench.commit(failure(found, uploads=[upload(1), upload(2)]))
    bench.restart()
    assert bench.task_export("s", "a").uploads == []
    assert bench.task_export("s", "b").uploads == [upload(1), upload(2)]


def test_moved_export_is_new_and_keeps_its_counters(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 0, maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 20, size=500)
    before = bench.export("s")
    lost = bench.activity("s").lost_messages
    assert lost == stream.log.oldest > 0
    asyncio.run(bench.streams.rewind("s", "e", 0))
    after = bench.export("s")
    assert after is not before
    assert after.name != before.name
    assert bench.activity("s").lost_messages == lost
