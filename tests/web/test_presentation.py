"""The state of the broker as JSON objects."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.web.presentation import measure_disk
from penstock.wire.operations import Operation
from tests.broker.exports.workbench import to_http, to_s3
from tests.raw_connection import RawConnection
from tests.support import Json, append, create, running, wait_until
from tests.web.site import Site, commit, plan


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A broker for one test: rates and leases are kept by stream name."""
    with Site(tmp_path / "root") as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[RawConnection]:
    with site.connect() as connection:
        yield connection


def stream_json(site: Site, name: str = "s") -> Json:
    streams = site.get_json("/api/overview")["streams"]
    found: Json = next(stream for stream in streams if stream["name"] == name)
    return found


def export_json(site: Site) -> Json:
    (export,) = stream_json(site)["exports"]
    assert isinstance(export, dict)
    return export


# Streams


def test_empty_stream(site: Site, client: RawConnection) -> None:
    create(client, "s")

    assert stream_json(site) == {
        "name": "s",
        "problem": None,
        "persistence": "File",
        "strategyOnFull": "OverwriteOldestData",
        "flushOnWrite": False,
        "maxSize": 268_435_456,
        "segmentSize": 16_777_216,
        "timeToLiveMillis": None,
        "oldestSequenceNumber": 0,
        "newestSequenceNumber": -1,
        "messages": 0,
        "totalBytes": 0,
        "segments": 1,
        "waitingReads": 0,
        "damagedMessages": 0,
        "damage": "",
        "oldestTime": None,
        "newestTime": None,
        "rates": {"messagesAppended": 0.0, "bytesAppended": 0.0, "messagesExported": 0.0},
        "exports": [],
    }


def test_stream_with_messages(site: Site, client: RawConnection) -> None:
    create(client, "s", strategyOnFull=0, maxSize=4096, streamSegmentSize=1024)
    for _ in range(3):
        append(client, "s", bytes(700))

    found = stream_json(site)

    assert found["strategyOnFull"] == "RejectNewData"
    assert [found[key] for key in ("messages", "totalBytes", "segments")] == [3, 2100, 3]
    assert 0 < found["oldestTime"] <= found["newestTime"]
    wait_until(lambda: stream_json(site)["rates"]["messagesAppended"] > 0)


def test_waiting_reads_are_counted(site: Site, client: RawConnection) -> None:
    create(client, "s")
    waits = {"readTimeoutMillis": 25_000, "minMessageCount": 1}
    with (
        site.connect() as reader,
        running(
            lambda: reader.call(Operation.ReadMessages, streamName="s", readMessagesOptions=waits)
        ),
    ):
        wait_until(lambda: stream_json(site)["waitingReads"] == 1)
        assert site.get_json("/api/overview")["waitingReads"] == 1
        append(client, "s", b"x")
    wait_until(lambda: stream_json(site)["waitingReads"] == 0)


def test_unreadable_stream_is_shown_with_the_reason(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with Site(root) as site, site.connect() as client:
        create(client, "broken")
        append(client, create(client, "sound"), b"x")
    catalog = sqlite3.connect(root / "catalog.sqlite")
    with catalog:
        catalog.execute("UPDATE stream SET definition = x'00' WHERE name = 'broken'")
    catalog.close()
    for copy in root.glob("streams/*/stream.json"):
        if b'"broken"' in copy.read_bytes():
            copy.write_text("no definition")
    (root / "catalog.backup.sqlite").unlink()

    with Site(root) as site:
        broken = stream_json(site, "broken")
        sound = stream_json(site, "sound")
        assert broken["problem"]
        assert broken.keys() == sound.keys()
        assert (broken["messages"], broken["newestSequenceNumber"]) == (0, -1)
        assert sound["messages"] == 1
        for path in ("", "/messages", "/messages/0"):
            status, sentence = site.get(f"/api/streams/broken{path}", site.token).error
            assert status == 503
            assert "'broken' cannot be read" in sentence
        assert site.get("/api/history?stream=broken").status == 503
        assert "penstock_streams_unreadable 1.0" in site.get("/metrics").body.decode()
        assert site.post("/api/streams/broken/exports/e/pause").status == 503


# Exports


@pytest.mark.parametrize(
    ("definition", "kind", "destination"),
    [
        (to_http(), "http", "HTTP http://127.0.0.1/"),
        (to_http(uri="http://me:secret@host/in"), "http", "HTTP http://…@host/in"),
        (to_s3(), "s3_task_executor", "S3"),
        (
            {"kinesis": [{"identifier": "e", "kinesisStreamName": "wind-farm"}]},
            "kinesis",
            "Kinesis wind-farm",
        ),
        (
            {"iotAnalytics": [{"identifier": "e", "iotChannel": "weather"}]},
            "iot_analytics",
            "channel weather",
        ),
        ({"IotSitewise": [{"identifier": "e"}]}, "iot_sitewise", "SiteWise"),
    ],
)
def test_export_shows_its_kind_and_destination(
    site: Site, client: RawConnection, definition: dict[str, Any], kind: str, destination: str
) -> None:
    create(client, "s", exportDefinition=definition)

    found = export_json(site)

    assert (found["kind"], found["destination"]) == (kind, destination)


def test_export_shows_its_progress(site: Site, client: RawConnection) -> None:
    create(client, "s", exportDefinition=to_http())
    assert export_json(site) == {
        "identifier": "e",
        "kind": "http",
        "destination": "HTTP http://127.0.0.1/",
        "priority": None,
        "isPaused": False,
        "state": "up-to-date",
        "lastExportedSequenceNumber": -1,
        "messagesBehind": 0,
        "secondsBehind": 0.0,
        "lastExportTime": None,
        "errorMessage": "",
        "failures": 0,
        "retryInMillis": None,
        "exportedMessages": 0,
        "exportedBytes": 0,
        "skippedMessages": 0,
        "lostMessages": 0,
        "rates": {"messagesExported": 0.0},
    }
    client.append_many("s", [b"1", b"2"])
    wait_until(lambda: export_json(site)["state"] == "due")
    wait_until(lambda: export_json(site)["secondsBehind"] > 0)
    (found,) = plan(client)
    wait_until(lambda: export_json(site)["state"] == "exporting")
    skipped = [{"sequenceNumber": 1, "reason": "malformed"}]
    commit(client, found, exportedMessages=1, exportedBytes=1, skipped=skipped)
    wait_until(lambda: export_json(site)["state"] == "up-to-date")

    done = export_json(site)
    assert (done["lastExportedSequenceNumber"], done["messagesBehind"]) == (1, 0)
    assert (done["exportedMessages"], done["exportedBytes"], done["skippedMessages"]) == (2, 1, 1)
    assert done["secondsBehind"] == 0.0
    assert done["lastExportTime"] > 1_700_000_000_000


def test_failing_export_shows_error_and_next_retry(site: Site, client: RawConnection) -> None:
    create(client, "s", exportDefinition=to_http())
    append(client, "s", b"x")
    (found,) = plan(client)
    failure = {"settledEnd": 0, "exportedMessages": 0, "error": "<b>it is down</b>"}
    commit(client, found, **failure, pauseMillis=300_000)
    wait_until(lambda: export_json(site)["state"] == "failing")

    failing = export_json(site)
    assert "<b>it is down</b>" in failing["errorMessage"]
    assert failing["failures"] == 1
    assert 0 < failing["retryInMillis"] <= 300_000


def test_export_that_gathers_a_batch_is_waiting(site: Site, client: RawConnection) -> None:
    create(client, "s", exportDefinition=to_http(batchSize=2, batchIntervalMillis=600_000))
    append(client, "s", b"x")
    wait_until(lambda: export_json(site)["state"] == "waiting")
    append(client, "s", b"x")
    wait_until(lambda: export_json(site)["state"] == "due")


def test_disabled_export_is_paused(site: Site, client: RawConnection) -> None:
    create(client, "s", exportDefinition=to_http(disabled=True))
    append(client, "s", b"x")

    found = export_json(site)
    assert (found["state"], found["isPaused"]) == ("paused", True)


def test_disk_of_the_root_is_measured(tmp_path: Path) -> None:
    free, size = measure_disk(tmp_path)

    assert 0 < free <= size
