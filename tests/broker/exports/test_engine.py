"""All exports: what is due in a lane, who has it, and which reports count."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.exporting import ExportSlice, Lane
from tests.broker.exports.workbench import (
    Workbench,
    failure,
    interim,
    report,
    skip,
    to_http,
    to_s3,
    upload,
)


def order(slices: list[ExportSlice]) -> list[str]:
    return [found.stream for found in slices]


# What is due


def test_a_slice_says_all_that_a_pipeline_has_to_know(bench: Workbench) -> None:
    stream = bench.create("s", to_http(priority=2), 3)
    found = bench.plan_one()
    assert (found.stream, found.stream_id, found.kind) == ("s", stream.stored.id, "http")
    assert found.config == {"identifier": "e", "uri": "http://127.0.0.1/", "priority": 2}
    assert (found.first, found.end, found.arrived, found.has_files) == (0, 3, [], True)
    assert [(segment.first, segment.end) for segment in found.segments] == [(0, 3)]


def test_a_memory_stream_has_no_files(bench: Workbench) -> None:
    bench.create("s", to_http(), 3, persistence=1)
    assert not bench.plan_one().has_files


def test_the_most_urgent_come_first_and_those_without_a_priority_last(bench: Workbench) -> None:
    for name, priority in (("none", None), ("ten", 10), ("one", 1), ("two", 2)):
        bench.create(name, to_http(priority=priority), 1)
    assert order(bench.plan()) == ["one", "two", "ten", "none"]


def test_equals_take_turns(bench: Workbench) -> None:
    for name in "abc":
        bench.create(name, to_http(), 5)
    seen = []
    for _ in range(6):
        found = bench.plan_one(max_slices=1)
        bench.commit(report(found, settled_end=found.first + 1))
        seen.append(found.stream)
    assert seen == ["a", "b", "c", "a", "b", "c"]


def test_what_was_planned_and_not_begun_comes_first_the_next_time(bench: Workbench) -> None:
    for name in "abc":
        bench.create(name, to_http(), 5)
    first, *_ = bench.plan()
    # There was no time for the others.
    bench.commit(report(first, settled_end=first.first + 1))
    assert order(bench.plan()) == ["b", "c", "a"]


def test_lanes_are_those_that_have_exports(bench: Workbench) -> None:
    def lanes() -> list[Lane]:
        return bench.exports.lanes(lambda _: True)

    assert lanes() == []
    bench.create("paused", to_s3(disabled=True), 1)
    assert lanes() == []
    bench.create("http", to_http(), 1)
    assert lanes() == [Lane.steady]
    bench.create("s3", to_s3(), 1)
    assert lanes() == [Lane.steady, Lane.files]
    bench.commit(failure(bench.plan_one(), was_slow=True))
    assert lanes() == [Lane.recovering, Lane.files]
    assert bench.exports.lanes(lambda name: name == "s3") == [Lane.files]


def test_a_plan_is_no_larger_than_was_asked_for(bench: Workbench) -> None:
    for name in "abc":
        bench.create(name, to_http(), 10)
    found = bench.plan(max_bytes=150)
    assert 0 < sum(10 * (each.end - each.first) for each in found) <= 150
    assert len(bench.plan(max_slices=2)) == 2


def test_a_pause_keeps_back_what_is_planned_next_and_not_what_is_on_its_way(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.update("s", to_http(disabled=True))
    assert bench.commit(report(found, settled_end=2)) == 1
    assert bench.plan() == []
    bench.update("s", to_http(disabled=False))
    assert bench.plan_one().first == 2


def test_streams_that_a_token_does_not_see_are_left_out(bench: Workbench) -> None:
    for name in ("mine", "yours"):
        bench.create(name, to_http(), 1)
    assert order(bench.plan(sees=lambda name: name == "mine")) == ["mine"]
    outlook = bench.exports.outlook(Lane.steady, lambda name: name == "yours", bench.now)
    assert outlook.at <= bench.seconds


def test_two_exports_of_a_stream_go_at_their_own_pace(bench: Workbench) -> None:
    exports = {"http": [{"identifier": name, "uri": "http://127.0.0.1/"} for name in "ab"]}
    bench.create("s", exports, 4)
    first, second = bench.plan()
    bench.commit(report(first), failure(second))
    assert bench.progress("s", "a").last_exported == 3
    assert bench.progress("s", "b").last_exported == -1


# Bandwidth


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Workbench]:
    """A thousand bytes a second."""
    bench = Workbench(tmp_path / "slow", kilobits_a_second=8)
    yield bench
    bench.close()


def test_all_exports_share_the_bandwidth(slow: Workbench) -> None:
    for name in "ab":
        slow.create(name, to_http(), 1000)
    sent, began = 0, slow.seconds
    while sent < 20_000:
        for found in slow.plan():
            size = 20 * (found.end - found.first)
            slow.commit(report(found, exported_bytes=size // 2, sent_bytes=size))
            sent += size
        outlook = slow.exports.outlook(Lane.steady, lambda _: True, slow.now)
        slow.wait(max(outlook.at - slow.seconds, 0) + 0.001)
    assert 17 <= slow.seconds - began <= 22


def test_a_costly_export_stops_neither_itself_nor_others(slow: Workbench) -> None:
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


def test_what_a_pipeline_may_have_sent_before_it_vanished_stays_charged(slow: Workbench) -> None:
    slow.create("s", to_http())
    slow.append("s", 3, size=900)
    slow.plan_one()
    assert slow.plan() == []
    slow.wait(1)
    assert slow.plan_one().first == 0


def test_a_file_may_send_what_is_allowed_and_others_wait_until_it_is_made_up_for(
    slow: Workbench,
) -> None:
    for name in "ab":
        slow.create(name, to_s3(), 5)
    found = slow.plan_one(Lane.files)
    assert (found.stream, found.max_sent_bytes) == ("a", 1000)
    slow.commit(report(found, settled_end=1, sent_bytes=60_000))
    assert slow.plan(Lane.files) == []
    outlook = slow.exports.outlook(Lane.files, lambda _: True, slow.now)
    assert outlook.at == pytest.approx(slow.seconds + 60)
    slow.wait(59)
    assert slow.plan(Lane.files) == []
    slow.wait(2)
    assert slow.plan_one(Lane.files).stream == "b"


def test_what_a_file_did_not_send_others_may(slow: Workbench) -> None:
    slow.create("s", to_s3(), 5)
    found = slow.plan_one(Lane.files)
    slow.commit(interim(found, uploads=[upload(0)]))
    assert slow.plan(Lane.files, pipeline="q") == []
    slow.commit(report(found, settled_end=1, sent_bytes=0))
    assert slow.plan_one(Lane.files).first == 1


def test_messages_leave_while_a_file_is_made_up_for(slow: Workbench) -> None:
    slow.create("file", to_s3(), 2)
    slow.create("s", to_http(), 1000)
    slow.commit(report(slow.plan_one(Lane.files), settled_end=1, sent_bytes=10**7))
    sent, began = 0, slow.seconds
    while sent < 10_000:
        for found in slow.plan():
            size = 20 * (found.end - found.first)
            slow.commit(report(found, exported_bytes=size // 2, sent_bytes=size))
            sent += size
        outlook = slow.exports.outlook(Lane.steady, lambda _: True, slow.now)
        slow.wait(max(outlook.at - slow.seconds, 0) + 0.001)
    # Half of a thousand bytes a second.
    assert 17 <= slow.seconds - began <= 22


# Who has it


def test_a_slice_is_given_to_one_pipeline_at_a_time(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.plan_one(pipeline="p")
    bench.append("s", 5)
    assert bench.plan(pipeline="q") == []
    bench.wait(10)
    assert bench.plan_one(pipeline="q").end == 10


def test_a_pipeline_that_asks_again_has_given_back_what_it_had_in_that_lane(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 5)
    first = bench.plan_one()
    assert bench.plan(Lane.recovering) == []
    second = bench.plan_one()
    assert (first.first, first.lease) != (second.first, second.lease)
    assert bench.commit(report(first)) == 0
    assert bench.commit(report(second)) == 1


def test_the_slices_of_a_pipeline_that_is_gone_are_free_after_a_moment(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.plan_one(pipeline="p", lease_millis=600_000)
    bench.exports.depart("other", Lane.steady)
    bench.exports.depart("p", Lane.recovering)
    bench.wait(5)
    assert bench.plan(pipeline="q") == []
    bench.exports.depart("p", Lane.steady)
    assert bench.plan(pipeline="q") == []
    bench.wait(3)
    assert bench.plan_one(pipeline="q").first == 0


# Which reports count


def test_a_report_counts_once(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    failed = failure(found, exported_messages=1, arrived=[3])
    assert bench.commit(failed) == 1
    assert bench.commit(failed) == 0
    assert bench.commit(report(found)) == 0
    assert bench.progress("s").processed_messages == 1
    assert bench.export("s").failures == 1


def test_two_reports_of_a_slice_at_once_are_one(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    assert bench.commit(report(found), report(found, settled_end=2)) == 1
    assert bench.progress("s").last_exported == 4


def test_a_report_after_the_lease_counts_until_somebody_else_has_the_slice(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(pipeline="p")
    bench.wait(100)
    assert bench.commit(report(found, settled_end=2)) == 1
    found = bench.plan_one(pipeline="p")
    bench.wait(100)
    other = bench.plan_one(pipeline="q")
    assert bench.commit(report(found)) == 0
    assert bench.progress("s").last_exported == 1
    assert bench.commit(report(other)) == 1


def test_while_a_report_is_stored_nobody_gets_the_slice_or_reports_it_again(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    commit = bench.begin_commit(report(found, settled_end=3))
    assert bench.commit(report(found)) == 0
    bench.wait(100)
    assert bench.plan() == bench.plan(pipeline="q") == []
    outlook = bench.exports.outlook(Lane.steady, lambda _: True, bench.now)
    assert outlook == (math.inf, [])
    bench.finish_commit(commit)
    assert bench.plan_one().first == 3
    assert bench.commit(report(found)) == 0


def test_a_report_that_could_not_be_stored_may_come_again(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    commit = bench.begin_commit(report(found))
    bench.exports.forget(commit.settlement)
    assert bench.progress("s").last_exported == -1
    assert bench.commit(report(found)) == 1


def test_a_report_counts_with_the_next_broker_if_nothing_has_happened(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.restart()
    assert bench.commit(report(found, settled_end=3)) == 1
    assert bench.progress("s").last_exported == 2
    assert bench.commit(report(found)) == 0
    again = bench.plan_one()
    bench.restart()
    assert bench.plan_one(pipeline="q").first == 3
    assert bench.commit(report(again)) == 0


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("looks_between", [False, True])
def test_a_report_of_an_export_that_was_replaced_is_not_about_the_one_that_is_there_now(
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


def test_a_report_on_its_way_to_the_disk_is_not_about_an_export_that_takes_the_place(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 5)
    commit = bench.begin_commit(report(bench.plan_one()))
    bench.update("s", {})
    bench.update("s", to_http())
    bench.finish_commit(commit)
    assert bench.plan_one().first == 0
    bench.restart()
    assert bench.plan_one().first == 0


def test_a_report_of_another_stream_of_that_name_does_not_count(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.delete("s")
    assert bench.commit(report(found)) == 0
    bench.create("s", to_http(), 5)
    assert bench.commit(report(found)) == 0
    assert bench.progress("s").last_exported == -1


@pytest.mark.parametrize("restarts", [False, True])
def test_one_whose_kind_changes_keeps_its_progress_and_nothing_else(
    bench: Workbench, restarts: bool
) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(report(bench.plan_one(), settled_end=1, arrived=[3]))
    found = bench.plan_one()
    bench.update("s", {"kinesis": [{"identifier": "e", "kinesisStreamName": "k"}]})
    if restarts:
        bench.restart()
    assert bench.commit(report(found)) == 0
    again = bench.plan_one()
    assert (again.kind, again.first, again.arrived) == ("kinesis", 1, [])


@pytest.mark.parametrize("restarts", [False, True])
def test_no_report_brings_an_export_beyond_its_slice(bench: Workbench, restarts: bool) -> None:
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


def test_a_report_from_another_place_than_its_slice_does_not_count(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    assert bench.commit(report(found, first=2)) == 0


def test_what_was_dropped_meanwhile_does_not_spoil_a_report(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 8, size=500)
    found = bench.plan_one()
    bench.append("s", 8, size=500)
    assert stream.log.oldest > found.first
    assert bench.commit(report(found, settled_end=3)) == 1
    assert bench.progress("s").last_exported == 2
    assert bench.plan_one().first == stream.log.oldest


def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(
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
        "stream 's', export 'e': it works again",
        "stream 's', export 'e': 2 messages were skipped; the last, 2: 2 is malformed",
    ]


# What to wait for


def test_an_idle_lane_waits_for_the_next_message_of_each_stream(bench: Workbench) -> None:
    a = bench.create("a", to_http())
    b = bench.create("b", to_http(batchSize=4, batchIntervalMillis=60_000), 1)
    bench.create("c", {}, 1)
    bench.create("d", to_http(disabled=True), 1)
    outlook = bench.exports.outlook(Lane.steady, lambda _: True, bench.now)
    assert dict(outlook.needed_ends) == {a: 1, b: 4}
    assert outlook.at == bench.seconds + 60


@pytest.mark.parametrize(("fields", "seconds"), [({}, 10.0), ({"lease_millis": 200_000}, 200.0)])
def test_a_lane_waits_for_a_lease_to_end(
    bench: Workbench, fields: dict[str, Any], seconds: float
) -> None:
    bench.create("s", to_http(), 5)
    bench.plan_one(**fields)
    outlook = bench.exports.outlook(Lane.steady, lambda _: True, bench.now)
    assert outlook.at == bench.seconds + seconds


def test_a_lane_waits_for_the_end_of_a_pause(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one(), pause_millis=7000))
    outlook = bench.exports.outlook(Lane.steady, lambda _: True, bench.now)
    assert outlook.at == bench.seconds + 7


def test_when_the_clock_is_put_back_nothing_waits_for_it_to_come_round(bench: Workbench) -> None:
    bench.create("s", to_http(batchSize=4, batchIntervalMillis=60_000), 1)
    assert bench.plan() == []
    bench.now -= 86_400_000
    assert bench.plan_one().end == 1
