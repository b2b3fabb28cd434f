"""Exports of S3 tasks: slices, uploads, statuses of tasks, and aborts of uploads."""

from __future__ import annotations

import logging
import math
import sqlite3

import pytest

from penstock.broker.exports.engine import Plan
from penstock.model.exporting import TaskSlice, Upload
from penstock.model.status_message import Status
from tests.broker.exports.workbench import (
    Workbench,
    event,
    failure,
    interim,
    report,
    skip,
    to_http,
    to_s3,
    upload,
)


def continued(bench: Workbench) -> list[tuple[int, str]]:
    """The uploads of the next slice."""
    bench.wait(400)
    (found,) = [each for each in bench.plan() if isinstance(each, TaskSlice)]
    return [(each.sequence_number, each.upload_id) for each in found.uploads]


def abandoned(bench: Workbench, **fields: str) -> list[tuple[int, str]]:
    aborts = bench.plan_aborts(**fields)
    return [(each.upload.sequence_number, each.upload.upload_id) for each in aborts]


# Slices


def test_slice_has_a_limited_number_of_tasks(bench: Workbench) -> None:
    bench.create("s", to_s3(), 2500)
    found = bench.plan_file()
    assert (found.first, found.end) == (0, 2000)
    bench.commit(report(found, settled_end=1))
    assert bench.plan_file().end == 2001


def test_slice_of_large_tasks_respects_the_max_bytes(bench: Workbench) -> None:
    bench.create("s", to_s3())
    bench.append("s", 30, size=100_000)
    assert bench.plan_file().end == 10
    assert bench.plan_file(max_bytes=250_000).end == 2


def test_slice_has_its_uploads_and_the_lifetime_of_tasks(bench: Workbench) -> None:
    bench.create("s", to_s3(), 5, timeToLiveMillis=60_000)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0), upload(3)]))
    bench.wait(1)
    found = bench.plan_file()
    assert (found.uploads, found.time_to_live) == ([upload(0), upload(3)], 60_000)
    assert bench.plan_file(max_bytes=30).uploads == [upload(0)]


def test_slice_contains_all_tasks_that_have_arrived(bench: Workbench) -> None:
    bench.create("s", to_s3(), 50)
    bench.commit(failure(bench.plan_file(), arrived=[3, 40]))
    bench.wait(1)
    found = bench.plan_file(max_bytes=10)
    assert (found.end, found.arrived) == (41, [3, 40])


# Uploads


@pytest.mark.parametrize("restarts", [False, True])
def test_uploads_continue_from_their_parts(bench: Workbench, restarts: bool) -> None:
    bench.create_tasks("s", 3)
    begun = upload(1, parts=["a", "", "c"])
    bench.commit(failure(bench.plan_file(), settled_end=1, uploads=[begun]))
    if restarts:
        bench.restart()
    bench.wait(1)
    assert bench.plan_file().uploads == [begun]


@pytest.mark.parametrize("restarts", [False, True])
def test_report_replaces_the_uploads_of_its_lease(bench: Workbench, restarts: bool) -> None:
    bench.create_tasks("s", 5)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0, ""), upload(2), upload(3)]))
    bench.wait(1)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0, "named"), upload(3)], arrived=[2]))
    if restarts:
        bench.restart()
    assert continued(bench) == [(0, "named"), (3, "u")]
    assert abandoned(bench) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_unreported_upload_of_an_unfinished_task_is_abandoned(
    bench: Workbench, restarts: bool
) -> None:
    bench.create_tasks("s", 2)
    found = bench.plan_file()
    bench.commit(interim(found, uploads=[upload(0, "first")]))
    bench.commit(interim(found, uploads=[upload(0, "second")]))
    if restarts:
        bench.restart()
    assert continued(bench) == [(0, "second")]
    assert abandoned(bench) == [(0, "first")]


def test_upload_of_a_reported_task_has_ended(bench: Workbench) -> None:
    bench.create_tasks("s", 4)
    found = bench.plan_file()
    bench.commit(interim(found, uploads=[upload(0), upload(1), upload(3)]))
    bench.commit(interim(found, settled_end=1, arrived=[3], uploads=[upload(1)]))
    assert [each.upload for each in bench.store.catalog.uploads()] == [upload(1)]
    bench.commit(report(found, first=1))
    assert bench.store.catalog.uploads() == []
    assert bench.plan() == []


def test_report_ignores_uploads_outside_its_slice(bench: Workbench) -> None:
    bench.create_tasks("s", 5)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0), upload(4)]))
    bench.wait(1)
    found = bench.plan_file(max_bytes=1)
    assert (found.end, found.uploads) == (1, [upload(0)])
    bench.commit(report(found, uploads=[upload(4, "made up")]))
    assert continued(bench) == [(4, "u")]


@pytest.mark.parametrize("restarts", [False, True])
def test_uploads_that_a_task_could_not_abort_are_abandoned(
    bench: Workbench, restarts: bool
) -> None:
    bench.create_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0, "old")]))
    bench.wait(1)
    bench.commit(
        failure(bench.plan_file(), uploads=[upload(0, "new")], abandoned=[upload(0, "old")])
    )
    if restarts:
        bench.restart()
    assert abandoned(bench) == [(0, "old")]
    assert continued(bench) == [(0, "new")]


def test_abandoned_upload_does_not_continue(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0)], abandoned=[upload(0)]))
    assert abandoned(bench) == [(0, "u")]
    assert continued(bench) == []


def test_exports_of_messages_have_neither_uploads_nor_events(bench: Workbench) -> None:
    bench.create("s", to_http(), 1)
    bench.commit(
        failure(bench.plan_one(), uploads=[upload(0)], abandoned=[upload(0)], events=[event(0)])
    )
    assert bench.store.catalog.uploads() == []
    assert bench.plan_aborts() == []


def test_upload_with_new_parts_is_progress(bench: Workbench) -> None:
    bench.create("s", to_s3(), 1)
    for parts in (["a"], ["a", "", "c"], ["a", "b", "c"]):
        found = bench.plan_file()
        # The parts count also if an earlier report of the lease had them.
        bench.commit(interim(found, uploads=[upload(0, parts=parts)]))
        bench.commit(failure(found, uploads=[upload(0, parts=parts)]))
        assert bench.export("s").failures == 1
        bench.wait(0.5)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0, parts=["a", "b", "c"])]))
    assert bench.export("s").failures == 2


def test_progress_and_uploads_are_stored_together_or_not_at_all(bench: Workbench) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    bench.store.catalog._connection.execute(
        "CREATE TEMP TRIGGER broken BEFORE INSERT ON upload BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    commit = bench.begin_commit(failure(found, settled_end=1, uploads=[upload(1)]))
    with pytest.raises(sqlite3.IntegrityError):
        commit.change.store()
    bench.cancel_commit(commit)
    stored = bench.store.catalog.progress(bench.streams.find("s").stored.id)["e"]
    assert stored.last_exported == -1
    bench.store.catalog._connection.execute("DROP TRIGGER broken")
    assert bench.commit(failure(found, settled_end=1, uploads=[upload(1)])) == 1
    assert continued(bench) == [(1, "u")]


# Events


def test_only_events_of_leased_tasks_are_written(bench: Workbench) -> None:
    bench.create_tasks("s", 5)
    bench.commit(report(bench.plan_file(), settled_end=1))
    found = bench.plan_file()
    bench.append_tasks("s", 1)
    bench.commit(report(found, events=[event(number) for number in range(8)]))
    assert [number for _, number, _ in bench.written_statuses()] == [1, 2, 3, 4]


def test_report_writes_no_events_of_tasks_reported_before(bench: Workbench) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    bench.commit(interim(found, settled_end=1, events=[event(0)]))
    bench.commit(report(found, first=1, events=[event(0), event(1), event(2)]))
    assert [number for _, number, _ in bench.written_statuses()] == [0, 1, 2]


def test_skipped_task_that_cannot_be_stored_gets_no_status(bench: Workbench) -> None:
    bench._dead_letter_stream = "letters"
    bench.restart()
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create_tasks("s", 2)
    events = [event(0), event(1, Status.Failure)]
    bench.commit(report(bench.plan_file(), skipped=[skip(1)], events=events))
    assert bench.progress("s").last_exported == 0
    assert [number for _, number, _ in bench.written_statuses()] == [0]


# Interim reports


def test_interim_report_is_stored_and_keeps_the_lease(bench: Workbench) -> None:
    bench.create_tasks("s", 4)
    found = bench.plan_file()
    bench.wait(5)
    given = interim(
        found,
        settled_end=1,
        arrived=[2],
        uploads=[upload(1)],
        abandoned=[upload(1, "old")],
        events=[event(0), event(1, Status.InProgress), event(2)],
    )
    assert bench.accepted(given) == [found.lease]
    progress = bench.progress("s")
    assert (progress.last_exported, progress.last_time) == (0, bench.now)
    assert [status for status, *_ in bench.written_statuses()] == [
        "Success",
        "InProgress",
        "Success",
    ]
    assert {each.upload.upload_id for each in bench.store.catalog.uploads()} == {"u", "old"}
    # Other tasks get only the abort.
    assert abandoned(bench, task="b") == [(1, "old")]
    bench.wait(10)
    again = bench.plan_file(task="c", max_priority=10**6, max_slices=1)
    assert (again.first, again.arrived, again.uploads) == (1, [2], [upload(1)])


def test_slice_is_not_leased_while_an_interim_report_is_stored(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    found = bench.plan_file(task="a")
    commit = bench.begin_commit(interim(found, uploads=[upload(0)]))
    bench.wait(100)
    assert bench.plan(task="b") == []
    bench.finish_commit(commit)
    assert bench.plan_file(task="b").uploads == [upload(0)]
    assert bench.commit(interim(found)) == 0


@pytest.mark.parametrize("is_final", [False, True])
def test_restarted_broker_accepts_reports_of_earlier_leases(
    bench: Workbench, is_final: bool
) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    bench.restart()
    assert bench.commit(interim(found, uploads=[upload(0)], events=[event(0)])) == 1
    last = report(found, settled_end=1, events=[event(1)], is_final=is_final)
    assert bench.commit(last) == 1
    assert bench.progress("s").last_exported == 0
    assert len(bench.written_statuses()) == 2


@pytest.mark.parametrize("is_final", [False, True])
def test_restarted_broker_keeps_the_uploads_of_the_first_lease_that_is_reported(
    bench: Workbench, is_final: bool
) -> None:
    bench.create_tasks("s", 3)
    first, second = bench.plan_file(), bench.plan_file()
    bench.restart()
    assert bench.commit(failure(first, uploads=[upload(0)], error="", is_final=is_final)) == 1
    # Otherwise the upload of the first lease would be lost.
    assert bench.commit(interim(second, uploads=[upload(1)])) == 0
    assert bench.commit(failure(second, uploads=[upload(1)])) == 0
    assert bench.commit(report(first, uploads=[upload(0)])) == (0 if is_final else 1)


def test_lease_of_tasks_that_were_dropped_is_not_adopted(bench: Workbench) -> None:
    """They were canceled when the broker stopped."""
    bench.create_tasks("s", 2, timeToLiveMillis=60_000)
    found = bench.plan_file(lease_millis=3_600_000)
    bench.wait(61)
    bench.streams.trim(bench.now)
    bench.restart()
    assert bench.request_plan(holding=[found.lease], max_slices=0).lost == [found.lease]
    assert bench.commit(report(found, events=[event(0)])) == 0
    assert [status for status, *_ in bench.written_statuses()] == ["Canceled", "Canceled"]


# Uploads that no task continues


def abandon(bench: Workbench, *uploads: Upload) -> None:
    """Uploads of stream "s", whose tasks have all ended."""
    bench.create_tasks("s", max(each.sequence_number for each in uploads) + 1)
    bench.commit(report(bench.plan_file(), abandoned=list(uploads)))


def test_work_has_the_data_to_abort_an_upload(bench: Workbench) -> None:
    abandon(bench, upload(3))
    found = bench.plan_abort()
    assert (found.stream, found.identifier, found.upload) == ("s", "e", upload(3))


def test_aborts_are_less_urgent_than_exports_with_a_priority(bench: Workbench) -> None:
    abandon(bench, upload(0), upload(1))
    bench.create("file", to_s3(priority=10), 1)
    bench.create("messages", to_http(priority=9), 1)
    assert [each.stream for each in bench.plan()] == ["messages", "file", "s", "s"]
    assert len(bench.plan(max_slices=3)) == 3
    assert bench.plan_aborts(max_priority=10) == []


def test_failed_aborts_do_not_block_other_aborts(bench: Workbench) -> None:
    abandon(bench, *(upload(number) for number in range(20)))
    bench.commit(*map(failure, bench.plan_aborts(max_slices=16)))
    bench.wait(10)
    found = {each.upload.sequence_number for each in bench.plan_aborts(max_slices=16)}
    assert {16, 17, 18, 19} < found


def test_aborted_upload_is_not_planned_again(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_abort()
    assert bench.commit(report(found)) == 1
    assert bench.plan() == []
    assert bench.commit(report(found)) == 0
    assert bench.store.catalog.uploads() == []
    assert bench.written_statuses() == []


def test_failed_abort_is_retried_after_growing_pauses(bench: Workbench) -> None:
    abandon(bench, upload(0))
    waited = []
    for _ in range(4):
        bench.commit(failure(bench.plan_abort()))
        assert bench.plan() == []
        waited.append(bench.wake_condition().at - bench.seconds)
        bench.wait(waited[-1])
    assert waited == sorted(waited)
    assert 0.3 < waited[0] <= 0.5
    assert waited[-1] > 2
    bench.commit(failure(bench.plan_abort(), pause_millis=10**9))
    bench.wait(300)
    assert len(bench.plan()) == 1


def test_repeated_failure_of_an_abort_writes_one_status(bench: Workbench) -> None:
    abandon(bench, upload(0))
    for _ in range(3):
        bench.commit(failure(bench.plan_abort(), error="no rights"))
        bench.wait(10)
    bench.restart()
    bench.commit(failure(bench.plan_abort(), error="no rights"))
    message = (
        "an unfinished upload of s3://a-bucket/key/0 could not be aborted; the abort is retried"
    )
    assert bench.written_statuses() == [("Warning", 0, f"{message}: no rights")]
    (status,) = bench.status_messages()
    assert "s3ExportTaskDefinition" not in status["statusContext"]


def test_long_reason_is_shortened(bench: Workbench) -> None:
    abandon(bench, upload(0, key="k" * 1024))
    bench.commit(failure(bench.plan_abort(), error="x" * 2048))
    ((_, _, message),) = bench.written_statuses()
    assert message.endswith("xxx")
    assert len(message) < 2048


def test_aborts_survive_the_stream_and_a_restart(bench: Workbench) -> None:
    abandon(bench, upload(0))
    bench.delete("s")
    bench.restart()
    found = bench.plan_abort()
    assert (found.stream, found.upload) == ("s", upload(0))
    bench.commit(failure(found))
    assert [status for status, _, _ in bench.written_statuses()] == ["Warning"]
    bench.wait(1)
    assert bench.commit(report(bench.plan_abort())) == 1
    bench.restart()
    assert bench.plan() == []


def test_tokens_that_do_not_see_the_stream_get_no_aborts(bench: Workbench) -> None:
    abandon(bench, upload(0))
    assert bench.plan(sees=lambda name: name != "s") == []
    assert bench.wake_condition(sees=lambda name: name != "s").at == math.inf
    assert len(bench.plan(sees=lambda name: name == "s")) == 1


def test_upload_is_abandoned_once(bench: Workbench) -> None:
    abandon(bench, upload(0), upload(0), upload(0, "another"))
    assert [each.upload.upload_id for each in bench.plan_aborts()] == ["u", "another"]


# Leases of aborts


def test_one_task_at_a_time_has_an_abort(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_abort(task="a")
    assert bench.plan(task="b") == []
    assert bench.wake_condition(task="b").at == bench.seconds + 10
    again = bench.plan_abort(task="a")
    assert bench.commit(report(found)) == 0
    bench.wait(10)
    other = bench.plan_abort(task="b")
    assert bench.commit(report(again)) == 0
    assert bench.commit(report(other)) == 1


def test_lease_of_an_abort_is_renewed(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_abort(task="a")
    for _ in range(3):
        bench.wait(9)
        assert bench.request_plan(task="a", holding=[found.lease]) == Plan([], 0, [])
    assert bench.plan(task="b") == []


def test_leases_of_a_disconnected_task_end_after_a_moment(bench: Workbench) -> None:
    abandon(bench, upload(0))
    bench.plan_abort(task="a", lease_millis=600_000)
    bench.disconnect("other")
    bench.wait(5)
    assert bench.plan(task="b") == []
    bench.disconnect("a")
    bench.wait(3)
    assert len(bench.plan(task="b")) == 1


def test_restarted_broker_does_not_adopt_leases_of_aborts(bench: Workbench) -> None:
    """Aborting an upload twice does no harm."""
    abandon(bench, upload(0))
    found = bench.plan_abort()
    bench.restart()
    assert bench.request_plan(holding=[found.lease], max_slices=0).lost == [found.lease]
    assert bench.commit(report(found)) == 0
    assert len(bench.plan()) == 1


def test_abort_is_neither_leased_nor_reported_while_a_report_is_stored(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_abort()
    commit = bench.begin_commit(failure(found))
    assert bench.commit(failure(found)) == 0
    bench.wait(100)
    assert bench.plan() == []
    bench.cancel_commit(commit)
    assert bench.commit(failure(found)) == 1


def test_repeated_report_of_a_failure_is_accepted_once(bench: Workbench) -> None:
    abandon(bench, upload(0))
    given = failure(bench.plan_abort())
    assert bench.accepted(given) == bench.accepted(given) == [given.lease]
    assert len(bench.written_statuses()) == 1


def test_upload_that_cannot_be_recorded_is_abandoned_after_the_next_start(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.create_tasks("s", 1)
    bench.commit(interim(bench.plan_file(), uploads=[upload(0)]))
    connection = bench.store.catalog._connection
    connection.execute(
        "CREATE TEMP TRIGGER broken BEFORE UPDATE ON upload BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    bench.delete("s")
    bench.store.work()
    assert len(bench.plan()) == 1
    assert "cannot record abandoned uploads: no" in caplog.text
    bench.restart()
    assert len(bench.plan()) == 1


def test_outage_is_logged_when_it_begins(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.broker.exports")
    abandon(bench, upload(0))
    for _ in range(2):
        bench.commit(failure(bench.plan_abort()))
        bench.wait(10)
    bench.commit(report(bench.plan_abort()))
    assert [record.getMessage() for record in caplog.records] == [
        "stream 's', export 'e': cannot abort an unfinished upload: it is down",
        "stream 's', export 'e': aborted an unfinished upload",
    ]
