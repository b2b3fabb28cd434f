"""Dropped S3 tasks are canceled, and their uploads are aborted."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.exports import cancellations
from penstock.broker.exports.cancellations import cancel_tasks
from penstock.errors import UnknownFailureException
from penstock.model import MessageStreamDefinition, StrategyOnFull, from_wire
from penstock.model.exporting import UploadAbort
from penstock.model.status_message import Status, StatusLevel
from penstock.store.log import FileLog, Log
from penstock.store.record import data_path
from penstock.store.store import Store
from penstock.wire.operations import Operation
from tests.broker.exports.workbench import (
    Workbench,
    event,
    failure,
    interim,
    report,
    status_config,
    task,
    to_http,
    to_s3,
    upload,
)
from tests.support import LocalBroker, read

TTL = 60_000
SMALL = {"maxSize": 4096, "streamSegmentSize": 1024}
EXPIRED = "its time to live has expired"
FULL = "the stream was full and dropped it"
REASON = "the stream was deleted"

Remove = Callable[[Workbench], object]

REMOVALS: dict[str, Remove] = {
    "the stream was deleted": lambda bench: bench.delete("s"),
    "the export was removed": lambda bench: bench.update("s", {}),
}
removals = pytest.mark.parametrize(
    ("reason", "remove"),
    [*REMOVALS.items(), ("the export was removed", lambda bench: bench.update("s", to_http()))],
    ids=["deleted", "removed", "of another kind"],
)


def canceled(bench: Workbench) -> list[tuple[int, str]]:
    return [
        (number, text) for status, number, text in bench.written_statuses() if status == "Canceled"
    ]


def expire(bench: Workbench) -> None:
    bench.wait(TTL / 1000 + 1)
    bench.streams.trim(bench.now)


def abandoned(bench: Workbench) -> list[int]:
    return [each.upload.sequence_number for each in bench.plan_aborts()]


# Removed streams and exports


@removals
def test_removal_cancels_unfinished_tasks(bench: Workbench, reason: str, remove: Remove) -> None:
    bench.create_tasks("s", 5)
    bench.commit(failure(bench.plan_file(), settled_end=2, arrived=[3]))
    remove(bench)
    assert canceled(bench) == [(2, reason), (4, reason)]
    (first, _) = bench.status_messages()
    assert first["statusContext"]["s3ExportTaskDefinition"]["key"] == "key/2"
    assert first["timestampEpochMs"] == bench.now
    log: Any = bench.streams.find("status").log
    assert not log.has_unsynced


@removals
def test_removal_abandons_uploads(bench: Workbench, reason: str, remove: Remove) -> None:
    bench.create_tasks("s", 3)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0), upload(2)]))
    remove(bench)
    assert abandoned(bench) == [0, 2]
    bench.restart()
    assert abandoned(bench) == [0, 2]


@removals
def test_report_after_the_removal_is_refused(bench: Workbench, reason: str, remove: Remove) -> None:
    bench.create_tasks("s", 2)
    found = bench.plan_file()
    bench.commit(interim(found, uploads=[upload(0)]))
    remove(bench)
    assert canceled(bench) == [(0, reason), (1, reason)]
    assert bench.commit(interim(found, uploads=[upload(0)], events=[event(0)])) == 0
    assert bench.commit(report(found, events=[event(0)])) == 0
    assert len(bench.written_statuses()) == 2
    assert abandoned(bench) == [0]


@removals
def test_removal_does_not_cancel_tasks_whose_report_is_being_stored(
    bench: Workbench, reason: str, remove: Remove
) -> None:
    bench.create_tasks("s", 4)
    commit = bench.begin_commit(
        failure(bench.plan_file(), settled_end=2, events=[event(0)], uploads=[upload(2)])
    )
    remove(bench)
    assert bench.written_statuses() == [
        ("Success", 0, "0 is Success"),
        ("Canceled", 2, reason),
        ("Canceled", 3, reason),
    ]
    bench.finish_commit(commit)
    assert abandoned(bench) == [2]
    bench.restart()
    assert abandoned(bench) == [2]
    assert len(bench.written_statuses()) == 3


def test_changed_export_cancels_nothing(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0)]))
    bench.update("s", to_s3(priority=1, **status_config()))
    assert bench.written_statuses() == []
    bench.wait(1)
    assert bench.plan_file().uploads == [upload(0)]


def test_failed_removal_cancels_nothing(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0)]))
    bench.store.catalog._connection.execute(
        "CREATE TEMP TRIGGER broken BEFORE DELETE ON stream BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(UnknownFailureException):
        bench.delete("s")
    assert bench.written_statuses() == []
    bench.wait(1)
    assert bench.plan_file().uploads == [upload(0)]


def test_stream_with_damage_can_be_deleted(bench: Workbench) -> None:
    stream = bench.create_tasks("s", 3)
    assert isinstance(stream.log, FileLog)
    data_path(bench.store.root / "streams" / stream.stored.id, 0).write_bytes(b"y")
    bench.delete("s")
    assert [number for number, _ in canceled(bench)] == [0, 1, 2]
    assert "s3ExportTaskDefinition" not in bench.status_messages()[0]["statusContext"]


@pytest.mark.parametrize("config", [{}, status_config(level=StatusLevel.ERROR)])
def test_uploads_are_abandoned_also_if_no_status_is_wanted(
    bench: Workbench, config: dict[str, Any]
) -> None:
    bench.create("status", {})
    bench.create("s", to_s3(**config))
    bench.append_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0)]))
    bench.delete("s")
    assert bench.written_statuses() == []
    assert abandoned(bench) == [0]


def test_exports_of_messages_cancel_nothing(bench: Workbench) -> None:
    bench.create("status", {})
    bench.create("s", to_http(), 3)
    bench.delete("s")
    assert bench.written_statuses() == []


# Dropped messages


@pytest.mark.parametrize("persistence", [0, 1], ids=["file", "memory"])
def test_expired_tasks_are_canceled(bench: Workbench, persistence: int) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL, persistence=persistence)
    bench.commit(report(bench.plan_file(), settled_end=1))
    expire(bench)
    assert canceled(bench) == [(1, EXPIRED), (2, EXPIRED)]
    assert bench.status_messages()[0]["statusContext"]["s3ExportTaskDefinition"]["key"] == "key/1"


@pytest.mark.parametrize("persistence", [0, 1], ids=["file", "memory"])
def test_overwritten_tasks_are_canceled(bench: Workbench, persistence: int) -> None:
    stream = bench.create_tasks("s", 100, persistence=persistence, **SMALL)
    assert stream.log.oldest > 0
    assert canceled(bench) == [(number, FULL) for number in range(stream.log.oldest)]


def test_uploads_of_dropped_tasks_are_abandoned(bench: Workbench) -> None:
    bench.create_tasks("s", 2, timeToLiveMillis=TTL)
    bench.commit(failure(bench.plan_file(), uploads=[upload(1)]))
    expire(bench)
    assert abandoned(bench) == [1]
    bench.restart()
    assert abandoned(bench) == [1]


def test_finished_tasks_are_not_canceled(bench: Workbench) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL)
    bench.commit(failure(bench.plan_file(), settled_end=1, arrived=[2]))
    expire(bench)
    assert canceled(bench) == [(1, EXPIRED)]


def test_leased_tasks_are_not_canceled_before_the_report(bench: Workbench) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    bench.append_tasks("s", 1)
    expire(bench)
    assert canceled(bench) == [(3, EXPIRED)]
    done = [event(0), event(2)]
    bench.commit(failure(found, settled_end=1, arrived=[2], events=done))
    assert canceled(bench) == [(3, EXPIRED), (1, EXPIRED)]


def test_reported_tasks_without_an_event_are_canceled(bench: Workbench) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    expire(bench)
    # Dropped between the plan and the reading: the task finds no such messages.
    bench.commit(report(found, events=[event(2)]))
    assert canceled(bench) == [(0, EXPIRED), (1, EXPIRED)]


@pytest.mark.parametrize("restarts", [False, True])
def test_tasks_are_not_canceled_while_their_report_is_stored(
    bench: Workbench, restarts: bool
) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL)
    found = bench.plan_file()
    if restarts:
        bench.restart()
    commit = bench.begin_commit(report(found, settled_end=2))
    expire(bench)
    bench.plan()
    assert canceled(bench) == []
    bench.cancel_commit(commit)
    assert canceled(bench) == []
    bench.plan()
    assert canceled(bench) == [(0, EXPIRED), (1, EXPIRED), (2, EXPIRED)]


def test_tasks_that_interim_reports_have_ended_are_not_canceled(bench: Workbench) -> None:
    bench.create_tasks("s", 5, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    bench.commit(interim(found, settled_end=1, arrived=[3], events=[event(0), event(3)]))
    expire(bench)
    assert canceled(bench) == []
    bench.commit(interim(found, first=1, settled_end=2, arrived=[3], events=[event(1)]))
    bench.commit(failure(found, first=2, arrived=[3]))
    assert canceled(bench) == [(2, EXPIRED), (4, EXPIRED)]
    assert len(bench.written_statuses()) == 5


def test_tasks_dropped_while_an_interim_report_is_stored_are_not_canceled_twice(
    bench: Workbench,
) -> None:
    bench.create_tasks("s", 4, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    ended = [event(0), event(2)]
    commit = bench.begin_commit(interim(found, settled_end=1, arrived=[2], events=ended))
    expire(bench)
    bench.finish_commit(commit)
    assert canceled(bench) == []
    bench.commit(report(found, first=1, settled_end=3, events=[event(1)]))
    assert canceled(bench) == [(3, EXPIRED)]
    assert len(bench.written_statuses()) == 4


def test_tasks_dropped_after_an_interim_report_are_canceled_when_the_lease_expires(
    bench: Workbench,
) -> None:
    bench.create_tasks("s", 4, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    begun = [upload(2)]
    bench.commit(
        interim(found, settled_end=1, arrived=[3], events=[event(0), event(3)], uploads=begun)
    )
    expire(bench)
    bench.wait(3600)
    assert abandoned(bench) == [2]
    assert canceled(bench) == [(1, EXPIRED), (2, EXPIRED)]
    # It would write a second status.
    assert bench.commit(report(found, first=1, events=[event(1)])) == 0


@pytest.mark.parametrize("how", ["released", "expired", "removed", "restarted"])
def test_dropped_tasks_are_canceled_when_their_lease_ends_without_a_report(
    bench: Workbench, how: str
) -> None:
    bench.create_tasks("s", 2, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    bench.commit(interim(found, uploads=[upload(0)]))
    expire(bench)
    assert bench.plan(task="b") == []
    assert canceled(bench) == []
    match how:
        case "released":
            (abort,) = bench.plan()
        case "expired":
            bench.wait(3600)
            (abort,) = bench.plan(task="b")
        case "removed":
            bench.delete("s")
            (abort,) = bench.plan()
        case "restarted":
            bench.restart()
            (abort,) = bench.plan()
    assert canceled(bench) == [(0, EXPIRED), (1, EXPIRED)]
    assert isinstance(abort, UploadAbort)
    assert abort.upload == upload(0)
    assert bench.commit(report(found, events=[event(0)])) == 0
    assert len(bench.written_statuses()) == 2


def test_dropped_tasks_of_a_paused_export_are_canceled(bench: Workbench) -> None:
    bench.create_tasks("s", 1, timeToLiveMillis=TTL)
    bench.update("s", to_s3(disabled=True, **status_config()), timeToLiveMillis=TTL)
    expire(bench)
    assert canceled(bench) == [(0, EXPIRED)]


def test_status_stream_that_drops_messages_for_a_status_cancels_no_tasks(
    bench: Workbench,
) -> None:
    bench.create("last", {})
    bench.create("status", to_s3(**status_config("last")), **SMALL)
    bench.create("s", to_s3(**status_config()))
    bench.append_tasks("s", 50)
    bench.delete("s")
    assert bench.streams.find("status").log.oldest > 0
    assert bench.written_statuses("last") == []


def test_status_stream_that_drops_messages_for_a_report_cancels_its_tasks(bench: Workbench) -> None:
    bench.create("last", {})
    bench.create("status", to_s3(**status_config("last")), **SMALL)
    bench.create("s", to_s3(**status_config()))
    bench.append_tasks("s", 50)
    events = [event(number, Status.Success) for number in range(50)]
    found = next(each for each in bench.plan() if each.stream == "s")
    bench.commit(report(found, events=events))
    assert {status for status, _, _ in bench.written_statuses("last")} == {"Canceled"}


# Reading canceled tasks


def found(log: Log, first: int = 0, end: int | None = None) -> list[tuple[int, str | None]]:
    """The numbers, and the keys of tasks that could be read."""
    events = cancel_tasks(log, first, log.end if end is None else end, REASON, 5)
    return [(each.sequence_number, each.task["key"] if each.task else None) for each in events]


def test_each_task_is_canceled_with_the_reason(bench: Workbench) -> None:
    stream = bench.create_tasks("s", 3)
    (canceled,) = cancel_tasks(stream.log, 1, 2, REASON, 5)
    assert (canceled.sequence_number, canceled.status) == (1, Status.Canceled)
    assert (canceled.message, canceled.time, canceled.task) == (REASON, 5, task(1))


@pytest.mark.parametrize("payload", [b"x", b"[]", b'{"bucket": "b"}', b"\xff", b"1"])
def test_invalid_task_is_canceled_without_a_definition(bench: Workbench, payload: bytes) -> None:
    stream = bench.create_tasks("s", 1)
    stream.append([payload], bench.now)
    assert found(stream.log) == [(0, "key/0"), (1, None)]


def test_canceled_tasks_are_read_from_all_segments(bench: Workbench) -> None:
    stream = bench.create_tasks("s", 60, streamSegmentSize=1024)
    assert stream.log.segment_count > 3
    assert found(stream.log, 2, 59) == [(number, f"key/{number}") for number in range(2, 59)]


def test_damaged_tasks_are_canceled(bench: Workbench) -> None:
    stream = bench.create_tasks("s", 60, streamSegmentSize=1024)
    assert isinstance(stream.log, FileLog)
    stream.log.work()
    first, second, third = [segment.first for segment in stream.log.segments()[:3]]
    directory = bench.store.root / "streams" / stream.stored.id
    data_path(directory, second).unlink()
    data_path(directory, first).write_bytes(b"y" * 20)
    expected = [(number, None) for number in range(third)]
    assert found(stream.log) == [*expected, *[(n, f"key/{n}") for n in range(third, 60)]]


def test_number_of_canceled_tasks_is_limited(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancellations, "_MAX_CANCELED_TASKS", 5)
    stream = bench.create_tasks("s", 8)
    assert found(stream.log, 3) == [(number, f"key/{number}") for number in range(3, 8)]
    assert caplog.records == []
    assert [number for number, _ in found(stream.log, 1)] == [1, 2, 3, 4, 5]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "7 S3 tasks are canceled (the stream was deleted)" in record.getMessage()


# A killed broker


def test_tasks_in_segments_evicted_at_start_up_are_canceled(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "root")
    overwrites = {"strategyOnFull": StrategyOnFull.OverwriteOldestData}
    store.create(from_wire({"name": "status", **overwrites}, MessageStreamDefinition))
    tasks = {"name": "s", "exportDefinition": to_s3(**status_config()), **overwrites, **SMALL}
    log = store.create(from_wire(tasks, MessageStreamDefinition)).log
    for number in range(100):
        log.append([json.dumps(task(number)).encode()], number)
    assert log.oldest > 0
    # As after a kill before segments are removed and statuses are written.
    killed = shutil.copytree(tmp_path / "root", tmp_path / "killed")
    store.close()

    with LocalBroker(killed) as broker, broker.connect() as client:
        info = client.call(Operation.DescribeMessageStream, name="s")["messageStreamInfo"]
        statuses = read(client, "status", minMessageCount=log.oldest, maxMessageCount=1000)

    assert info["storageStatus"]["oldestSequenceNumber"] == log.oldest
    written = [json.loads(each["payload"]) for each in statuses]
    assert [each["statusContext"]["sequenceNumber"] for each in written] == [*range(log.oldest)]
    assert {(each["status"], each["message"]) for each in written} == {(Status.Canceled, FULL)}
