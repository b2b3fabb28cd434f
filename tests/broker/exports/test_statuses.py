"""Status messages: their contents, their time, and status streams that do not accept them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.broker.exports.statuses import Origin, RecentTasks
from penstock.broker.waiting import Waiter
from penstock.model.status_message import Status, StatusConfig, StatusLevel, StatusMessage
from tests.broker.exports.workbench import (
    BEGINNING,
    Workbench,
    event,
    failure,
    report,
    status_config,
    task,
    to_s3,
)


def origin(level: StatusLevel | None = None, name: str | None = "status") -> Origin:
    return Origin("s", "e", StatusConfig(level, name))


def test_status_has_the_format_of_the_aws_client(bench: Workbench) -> None:
    bench.create("status", {})
    bench.statuses.write(origin(), [event(7)], bench.now)
    (message,) = bench.status_messages()
    assert message == {
        "eventType": 0,
        "statusLevel": 2,
        "status": 0,
        "statusContext": {
            "s3ExportTaskDefinition": task(7),
            "exportIdentifier": "e",
            "streamName": "s",
            "sequenceNumber": 7,
        },
        "message": "7 is Success",
        "timestampEpochMs": BEGINNING,
    }
    assert StatusMessage.from_dict(message).status is Status.Success


@pytest.mark.parametrize("given", [None, {**task(7), "userMetadata": None}])
def test_unset_fields_are_omitted(bench: Workbench, given: dict[str, Any] | None) -> None:
    bench.create("status", {})
    bench.statuses.write(origin(), [event(7, task=given)], bench.now)
    log = bench.streams.find("status").log
    payload = log.read(0, 1, 1).payloads[0]
    assert b"null" not in payload
    assert (b"s3ExportTaskDefinition" in payload) is (given is not None)


@pytest.mark.parametrize(
    ("level", "written"),
    [
        (StatusLevel.ERROR, {"Failure"}),
        (StatusLevel.WARN, {"Failure", "Warning", "Canceled"}),
        (StatusLevel.INFO, {"Failure", "Warning", "Canceled", "Success"}),
        (None, {"Failure", "Warning", "Canceled", "Success"}),
        (StatusLevel.DEBUG, {"Failure", "Warning", "Canceled", "Success", "InProgress"}),
    ],
)
def test_level_of_an_export_selects_statuses(
    bench: Workbench, level: StatusLevel | None, written: set[str]
) -> None:
    bench.create("status", {})
    bench.statuses.write(origin(level), [event(1, status) for status in Status], bench.now)
    assert {status for status, _, _ in bench.written_statuses()} == written


@pytest.mark.parametrize("config", [None, StatusConfig(), StatusConfig(StatusLevel.TRACE)])
def test_without_a_status_stream_nothing_is_written(
    bench: Workbench, config: StatusConfig | None, caplog: pytest.LogCaptureFixture
) -> None:
    bench.statuses.write(Origin("s", "e", config), [event(1)], bench.now)
    assert bench.streams.names() == []
    assert caplog.records == []


def test_export_writes_no_statuses_into_its_own_stream(bench: Workbench) -> None:
    """Such an export is refused today, but may have been stored by an earlier version."""
    stream = bench.create("s", {})
    bench.statuses.write(origin(name="s"), [event(1)], bench.now)
    assert stream.log.end == 0


def test_status_wakes_waiting_reads(bench: Workbench) -> None:
    stream = bench.create("status", {})
    woken: list[bool] = []
    stream.waiters.add(Waiter(1, woken.append))
    bench.statuses.write(origin(), [event(1)], bench.now)
    assert woken == [True]


def test_many_statuses_are_written_in_order(bench: Workbench) -> None:
    stream = bench.create("status", {}, streamSegmentSize=2048)
    bench.statuses.write(origin(), [event(number) for number in range(40)], bench.now)
    assert stream.log.segment_count > 3
    assert [number for _, number, _ in bench.written_statuses()] == list(range(40))


# Failures


def test_missing_status_stream_does_not_block_an_export_and_is_logged_once(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.broker.exports.statuses")
    bench.create_tasks("s", 4)
    bench.delete("status")
    for _ in range(2):
        found = bench.plan_file()
        bench.commit(report(found, settled_end=found.first + 1, events=[event(found.first)]))
    assert bench.progress("s").last_exported == 1
    (record,) = caplog.records
    assert record.getMessage() == (
        "stream 's', export 'e': statuses are lost: the message stream 'status' does not exist"
    )
    bench.create("status", {})
    bench.commit(report(bench.plan_file(), settled_end=3, events=[event(2)]))
    assert [number for _, number, _ in bench.written_statuses()] == [2]
    bench.delete("status")
    bench.commit(report(bench.plan_file(), events=[event(3)]))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_full_status_stream_does_not_block_an_export(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.create("status", {}, maxSize=1024, strategyOnFull=0)
    bench.create("s", to_s3(**status_config()))
    bench.append_tasks("s", 10)
    found = bench.plan_file()
    assert bench.commit(report(found, events=[event(number) for number in range(10)])) == 1
    assert bench.progress("s").last_exported == 9
    assert 0 < len(bench.written_statuses()) < 10
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "is full" in record.getMessage()


def test_status_that_is_too_large_does_not_affect_others(bench: Workbench) -> None:
    bench.create("status", {}, maxSize=2048, streamSegmentSize=1024)
    events = [event(1), event(2, message="x" * 2048), event(3)]
    bench.statuses.write(origin(), events, bench.now)
    assert [number for _, number, _ in bench.written_statuses()][-1] == 3
    assert 2 not in [number for _, number, _ in bench.written_statuses()]


# Syncs


def test_statuses_are_synced_with_the_progress(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    log: Any = bench.streams.find("status").log
    bench.commit(report(bench.plan_file(), settled_end=1, events=[event(0)]))
    assert not log.has_unsynced
    bench.begin_commit(report(bench.plan_file(), events=[event(1)]))
    assert log.has_unsynced
    sync = bench.statuses.sync()
    sync()
    assert not log.has_unsynced


def test_deleted_stream_is_not_synced(bench: Workbench) -> None:
    bench.create("status", {})
    bench.statuses.write(origin(), [event(1)], bench.now)
    bench.delete("status")
    bench.statuses.sync()()


def test_repeated_report_writes_no_second_status(bench: Workbench) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    failed = failure(found, events=[event(0, Status.Warning)])
    bench.commit(failed)
    assert bench.commit(failed) == 0
    assert len(bench.written_statuses()) == 1


def test_retry_does_not_repeat_in_progress(bench: Workbench) -> None:
    bench.create("status", {})
    debug = origin(StatusLevel.DEBUG)
    for events in (
        [event(7, Status.Warning), event(7, Status.InProgress)],
        [event(7, Status.InProgress), event(8, Status.InProgress)],
        [event(7, Status.InProgress), event(7, Status.Warning)],
        [event(7, Status.InProgress), event(7, Status.Success)],
    ):
        bench.statuses.write(debug, events, bench.now)
    written = [
        (message["statusContext"]["sequenceNumber"], Status(message["status"]).name)
        for message in bench.status_messages()
    ]
    assert written == [
        (7, "Warning"),
        (7, "InProgress"),
        (8, "InProgress"),
        (7, "Warning"),
        (7, "Success"),
    ]
    assert bench.statuses.recent.counts["InProgress"] == 2


# Recent tasks


def numbers(recent: RecentTasks, stream: str = "s", identifier: str = "e") -> list[int]:
    return [found.sequence_number for found in recent.of(stream, identifier)]


def test_last_event_of_each_task_is_kept_the_latest_first() -> None:
    recent = RecentTasks()
    recent.note("s", "e", [event(0, Status.InProgress), event(1, Status.InProgress)])
    recent.note("s", "e", [event(0, Status.Success)])

    assert [(found.sequence_number, found.status) for found in recent.of("s", "e")] == [
        (0, Status.Success),
        (1, Status.InProgress),
    ]


def test_recent_tasks_are_kept_by_export() -> None:
    recent = RecentTasks()
    recent.note("s", "e", [event(1)])
    recent.note("s", "f", [event(2)])
    recent.note("t", "e", [event(3)])

    assert numbers(recent) == [1]
    assert numbers(recent, "s", "f") == [2]
    assert numbers(recent, "t") == [3]
    assert numbers(recent, "nowhere") == []


def test_recent_tasks_of_an_export_are_limited() -> None:
    recent = RecentTasks()
    recent.note("s", "e", [event(number) for number in range(150)])
    assert numbers(recent) == list(range(149, 49, -1))
    recent.note("s", "e", [event(50), event(200)])
    assert numbers(recent) == [200, 50, *range(149, 51, -1)]


def test_recent_exports_are_limited() -> None:
    recent = RecentTasks()
    for number in range(256):
        recent.note("s", str(number), [event(0)])
    recent.note("s", "0", [event(1)])
    recent.note("s", "another", [event(0)])
    recent.note("s", "without events", [])

    assert numbers(recent, "s", "0") == [1, 0]
    assert numbers(recent, "s", "1") == []
    assert numbers(recent, "s", "2") == [0]


def test_removed_export_is_forgotten_and_its_events_stay_counted() -> None:
    recent = RecentTasks()
    recent.note("s", "e", [event(0, Status.InProgress), event(0, Status.Success)])
    recent.note("s", "f", [event(1, Status.Success)])
    recent.forget("s", "e")
    recent.forget("s", "unknown")

    assert numbers(recent) == []
    assert numbers(recent, "s", "f") == [1]
    assert recent.counts == {
        "Success": 2,
        "Failure": 0,
        "InProgress": 1,
        "Warning": 0,
        "Canceled": 0,
    }
