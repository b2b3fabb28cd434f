"""What reports mean: what of them counts, and what is stored together."""

from __future__ import annotations

import sqlite3

import pytest

from penstock.model.exporting import ABANDONED_UPLOAD, ExportReport, Lane
from penstock.model.status import Status
from tests.broker.exports.workbench import (
    Workbench,
    event,
    failure,
    interim,
    report,
    skip,
    to_http,
    upload,
)


def begun(bench: Workbench) -> list[tuple[int, str]]:
    """The uploads that the next slice goes on with."""
    bench.wait(400)
    (found,) = [each for each in bench.plan(Lane.files) if each.kind != ABANDONED_UPLOAD]
    return [(each.sequence_number, each.upload_id) for each in found.uploads]


def abandoned(bench: Workbench) -> list[tuple[int, str]]:
    return [
        (each.first, each.uploads[0].upload_id)
        for each in bench.plan(Lane.files)
        if each.kind == ABANDONED_UPLOAD
    ]


@pytest.mark.parametrize("restarts", [False, True])
def test_uploads_go_on_where_they_were(bench: Workbench, restarts: bool) -> None:
    bench.create_tasks("s", 3)
    going_on = upload(1, parts=["a", "", "c"])
    bench.commit(failure(bench.plan_file(), settled_end=1, uploads=[going_on]))
    if restarts:
        bench.restart()
    bench.wait(1)
    assert bench.plan_file().uploads == [going_on]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_report_replaces_what_was_known_of_uploads(bench: Workbench, restarts: bool) -> None:
    bench.create_tasks("s", 5)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0, ""), upload(2), upload(3)]))
    bench.wait(1)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0, "named"), upload(3)], arrived=[2]))
    if restarts:
        bench.restart()
    assert begun(bench) == [(0, "named"), (3, "u")]
    assert abandoned(bench) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_an_upload_that_is_not_reported_any_more_without_an_end_is_abandoned(
    bench: Workbench, restarts: bool
) -> None:
    """A task that Spark repeats does not know what became of the one before it."""
    bench.create_tasks("s", 2)
    found = bench.plan_file()
    bench.commit(interim(found, uploads=[upload(0, "first")]))
    bench.commit(interim(found, uploads=[upload(0, "second")]))
    if restarts:
        bench.restart()
    assert begun(bench) == [(0, "second")]
    assert abandoned(bench) == [(0, "first")]


def test_of_uploads_behind_its_slice_a_report_knows_nothing(bench: Workbench) -> None:
    bench.create_tasks("s", 5)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0), upload(4)]))
    bench.wait(1)
    found = bench.plan_file(max_bytes=1)
    assert (found.end, found.uploads) == (1, [upload(0)])
    bench.commit(report(found, uploads=[upload(4, "made up")]))
    assert begun(bench) == [(4, "u")]


@pytest.mark.parametrize("restarts", [False, True])
def test_uploads_that_could_not_be_aborted_are_tried_again(
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
    assert begun(bench) == [(0, "new")]


def test_one_that_is_abandoned_does_not_go_on(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0)], abandoned=[upload(0)]))
    assert abandoned(bench) == [(0, "u")]
    assert begun(bench) == []


def test_of_other_exports_neither_uploads_nor_events_are_taken(bench: Workbench) -> None:
    bench.create("s", to_http(), 1)
    bench.commit(
        failure(bench.plan_one(), uploads=[upload(0)], abandoned=[upload(0)], events=[event(0)])
    )
    assert bench.store.catalog.uploads() == []


def test_only_events_of_its_own_tasks_are_told(bench: Workbench) -> None:
    bench.create_tasks("s", 5)
    bench.commit(report(bench.plan_file(), settled_end=1))
    found = bench.plan_file()
    bench.append_tasks("s", 1)
    bench.commit(report(found, events=[event(number) for number in range(8)]))
    assert [number for _, number, _ in bench.told()] == [1, 2, 3, 4]


def test_progress_and_uploads_are_stored_together_or_not_at_all(bench: Workbench) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    bench.store.catalog._connection.execute(
        "CREATE TEMP TRIGGER broken BEFORE INSERT ON upload BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    commit = bench.begin_commit(failure(found, settled_end=1, uploads=[upload(1)]))
    with pytest.raises(sqlite3.IntegrityError):
        commit.change.store()
    bench.exports.forget(commit.settlement)
    stored = bench.store.catalog.progress(bench.streams.find("s").stored.id)["e"]
    assert stored.last_exported == -1
    bench.store.catalog._connection.execute("DROP TRIGGER broken")
    assert bench.commit(failure(found, settled_end=1, uploads=[upload(1)])) == 1
    assert begun(bench) == [(1, "u")]


def test_what_is_skipped_and_cannot_be_kept_is_not_told(bench: Workbench) -> None:
    bench._dead_letter_stream = "letters"
    bench.restart()
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create_tasks("s", 2)
    events = [event(0), event(1, Status.Failure)]
    bench.commit(report(bench.plan_file(), skipped=[skip(1)], events=events))
    assert bench.progress("s").last_exported == 0
    assert [number for _, number, _ in bench.told()] == [0]


# While there is more to come


def test_an_interim_report_is_stored_and_changes_nothing_else(bench: Workbench) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    before = bench.progress("s")
    bench.wait(5)
    first = interim(
        found,
        settled_end=3,
        arrived=[1],
        skipped=[skip(2)],
        error="it is down",
        pause_millis=5000,
        uploads=[upload(0)],
        abandoned=[upload(0, "old")],
        events=[event(0, Status.InProgress)],
    )
    assert bench.commit(first) == 1
    assert bench.progress("s") == before
    assert bench.export("s").failures == 0
    assert bench.told() == [("InProgress", 0, "0 is InProgress")]
    assert {each.upload.upload_id for each in bench.store.catalog.uploads()} == {"u", "old"}
    # The lease goes on, as long as it was given for.
    assert abandoned_for_others(bench) == [(0, "old")]
    assert bench.commit(report(found, settled_end=1)) == 1
    assert bench.progress("s").last_exported == 0
    assert bench.plan_file().arrived == []


def abandoned_for_others(bench: Workbench) -> list[tuple[int, str]]:
    """What another pipeline gets while the slice is leased."""
    slices = bench.plan(Lane.files, pipeline="q")
    assert all(each.kind == ABANDONED_UPLOAD for each in slices)
    return [(each.first, each.uploads[0].upload_id) for each in slices]


def test_while_an_interim_report_is_stored_nobody_gets_the_slice(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    found = bench.plan_file()
    commit = bench.begin_commit(interim(found, uploads=[upload(0)]))
    bench.wait(100)
    assert bench.plan(Lane.files, pipeline="q") == []
    bench.finish_commit(commit)
    assert bench.plan_file(pipeline="q").uploads == [upload(0)]
    assert bench.commit(interim(found)) == 0


@pytest.mark.parametrize("is_interim", [True, False])
def test_with_the_lease_of_a_broker_before_this_one_reports_count(
    bench: Workbench, is_interim: bool
) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    bench.restart()
    assert bench.commit(interim(found, uploads=[upload(0)], events=[event(0)])) == 1
    last = report(found, settled_end=1, events=[event(0)], is_interim=is_interim)
    assert bench.commit(last) == 1
    assert bench.progress("s").last_exported == (-1 if is_interim else 0)
    assert len(bench.told()) == 2


@pytest.mark.parametrize("is_interim", [True, False])
def test_of_two_leases_of_a_broker_before_this_one_the_first_that_is_reported_counts(
    bench: Workbench, is_interim: bool
) -> None:
    bench.create_tasks("s", 3)
    first, second = bench.plan_file(), bench.plan_file()
    bench.restart()
    assert bench.commit(failure(first, uploads=[upload(0)], is_interim=is_interim)) == 1
    # Otherwise the upload of the first would be forgotten.
    assert bench.commit(failure(second, uploads=[upload(1)], is_interim=True)) == 0
    assert bench.commit(failure(second, uploads=[upload(1)])) == 0
    assert bench.commit(report(first, uploads=[upload(0)])) == (1 if is_interim else 0)
    assert bench.store.catalog.uploads()[0].upload == upload(0)


# What is answered


def accepted(bench: Workbench, *reports: ExportReport) -> list[str]:
    commit = bench.begin_commit(*reports)
    bench.finish_commit(commit)
    return commit.settlement.accepted


def test_the_leases_of_reports_that_count_are_told(bench: Workbench) -> None:
    bench.create_tasks("a", 1)
    bench.create_tasks("b", 1)
    first, second = bench.plan(Lane.files)
    bench.delete("b")
    assert accepted(bench, report(first, abandoned=[upload(0)]), report(second)) == [first.lease]
    (abort,) = bench.plan(Lane.files)
    assert accepted(bench, report(abort)) == [abort.lease]


@pytest.mark.parametrize("is_interim", [True, False])
def test_a_report_that_comes_again_is_accepted_again_and_does_nothing(
    bench: Workbench, is_interim: bool
) -> None:
    bench.create_tasks("s", 2)
    found = bench.plan_file()
    given = failure(found, uploads=[upload(0)], events=[event(0)], is_interim=is_interim)
    assert accepted(bench, given) == accepted(bench, given) == [found.lease]
    assert len(bench.told()) == 1
    assert bench.export("s").failures == (0 if is_interim else 1)
    other = failure(found, uploads=[upload(0)], events=[event(1)], is_interim=is_interim)
    assert accepted(bench, other) == ([found.lease] if is_interim else [])
    assert accepted(bench, given) == [found.lease]
