"""S3 tasks as the page shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.broker.access import Role
from penstock.model.status_message import Status
from penstock.wire.operations import Operation
from tests.broker.exports.workbench import task, to_http, to_s3
from tests.raw_connection import RawConnection
from tests.support import Json, append, create
from tests.web.site import Site, commit, plan


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site") / "root") as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[RawConnection]:
    with site.connect() as connection:
        yield connection
        for stream in site.see("/api/overview")["streams"]:
            connection.call(Operation.DeleteMessageStream, name=stream["name"])


def ask_for(client: RawConnection, name: str, *numbers: int) -> None:
    """A stream of its own for each test: what became of tasks is known by the stream's name."""
    create(client, name, exportDefinition=to_s3())
    for number in numbers:
        append(client, name, json.dumps(task(number)).encode())


def event(number: int, status: Status, message: str = "") -> Json:
    plain = {"sequenceNumber": number, "status": status.value, "task": task(number)}
    return {**plain, "message": message, "time": 1_700_000_000_000 + number}


def states(site: Site, name: str) -> dict[int, str]:
    tasks = site.see(f"/api/tasks?stream={name}")["tasks"]
    return {each["sequenceNumber"]: each["state"] for each in tasks}


def test_tasks_that_wait_are_shown_the_newest_first(site: Site, client: RawConnection) -> None:
    ask_for(client, "waiting", 0, 1)

    assert site.see("/api/tasks") == site.see("/api/tasks?stream=waiting")
    assert site.see("/api/tasks") == {
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


def test_a_task_from_its_upload_to_its_end(site: Site, client: RawConnection) -> None:
    ask_for(client, "whole", 0, 1)
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

    waits, goes_on = site.see("/api/tasks?stream=whole")["tasks"]
    assert (waits["sequenceNumber"], waits["state"]) == (1, "Waiting")
    assert goes_on == {
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
    answer = site.see("/api/tasks?stream=whole")
    assert answer["waiting"] == 0
    assert [(each["sequenceNumber"], each["state"]) for each in answer["tasks"]] == [
        (1, "Failure"),
        (0, "Success"),
    ]
    assert answer["tasks"][0]["message"] == "<i>no such file</i>"
    assert answer["tasks"][0]["time"] == 1_700_000_000_001
    assert answer["tasks"][0]["inputUrl"] == "file:/data/1"


def test_of_many_that_wait_the_first_are_shown_and_all_are_counted(
    site: Site, client: RawConnection
) -> None:
    ask_for(client, "many", *range(50))

    answer = site.see("/api/tasks?stream=many")

    assert answer["waiting"] == 50
    assert [each["sequenceNumber"] for each in answer["tasks"]] == list(range(19, -1, -1))


def test_what_became_of_a_task_is_shown_also_if_many_before_it_wait(
    site: Site, client: RawConnection
) -> None:
    ask_for(client, "behind", *range(50))
    (found,) = plan(client)
    interim = {"settledEnd": 0, "exportedMessages": 0, "isFinal": False}
    commit(client, found, **interim, events=[event(40, Status.Success)])

    found_states = states(site, "behind")
    assert found_states.pop(40) == "Success"
    assert set(found_states.values()) == {"Waiting"}


def test_a_message_that_is_no_task_is_shown_as_one_without_a_file(
    site: Site, client: RawConnection
) -> None:
    ask_for(client, "odd")
    for payload in (b"\xff", b"[]", b'{"inputUrl": 5, "bucket": "b", "key": "k"}', b"[" * 10_000):
        append(client, "odd", payload)

    tasks = site.see("/api/tasks?stream=odd")["tasks"]

    assert [each["state"] for each in tasks] == ["Waiting"] * 4
    assert {each["inputUrl"] for each in tasks} == {None}


def test_only_s3_exports_have_tasks(site: Site, client: RawConnection) -> None:
    create(client, "plain", exportDefinition=to_http())
    append(client, "plain", json.dumps(task(0)).encode())

    assert site.see("/api/tasks?stream=plain") == {"tasks": [], "waiting": 0}
    assert site.get("/api/tasks").json == {"tasks": [], "waiting": 0}


def test_tasks_are_shown_to_those_who_may_read_their_stream(
    site: Site, client: RawConnection
) -> None:
    ask_for(client, "mine", 0)
    ask_for(client, "other", 0)

    reader = site.make_token(Role.consumer, "mine")
    assert [each["stream"] for each in site.see("/api/tasks", reader)["tasks"]] == ["mine"]
    assert site.get("/api/tasks", site.make_token(Role.producer)).status == 403
    assert site.get("/api/tasks").status == 401


def test_damage_ends_the_list_and_not_the_page(site: Site, client: RawConnection) -> None:
    ask_for(client, "damaged", 0, 1, 2)
    stream = site.broker.streams.find("damaged")
    data = next((site.root / "streams" / stream.stored.id).glob("*.data"))
    data.write_bytes(data.read_bytes().replace(b"/data/1", b"/DATA/1"))

    assert states(site, "damaged") == {0: "Waiting"}
    assert site.see("/api/tasks?stream=damaged")["waiting"] == 3
