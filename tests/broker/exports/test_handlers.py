"""Plans and commits over the wire: who waits, who is woken, and who may."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.broker.access import Role, new_secret
from penstock.broker.exports import unstored
from penstock.broker.exports.pipelines import Work
from penstock.broker.handlers import now_millis
from penstock.errors import (
    InvalidRequestException,
    UnauthorizedException,
    UnknownFailureException,
)
from penstock.model.exporting import Lane
from penstock.store.rows import TokenRow
from penstock.testing.connection import Connection
from penstock.wire.operations import Operation
from tests.broker.exports.workbench import task, to_http, to_s3, told_in, upload
from tests.support import Json, LocalBroker, append, create, read, running, wait_until

WAIT = 25_000

numbers = count()


@pytest.fixture
def stream(client: Connection) -> Iterator[str]:
    """One with an export, which is gone when the test is over."""
    name = create(client, f"s{next(numbers)}", exportDefinition=to_http())
    yield name
    client.call(Operation.DeleteMessageStream, name=name)


def plan(connection: Connection, wait: int = 0, pipeline: str = "p", **fields: Any) -> list[Json]:
    plain = {"lane": "steady", "maxBytes": 1 << 20, "leaseMillis": 60_000, "waitMillis": wait}
    answer = connection.call(Operation.PlanExports, pipeline=pipeline, **{**plain, **fields})
    slices: list[Json] = answer["slices"]
    return slices


def report(found: Json, **fields: Any) -> Json:
    plain = {
        "lease": found["lease"],
        "stream": found["stream"],
        "streamId": found["streamId"],
        "identifier": found["config"]["identifier"],
        "first": found["first"],
        "settledEnd": found["end"],
        "exportedMessages": found["end"] - found["first"],
    }
    return {**plain, **fields}


def commit(connection: Connection, *reports: Json) -> list[str]:
    """The leases of those that counted."""
    answer = connection.call(Operation.CommitExports, reports=list(reports))
    accepted: list[str] = answer["accepted"]
    return accepted


def exported(connection: Connection, name: str) -> int:
    info = connection.call(Operation.DescribeMessageStream, name=name)
    return int(info["messageStreamInfo"]["exportStatuses"][0]["lastExportedSequenceNumber"])


def export_statistics(connection: Connection) -> list[Json]:
    statistics = connection.call(Operation.Statistics)["statistics"]
    return [export for stream in statistics["streams"] for export in stream["exports"]]


def waiting(broker: LocalBroker) -> int:
    """How many plans wait: each of them waits for changes of streams."""
    return broker.run(lambda: len(broker.broker.streams.changes))


class Waiting:
    """A plan that is asked for in a thread, and what came of it."""

    def __init__(self, broker: LocalBroker, connection: Connection, **fields: Any) -> None:
        self.slices: list[Json] | None = None
        before = waiting(broker)
        self._running = running(lambda: self._plan(connection, fields))
        self._running.__enter__()
        wait_until(lambda: waiting(broker) > before)

    def _plan(self, connection: Connection, fields: dict[str, Any]) -> None:
        self.slices = plan(connection, WAIT, **fields)

    def finish(self) -> list[Json]:
        self._running.__exit__(None, None, None)
        assert self.slices is not None
        return self.slices


def test_what_is_due_is_told_with_where_the_broker_is(
    broker: LocalBroker, client: Connection, stream: str
) -> None:
    append(client, stream, b"x")
    answer = client.call(
        Operation.PlanExports, pipeline="p", lane="steady", maxBytes=9, leaseMillis=1000
    )
    assert answer["root"] == str(broker.root.absolute())
    assert answer["instance"]
    (found,) = answer["slices"]
    assert (found["stream"], found["first"], found["end"]) == (stream, 0, 1)
    assert found["segments"][0]["end"] == 1


def test_what_is_committed_is_described_and_survives(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        append(client, name, b"x")
        (found,) = plan(client)
        assert commit(client, report(found, exportedBytes=1)) == [found["lease"]]
        assert exported(client, name) == 0
        assert commit(client, report(found)) == []
        (export,) = export_statistics(client)
        assert (export["exportedMessages"], export["exportedBytes"]) == (1, 1)
        assert (export["lane"], export["failures"], export["skippedMessages"]) == ("steady", 0, 0)
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        assert exported(client, name) == 0
        assert plan(client) == []


def test_a_commit_of_nothing_and_of_what_is_gone_is_answered(
    client: Connection, stream: str
) -> None:
    append(client, stream, b"x")
    (found,) = plan(client)
    assert commit(client) == []
    gone = report(found, stream="nowhere"), report(found, identifier="nobody")
    assert commit(client, *gone) == []
    assert exported(client, stream) == -1


def test_a_plan_that_waits_is_woken_by_an_append(
    broker: LocalBroker, client: Connection, other: Connection, stream: str
) -> None:
    waits = Waiting(broker, client)
    append(other, stream, b"x")
    (found,) = waits.finish()
    assert found["stream"] == stream
    assert waiting(broker) == 0


def test_a_plan_that_waits_is_woken_when_an_export_is_resumed(
    broker: LocalBroker, client: Connection, other: Connection, stream: str
) -> None:
    append(other, stream, b"x")
    definition = {"name": stream, "strategyOnFull": 1}
    paused = {**definition, "exportDefinition": to_http(disabled=True)}
    other.call(Operation.UpdateMessageStream, definition=paused)
    waits = Waiting(broker, client)
    resumed = {**definition, "exportDefinition": to_http()}
    other.call(Operation.UpdateMessageStream, definition=resumed)
    assert len(waits.finish()) == 1


def test_a_plan_that_waits_is_woken_by_a_report(
    broker: LocalBroker, client: Connection, other: Connection, stream: str
) -> None:
    for _ in range(2):
        append(other, stream, b"x")
    (found,) = plan(other, pipeline="q", maxBytes=1)
    waits = Waiting(broker, client)
    commit(other, report(found))
    (rest,) = waits.finish()
    assert rest["first"] == 1


def test_a_plan_that_waits_in_another_lane_gets_what_was_slow(
    broker: LocalBroker, client: Connection, other: Connection, stream: str
) -> None:
    append(other, stream, b"x")
    (found,) = plan(other)
    waits = Waiting(broker, client, lane="recovering")
    commit(other, report(found, settledEnd=0, wasSlow=True))
    assert len(waits.finish()) == 1


def test_a_plan_that_waits_gets_what_another_pipeline_gives_back(
    broker: LocalBroker, client: Connection, other: Connection, stream: str
) -> None:
    urgent = create(other, f"{stream} urgent", exportDefinition=to_http(priority=1))
    for name in (stream, urgent):
        append(other, name, b"x")
    assert len(plan(other, pipeline="q")) == 2
    waits = Waiting(broker, client)
    (kept,) = plan(other, pipeline="q", maxSlices=1)
    (found,) = waits.finish()
    assert (kept["stream"], found["stream"]) == (urgent, stream)
    other.call(Operation.DeleteMessageStream, name=urgent)


def test_a_plan_that_waits_gets_what_a_pipeline_had_that_is_gone(
    broker: LocalBroker, client: Connection, stream: str
) -> None:
    with broker.connect() as gone:
        append(gone, stream, b"x")
        assert len(plan(gone, pipeline="q", leaseMillis=3_600_000)) == 1
        waits = Waiting(broker, client)
    assert len(waits.finish()) == 1


def test_a_pipeline_that_has_come_back_keeps_its_slices_when_its_old_connection_ends(
    broker: LocalBroker, client: Connection, stream: str
) -> None:
    with broker.connect() as old:
        append(old, stream, b"x")
        plan(old)
        (found,) = plan(client, leaseMillis=3_600_000)
    wait_until(lambda: len(broker.sessions) == 1)
    exports = broker.broker.exports
    served = broker.run(lambda: exports._all.of(broker.broker.streams.find(stream))["e"])
    assert served.lease is not None
    assert served.lease.id == found["lease"]
    assert broker.run(lambda: served.free_at(0.0)) > broker.run(broker.loop.time) + 1000


def test_a_pipeline_that_waits_on_a_connection_it_has_given_up_gets_nothing_there(
    broker: LocalBroker, client: Connection, other: Connection, stream: str
) -> None:
    forsaken = Waiting(broker, client)
    pipeline: list[Json] = []
    with running(lambda: pipeline.extend(plan(other, WAIT))):
        assert forsaken.finish() == []
        append(client, stream, b"x")
    assert [found["stream"] for found in pipeline] == [stream]


def test_a_plan_whose_client_left_waits_no_longer(broker: LocalBroker, stream: str) -> None:
    peer = broker.connect()
    peer.send(
        Operation.PlanExports,
        pipeline="p",
        lane="steady",
        maxBytes=1,
        leaseMillis=1000,
        waitMillis=WAIT,
    )
    wait_until(lambda: waiting(broker) == 1)
    peer.close()
    wait_until(lambda: waiting(broker) == 0)
    assert stream in broker.run(broker.broker.streams.names)


def test_a_plan_that_waits_is_answered_when_its_stream_is_deleted(
    broker: LocalBroker, client: Connection, other: Connection
) -> None:
    name = create(other, f"s{next(numbers)}", exportDefinition=to_http())
    waits = Waiting(broker, client)
    other.call(Operation.DeleteMessageStream, name=name)
    assert waits.finish() == []


def test_a_plan_that_waits_is_answered_when_its_time_is_up(client: Connection, stream: str) -> None:
    assert plan(client, wait=50) == []
    assert exported(client, stream) == -1


def test_plans_that_wait_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "s", exportDefinition=to_http())
        waits = Waiting(broker, client)
        broker.stop()
        assert waits.finish() == []


@contextmanager
def progress_refused(broker: LocalBroker) -> Iterator[None]:
    """The catalog stores no progress and no uploads."""
    refuse_progress(broker, "no more")
    yield
    refuse_progress(broker, None)


def refuse_progress(broker: LocalBroker, reason: str | None) -> None:
    """From now on, with this reason; None stores it again."""
    catalog = broker.broker._store.catalog

    def change() -> None:
        # No attempt succeeds between two reasons.
        with catalog._lock:
            for table in ("export_progress", "upload"):
                catalog._connection.execute(f"DROP TRIGGER IF EXISTS no_{table}")
                if reason is not None:
                    catalog._connection.execute(
                        f"CREATE TEMP TRIGGER no_{table} BEFORE INSERT ON {table} BEGIN "
                        f"SELECT RAISE(ABORT, '{reason}'); END"
                    )

    broker.run(change)


def stored_progress(broker: LocalBroker, name: str) -> int:
    catalog = broker.broker._store.catalog
    stream = broker.broker.streams.find(name)
    (progress,) = catalog.progress(stream.stored.id).values()
    return progress.last_exported


def suspension(client: Connection) -> str:
    return str(client.call(Operation.Statistics)["statistics"]["exportsSuspended"])


def test_exports_are_suspended_while_progress_cannot_be_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        first, second = (create(client, name, exportDefinition=to_http()) for name in "ab")
        append(client, first, b"x")
        append(client, second, b"x")
        slices = plan(client)
        with progress_refused(broker):
            # Nothing is accepted for good, and nothing is an error.
            assert commit(client, report(slices[0])) == []
            assert suspension(client) == "no more"
            # Also of others that are under way nothing is delivered again.
            assert commit(client, report(slices[1])) == []
            assert (exported(client, first), exported(client, second)) == (0, 0)
            append(client, first, b"y")
            assert plan(client) == []
            assert plan(client, pipeline="another") == []
            waits = Waiting(broker, client)
            assert stored_progress(broker, first) == -1
        # It goes on by itself, with what is new.
        (found,) = waits.finish()
        assert (found["stream"], found["first"]) == (first, 1)
        assert suspension(client) == ""
        assert stored_progress(broker, first) == stored_progress(broker, second) == 0
    lines = [record.message for record in caplog.records if "progress of exports" in record.message]
    assert len(lines) == 2
    assert "suspended" in lines[0]


def test_reason_of_a_suspension_is_that_of_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstored, "_RETRY_SECONDS", 0.01)
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        append(client, name, b"x")
        (found,) = plan(client)
        with progress_refused(broker):
            commit(client, report(found))
            assert suspension(client) == "no more"
            refuse_progress(broker, "another reason")
            wait_until(lambda: suspension(client) == "another reason")
        wait_until(lambda: suspension(client) == "")


def test_unstored_progress_is_stored_when_the_broker_stops(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        append(client, name, b"x")
        (found,) = plan(client)
        with progress_refused(broker):
            commit(client, report(found))
            # Not before the stop.
            broker.run(broker.broker._export_handlers.unstored.stop_retrying)
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        assert exported(client, name) == 0
        assert plan(client) == []


def test_upload_that_cannot_be_stored_is_not_begun(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_s3())
        append(client, name, json.dumps(task(0)).encode())
        (found,) = plan(client, lane="files")
        begun = report(
            found,
            settledEnd=found["first"],
            exportedMessages=0,
            isInterim=True,
            uploads=[msgspec.to_builtins(upload(0))],
        )
        with (
            progress_refused(broker),
            pytest.raises(UnknownFailureException, match="the disk of the server failed: no more"),
        ):
            commit(client, begun)
        assert commit(client, begun) == [found["lease"]]


def test_skipped_messages_are_kept_where_the_settings_say(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root, dead_letter_stream="letters") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        append(client, name, b"x")
        (found,) = plan(client)
        commit(client, report(found, skipped=[{"sequenceNumber": 0, "reason": "too large"}]))
        (letter,) = read(client, "letters")
        assert b'"reason":"too large"' in letter["payload"]
        (export,) = export_statistics(client)
        assert export["skippedMessages"] == 1


@pytest.mark.parametrize(
    "fields", [{"lane": "fast"}, {"leaseMillis": 1}, {"pipeline": ""}, {"maxBytes": 0}]
)
def test_a_plan_that_makes_no_sense_is_refused(client: Connection, fields: Json) -> None:
    with pytest.raises(InvalidRequestException, match=next(iter(fields))):
        plan(client, **fields)


def test_a_token_plans_and_reports_for_its_own_streams_only(
    broker: LocalBroker, client: Connection, stream: str
) -> None:
    secret = new_secret()
    row = TokenRow(secret[:8], Role.pipeline, ("mine*",), 1)
    broker.run(lambda: broker.broker._store.catalog.add_token(row, secret))
    mine = create(client, f"mine {stream}", exportDefinition=to_http())
    for name in (mine, stream):
        append(client, name, b"x")
    with broker.connect(secret) as pipeline:
        (found,) = plan(pipeline, pipeline="q")
        assert found["stream"] == mine
        (others,) = plan(client)
        with pytest.raises(UnauthorizedException, match="not for the stream"):
            commit(pipeline, report(found), report(others))
        assert exported(client, mine) == -1
        commit(pipeline, report(found))
    assert exported(client, mine) == 0
    client.call(Operation.DeleteMessageStream, name=mine)


# S3 tasks


def test_a_task_from_its_plan_to_its_status(
    broker: LocalBroker, client: Connection, other: Connection
) -> None:
    status_stream = create(client, f"status {next(numbers)}")
    name = create(client, f"s{next(numbers)}", exportDefinition=to_s3(**told_in(status_stream)))
    append(client, name, json.dumps(task(0)).encode())
    (found,) = plan(client, lane="files")
    assert None not in found.values()
    going_on = msgspec.to_builtins(upload(0))
    interim = report(found, settledEnd=0, isInterim=True, uploads=[going_on])
    for _ in range(2):
        assert commit(client, interim) == [found["lease"]]
    assert exported(client, name) == -1

    statuses: list[Json] = []
    with running(lambda: statuses.extend(read(other, status_stream, readTimeoutMillis=WAIT))):
        wait_until(lambda: waits_for_messages(broker, status_stream))
        event = {"sequenceNumber": 0, "status": 0, "message": "done", "time": 5, "task": task(0)}
        assert commit(client, report(found, events=[event])) == [found["lease"]]
    (status,) = statuses
    context = json.loads(status["payload"])["statusContext"]
    assert context["s3ExportTaskDefinition"] == task(0)
    assert exported(client, name) == 0
    for each in (name, status_stream):
        client.call(Operation.DeleteMessageStream, name=each)


def waits_for_messages(broker: LocalBroker, name: str) -> bool:
    stream = broker.broker.streams.find(name)
    return broker.run(stream.waiters.count_readers) > 0


def test_a_lane_of_files_that_waits_is_woken_when_an_upload_is_abandoned(
    broker: LocalBroker, client: Connection, other: Connection
) -> None:
    name = create(other, f"s{next(numbers)}", exportDefinition=to_s3())
    append(other, name, json.dumps(task(0)).encode())
    (found,) = plan(other, lane="files", pipeline="q")
    going_on = msgspec.to_builtins(upload(0))
    commit(other, report(found, settledEnd=0, isInterim=True, uploads=[going_on]))
    waits = Waiting(broker, client, lane="files")
    other.call(Operation.DeleteMessageStream, name=name)
    slices = waits.finish()
    # It may be answered because a stream is gone; then it asks again.
    (abort,) = slices or plan(client, lane="files")
    assert (abort["kind"], abort["uploads"]) == ("abandoned_upload", [going_on])
    assert commit(client, report(abort)) == [abort["lease"]]


def test_a_status_is_on_the_disk_before_its_report_is_answered(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root, sync_interval_ms=3_600_000) as broker, broker.connect() as client:
        create(client, "status")
        create(client, "s", exportDefinition=to_s3(**told_in("status")))
        append(client, "s", json.dumps(task(0)).encode())
        (found,) = plan(client, lane="files")
        event = {"sequenceNumber": 0, "status": 0, "message": "done", "time": 5}
        commit(client, report(found, events=[event]))
        logs: dict[str, Any] = {
            name: broker.broker.streams.find(name).log for name in ("s", "status")
        }
        assert logs["s"].has_unsynced
        assert not logs["status"].has_unsynced


def test_what_was_dropped_while_somebody_had_it_is_told_when_the_broker_stops(
    tmp_path: Path,
) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "status")
        exports = to_s3(**told_in("status"))
        create(client, "s", exportDefinition=exports, timeToLiveMillis=60_000)
        append(client, "s", json.dumps(task(0)).encode())
        (found,) = plan(client, lane="files")
        broker.run(lambda: broker.broker.streams.trim(now_millis() + 120_000))
        assert broker.run(lambda: broker.broker.streams.find("status").log.end) == 0
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        (status,) = read(client, "status")
        assert json.loads(status["payload"])["message"] == "its time to live is over"
        assert commit(client, report(found)) == []


def test_statuses_uploads_and_progress_are_there_after_a_restart(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "status")
        create(client, "s", exportDefinition=to_s3(**told_in("status")))
        for number in range(2):
            append(client, "s", json.dumps(task(number)).encode())
        (found,) = plan(client, lane="files")
        event = {"sequenceNumber": 0, "status": 0, "message": "done", "time": 5}
        going_on = msgspec.to_builtins(upload(1, parts=["a"]))
        commit(client, report(found, settledEnd=1, events=[event], uploads=[going_on]))
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        (again,) = plan(client, lane="files")
        assert (again["first"], again["uploads"]) == (1, [going_on])
        assert len(read(client, "status")) == 1


def test_a_pipeline_is_known_from_its_first_plan_to_its_end(
    broker: LocalBroker, stream: str
) -> None:
    name = f"of {stream}"
    about = {"started": 5, "sparkVersion": "4.1.0", "master": "local[3]", "sparkPage": None}

    def known() -> Any:
        pipelines = broker.broker.pipelines
        return broker.run(lambda: next((each for each in pipelines if each.name == name), None))

    with broker.connect() as leaving:
        append(leaving, stream, b"x")
        assert known() is None
        (found,) = plan(leaving, pipeline=name, about=about)
        assert known().is_connected
        assert msgspec.to_builtins(known().about) == about
        commit(leaving, report(found))
        plan(leaving, pipeline=name)
        batch = known().lanes[Lane.steady].last
        assert (batch.number, batch.work) == (1, Work(slices=1, messages=1))
    wait_until(lambda: not known().is_connected)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({}, "about"),
        ({"started": "now"}, "about.started"),
        ({"started": 1, "sparkVersion": "x" * 65}, "about.sparkVersion"),
        ({"started": 1, "sparkPage": "http://" + "x" * 255}, "about.sparkPage"),
        ("4.1.0", "about"),
    ],
)
def test_what_a_pipeline_tells_of_itself_is_checked(
    client: Connection, about: Any, message: str
) -> None:
    with pytest.raises(InvalidRequestException, match=message):
        plan(client, about=about)
