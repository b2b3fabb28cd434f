"""Uploads that nobody goes on with: they are aborted, whatever it takes."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from penstock.model.exporting import ABANDONED_UPLOAD, ExportSlice, Lane, Upload
from tests.broker.exports.workbench import (
    Workbench,
    failure,
    interim,
    report,
    to_http,
    upload,
)


def abandon(bench: Workbench, *uploads: Upload) -> None:
    """These of the first stream, which has nothing to do otherwise."""
    bench.create_tasks("s", max(each.sequence_number for each in uploads) + 1)
    bench.commit(report(bench.plan_file(), abandoned=list(uploads)))


def aborts(bench: Workbench, **fields: Any) -> list[ExportSlice]:
    slices = bench.plan(Lane.files, **fields)
    return [each for each in slices if each.kind == ABANDONED_UPLOAD]


def test_a_slice_has_what_it_takes_to_abort_one(bench: Workbench) -> None:
    abandon(bench, upload(3))
    found = bench.plan_file()
    assert (found.kind, found.stream, found.config) == (
        ABANDONED_UPLOAD,
        "s",
        {"identifier": "e"},
    )
    assert (found.first, found.end, found.segments, found.arrived) == (3, 3, [], [])
    assert found.uploads == [upload(3)]
    assert (found.time_to_live, found.max_sent_bytes) == (None, None)


def test_they_are_planned_with_uploads_of_files_and_nowhere_else(bench: Workbench) -> None:
    abandon(bench, upload(0))
    bench.create("other", to_http(), 1)
    assert [each.kind for each in bench.plan(Lane.steady)] == ["http"]
    assert bench.plan(Lane.recovering) == []
    assert [each.kind for each in bench.plan(Lane.files)] == [ABANDONED_UPLOAD]


def test_they_come_first_and_a_few_at_a_time(bench: Workbench) -> None:
    abandon(bench, *(upload(number) for number in range(20)))
    bench.append_tasks("s", 1)
    kinds = [each.kind for each in bench.plan(Lane.files)]
    assert kinds == [ABANDONED_UPLOAD] * 16 + ["s3_task_executor"]
    assert len(aborts(bench, max_slices=3)) == 3


def test_those_that_fail_keep_no_others_from_their_turn(bench: Workbench) -> None:
    abandon(bench, *(upload(number) for number in range(20)))
    bench.commit(*map(failure, aborts(bench)))
    bench.wait(10)
    assert {16, 17, 18, 19} < {each.first for each in aborts(bench)}


def test_one_that_was_aborted_is_over(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_file()
    assert bench.commit(report(found)) == 1
    assert bench.plan(Lane.files) == []
    assert bench.commit(report(found)) == 0
    assert bench.store.catalog.uploads() == []
    assert bench.told() == []


def test_one_that_could_not_be_aborted_is_tried_again_later_and_later(bench: Workbench) -> None:
    abandon(bench, upload(0))
    waited = []
    for _ in range(4):
        bench.commit(failure(bench.plan_file()))
        assert bench.plan(Lane.files) == []
        outlook = bench.exports.outlook(Lane.files, lambda _: True, bench.now)
        waited.append(outlook.at - bench.seconds)
        bench.wait(waited[-1])
    assert waited == sorted(waited)
    assert 0.3 < waited[0] <= 0.5
    assert waited[-1] > 2
    bench.commit(failure(bench.plan_file(), pause_millis=10**9))
    bench.wait(300)
    assert len(bench.plan(Lane.files)) == 1


def test_that_it_could_not_be_aborted_is_told_once(bench: Workbench) -> None:
    abandon(bench, upload(0))
    for _ in range(3):
        bench.commit(failure(bench.plan_file(), error="no rights"))
        bench.wait(10)
    bench.restart()
    bench.commit(failure(bench.plan_file(), error="no rights"))
    message = "an unfinished upload of s3://a-bucket/key/0 could not be aborted and is tried again"
    assert bench.told() == [("Warning", 0, f"{message}: no rights")]
    (status,) = bench.status_messages()
    assert "s3ExportTaskDefinition" not in status["statusContext"]


def test_a_long_reason_is_told_in_part(bench: Workbench) -> None:
    abandon(bench, upload(0, key="k" * 1024))
    bench.commit(failure(bench.plan_file(), error="x" * 2048))
    ((_, _, message),) = bench.told()
    assert message.endswith("xxx")
    assert len(message) < 2048


def test_they_outlive_their_stream_and_the_broker(bench: Workbench) -> None:
    abandon(bench, upload(0))
    bench.delete("s")
    bench.restart()
    found = bench.plan_file()
    assert (found.stream, found.uploads) == ("s", [upload(0)])
    bench.commit(failure(found))
    assert [status for status, _, _ in bench.told()] == ["Warning"]
    bench.wait(1)
    assert bench.commit(report(bench.plan_file())) == 1
    bench.restart()
    assert bench.plan(Lane.files) == []


def test_whoever_does_not_see_the_stream_does_not_get_them(bench: Workbench) -> None:
    abandon(bench, upload(0))
    assert bench.plan(Lane.files, sees=lambda name: name != "s") == []
    outlook = bench.exports.outlook(Lane.files, lambda name: name != "s", bench.now)
    assert outlook.at == math.inf
    assert len(bench.plan(Lane.files, sees=lambda name: name == "s")) == 1


def test_the_same_upload_is_abandoned_once(bench: Workbench) -> None:
    abandon(bench, upload(0), upload(0), upload(0, "another"))
    assert [each.uploads[0].upload_id for each in aborts(bench)] == ["u", "another"]


# Who has it


def test_one_pipeline_at_a_time_has_it(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_file(pipeline="p")
    assert bench.plan(Lane.files, pipeline="q") == []
    outlook = bench.exports.outlook(Lane.files, lambda _: True, bench.now)
    assert outlook.at == bench.seconds + 10
    again = bench.plan_file(pipeline="p")
    assert bench.commit(report(found)) == 0
    assert bench.commit(interim(again)) == 0
    bench.wait(10)
    other = bench.plan_file(pipeline="q")
    assert bench.commit(report(again)) == 0
    assert bench.commit(report(other)) == 1


def test_those_of_a_pipeline_that_is_gone_are_free_after_a_moment(bench: Workbench) -> None:
    abandon(bench, upload(0))
    bench.plan_file(pipeline="p", lease_millis=600_000)
    bench.exports.depart("p", Lane.steady)
    bench.wait(5)
    assert bench.plan(Lane.files, pipeline="q") == []
    bench.exports.depart("p", Lane.files)
    bench.wait(3)
    assert len(bench.plan(Lane.files, pipeline="q")) == 1


def test_while_a_report_is_stored_nobody_gets_it_or_reports_it_again(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_file()
    commit = bench.begin_commit(failure(found))
    assert bench.commit(failure(found)) == 0
    bench.wait(100)
    assert bench.plan(Lane.files) == []
    bench.exports.forget(commit.settlement)
    assert bench.commit(failure(found)) == 1


def test_if_it_cannot_be_stored_the_next_start_knows_it_all_the_same(
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
    assert len(bench.plan(Lane.files)) == 1
    assert "cannot record abandoned uploads: no" in caplog.text
    bench.restart()
    assert len(bench.plan(Lane.files)) == 1


def test_an_outage_is_logged_when_it_begins(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.broker.exports")
    abandon(bench, upload(0))
    for _ in range(2):
        bench.commit(failure(bench.plan_file()))
        bench.wait(10)
    bench.commit(report(bench.plan_file()))
    assert [record.getMessage() for record in caplog.records] == [
        "stream 's', export 'e': an unfinished upload cannot be aborted: it is down",
        "stream 's', export 'e': an unfinished upload was aborted",
    ]
