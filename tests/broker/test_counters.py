"""Counters and statistics of the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import __version__
from penstock.broker.counters import Distribution, Durations
from penstock.errors import MessageStoreReadErrorException, ResourceNotFoundException
from penstock.wire.operations import Operation
from tests.broker.exports.workbench import to_http, to_s3
from tests.support import (
    LocalBroker,
    append,
    append_frame,
    create,
    read,
    running,
    wait_until,
)
from tests.web.site import commit, plan


def test_requests_and_connections_are_counted(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "a", maxSize=4096, streamSegmentSize=1024)
        create(client, "b")
        for _ in range(3):
            append(client, "a", b"x" * 500)
        client.append_many("b", [b"1", b"22"])
        with broker.meet() as peer:
            # A run of appends, as sent by a client that pipelines.
            peer.say(b"".join([append_frame("b", b"333")] * 4))
            for _ in range(4):
                peer.take_answer()
        read(client, "a", minMessageCount=2)
        client.call(Operation.ReadColumns, name="b", firstSequenceNumber=0, endSequenceNumber=2)
        with pytest.raises(ResourceNotFoundException):
            append(client, "nowhere", b"x")
        with broker.reach() as peer:
            peer.say(b"\x07")
            peer.take_rest()
        with broker.meet() as peer:
            peer.say(bytes(5))
            peer.take_rest()
        wait_until(lambda: len(broker.sessions) == 1)

        statistics = client.call(Operation.Statistics)["statistics"]

    assert statistics.pop("uptimeMillis") >= 0
    now = statistics.pop("time")
    assert statistics.pop("disk").pop("freeBytes") > 0
    assert statistics.pop("exportsSuspended") == ""
    assert statistics.pop("descriptorShortages") == 0
    for stream in statistics["streams"]:
        assert now - 60_000 < stream.pop("oldestTime") <= stream.pop("newestTime") <= now
    assert statistics == {
        "version": __version__,
        "connections": 1,
        "messagesAppended": 9,
        "bytesAppended": 1515,
        "messagesRead": 4,
        "bytesRead": 1003,
        "requestsFailed": 1,
        "connectionsAccepted": 4,
        "connectionsRefused": 1,
        "connectionsDropped": 1,
        "streams": [
            {
                "name": "a",
                "oldestSequenceNumber": 0,
                "newestSequenceNumber": 2,
                "totalBytes": 1500,
                "maxSize": 4096,
                "segments": 2,
                "waitingReads": 0,
                "exports": [],
                "messagesAppended": 3,
                "bytesAppended": 1500,
                "damagedMessages": 0,
                "damage": "",
            },
            {
                "name": "b",
                "oldestSequenceNumber": 0,
                "newestSequenceNumber": 5,
                "totalBytes": 15,
                "maxSize": 268_435_456,
                "segments": 1,
                "waitingReads": 0,
                "exports": [],
                "messagesAppended": 6,
                "bytesAppended": 15,
                "damagedMessages": 0,
                "damage": "",
            },
        ],
    }


def test_statistics_have_the_messages_behind_of_exports(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        exports = {
            "kinesis": [{"identifier": "k", "kinesisStreamName": "cloud"}],
            "http": [{"identifier": "h", "uri": "http://x", "startSequenceNumber": 2}],
            "s3TaskExecutor": [{"identifier": "s", "disabled": True}],
        }
        create(client, "a", exportDefinition=exports)
        for _ in range(5):
            append(client, "a", b"x")

        (stream,) = client.call(Operation.Statistics)["statistics"]["streams"]

    assert [
        (e["kind"], e["identifier"], e["isPaused"], e["messagesBehind"]) for e in stream["exports"]
    ] == [
        ("http", "h", False, 3),
        ("kinesis", "k", False, 5),
        ("s3_task_executor", "s", True, 5),
    ]
    assert {e["lastExportedSequenceNumber"] for e in stream["exports"]} == {-1}


def test_statistics_have_the_age_of_the_oldest_message_and_the_lease(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "a", exportDefinition=to_http())

        def export() -> dict[str, object]:
            (stream,) = client.call(Operation.Statistics)["statistics"]["streams"]
            found: dict[str, object]
            (found,) = stream["exports"]
            return found

        assert (export()["secondsBehind"], export()["isLeased"]) == (0.0, False)
        append(client, "a", b"x")
        wait_until(lambda: export()["secondsBehind"])
        (found,) = plan(client)
        assert export()["isLeased"]
        commit(client, found)
        assert (export()["secondsBehind"], export()["isLeased"]) == (0.0, False)


def test_exports_are_counted_by_kind(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        exports = {"http": [*to_http("a")["http"], *to_http("b")["http"]], **to_s3("c")}
        create(client, "s", exportDefinition=exports)
        client.append_many("s", [b"1", b"22"])
        *messages, tasks = sorted(plan(client), key=lambda each: str(each["identifier"]))
        skipped = [{"sequenceNumber": 1, "reason": "malformed"}]
        for found in messages:
            commit(client, found, exportedMessages=1, exportedBytes=1, skipped=skipped, sentBytes=9)
        nothing = {"settledEnd": 0, "exportedMessages": 0}
        commit(client, tasks, **nothing, isFinal=False, sentBytes=5)
        commit(client, tasks, **nothing, sentBytes=7, error="down")

        totals = broker.run(lambda: dict(broker.broker.exports.totals))

    assert totals.keys() == {"http", "s3_task_executor"}
    http, files = totals["http"], totals["s3_task_executor"]
    assert (http.deliveries, http.failures, http.messages, http.bytes) == (2, 0, 2, 2)
    assert (http.skipped_messages, http.sent_bytes) == (2, 18)
    # A report that is not final counts bytes, but no delivery.
    assert (files.deliveries, files.failures, files.messages, files.sent_bytes) == (1, 1, 0, 12)


def test_flushes_and_syncs_are_measured(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root", sync_interval_ms=10) as broker, broker.connect() as client:
        create(client, "s", flushOnWrite=True)
        append(client, "s", b"x")
        counters = broker.broker.counters

        assert sum(counters.flushes.snapshot().counts) == 1
        assert counters.flushes.snapshot().sum > 0
        wait_until(lambda: sum(counters.syncs.snapshot().counts))


def test_durations_are_counted_by_their_bounds() -> None:
    durations = Durations((0.1, 1.0))
    assert durations.snapshot() == Distribution((0.1, 1.0), (0, 0, 0), 0.0)
    for seconds in (0.0, 0.1, 0.11, 1.0, 1.01, 100.0):
        durations.note(seconds)

    assert durations.snapshot() == Distribution((0.1, 1.0), (2, 2, 2), 102.22)


def test_durations_are_counted_from_several_threads() -> None:
    durations = Durations((1.0,))

    def note() -> None:
        for _ in range(2000):
            durations.note(1.0)

    with running(note), running(note):
        note()

    assert durations.snapshot() == Distribution((1.0,), (6000, 0), 6000.0)


def test_damaged_messages_are_counted(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "a")
        append(client, "a", b"one")
        append(client, "a", b"two")
        (data,) = (tmp_path / "root" / "streams").glob("*/*.data")
        with data.open("r+b") as file:
            file.write(b"!")
        with pytest.raises(MessageStoreReadErrorException):
            read(client, "a")
        (stream,) = client.call(Operation.Statistics)["statistics"]["streams"]
    assert stream["damagedMessages"] == 1
    assert stream["damage"] == "message 0: its checksum does not match"
