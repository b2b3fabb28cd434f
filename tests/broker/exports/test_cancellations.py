"""Tasks that go before they are carried out: they are told of, and their uploads are aborted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnknownFailureException
from penstock.model import MessageStreamDefinition, StrategyOnFull, from_wire
from penstock.model.exporting import ABANDONED_UPLOAD, Lane
from penstock.model.status import Status, StatusLevel
from penstock.store.log import FileLog
from penstock.store.record import data_path
from penstock.store.store import Store
from penstock.wire.operations import Operation
from tests.broker.exports.workbench import (
    Workbench,
    event,
    failure,
    interim,
    report,
    task,
    to_http,
    to_s3,
    told_in,
    upload,
)
from tests.support import LocalBroker, read

TTL = 60_000
SMALL = {"maxSize": 4096, "streamSegmentSize": 1024}
EXPIRED = "its time to live is over"
FULL = "the stream was full and dropped it"

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
    return [(number, text) for status, number, text in bench.told() if status == "Canceled"]


def expire(bench: Workbench) -> None:
    bench.wait(TTL / 1000 + 1)
    bench.streams.trim(bench.now)


def abandoned(bench: Workbench) -> list[int]:
    return [each.first for each in bench.plan(Lane.files) if each.kind == ABANDONED_UPLOAD]


# A stream or an export goes


@removals
def test_what_was_not_done_is_canceled_when_it_is_removed(
    bench: Workbench, reason: str, remove: Remove
) -> None:
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
def test_its_uploads_are_to_be_aborted(bench: Workbench, reason: str, remove: Remove) -> None:
    bench.create_tasks("s", 3)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0), upload(2)]))
    remove(bench)
    assert abandoned(bench) == [0, 2]
    bench.restart()
    assert abandoned(bench) == [0, 2]


@removals
def test_whoever_has_it_on_lease_reports_too_late(
    bench: Workbench, reason: str, remove: Remove
) -> None:
    bench.create_tasks("s", 2)
    found = bench.plan_file()
    bench.commit(interim(found, uploads=[upload(0)]))
    remove(bench)
    assert canceled(bench) == [(0, reason), (1, reason)]
    assert bench.commit(interim(found, uploads=[upload(0)], events=[event(0)])) == 0
    assert bench.commit(report(found, events=[event(0)])) == 0
    assert len(bench.told()) == 2
    assert abandoned(bench) == [0]


@removals
def test_what_is_just_being_stored_is_not_canceled_and_its_uploads_are_aborted(
    bench: Workbench, reason: str, remove: Remove
) -> None:
    bench.create_tasks("s", 4)
    commit = bench.begin_commit(
        failure(bench.plan_file(), settled_end=2, events=[event(0)], uploads=[upload(2)])
    )
    remove(bench)
    assert bench.told() == [
        ("Success", 0, "0 is Success"),
        ("Canceled", 2, reason),
        ("Canceled", 3, reason),
    ]
    bench.finish_commit(commit)
    assert abandoned(bench) == [2]
    bench.restart()
    assert abandoned(bench) == [2]
    assert len(bench.told()) == 3


def test_an_export_that_stays_cancels_nothing(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0)]))
    bench.update("s", to_s3(priority=1, **told_in()))
    assert bench.told() == []
    bench.wait(1)
    assert bench.plan_file().uploads == [upload(0)]


def test_a_removal_that_fails_cancels_nothing(bench: Workbench) -> None:
    bench.create_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0)]))
    bench.store.catalog._connection.execute(
        "CREATE TEMP TRIGGER broken BEFORE DELETE ON stream BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(UnknownFailureException):
        bench.delete("s")
    assert bench.told() == []
    bench.wait(1)
    assert bench.plan_file().uploads == [upload(0)]


def test_damage_stops_no_deletion(bench: Workbench) -> None:
    stream = bench.create_tasks("s", 3)
    assert isinstance(stream.log, FileLog)
    data_path(bench.store.root / "streams" / stream.stored.id, 0).write_bytes(b"y")
    bench.delete("s")
    assert [number for number, _ in canceled(bench)] == [0, 1, 2]
    assert "s3ExportTaskDefinition" not in bench.status_messages()[0]["statusContext"]


@pytest.mark.parametrize("config", [{}, told_in(level=StatusLevel.ERROR)])
def test_who_does_not_want_to_know_is_told_nothing_and_uploads_are_aborted_all_the_same(
    bench: Workbench, config: dict[str, Any]
) -> None:
    bench.create("status", {})
    bench.create("s", to_s3(**config))
    bench.append_tasks("s", 2)
    bench.commit(failure(bench.plan_file(), uploads=[upload(0)]))
    bench.delete("s")
    assert bench.told() == []
    assert abandoned(bench) == [0]


def test_exports_of_other_kinds_cancel_nothing(bench: Workbench) -> None:
    bench.create("status", {})
    bench.create("s", to_http(), 3)
    bench.delete("s")
    assert bench.told() == []


# Messages go


@pytest.mark.parametrize("persistence", [0, 1], ids=["file", "memory"])
def test_what_outlives_the_ttl_is_canceled(bench: Workbench, persistence: int) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL, persistence=persistence)
    bench.commit(report(bench.plan_file(), settled_end=1))
    expire(bench)
    assert canceled(bench) == [(1, EXPIRED), (2, EXPIRED)]
    assert bench.status_messages()[0]["statusContext"]["s3ExportTaskDefinition"]["key"] == "key/1"


@pytest.mark.parametrize("persistence", [0, 1], ids=["file", "memory"])
def test_what_is_overwritten_is_canceled(bench: Workbench, persistence: int) -> None:
    stream = bench.create_tasks("s", 100, persistence=persistence, **SMALL)
    assert stream.log.oldest > 0
    assert canceled(bench) == [(number, FULL) for number in range(stream.log.oldest)]


def test_its_uploads_are_aborted_too(bench: Workbench) -> None:
    bench.create_tasks("s", 2, timeToLiveMillis=TTL)
    bench.commit(failure(bench.plan_file(), uploads=[upload(1)]))
    expire(bench)
    assert abandoned(bench) == [1]
    bench.restart()
    assert abandoned(bench) == [1]


def test_what_was_done_is_not_canceled(bench: Workbench) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL)
    bench.commit(failure(bench.plan_file(), settled_end=1, arrived=[2]))
    expire(bench)
    assert canceled(bench) == [(1, EXPIRED)]


def test_what_somebody_has_is_not_canceled_before_he_has_reported(bench: Workbench) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    bench.append_tasks("s", 1)
    expire(bench)
    assert canceled(bench) == [(3, EXPIRED)]
    done = [event(0), event(2)]
    bench.commit(failure(found, settled_end=1, arrived=[2], events=done))
    assert canceled(bench) == [(3, EXPIRED), (1, EXPIRED)]


def test_what_somebody_had_and_did_not_find_any_more_is_canceled(bench: Workbench) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    expire(bench)
    # Between the plan and the reading of it: for whoever has it there are no such messages.
    bench.commit(report(found, events=[event(2)]))
    assert canceled(bench) == [(0, EXPIRED), (1, EXPIRED)]


def test_what_is_just_being_stored_is_waited_for_as_well(bench: Workbench) -> None:
    bench.create_tasks("s", 3, timeToLiveMillis=TTL)
    found = bench.plan_file()
    bench.restart()
    commit = bench.begin_commit(report(found, settled_end=2))
    expire(bench)
    assert canceled(bench) == [(2, EXPIRED)]
    bench.exports.forget(commit.settlement)
    assert canceled(bench) == [(2, EXPIRED)]
    bench.plan(Lane.files)
    assert canceled(bench) == [(2, EXPIRED), (0, EXPIRED), (1, EXPIRED)]


@pytest.mark.parametrize("how", ["released", "expired", "removed", "restarted"])
def test_what_somebody_had_and_never_reported_is_canceled_then(bench: Workbench, how: str) -> None:
    bench.create_tasks("s", 2, timeToLiveMillis=TTL)
    found = bench.plan_file(lease_millis=3_600_000)
    bench.commit(interim(found, uploads=[upload(0)]))
    expire(bench)
    assert bench.plan(Lane.files, pipeline="q") == []
    assert canceled(bench) == []
    match how:
        case "released":
            (abort,) = bench.plan(Lane.files)
        case "expired":
            bench.wait(3600)
            (abort,) = bench.plan(Lane.files, pipeline="q")
        case "removed":
            bench.delete("s")
            (abort,) = bench.plan(Lane.files)
        case "restarted":
            bench.restart()
            (abort,) = bench.plan(Lane.files)
    assert canceled(bench) == [(0, EXPIRED), (1, EXPIRED)]
    assert abort.uploads == [upload(0)]
    assert bench.commit(report(found, events=[event(0)])) == 0
    assert len(bench.told()) == 2


def test_a_paused_export_is_told_of_what_goes(bench: Workbench) -> None:
    bench.create_tasks("s", 1, timeToLiveMillis=TTL)
    bench.update("s", to_s3(disabled=True, **told_in()), timeToLiveMillis=TTL)
    expire(bench)
    assert canceled(bench) == [(0, EXPIRED)]


def test_a_status_stream_that_drops_something_to_take_a_status_tells_nobody(
    bench: Workbench,
) -> None:
    bench.create("last", {})
    bench.create("status", to_s3(**told_in("last")), **SMALL)
    bench.create("s", to_s3(**told_in()))
    bench.append_tasks("s", 50)
    bench.delete("s")
    assert bench.streams.find("status").log.oldest > 0
    assert bench.told("last") == []


def test_statuses_of_status_streams_are_told_of_reports(bench: Workbench) -> None:
    bench.create("last", {})
    bench.create("status", to_s3(**told_in("last")), **SMALL)
    bench.create("s", to_s3(**told_in()))
    bench.append_tasks("s", 50)
    events = [event(number, Status.Success) for number in range(50)]
    found = next(each for each in bench.plan(Lane.files) if each.stream == "s")
    bench.commit(report(found, events=events))
    assert {status for status, _, _ in bench.told("last")} == {"Canceled"}


# A broker that is killed


def test_what_was_dropped_and_not_removed_is_not_seen_again_and_its_tasks_are_told(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "root")
    overwrites = {"strategyOnFull": StrategyOnFull.OverwriteOldestData}
    store.create(from_wire({"name": "status", **overwrites}, MessageStreamDefinition))
    tasks = {"name": "s", "exportDefinition": to_s3(**told_in()), **overwrites, **SMALL}
    log = store.create(from_wire(tasks, MessageStreamDefinition)).log
    for number in range(100):
        log.append([json.dumps(task(number)).encode()], number)
    assert log.oldest > 0
    # As one finds it that is killed before anything is removed, or told.
    killed = shutil.copytree(tmp_path / "root", tmp_path / "killed")
    store.close()

    with LocalBroker(killed) as broker, broker.connect() as client:
        info = client.call(Operation.DescribeMessageStream, name="s")["messageStreamInfo"]
        statuses = read(client, "status", minMessageCount=log.oldest, maxMessageCount=1000)

    assert info["storageStatus"]["oldestSequenceNumber"] == log.oldest
    told = [json.loads(each["payload"]) for each in statuses]
    assert [each["statusContext"]["sequenceNumber"] for each in told] == [*range(log.oldest)]
    assert {(each["status"], each["message"]) for each in told} == {(Status.Canceled, FULL)}
