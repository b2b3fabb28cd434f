"""S3 tasks as JSON objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.access import Role
from penstock.model.status_message import Status
from tests.broker.exports.workbench import task, to_http, to_s3
from tests.raw_connection import RawConnection
from tests.support import Json, append, create
from tests.web.site import Site, commit, plan


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A broker for one test: tasks of all streams are listed together."""
    with Site(tmp_path / "root") as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[RawConnection]:
    with site.connect() as connection:
        yield connection


def create_tasks(client: RawConnection, name: str, *numbers: int) -> None:
    """Creates a stream with tasks."""
    create(client, name, exportDefinition=to_s3())
    for number in numbers:
        append(client, name, json.dumps(task(number)).encode())


def event(number: int, status: Status, message: str = "") -> Json:
    plain = {"sequenceNumber": number, "status": status.value, "task": task(number)}
    return {**plain, "message": message, "time": 1_700_000_000_000 + number}


def states(site: Site, name: str) -> dict[int, str]:
    tasks = site.get_json(f"/api/tasks?stream={name}")["tasks"]
    return {each["sequenceNumber"]: each["state"] for each in tasks}


def test_pending_tasks_are_shown_newest_first(site: Site, client: RawConnection) -> None:
    create_tasks(client, "waiting", 0, 1)

    assert site.get_json("/api/tasks") == site.get_json("/api/tasks?stream=waiting")
    assert site.get_json("/api/tasks") == {
        "waiting": 2,
        "tasks": [
            {
                "stream": "waiting",
                "exportIdentifier": "e",
                "sequenceNumber": number,
                "state": "Waiting",
                "inputUrl": f"file:/data/{number}",
                "bucket": "a-bucket",
                "key": f"key/{number}",
                "message": "",
                "time": None,
                "size": None,
                "parts": None,
                "partsArrived": None,
            }
            for number in (1, 0)
        ],
    }


def test_task_shows_its_upload_and_its_status(site: Site, client: RawConnection) -> None:
    create_tasks(client, "whole", 0, 1)
    (found,) = plan(client)
    upload = {
        "sequenceNumber": 0,
        "bucket": "a-bucket",
        "key": "key/2026/0",
        "uploadId": "u",
        "began": 1_700_000_000_000,
        "fingerprint": "f",
        "size": 12_000_000,
        "partSize": 5_242_880,
        "parts": ["a", "", "c"],
    }
    underway = {"settledEnd": 0, "exportedMessages": 0, "isFinal": False, "uploads": [upload]}
    commit(client, found, **underway)

    pending, in_progress = site.get_json("/api/tasks?stream=whole")["tasks"]
    assert (pending["sequenceNumber"], pending["state"]) == (1, "Waiting")
    assert in_progress == {
        "stream": "whole",
        "exportIdentifier": "e",
        "sequenceNumber": 0,
        "state": "InProgress",
        "inputUrl": "file:/data/0",
        "bucket": "a-bucket",
        "key": "key/2026/0",
        "message": "",
        "time": 1_700_000_000_000,
        "size": 12_000_000,
        "parts": 3,
        "partsArrived": 2,
    }

    events = [event(0, Status.Success, "done"), event(1, Status.Failure, "<i>no such file</i>")]
    commit(client, found, events=events)
    answer = site.get_json("/api/tasks?stream=whole")
    assert answer["waiting"] == 0
    assert [(each["sequenceNumber"], each["state"]) for each in answer["tasks"]] == [
        (1, "Failure"),
        (0, "Success"),
    ]
    assert answer["tasks"][0]["message"] == "<i>no such file</i>"
    assert answer["tasks"][0]["time"] == 1_700_000_000_001
    assert answer["tasks"][0]["inputUrl"] == "file:/data/1"


def test_first_20_pending_tasks_are_shown_and_all_are_counted(
    site: Site, client: RawConnection
) -> None:
    create_tasks(client, "many", *range(50))

    answer = site.get_json("/api/tasks?stream=many")

    assert answer["waiting"] == 50
    assert [each["sequenceNumber"] for each in answer["tasks"]] == list(range(19, -1, -1))


def test_status_is_shown_although_many_earlier_tasks_are_pending(
    site: Site, client: RawConnection
) -> None:
    create_tasks(client, "behind", *range(50))
    (found,) = plan(client)
    interim = {"settledEnd": 0, "exportedMessages": 0, "isFinal": False}
    commit(client, found, **interim, events=[event(40, Status.Success)])

    found_states = states(site, "behind")
    assert found_states.pop(40) == "Success"
    assert set(found_states.values()) == {"Waiting"}


def test_malformed_task_is_shown_without_a_file(site: Site, client: RawConnection) -> None:
    create_tasks(client, "odd")
    for payload in (b"\xff", b"[]", b'{"inputUrl": 5, "bucket": "b", "key": "k"}', b"[" * 10_000):
        append(client, "odd", payload)

    tasks = site.get_json("/api/tasks?stream=odd")["tasks"]

    assert [each["state"] for each in tasks] == ["Waiting"] * 4
    assert {each["inputUrl"] for each in tasks} == {None}


def test_only_s3_exports_have_tasks(site: Site, client: RawConnection) -> None:
    create(client, "plain", exportDefinition=to_http())
    append(client, "plain", json.dumps(task(0)).encode())

    assert site.get_json("/api/tasks?stream=plain") == {"tasks": [], "waiting": 0}
    assert site.get("/api/tasks").json == {"tasks": [], "waiting": 0}


def test_tasks_need_a_token_that_may_read_their_stream(site: Site, client: RawConnection) -> None:
    create_tasks(client, "mine", 0)
    create_tasks(client, "other", 0)

    reader = site.make_token(Role.consumer, "mine")
    assert [each["stream"] for each in site.get_json("/api/tasks", reader)["tasks"]] == ["mine"]
    assert site.get("/api/tasks", site.make_token(Role.producer)).status == 403
    assert site.get("/api/tasks").status == 401


def test_damage_ends_the_list_of_pending_tasks(site: Site, client: RawConnection) -> None:
    create_tasks(client, "damaged", 0, 1, 2)
    stream = site.broker.streams.find("damaged")
    data = next((site.root / "streams" / stream.stored.id).glob("*.data"))
    data.write_bytes(data.read_bytes().replace(b"/data/1", b"/DATA/1"))

    assert states(site, "damaged") == {0: "Waiting"}
    assert site.get_json("/api/tasks?stream=damaged")["waiting"] == 3
