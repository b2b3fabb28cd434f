"""What the broker says about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import __version__
from penstock.errors import ResourceNotFoundException
from penstock.wire.operations import Operation
from tests.support import LocalBroker, append, append_frame, create, read, wait_until


def test_what_happens_is_counted(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "a", maxSize=4096, streamSegmentSize=1024)
        create(client, "b")
        for _ in range(3):
            append(client, "a", b"x" * 500)
        client.append_many("b", [b"1", b"22"])
        with broker.meet() as peer:
            # A run, as one that pipelines sends it.
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
            },
        ],
    }


def test_exports_say_how_far_behind_they_are(tmp_path: Path) -> None:
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
