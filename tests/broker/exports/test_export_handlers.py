"""Plans, reports and reservations over the wire: pending requests, wake-ups, and access."""

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
from penstock.broker.exports import progress as progress_module
from penstock.broker.exports.work_source import Holder
from penstock.broker.handlers import now_millis
from penstock.errors import (
    InvalidRequestException,
    UnauthorizedException,
    UnknownFailureException,
)
from penstock.store.rows import TokenRow
from penstock.wire.operations import Operation
from tests.broker.exports.workbench import status_config, task, to_http, to_s3, upload
from tests.raw_connection import RawConnection
from tests.support import Json, LocalBroker, append, create, read, running, wait_until

WAIT = 25_000

numbers = count()


@pytest.fixture
def stream(client: RawConnection) -> Iterator[str]:
    """A stream with an export, which is deleted after the test."""
    name = create(client, f"s{next(numbers)}", exportDefinition=to_http())
    yield name
    client.call(Operation.DeleteMessageStream, name=name)


def request_plan(connection: RawConnection, wait: int = 0, **fields: Any) -> Json:
    plain = {"pipeline": "p", "task": "t", "leaseMillis": 60_000, "waitMillis": wait}
    return connection.call(Operation.PlanExports, **{**plain, **fields})


def plan(connection: RawConnection, wait: int = 0, **fields: Any) -> list[Json]:
    work: list[Json] = request_plan(connection, wait, **fields)["work"]
    return work


def report(found: Json, **fields: Any) -> Json:
    plain = {key: found[key] for key in ("lease", "stream", "identifier")}
    if found["work"] == "abort":
        return {**plain, "first": found["upload"]["sequenceNumber"], **fields}
    arrived = {
        "streamId": found["streamId"],
        "first": found["first"],
        "settledEnd": found["end"],
        "exportedMessages": found["end"] - found["first"],
    }
    return {**plain, **arrived, **fields}


def interim(found: Json, **fields: Any) -> Json:
    """An interim report, without arrived messages."""
    plain = {"settledEnd": found["first"], "exportedMessages": 0, "isFinal": False}
    return report(found, **{**plain, **fields})


def commit(connection: RawConnection, *reports: Json) -> list[str]:
    """The leases of accepted reports."""
    answer = connection.call(Operation.CommitExports, reports=list(reports))
    accepted: list[str] = answer["accepted"]
    return accepted


def reserve(connection: RawConnection, lease: str, size: int = 1000, wait: int = 0) -> Json:
    answer = connection.call(Operation.ReserveBandwidth, lease=lease, size=size, waitMillis=wait)
    return {key: answer[key] for key in ("isGranted", "isHeld")}


GRANTED = {"isGranted": True, "isHeld": True}
TIMED_OUT = {"isGranted": False, "isHeld": True}
LOST = {"isGranted": False, "isHeld": False}


def exported(connection: RawConnection, name: str) -> int:
    info = connection.call(Operation.DescribeMessageStream, name=name)
    return int(info["messageStreamInfo"]["exportStatuses"][0]["lastExportedSequenceNumber"])


def export_statistics(connection: RawConnection) -> list[Json]:
    statistics = connection.call(Operation.Statistics)["statistics"]
    return [export for stream in statistics["streams"] for export in stream["exports"]]


def waiting(broker: LocalBroker) -> int:
    """The number of pending plans: each of them waits for changes of streams."""
    return broker.run(lambda: len(broker.broker.streams.change_waiters))


class Waiting:
    """A plan that is requested in a thread, and its answer."""

    def __init__(
        self, broker: LocalBroker, connection: RawConnection, wait_millis: int = WAIT, **fields: Any
    ) -> None:
        self.answer: Json | None = None
        before = waiting(broker)
        self._running = running(lambda: self._plan_with_condition(connection, wait_millis, fields))
        self._running.__enter__()
        wait_until(lambda: waiting(broker) > before)

    def _plan_with_condition(
        self, connection: RawConnection, wait_millis: int, fields: dict[str, Any]
    ) -> None:
        self.answer = request_plan(connection, wait_millis, **fields)

    def finish(self) -> Json:
        self._running.__exit__(None, None, None)
        assert self.answer is not None
        return self.answer

    def work(self) -> list[Json]:
        work: list[Json] = self.finish()["work"]
        return work


# Plans


def test_plan_has_the_work_and_the_location_of_the_broker(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    append(client, stream, b"x")
    answer = request_plan(client)
    assert answer["root"] == str(broker.root.absolute())
    assert answer["instance"]
    assert (answer["waiting"], answer["lost"], answer["stops"]) == (0, [], False)
    assert answer["tasks"] == 1
    (found,) = answer["work"]
    assert (found["work"], found["stream"]) == ("messages", stream)
    assert (found["first"], found["end"]) == (0, 1)
    assert found["segments"][0]["end"] == 1


def test_committed_progress_is_described_and_survives(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        append(client, name, b"x")
        (found,) = plan(client)
        given = report(found, exportedBytes=1)
        assert commit(client, given) == [found["lease"]]
        assert exported(client, name) == 0
        # The same report is repeated, and then another one is sent.
        assert commit(client, given) == [found["lease"]]
        assert commit(client, report(found)) == []
        (export,) = export_statistics(client)
        assert (export["exportedMessages"], export["exportedBytes"]) == (1, 1)
        assert (export["state"], export["failures"]) == ("up-to-date", 0)
        assert export["skippedMessages"] == 0
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        assert exported(client, name) == 0
        assert plan(client) == []


def test_commit_without_known_exports_is_answered(client: RawConnection, stream: str) -> None:
    append(client, stream, b"x")
    (found,) = plan(client)
    assert commit(client) == []
    gone = report(found, stream="nowhere"), report(found, identifier="unknown")
    assert commit(client, *gone) == []
    assert exported(client, stream) == -1


def test_pending_plan_is_woken_by_an_append(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    pending = Waiting(broker, client)
    append(other, stream, b"x")
    (found,) = pending.work()
    assert found["stream"] == stream
    assert waiting(broker) == 0


def test_pending_plan_is_woken_when_gathered_messages_leave(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    append(other, stream, b"x")
    (found,) = plan(client)
    commit(client, report(found))
    append(other, stream, b"y")
    assert [(each["first"], each["end"]) for each in plan(client, WAIT)] == [(1, 2)]


def test_pending_plan_is_woken_when_an_export_is_resumed(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    append(other, stream, b"x")
    definition = {"name": stream, "strategyOnFull": 1}
    paused = {**definition, "exportDefinition": to_http(disabled=True)}
    other.call(Operation.UpdateMessageStream, definition=paused)
    pending = Waiting(broker, client)
    resumed = {**definition, "exportDefinition": to_http()}
    other.call(Operation.UpdateMessageStream, definition=resumed)
    assert len(pending.work()) == 1


def test_pending_plan_is_woken_by_a_final_report(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    for _ in range(2):
        append(other, stream, b"x")
    (found,) = plan(other, task="b", maxBytes=1)
    pending = Waiting(broker, client)
    assert commit(other, interim(found, settledEnd=1)) == [found["lease"]]
    assert commit(other, report(found, first=1)) == [found["lease"]]
    (rest,) = pending.work()
    assert rest["first"] == 1


def test_pending_plan_gets_work_that_another_task_releases(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    urgent = create(other, f"{stream} urgent", exportDefinition=to_http(priority=1))
    for name in (stream, urgent):
        append(other, name, b"x")
    kept, given_back = plan(other, task="b")
    pending = Waiting(broker, client)
    assert plan(other, task="b", holding=[kept["lease"]], maxSlices=0) == []
    (found,) = pending.work()
    assert (kept["stream"], given_back["stream"], found["stream"]) == (urgent, stream, stream)
    other.call(Operation.DeleteMessageStream, name=urgent)


def test_pending_plan_gets_the_work_of_a_disconnected_task(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    with broker.connect() as gone:
        append(gone, stream, b"x")
        assert len(plan(gone, task="b", leaseMillis=3_600_000)) == 1
        pending = Waiting(broker, client)
    assert len(pending.work()) == 1


def test_pending_plan_is_not_answered_by_reports_of_its_task(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    """Otherwise each delivery would cost a second request."""
    append(other, stream, b"x")
    (found,) = plan(client)
    pending = Waiting(broker, client, holding=[found["lease"]])
    assert commit(other, report(found)) == [found["lease"]]
    append(other, stream, b"y")
    answer = pending.finish()
    assert answer["lost"] == []
    assert [each["first"] for each in answer["work"]] == [1]


def test_pending_plan_is_answered_when_a_lease_is_lost(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    append(other, stream, b"x")
    (found,) = plan(client)
    pending = Waiting(broker, client, holding=[found["lease"]])
    definition = {"name": stream, "strategyOnFull": 1, "exportDefinition": {}}
    other.call(Operation.UpdateMessageStream, definition=definition)
    assert pending.finish()["lost"] == [found["lease"]]


def test_pending_plan_is_answered_once_when_an_export_is_paused(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    append(other, stream, b"x")
    (found,) = plan(client)
    held = [found["lease"]]
    pending = Waiting(broker, client, holding=held)
    paused = {"name": stream, "strategyOnFull": 1, "exportDefinition": to_http(disabled=True)}
    other.call(Operation.UpdateMessageStream, definition=paused)
    assert pending.finish()["ending"] == held
    # The task waits again while the last call of its delivery runs.
    pending = Waiting(broker, client, holding=held)
    assert commit(other, report(found)) == held
    name = create(other, f"{stream} other", exportDefinition=to_http())
    append(other, name, b"x")
    answer = pending.finish()
    assert (answer["ending"], answer["lost"]) == ([], [])
    assert [each["stream"] for each in answer["work"]] == [name]
    other.call(Operation.DeleteMessageStream, name=name)


def test_task_that_has_reconnected_keeps_its_leases_when_its_old_connection_ends(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    with broker.connect() as old:
        append(old, stream, b"x")
        (found,) = plan(old)
        assert plan(client, holding=[found["lease"]], leaseMillis=3_600_000) == []
    wait_until(lambda: len(broker.sessions) == 1)
    served = broker.run(lambda: broker.broker.exports.of(broker.broker.streams.find(stream))["e"])
    assert served.lease is not None
    assert served.lease.id == found["lease"]
    assert broker.run(served.free_at) > broker.run(broker.loop.time) + 1000


def test_plan_is_answered_empty_when_its_task_sends_another_request(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    replaced = Waiting(broker, client)
    received: list[Json] = []
    with running(lambda: received.extend(plan(other, WAIT))):
        assert replaced.work() == []
        append(client, stream, b"x")
    assert [found["stream"] for found in received] == [stream]


def test_plan_of_a_closed_connection_is_canceled(broker: LocalBroker, stream: str) -> None:
    peer = broker.connect()
    peer.send(Operation.PlanExports, pipeline="p", task="t", leaseMillis=1000, waitMillis=WAIT)
    wait_until(lambda: waiting(broker) == 1)
    peer.close()
    wait_until(lambda: waiting(broker) == 0)
    assert stream in broker.run(broker.broker.streams.names)


def test_pending_plan_is_answered_when_its_stream_is_deleted(
    broker: LocalBroker, client: RawConnection, other: RawConnection
) -> None:
    name = create(other, f"s{next(numbers)}", exportDefinition=to_http())
    pending = Waiting(broker, client)
    other.call(Operation.DeleteMessageStream, name=name)
    assert pending.work() == []


def test_pending_plan_is_answered_after_its_timeout(client: RawConnection, stream: str) -> None:
    assert plan(client, wait=50) == []
    assert exported(client, stream) == -1


def test_pending_plans_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "s", exportDefinition=to_http())
        pending = Waiting(broker, client)
        broker.stop()
        assert pending.work() == []


# The driver


def test_driver_request_is_answered_at_once_with_due_exports_and_tasks(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    append(client, stream, b"x")
    look: Json = {"pipeline": "looks", "task": "driver", "maxSlices": 0}
    answer = request_plan(other, **look)
    assert (answer["work"], answer["waiting"], answer["tasks"]) == ([], 1, 0)
    (found,) = plan(client, pipeline="looks")
    answer = request_plan(other, **look)
    assert (answer["waiting"], answer["tasks"]) == (0, 1)
    commit(client, report(found))


@pytest.mark.parametrize("limit", ["maxSlices", "maxBytes"])
def test_plan_without_room_waits_for_its_timeout(
    client: RawConnection, stream: str, limit: str
) -> None:
    append(client, stream, b"x")
    answer = request_plan(client, wait=50, **{limit: 0})
    assert (answer["work"], answer["waiting"]) == ([], 1)


def test_stopping_pipeline_ends_its_tasks_and_no_others(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    name = f"stops {stream}"
    with broker.connect() as driver, broker.connect() as second:
        append(other, stream, b"x")
        (found,) = plan(client, pipeline=name, task="a")
        pending = Waiting(broker, second, pipeline=name, task="b")
        assert request_plan(driver, pipeline=name, task="driver", maxSlices=0, stops=True)["stops"]
        answer = pending.finish()
        assert (answer["stops"], answer["work"]) == (True, [])
        # A task that finishes keeps its leases, gets no work and may report.
        commit(client, report(found, settledEnd=0, exportedMessages=0))
        answer = request_plan(client, pipeline=name, task="a", maxSlices=0)
        assert (answer["stops"], answer["work"], answer["lost"]) == (True, [], [])
        answer = request_plan(other, pipeline="another")
        assert (answer["stops"], len(answer["work"])) == (False, 1)
        commit(other, report(answer["work"][0], settledEnd=0, exportedMessages=0))


def test_stopping_pipeline_renews_leases(
    broker: LocalBroker, client: RawConnection, other: RawConnection, stream: str
) -> None:
    name = f"stops {stream}"
    append(other, stream, b"x")
    (found,) = plan(client, pipeline=name)
    request_plan(other, pipeline=name, task="driver", maxSlices=0, stops=True)
    answer = request_plan(client, pipeline=name, holding=[found["lease"]], leaseMillis=3_600_000)
    assert (answer["stops"], answer["lost"]) == (True, [])
    lease = broker.run(lambda: broker.broker.exports.find_lease(found["lease"]))
    assert lease is not None
    assert broker.run(lease.free_at) > broker.run(broker.loop.time) + 1000


def test_name_of_a_stopped_pipeline_can_be_used_again(broker: LocalBroker, stream: str) -> None:
    name = f"stops {stream}"
    with broker.connect() as driver:
        assert request_plan(driver, pipeline=name, task="driver", maxSlices=0, stops=True)["stops"]
    wait_until(lambda: len(broker.sessions) == 1)
    with broker.connect() as driver:
        assert not request_plan(driver, pipeline=name, task="driver", maxSlices=0)["stops"]


# Bandwidth


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[LocalBroker]:
    """1000 bytes per second."""
    with LocalBroker(tmp_path / "slow", exporter_max_bandwidth=8) as broker:
        yield broker


def lease_file(connection: RawConnection, name: str = "file", **fields: Any) -> str:
    """The lease of a slice of tasks."""
    create(connection, name, exportDefinition=to_s3(**fields))
    append(connection, name, json.dumps(task(0)).encode())
    (found,) = plan(connection, task=name)
    assert found["work"] == "tasks"
    return str(found["lease"])


def reservations(broker: LocalBroker) -> int:
    return broker.run(lambda: len(broker.broker.exports.bandwidth._pending))


def test_without_a_limit_bandwidth_is_granted_at_once(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        assert reserve(client, lease_file(client), 10**12) == GRANTED


def test_bandwidth_is_not_reserved_for_leases_that_have_ended(
    slow: LocalBroker,
) -> None:
    with slow.connect() as client:
        lease = lease_file(client)
        assert reserve(client, "x") == LOST
        client.call(Operation.DeleteMessageStream, name="file")
        assert reserve(client, lease) == LOST


def test_reservation_waits_for_bandwidth(slow: LocalBroker) -> None:
    with slow.connect() as client:
        lease = lease_file(client)
        # Seconds, so that the bucket stays empty on a busy machine too.
        assert reserve(client, lease, 4000) == GRANTED
        assert reserve(client, lease, wait=1) == TIMED_OUT
        assert reserve(client, lease, wait=WAIT) == GRANTED
        assert reservations(slow) == 0


def test_most_urgent_reservation_is_granted_first(slow: LocalBroker) -> None:
    with slow.connect() as client, slow.connect() as first, slow.connect() as second:
        leases = [lease_file(client, str(priority), priority=priority) for priority in (9, 1)]
        assert reserve(client, leases[0], 4000) == GRANTED
        granted: list[int] = []
        with running(lambda: granted.append(len(reserve(first, leases[0], 100, WAIT)))):
            wait_until(lambda: reservations(slow) == 1)
            # The other reservation waits for the debt of this one.
            assert reserve(second, leases[1], 4000, WAIT) == GRANTED
            assert reservations(slow) == 1
        assert granted


def test_reservation_of_a_closed_connection_is_canceled(slow: LocalBroker) -> None:
    with slow.connect() as client:
        lease = lease_file(client)
        assert reserve(client, lease, 10**9) == GRANTED
        with slow.connect() as gone:
            gone.send(Operation.ReserveBandwidth, lease=lease, size=1, waitMillis=WAIT)
            wait_until(lambda: reservations(slow) == 1)
        wait_until(lambda: reservations(slow) == 0)


def test_reservation_of_a_lease_that_ends_meanwhile_is_not_granted(slow: LocalBroker) -> None:
    with slow.connect() as client, slow.connect() as other:
        lease = lease_file(client)
        assert reserve(client, lease, 4000) == GRANTED
        answers: list[Json] = []
        with running(lambda: answers.append(reserve(other, lease, 10**9, WAIT))):
            wait_until(lambda: reservations(slow) == 1)
            client.call(Operation.DeleteMessageStream, name="file")
        assert answers == [LOST]
        assert reserve(client, lease_file(client, "another"), wait=WAIT) == GRANTED


def test_messages_are_planned_when_a_reservation_is_granted(slow: LocalBroker) -> None:
    with slow.connect() as client, slow.connect() as other, slow.connect() as third:
        lease = lease_file(client, priority=1)
        name = create(client, "s", exportDefinition=to_http(priority=10))
        append(client, name, b"x")
        assert reserve(client, lease, 4000) == GRANTED
        granted: list[Json] = []
        with running(lambda: granted.append(reserve(other, lease, 100, WAIT))):
            wait_until(lambda: reservations(slow) == 1)
            assert [each["stream"] for each in plan(third, WAIT)] == [name]
            assert reservations(slow) == 0
        assert granted == [GRANTED]


def test_messages_are_planned_when_a_reservation_times_out(slow: LocalBroker) -> None:
    with slow.connect() as client, slow.connect() as other:
        lease = lease_file(client, priority=1)
        name = create(client, "s", exportDefinition=to_http(priority=10))
        slow.run(lambda: slow.broker.exports.bandwidth.charge(5, 5000))
        append(client, name, b"x")
        pending = Waiting(slow, other)
        assert reserve(client, lease, wait=10) == TIMED_OUT
        assert [each["stream"] for each in pending.work()] == [name]


def test_token_reserves_for_its_own_streams_only(slow: LocalBroker) -> None:
    secret = new_secret()
    row = TokenRow(secret[:8], Role.pipeline, ("mine*",), 1)
    slow.run(lambda: slow.broker._store.catalog.add_token(row, secret))
    with slow.connect() as client, slow.connect(secret) as pipeline:
        assert reserve(pipeline, lease_file(client, "yours"), 10) == LOST
        assert reserve(pipeline, lease_file(client, "mine"), 10) == GRANTED


def test_reservation_of_no_bytes_checks_the_lease(slow: LocalBroker) -> None:
    with slow.connect() as client, slow.connect() as other:
        lease = lease_file(client)
        assert reserve(client, lease, 10**9) == GRANTED
        # No bandwidth is left.
        assert reserve(client, lease, 0) == GRANTED
        assert reserve(other, "another lease", 0) == LOST


@pytest.mark.parametrize("fields", [{"size": -1}, {"lease": 5}, {"waitMillis": -1}])
def test_invalid_reservation_is_refused(client: RawConnection, fields: Json) -> None:
    plain = {"lease": "l", "size": 1}
    with pytest.raises(InvalidRequestException, match=next(iter(fields))):
        client.call(Operation.ReserveBandwidth, **{**plain, **fields})


# Restarts of the broker


def test_restarted_broker_continues_with_the_leases_of_tasks(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        for _ in range(3):
            append(client, name, b"x")
        (found,) = plan(client)
        commit(client, interim(found, settledEnd=1))
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        answer = request_plan(client, holding=[found["lease"]])
        assert (answer["work"], answer["lost"]) == ([], [])
        assert commit(client, report(found, first=1)) == [found["lease"]]
        assert exported(client, name) == 2


def test_reservation_continues_after_a_restart(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        lease = lease_file(client)
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        assert reserve(client, lease) == GRANTED
        assert request_plan(client, task="file", holding=[lease])["lost"] == []
        (pipeline,) = broker.run(lambda: list(broker.broker.pipelines))
        assert broker.run(lambda: broker.broker.exports.find_lease(lease)) is not None
        assert pipeline.is_connected


# Failures of the disk


@contextmanager
def progress_refused(broker: LocalBroker) -> Iterator[None]:
    """The catalog stores no progress and no uploads."""
    refuse_progress(broker, "no more")
    yield
    refuse_progress(broker, None)


def refuse_progress(broker: LocalBroker, reason: str | None) -> None:
    """Makes storing fail with this reason, or succeed if it is None."""
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


def suspension(client: RawConnection) -> str:
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
            assert commit(client, report(slices[0])) == [slices[0]["lease"]]
            wait_until(lambda: suspension(client) == "no more")
            # Messages in flight are not delivered again either.
            assert commit(client, report(slices[1])) == [slices[1]["lease"]]
            assert (exported(client, first), exported(client, second)) == (0, 0)
            append(client, first, b"y")
            assert plan(client) == []
            assert plan(client, task="another") == []
            pending = Waiting(broker, client)
            assert stored_progress(broker, first) == -1
        # Exports continue with new messages.
        (found,) = pending.work()
        assert (found["stream"], found["first"]) == (first, 1)
        assert suspension(client) == ""
        assert stored_progress(broker, first) == stored_progress(broker, second) == 0
    lines = [record.message for record in caplog.records if "export progress" in record.message]
    assert len(lines) == 2
    assert "suspended" in lines[0]


def test_suspension_has_the_reason_of_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "_RETRY_SECONDS", 0.01)
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        append(client, name, b"x")
        (found,) = plan(client)
        with progress_refused(broker):
            commit(client, report(found))
            wait_until(lambda: suspension(client) == "no more")
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
            # It is not stored before the stop.
            broker.run(broker.broker._export_handlers.progress.stop)
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        assert exported(client, name) == 0
        assert plan(client) == []


def test_upload_that_cannot_be_stored_is_not_begun(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_s3())
        append(client, name, json.dumps(task(0)).encode())
        (found,) = plan(client)
        begun = interim(found, uploads=[msgspec.to_builtins(upload(0))])
        with (
            progress_refused(broker),
            pytest.raises(UnknownFailureException, match="the disk of the server failed: no more"),
        ):
            commit(client, begun)
        assert commit(client, begun) == [found["lease"]]


def test_skipped_messages_are_stored_in_the_configured_stream(tmp_path: Path) -> None:
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


def test_interim_report_of_messages_is_kept_until_it_can_be_stored(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_http())
        for _ in range(2):
            append(client, name, b"x")
        (found,) = plan(client)
        with progress_refused(broker):
            assert commit(client, interim(found, settledEnd=1)) == [found["lease"]]
            wait_until(lambda: suspension(client) == "no more")
            assert request_plan(client, holding=[found["lease"]])["lost"] == []
            assert exported(client, name) == 0
        wait_until(lambda: suspension(client) == "")
        assert stored_progress(broker, name) == 0


def test_final_report_of_files_is_accepted_when_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task deletes the files of accepted reports."""
    monkeypatch.setattr(progress_module, "_RETRY_SECONDS", 0.01)
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_s3())
        append(client, name, json.dumps(task(0)).encode())
        (found,) = plan(client)
        with progress_refused(broker):
            assert commit(client, report(found)) == []
            assert suspension(client) == "no more"
            assert commit(client, report(found)) == []
        wait_until(lambda: suspension(client) == "")
        assert commit(client, report(found)) == [found["lease"]]
        assert stored_progress(broker, name) == 0


def test_plan_accepts_its_reports_first(client: RawConnection, stream: str) -> None:
    append(client, stream, b"x")
    (found,) = plan(client)
    append(client, stream, b"y")
    answer = request_plan(
        client, reports=[report(found)], holding=[found["lease"]], waitMillis=WAIT
    )
    assert exported(client, stream) == 0
    assert [(each["first"], each["end"]) for each in answer["work"]] == [(1, 2)]
    assert answer["lost"] == []


def test_delivery_that_a_plan_reports_is_counted(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    append(client, stream, b"x")
    (found,) = plan(client, pipeline="counting")
    request_plan(client, pipeline="counting", reports=[report(found)])
    (pipeline,) = broker.run(
        lambda: [each for each in broker.broker.pipelines if each.name == "counting"]
    )
    assert pipeline.tasks["t"].deliveries == 1
    assert pipeline.tasks["t"].assignments == {}
    deliveries = broker.run(lambda: broker.broker.pipelines.deliveries)
    assert [each.stream for each in deliveries if each.holder.pipeline == "counting"] == [stream]


def test_plan_stores_reports_of_files_before_it_is_answered(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_s3())
        append(client, name, json.dumps(task(0)).encode())
        (found,) = plan(client)
        request_plan(client, reports=[report(found)])
        assert stored_progress(broker, name) == 0


def test_task_that_disconnects_while_its_reports_are_stored_keeps_no_lease(
    tmp_path: Path,
) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        for name in ("file", "message"):
            create(client, name, exportDefinition=to_s3() if name == "file" else to_http())
            append(client, name, json.dumps(task(0)).encode())
        departed = broker.connect()
        work = {each["stream"]: each for each in plan(departed, task="departed")}
        handlers = broker.broker._export_handlers
        with broker.broker._store.catalog._lock:
            departed.send(
                Operation.PlanExports,
                pipeline="p",
                task="departed",
                leaseMillis=3_600_000,
                waitMillis=WAIT,
                holding=[work["message"]["lease"]],
                reports=[report(work["file"])],
            )
            wait_until(lambda: handlers.progress._storing)
            departed.close()
            wait_until(lambda: len(broker.sessions) == 1)
        wait_until(lambda: stored_progress(broker, "file") == 0)
        assert [each["stream"] for each in plan(client, WAIT)] == ["message"]
        assert request_plan(client)["tasks"] == 1


def test_plan_with_a_report_that_cannot_be_stored_fails(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        name = create(client, "s", exportDefinition=to_s3())
        append(client, name, json.dumps(task(0)).encode())
        (found,) = plan(client)
        with progress_refused(broker), pytest.raises(UnknownFailureException, match="no more"):
            request_plan(client, reports=[interim(found)])


@pytest.mark.parametrize(
    "fields",
    [
        {"task": ""},
        {"leaseMillis": 1},
        {"pipeline": ""},
        {"maxBytes": -1},
        {"maxSlices": -1},
        {"maxPriority": 0},
        {"holding": [1]},
    ],
)
def test_invalid_plan_is_refused(client: RawConnection, fields: Json) -> None:
    with pytest.raises(InvalidRequestException, match=next(iter(fields))):
        plan(client, **fields)


@pytest.mark.parametrize(
    "field", ["exportedMessages", "exportedBytes", "missing", "sentBytes", "pauseMillis"]
)
def test_report_with_a_huge_number_is_refused(
    client: RawConnection, stream: str, field: str
) -> None:
    append(client, stream, b"x")
    (found,) = plan(client)
    with pytest.raises(InvalidRequestException, match=field):
        commit(client, report(found, **{field: 2**63 - 1}))
    assert exported(client, stream) == -1


def test_token_plans_and_reports_for_its_own_streams_only(
    broker: LocalBroker, client: RawConnection, stream: str
) -> None:
    secret = new_secret()
    row = TokenRow(secret[:8], Role.pipeline, ("mine*",), 1)
    broker.run(lambda: broker.broker._store.catalog.add_token(row, secret))
    mine = create(client, f"mine {stream}", exportDefinition=to_http())
    for name in (mine, stream):
        append(client, name, b"x")
    with broker.connect(secret) as pipeline:
        (found,) = plan(pipeline, task="b")
        assert found["stream"] == mine
        (others,) = plan(client)
        answer = request_plan(pipeline, task="a", holding=[others["lease"]])
        assert answer["lost"] == [others["lease"]]
        request_plan(pipeline, task="a")
        with pytest.raises(UnauthorizedException, match="does not allow the stream"):
            commit(pipeline, report(found), report(others))
        with pytest.raises(UnauthorizedException, match="does not allow the stream"):
            request_plan(pipeline, task="b", reports=[report(found), report(others)])
        assert exported(client, mine) == -1
        # The lease is still held by its task.
        assert commit(client, interim(others, settledEnd=0)) == [others["lease"]]
        # The name of a stream that the token sees does not help.
        assert commit(pipeline, report(others, stream=mine)) == []
        assert exported(client, stream) == -1
        commit(pipeline, report(found))
    assert exported(client, mine) == 0
    client.call(Operation.DeleteMessageStream, name=mine)


# S3 tasks


def test_s3_task_is_planned_reported_and_gets_a_status(
    broker: LocalBroker, client: RawConnection, other: RawConnection
) -> None:
    status_stream = create(client, f"status {next(numbers)}")
    name = create(
        client, f"s{next(numbers)}", exportDefinition=to_s3(**status_config(status_stream))
    )
    append(client, name, json.dumps(task(0)).encode())
    (found,) = plan(client)
    assert None not in found.values()
    going_on = msgspec.to_builtins(upload(0))
    for _ in range(2):
        assert commit(client, interim(found, uploads=[going_on])) == [found["lease"]]
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


def test_pending_plan_is_woken_when_an_upload_is_abandoned(
    broker: LocalBroker, client: RawConnection, other: RawConnection
) -> None:
    name = create(other, f"s{next(numbers)}", exportDefinition=to_s3())
    append(other, name, json.dumps(task(0)).encode())
    (found,) = plan(other, task="b")
    going_on = msgspec.to_builtins(upload(0))
    commit(other, interim(found, uploads=[going_on]))
    pending = Waiting(broker, client)
    other.call(Operation.DeleteMessageStream, name=name)
    # It may be answered because a stream was deleted; then the task repeats the request.
    (abort,) = pending.work() or plan(client)
    assert (abort["work"], abort["upload"]) == ("abort", going_on)
    assert commit(client, report(abort)) == [abort["lease"]]


def test_status_is_on_the_disk_before_its_report_is_answered(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root, sync_interval_ms=3_600_000) as broker, broker.connect() as client:
        create(client, "status")
        create(client, "s", exportDefinition=to_s3(**status_config("status")))
        append(client, "s", json.dumps(task(0)).encode())
        (found,) = plan(client)
        event = {"sequenceNumber": 0, "status": 0, "message": "done", "time": 5}
        commit(client, report(found, events=[event]))
        logs: dict[str, Any] = {
            name: broker.broker.streams.find(name).log for name in ("s", "status")
        }
        assert logs["s"].has_unsynced
        assert not logs["status"].has_unsynced


def test_tasks_dropped_while_they_were_leased_are_canceled_when_the_broker_stops(
    tmp_path: Path,
) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "status")
        exports = to_s3(**status_config("status"))
        create(client, "s", exportDefinition=exports, timeToLiveMillis=60_000)
        append(client, "s", json.dumps(task(0)).encode())
        (found,) = plan(client)
        broker.run(lambda: broker.broker.streams.trim(now_millis() + 120_000))
        assert broker.run(lambda: broker.broker.streams.find("status").log.end) == 0
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        (status,) = read(client, "status")
        assert json.loads(status["payload"])["message"] == "its time to live has expired"
        assert commit(client, report(found)) == []


def test_statuses_uploads_and_progress_survive_a_restart(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "status")
        create(client, "s", exportDefinition=to_s3(**status_config("status")))
        for number in range(2):
            append(client, "s", json.dumps(task(number)).encode())
        (found,) = plan(client)
        event = {"sequenceNumber": 0, "status": 0, "message": "done", "time": 5}
        going_on = msgspec.to_builtins(upload(1, parts=["a"]))
        commit(client, report(found, settledEnd=1, events=[event], uploads=[going_on]))
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        (again,) = plan(client)
        assert (again["first"], again["uploads"]) == (1, [going_on])
        assert len(read(client, "status")) == 1


# Pipelines


def test_pipeline_is_known_after_its_first_plan(broker: LocalBroker, stream: str) -> None:
    name = f"of {stream}"
    about = {"started": 5, "sparkVersion": "4.1.0", "master": "local[3]", "sparkPage": None}

    def known() -> Any:
        pipelines = broker.broker.pipelines
        return broker.run(lambda: next((each for each in pipelines if each.name == name), None))

    with broker.connect() as leaving:
        append(leaving, stream, b"x")
        request_plan(leaving, pipeline=name, task="driver", maxSlices=0, about=about)
        assert known() is None
        (found,) = plan(leaving, pipeline=name, about=about)
        assert known().is_connected
        assert msgspec.to_builtins(known().about) == about
        assert list(known().tasks["t"].assignments) == [found["lease"]]
        commit(leaving, report(found))
        delivery = broker.run(lambda: broker.broker.pipelines.deliveries[-1])
        assert (delivery.holder, delivery.messages) == (Holder(name, "t"), 1)
        assert known().tasks["t"].assignments == {}
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
def test_invalid_description_of_a_pipeline_is_refused(
    client: RawConnection, about: Any, message: str
) -> None:
    with pytest.raises(InvalidRequestException, match=message):
        plan(client, about=about)
