"""Uploads that no task continues: they are aborted, however long it takes."""

from __future__ import annotations

import logging
import math

import pytest

from penstock.broker.exports.engine import Plan
from penstock.model.exporting import Upload
from tests.broker.exports.workbench import (
    Workbench,
    failure,
    interim,
    report,
    to_http,
    to_s3,
    upload,
)


def abandon(bench: Workbench, *uploads: Upload) -> None:
    """Uploads of stream "s", whose tasks have all ended."""
    bench.create_tasks("s", max(each.sequence_number for each in uploads) + 1)
    bench.commit(report(bench.plan_file(), abandoned=list(uploads)))


def test_work_has_what_it_takes_to_abort_an_upload(bench: Workbench) -> None:
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


def test_failed_aborts_do_not_keep_others_from_their_turn(bench: Workbench) -> None:
    abandon(bench, *(upload(number) for number in range(20)))
    bench.commit(*map(failure, bench.plan_aborts(max_slices=16)))
    bench.wait(10)
    found = {each.upload.sequence_number for each in bench.plan_aborts(max_slices=16)}
    assert {16, 17, 18, 19} < found


def test_aborted_upload_is_over(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_abort()
    assert bench.commit(report(found)) == 1
    assert bench.plan() == []
    assert bench.commit(report(found)) == 0
    assert bench.store.catalog.uploads() == []
    assert bench.told() == []


def test_failed_abort_is_retried_after_growing_pauses(bench: Workbench) -> None:
    abandon(bench, upload(0))
    waited = []
    for _ in range(4):
        bench.commit(failure(bench.plan_abort()))
        assert bench.plan() == []
        waited.append(bench.outlook().at - bench.seconds)
        bench.wait(waited[-1])
    assert waited == sorted(waited)
    assert 0.3 < waited[0] <= 0.5
    assert waited[-1] > 2
    bench.commit(failure(bench.plan_abort(), pause_millis=10**9))
    bench.wait(300)
    assert len(bench.plan()) == 1


def test_failure_gets_one_status(bench: Workbench) -> None:
    abandon(bench, upload(0))
    for _ in range(3):
        bench.commit(failure(bench.plan_abort(), error="no rights"))
        bench.wait(10)
    bench.restart()
    bench.commit(failure(bench.plan_abort(), error="no rights"))
    message = "an unfinished upload of s3://a-bucket/key/0 could not be aborted and is tried again"
    assert bench.told() == [("Warning", 0, f"{message}: no rights")]
    (status,) = bench.status_messages()
    assert "s3ExportTaskDefinition" not in status["statusContext"]


def test_long_reason_is_shortened(bench: Workbench) -> None:
    abandon(bench, upload(0, key="k" * 1024))
    bench.commit(failure(bench.plan_abort(), error="x" * 2048))
    ((_, _, message),) = bench.told()
    assert message.endswith("xxx")
    assert len(message) < 2048


def test_aborts_outlive_their_stream_and_the_broker(bench: Workbench) -> None:
    abandon(bench, upload(0))
    bench.delete("s")
    bench.restart()
    found = bench.plan_abort()
    assert (found.stream, found.upload) == ("s", upload(0))
    bench.commit(failure(found))
    assert [status for status, _, _ in bench.told()] == ["Warning"]
    bench.wait(1)
    assert bench.commit(report(bench.plan_abort())) == 1
    bench.restart()
    assert bench.plan() == []


def test_tokens_that_do_not_see_the_stream_get_no_aborts(bench: Workbench) -> None:
    abandon(bench, upload(0))
    assert bench.plan(sees=lambda name: name != "s") == []
    assert bench.outlook(sees=lambda name: name != "s").at == math.inf
    assert len(bench.plan(sees=lambda name: name == "s")) == 1


def test_upload_is_abandoned_once(bench: Workbench) -> None:
    abandon(bench, upload(0), upload(0), upload(0, "another"))
    assert [each.upload.upload_id for each in bench.plan_aborts()] == ["u", "another"]


# Leases


def test_one_task_at_a_time_has_an_abort(bench: Workbench) -> None:
    abandon(bench, upload(0))
    found = bench.plan_abort(task="a")
    assert bench.plan(task="b") == []
    assert bench.outlook(task="b").at == bench.seconds + 10
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
        assert bench.ask(task="a", holding=[found.lease]) == Plan([], 0, [])
    assert bench.plan(task="b") == []


def test_leases_of_a_disconnected_task_end_after_a_moment(bench: Workbench) -> None:
    abandon(bench, upload(0))
    bench.plan_abort(task="a", lease_millis=600_000)
    bench.depart("other")
    bench.wait(5)
    assert bench.plan(task="b") == []
    bench.depart("a")
    bench.wait(3)
    assert len(bench.plan(task="b")) == 1


def test_restarted_broker_does_not_adopt_leases_of_aborts(bench: Workbench) -> None:
    """Aborting an upload twice does no harm."""
    abandon(bench, upload(0))
    found = bench.plan_abort()
    bench.restart()
    assert bench.ask(holding=[found.lease], max_slices=0).lost == [found.lease]
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
    assert len(bench.told()) == 1


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
        "stream 's', export 'e': an unfinished upload cannot be aborted: it is down",
        "stream 's', export 'e': an unfinished upload was aborted",
    ]
