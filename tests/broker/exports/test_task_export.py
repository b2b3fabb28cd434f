"""An export of S3 tasks: its slices, uploads, and the statuses of its tasks."""

from __future__ import annotations

import sqlite3

import pytest

from penstock.model.exporting import TaskSlice
from penstock.model.status import Status
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


def test_slice_of_large_tasks_is_no_larger_than_asked_for(bench: Workbench) -> None:
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


def test_slice_contains_all_tasks_that_have_ended(bench: Workbench) -> None:
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
def test_upload_that_is_no_longer_reported_without_an_end_is_abandoned(
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


def test_upload_of_a_settled_task_has_ended(bench: Workbench) -> None:
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
        # Also if an earlier report of the lease has told it.
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
    assert [number for _, number, _ in bench.told()] == [1, 2, 3, 4]


def test_interim_report_writes_no_events_of_tasks_that_are_settled(bench: Workbench) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    bench.commit(interim(found, settled_end=1, events=[event(0)]))
    bench.commit(report(found, first=1, events=[event(0), event(1), event(2)]))
    assert [number for _, number, _ in bench.told()] == [0, 1, 2]


def test_skipped_task_that_cannot_be_kept_gets_no_status(bench: Workbench) -> None:
    bench._dead_letter_stream = "letters"
    bench.restart()
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create_tasks("s", 2)
    events = [event(0), event(1, Status.Failure)]
    bench.commit(report(bench.plan_file(), skipped=[skip(1)], events=events))
    assert bench.progress("s").last_exported == 0
    assert [number for _, number, _ in bench.told()] == [0]


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
    assert [status for status, *_ in bench.told()] == ["Success", "InProgress", "Success"]
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
    assert len(bench.told()) == 2


@pytest.mark.parametrize("is_final", [False, True])
def test_restarted_broker_keeps_the_uploads_of_the_first_lease_that_is_reported(
    bench: Workbench, is_final: bool
) -> None:
    bench.create_tasks("s", 3)
    first, second = bench.plan_file(), bench.plan_file()
    bench.restart()
    assert bench.commit(failure(first, uploads=[upload(0)], error="", is_final=is_final)) == 1
    # Otherwise the upload of the first would be forgotten.
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
    assert bench.ask(holding=[found.lease], max_slices=0).lost == [found.lease]
    assert bench.commit(report(found, events=[event(0)])) == 0
    assert [status for status, *_ in bench.told()] == ["Canceled", "Canceled"]
