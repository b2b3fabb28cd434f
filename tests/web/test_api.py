"""The HTTP API: the answers and the errors of each path."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock import __version__
from penstock.broker.access import Role
from penstock.model import from_wire
from penstock.model.stream_definition import MessageStreamDefinition
from penstock.web import metrics, presentation
from penstock.web.sampler import SharedAnswers
from penstock.wire.operations import Operation
from tests.broker.exports.workbench import status_config, to_http, to_s3
from tests.raw_connection import RawConnection
from tests.support import TIMEOUT_S, Json, append, create, wait_until
from tests.web.site import Site, commit, plan, quoted

numbers = count()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker that tests share. A test that exports needs `own_site`."""
    with Site(tmp_path_factory.mktemp("site") / "root") as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[RawConnection]:
    with site.connect() as connection:
        yield connection


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """A broker without streams of other tests."""
    with Site(tmp_path / "root") as site:
        yield site


@pytest.fixture
def own_client(own_site: Site) -> Iterator[RawConnection]:
    with own_site.connect() as connection:
        yield connection


@pytest.fixture
def name() -> str:
    return f"s{next(numbers)}"


def messages(site: Site, name: str, query: str = "") -> Json:
    return site.get_json(f"/api/streams/{quoted(name)}/messages{query}")


def shown_numbers(site: Site, name: str, query: str = "") -> list[int]:
    return [each["sequenceNumber"] for each in messages(site, name, query)["messages"]]


# The broker


def test_overview_has_totals_streams_and_exports(tmp_path: Path) -> None:
    with Site(tmp_path / "root") as site, site.connect() as client:
        create(client, "a", exportDefinition=to_http(priority=3))
        create(client, "b", persistence=1, flushOnWrite=True, timeToLiveMillis=60_000)
        client.append_many("a", [b"1", b"22", b"333"])
        (found,) = plan(client)
        commit(client, found, settledEnd=2, exportedMessages=2, exportedBytes=3)
        wait_until(lambda: site.get_json("/api/overview")["totals"]["messagesExported"])

        overview = site.get_json("/api/overview")

    streams = {stream["name"]: stream for stream in overview.pop("streams")}
    now = overview.pop("now")
    assert now - TIMEOUT_S * 1000 < overview.pop("startedAt") <= now
    assert overview.pop("store").keys() == {
        "totalBytes",
        "maxBytes",
        "segments",
        "diskFreeBytes",
        "diskTotalBytes",
        "diskMinFreeBytes",
        "refusesAppends",
        "refusedMessages",
    }
    assert overview.pop("exportsSuspended") == ""
    (pipeline,) = overview.pop("pipelines")
    assert (pipeline["id"], pipeline["isConnected"]) == ("p", True)
    assert set(overview.pop("rates")) == {
        "messagesAppended",
        "bytesAppended",
        "messagesRead",
        "bytesRead",
        "messagesExported",
        "bytesExported",
    }
    assert overview == {
        "version": __version__,
        "root": str(tmp_path / "root"),
        "access": {"role": "admin", "mayReadMessages": True, "mayChange": True},
        "connections": 1,
        "waitingReads": 0,
        "totals": {
            "messagesAppended": 3,
            "bytesAppended": 6,
            "messagesRead": 0,
            "bytesRead": 0,
            "messagesExported": 2,
            "bytesExported": 3,
            "messagesSkipped": 0,
            "requestsFailed": 0,
            "connectionsAccepted": 1,
            "connectionsRefused": 0,
            "connectionsDropped": 0,
        },
    }
    assert [streams["b"][key] for key in ("persistence", "flushOnWrite", "timeToLiveMillis")] == [
        "Memory",
        True,
        60_000,
    ]
    (export,) = streams["a"]["exports"]
    assert export["messagesBehind"] == 1
    assert export["priority"] == 3


def test_overview_requests_do_not_change_the_totals(own_site: Site) -> None:
    before = own_site.get_json("/api/overview")["totals"]
    own_site.get_json("/api/overview")
    assert own_site.get_json("/api/overview")["totals"] == before


def test_history_of_the_broker_and_of_a_stream(site: Site, name: str) -> None:
    with site.connect() as client:
        append(client, create(client, name), b"xx")
    path = f"/api/history?stream={name}"
    past = wait_until(lambda: any_points(site, path))

    shared = {"messagesAppended", "bytesAppended", "messagesExported", "bytesExported"}
    assert past["stepMillis"] == 1000
    assert past["series"].keys() == {*shared, "messagesBehind"}
    assert {len(values) for values in past["series"].values()} == {len(past["times"])}
    totals = site.get_json("/api/history")
    assert totals["series"].keys() == {*shared, "messagesBehind", "messagesRead"}

    last = totals["times"][-1]
    assert all(time > last for time in site.get_json(f"/api/history?since={last}")["times"])
    assert site.get_json(f"/api/history?since={2**63}")["times"] == []


def any_points(site: Site, path: str) -> Json:
    """The history, or nothing while it has no points."""
    past = site.get_json(path)
    return past if any(past["series"]["messagesAppended"]) else {}


def test_events_are_log_records(
    site: Site, client: RawConnection, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        create(client, name)
    events = site.get_json("/api/events")["events"]

    created = next(event for event in events if event["message"] == f"stream {name!r} created")
    assert created.keys() == {"id", "time", "level", "source", "message"}
    assert (created["level"], created["source"]) == ("INFO", "broker.streams")
    later = site.get_json(f"/api/events?since={created['id']}")["events"]
    assert all(event["id"] > created["id"] for event in later)


ABOUT = {
    "started": 5,
    "sparkVersion": "4.1",
    "master": "local[3]",
    "sparkPage": "http://127.0.0.1:4040",
}


def pipeline_of(answer: Json, name: str) -> Json:
    found: Json = next(each for each in answer["pipelines"] if each["id"] == name)
    return found


def test_pipelines_show_their_tasks_and_assignments(
    own_site: Site, own_client: RawConnection, name: str
) -> None:
    create(own_client, name, exportDefinition=to_http())
    own_client.append_many(name, [b"1", b"2"])
    (found,) = plan(own_client, pipeline=name, task="7", about=ABOUT)

    pipeline = pipeline_of(own_site.get_json("/api/pipeline"), name)

    (task,) = pipeline.pop("tasks")
    assert pipeline.pop("lastSeen") == task.pop("lastSeen") > 0
    assert pipeline == {
        "id": name,
        "isConnected": True,
        "startedAt": 5,
        "sparkVersion": "4.1",
        "master": "local[3]",
        "sparkPage": "http://127.0.0.1:4040",
    }
    (assignment,) = task.pop("assignments")
    assert assignment.pop("startedAt") >= task.pop("startedAt") > 0
    assert assignment == {
        "lease": found["lease"],
        "kind": "http",
        "kindLabel": "HTTP",
        "stream": name,
        "exportIdentifier": "e",
        "messages": 2,
    }
    assert task == {
        "id": "7",
        "isConnected": True,
        "deliveries": 0,
        "messages": 0,
        "otherAssignments": 0,
    }
    assert "tasks" not in pipeline_of(own_site.get_json("/api/overview"), name)


def test_deliveries_are_listed_with_their_results(
    own_site: Site, own_client: RawConnection, name: str
) -> None:
    create(own_client, name, exportDefinition=to_http())
    own_client.append_many(name, [b"1", b"2"])
    (found,) = plan(own_client, pipeline=name, task="7")
    commit(own_client, found, settledEnd=1, exportedMessages=1, isFinal=False)
    commit(own_client, found, first=1, exportedMessages=0, settledEnd=1, error="<b>down</b>")

    answer = own_site.get_json("/api/pipeline")

    (delivery,) = [each for each in answer["deliveries"] if each["pipeline"] == name]
    assert delivery.pop("startedAt") > 0
    assert delivery.pop("durationMillis") >= 0
    assert delivery == {
        "pipeline": name,
        "task": "7",
        "lease": found["lease"],
        "kind": "http",
        "kindLabel": "HTTP",
        "stream": name,
        "exportIdentifier": "e",
        "messages": 2,
        "error": "<b>down</b>",
    }
    (task,) = pipeline_of(answer, name)["tasks"]
    assert (task["deliveries"], task["messages"], task["assignments"]) == (1, 1, [])


def test_a_disconnected_task_is_shown_without_work(
    own_site: Site, own_client: RawConnection, name: str
) -> None:
    create(own_client, name, exportDefinition=to_http())
    append(own_client, name, b"x")
    with own_site.connect() as other:
        plan(other, pipeline=name)
        assert pipeline_of(own_site.get_json("/api/pipeline"), name)["tasks"][0]["assignments"]

    def pipeline() -> Json:
        return pipeline_of(own_site.get_json("/api/pipeline"), name)

    wait_until(lambda: not pipeline()["isConnected"])
    (task,) = pipeline()["tasks"]
    assert not task["isConnected"]
    assert task["assignments"] == []


def test_work_and_deliveries_of_unseen_streams_are_left_out(
    own_site: Site, own_client: RawConnection, name: str
) -> None:
    mine, secret = f"{name} mine", f"{name} secret"
    for each in (mine, secret):
        create(own_client, each, exportDefinition=to_http(priority=1))
        append(own_client, each, b"1")
    for found in plan(own_client, pipeline=name):
        commit(own_client, found, error=f"error of {found['stream']}", isFinal=True)
    with own_site.connect() as other:
        # Pausing and resuming clears the wait after these failures.
        for each in (mine, secret):
            own_site.post(f"/api/streams/{quoted(each)}/exports/e/pause")
            own_site.post(f"/api/streams/{quoted(each)}/exports/e/resume")
            append(own_client, each, b"2")
        assert len(plan(other, pipeline=name)) == 2

        token = own_site.make_token(Role.observer, mine)
        answer = own_site.get_json("/api/pipeline", token)

        (task,) = pipeline_of(answer, name)["tasks"]
        assert [each["stream"] for each in task["assignments"]] == [mine]
        assert task["otherAssignments"] == 1
        assert {each["stream"] for each in answer["deliveries"]} == {mine}
        assert "secret" not in own_site.get("/api/pipeline", token).body.decode()
        assert "secret" not in own_site.get("/api/overview", token).body.decode()


# Answers about all streams


T = TypeVar("T")


def counted(function: Callable[..., T], calls: list[T]) -> Callable[..., T]:
    """The same function, which records its results."""

    def call(*arguments: object) -> T:
        calls.append(function(*arguments))
        return calls[-1]

    return call


def get_at_once(site: Site, path: str, tokens: list[str]) -> list[bytes]:
    """The answers to requests that all arrive before the first one is answered."""
    api = site.web._api
    answers: SharedAnswers = {"/api/overview": api._overviews, "/metrics": api._metrics_texts}[path]
    site.finish(answers._writing.acquire())
    with ThreadPoolExecutor(len(tokens)) as pool:
        bodies = [pool.submit(site.get, path, token) for token in tokens]
        wait_until(lambda: answers._requests == len(tokens))
        site.run(answers._writing.release)
        return [body.result().body for body in bodies]


def test_concurrent_overviews_with_equal_permissions_share_an_answer(
    own_site: Site, own_client: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(own_client, "a")
    rendered: list[Json] = []
    monkeypatch.setattr(
        presentation, "render_overview", counted(presentation.render_overview, rendered)
    )
    admin = own_site.token

    bodies = get_at_once(own_site, "/api/overview", [admin, "", admin, admin])

    assert len(rendered) == 2
    assert len(set(bodies)) == 2
    roles = [json.loads(body)["access"]["role"] for body in bodies]
    assert roles == ["admin", None, "admin", "admin"]


def test_concurrent_scrapes_of_the_same_streams_share_an_answer(
    own_site: Site, own_client: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(own_client, "a")
    written: list[bytes] = []
    monkeypatch.setattr(metrics, "render", counted(metrics.render, written))
    tokens = ["", own_site.token, own_site.make_token(Role.observer)]

    assert get_at_once(own_site, "/metrics", tokens) == written * 3


@pytest.mark.parametrize("path", ["/api/overview", "/metrics"])
def test_shared_answer_has_only_streams_that_the_token_allows(
    own_site: Site, own_client: RawConnection, path: str
) -> None:
    create(own_client, "a")
    create(own_client, "hidden")
    seeing = [own_site.make_token(role, "a*") for role in (Role.admin, Role.observer)]
    blind = own_site.make_token(Role.admin, "none")
    tokens = [own_site.token, *seeing, blind]

    everything, *some, nothing = get_at_once(own_site, path, tokens * 2)[: len(tokens)]

    assert b'"hidden"' in everything
    for body in some:
        assert b'"a"' in body
        assert b'"hidden"' not in body
    assert b'"a"' not in nothing


def test_answers_contain_all_changes_made_before_the_request(
    own_site: Site, own_client: RawConnection, name: str
) -> None:
    create(own_client, name, exportDefinition=to_http())

    def shown_in(stream: Json) -> tuple[int, int]:
        (export,) = stream["exports"]
        return stream["newestSequenceNumber"], export["lastExportedSequenceNumber"]

    for number in range(5):
        append(own_client, name, b"x")
        (found,) = plan(own_client)
        commit(own_client, found)
        overview = own_site.get_json("/api/overview")
        in_overview = next(each for each in overview["streams"] if each["name"] == name)
        assert shown_in(in_overview) == (number, number)
        assert shown_in(own_site.get_json(f"/api/streams/{name}")) == (number, number)
        appended = f'penstock_stream_appended_messages_total{{stream="{name}"}} {number + 1}.0\n'
        assert appended in own_site.get("/metrics").body.decode()


# One stream


def test_stream_is_shown_with_its_definition(site: Site, client: RawConnection, name: str) -> None:
    create(client, "statuses of s")
    exports = {
        **to_http("h", exportFormat=1),
        "kinesis": [{"identifier": "k", "kinesisStreamName": "cloud", "batchSize": 3}],
        "s3TaskExecutor": [{"identifier": "s", **status_config("statuses of s")}],
    }
    create(client, name, exportDefinition=exports)
    append(client, name, b"x")

    stream = site.get_json(f"/api/streams/{name}")

    definition = stream.pop("definition")
    overview = site.get_json("/api/overview")
    shown = next(each for each in overview["streams"] if each["name"] == name)
    assert shown.keys() == stream.keys()
    assert definition["exportDefinition"]["kinesis"][0]["batchSize"] == 3
    wire = client.call(Operation.DescribeMessageStream, name=name)["messageStreamInfo"]
    assert definition == wire["definition"]
    assert from_wire(definition, MessageStreamDefinition).name == name
    client.call(Operation.DeleteMessageStream, name=name)


@pytest.mark.parametrize(
    "name", ["a b", " ", ",", "a.b,c-d_e", "..", ".", "messages", "exports", "pause", "x" * 255]
)
def test_every_valid_stream_name_works_in_paths(
    site: Site, client: RawConnection, name: str
) -> None:
    identifier = "e e,.-_"
    create(client, name, exportDefinition=to_http(identifier))
    append(client, name, b"x")
    path = f"/api/streams/{quoted(name)}".replace("..", "%2E%2E")

    assert site.get_json(path)["name"] == name
    assert len(site.get_json(f"{path}/messages")["messages"]) == 1
    assert site.get(f"{path}/messages/0", site.token).body == b"x"
    assert site.get_json(f"/api/history?stream={quoted(name)}")["stepMillis"] == 1000
    assert site.get_json(f"/api/tasks?stream={quoted(name)}")["tasks"] == []
    assert site.post(f"{path}/exports/{quoted(identifier)}/pause").json == {"isPaused": True}
    client.call(Operation.DeleteMessageStream, name=name)


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/streams/nowhere", 404, "the message stream 'nowhere' does not exist"),
        ("/api/streams/nowhere/messages", 404, "the message stream 'nowhere' does not exist"),
        ("/api/streams/nowhere/messages/0", 404, "the message stream 'nowhere' does not exist"),
        ("/api/history?stream=nowhere", 404, "the message stream 'nowhere' does not exist"),
        ("/api/tasks?stream=nowhere", 404, "the message stream 'nowhere' does not exist"),
        ("/api/history?stream=", 400, "name is '': expected 1 to 255 letters"),
        ("/api/streams/a%3Cb", 400, "name is 'a<b': expected 1 to 255 letters"),
        ("/api/streams/%C3%A9", 400, "name is 'é': expected 1 to 255 letters"),
        ("/api/streams/%ff%00", 400, "name is '"),
        ("/api/streams/a%2Fmessages%2F", 404, "the path /api/streams/a/messages/ does not"),
        ("/api/streams/a/b/c", 404, "the path /api/streams/a/b/c does not exist"),
        ("/api/streams/", 404, "the path /api/streams/ does not exist"),
        ("/api", 404, "the path /api does not exist"),
        ("/nowhere", 404, "the path /nowhere does not exist"),
        ("/API/overview", 404, "the path /API/overview does not exist"),
        ("/api/streams/x/messages/5" + "0" * 5000, 400, "sequence number is '500"),
        ("/api/streams/x/messages/-1", 400, "sequence number is '-1': expected a whole"),
        ("/api/streams/x/messages/x", 400, "sequence number is 'x': expected a whole"),
    ],
)
def test_unknown_resource_is_reported(site: Site, path: str, status: int, sentence: str) -> None:
    error = site.get(path, site.token).error

    assert error[0] == status
    assert error[1].startswith(sentence)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("last=0", "last is '0': expected a whole number, 1 to 100"),
        ("last=101", "last is '101': expected a whole number, 1 to 100"),
        ("last=-1", "last is '-1': expected a whole number, 1 to 100"),
        ("last=", "last is '': expected a whole number, 1 to 100"),
        ("last=1.5", "last is '1.5': expected a whole number, 1 to 100"),
        ("last=%D9%A3", "last is '٣': expected a whole number, 1 to 100"),
        ("last=1_0", "last is '1_0': expected a whole number, 1 to 100"),
        ("last=" + "9" * 5000, f"last is '{'9' * 80}': expected a whole number, 1 to 100"),
        ("from=-1", "from is '-1': expected a whole number, 0 or more"),
        ("from=abc", "from is 'abc': expected a whole number, 0 or more"),
        ("from=" + "1" * 20, f"from is '{'1' * 20}': expected a whole number, 0 or more"),
        ("from=0&count=0", "count is '0': expected a whole number, 1 to 100"),
        ("from=0&count=101", "count is '101': expected a whole number, 1 to 100"),
    ],
)
def test_invalid_number_is_rejected(
    site: Site, client: RawConnection, query: str, sentence: str
) -> None:
    name = create(client, f"s{next(numbers)}")
    assert site.get(f"/api/streams/{name}/messages?{query}", site.token).error == (400, sentence)


@pytest.mark.parametrize("path", ["/api/history", "/api/events"])
@pytest.mark.parametrize("since", ["abc", "-1", "1e3", "", "0x1"])
def test_invalid_since_is_rejected(site: Site, path: str, since: str) -> None:
    assert site.get(f"{path}?since={since}").error == (
        400,
        f"since is {since!r}: expected a whole number, 0 or more",
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/overview"),
        ("DELETE", "/api/streams/x"),
        ("PUT", "/api/streams/x/messages"),
        ("POST", "/api/streams/x/messages/0"),
        ("GET", "/api/streams/x/exports/e/pause"),
        ("GET", "/api/streams/x/exports/e/resume"),
        ("DELETE", "/api/streams/x/exports/e/resume"),
        ("OPTIONS", "/api/overview"),
        ("POST", "/metrics"),
        ("POST", "/healthz"),
        ("POST", "/page/index.html"),
    ],
)
def test_wrong_method_is_rejected(site: Site, method: str, path: str) -> None:
    answer = site.request(method, path, site.token)

    assert answer.error == (405, "Method Not Allowed")
    assert "access-control-allow-origin" not in answer.headers


def test_head_request_has_no_body(site: Site) -> None:
    answer = site.request("HEAD", "/api/overview", site.token)

    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 100


# Messages


def test_query_selects_messages_and_defaults_to_the_newest(
    site: Site, client: RawConnection, name: str
) -> None:
    create(client, name)
    client.append_many(name, [b"%d" % number for number in range(150)])

    assert shown_numbers(site, name) == list(range(130, 150))
    assert shown_numbers(site, name, "?last=1") == [149]
    assert shown_numbers(site, name, "?last=100") == list(range(50, 150))
    assert shown_numbers(site, name, "?from=3&count=2") == [3, 4]
    assert shown_numbers(site, name, "?from=3") == list(range(3, 23))
    assert shown_numbers(site, name, "?from=148&count=100") == [148, 149]
    assert shown_numbers(site, name, "?from=150") == []
    assert shown_numbers(site, name, "?before=130&count=3") == [127, 128, 129]
    assert shown_numbers(site, name, "?before=2") == [0, 1]
    assert shown_numbers(site, name, "?before=0") == []
    assert shown_numbers(site, name, "?before=9999&count=1") == [149]
    assert shown_numbers(site, name, "?from=9999999999999999999&count=100") == []


def test_evicted_messages_are_not_shown(site: Site, client: RawConnection, name: str) -> None:
    create(client, name, maxSize=4096, streamSegmentSize=1024)
    assert messages(site, name) == {
        "oldestSequenceNumber": 0,
        "newestSequenceNumber": -1,
        "messages": [],
        "problem": None,
    }
    for _ in range(20):
        append(client, name, bytes(500))

    answer = messages(site, name, "?from=0&count=100")

    oldest = answer["oldestSequenceNumber"]
    assert oldest > 0
    assert [each["sequenceNumber"] for each in answer["messages"]] == list(range(oldest, 20))
    assert site.get(f"/api/streams/{name}/messages/0", site.token).error == (
        404,
        f"the stream has no message 0: it has {oldest} to 19",
    )


HOSTILE = [
    b"\x00\xff\xfe",
    b"<script>alert(1)</script>",
    b"</pre><img src=x onerror=alert(1)>",
    b'{"a": NaN}',
    "\u202e\u0000".encode(),
    b'"}]}',
    b"\r\nSet-Cookie: a=b\r\n\r\n",
]


def test_hostile_payloads_are_shown_byte_for_byte(
    site: Site, client: RawConnection, name: str
) -> None:
    create(client, name)
    client.append_many(name, HOSTILE)

    answer = messages(site, name)

    shown = [base64.b64decode(each["payload"]) for each in answer["messages"]]
    assert shown == HOSTILE
    assert [each["size"] for each in answer["messages"]] == list(map(len, HOSTILE))
    assert not any(each["isCut"] for each in answer["messages"])
    assert all(each["ingestTime"] > 1_700_000_000_000 for each in answer["messages"])
    for number, payload in enumerate(HOSTILE):
        whole = site.get(f"/api/streams/{name}/messages/{number}", site.token)
        assert whole.body == payload
        assert whole.headers["content-type"] == "application/octet-stream"
        assert whole.headers["x-content-type-options"] == "nosniff"
        assert whole.headers["cache-control"] == "no-store"
        assert "set-cookie" not in whole.headers


def test_large_payload_is_cut_in_a_page_but_not_as_a_single_message(
    site: Site, client: RawConnection, name: str
) -> None:
    create(client, name)
    exact, large = b"a" * 4096, b"b" * 4097
    client.append_many(name, [exact, large])

    first, second = messages(site, name)["messages"]

    assert (first["isCut"], first["size"]) == (False, 4096)
    assert (second["isCut"], second["size"]) == (True, 4097)
    assert base64.b64decode(second["payload"]) == large[:4096]
    assert site.get(f"/api/streams/{name}/messages/1", site.token).body == large


def test_page_of_very_large_messages_has_the_newest(
    site: Site, client: RawConnection, name: str
) -> None:
    create(client, name)
    for number in range(6):
        append(client, name, bytes([number]) * 1_500_000)

    assert shown_numbers(site, name, "?last=6") == [4, 5]
    assert shown_numbers(site, name, "?from=0") == [0, 1, 2]
    # Paging back skips no message.
    assert shown_numbers(site, name, "?before=4") == [2, 3]
    append(client, name, bytes(6_000_000))
    assert shown_numbers(site, name) == [6]


def test_downloaded_message_has_a_file_name(site: Site, client: RawConnection) -> None:
    name = create(client, "a, b.c")
    append(client, name, b"x")

    answer = site.get(f"/api/streams/{quoted(name)}/messages/0", site.token)

    disposition = answer.headers["content-disposition"]
    assert disposition == "attachment; filename*=UTF-8''a%2C%20b.c-0.bin"


def test_damage_is_reported_with_the_readable_messages(tmp_path: Path) -> None:
    with Site(tmp_path / "root") as site, site.connect() as client:
        create(client, "s")
        client.append_many("s", [b"first", b"second", b"third"])
        (data,) = tmp_path.glob("root/streams/*/*.data")
        data.write_bytes(data.read_bytes().replace(b"second", b"SECOND"))

        answer = messages(site, "s")

        payloads = [base64.b64decode(each["payload"]) for each in answer["messages"]]
        assert payloads == [b"first", b"third"]
        assert "message 1 is damaged" in answer["problem"]
        assert messages(site, "s", "?from=2")["problem"] is None
        nothing = messages(site, "s", "?from=1&count=1")
        assert (nothing["messages"], nothing["problem"]) == ([], answer["problem"])
        assert site.get("/api/streams/s/messages/0", site.token).body == b"first"
        status, sentence = site.get("/api/streams/s/messages/1", site.token).error
        assert status == 503
        assert "message 1 is damaged" in sentence
        assert site.get_json("/api/overview")["streams"][0]["problem"] is None


# Changes


def definition_of(client: RawConnection, name: str) -> Json:
    info = client.call(Operation.DescribeMessageStream, name=name)["messageStreamInfo"]
    definition: Json = info["definition"]
    return definition


def disabled(definition: Json, kind: str, identifier: str, value: bool) -> Json:
    """The definition with the export disabled or enabled."""
    changed: Json = json.loads(json.dumps(definition))
    for config in changed["exportDefinition"][kind]:
        if config["identifier"] == identifier:
            config["disabled"] = value
    return changed


EXPORTS: list[tuple[str, dict[str, Any]]] = [
    ("http", {"identifier": "e", "uri": "http://127.0.0.1/", "startSequenceNumber": 2}),
    (
        "kinesis",
        {"identifier": "e", "kinesisStreamName": "c", "batchSize": 7, "startSequenceNumber": 1},
    ),
    ("iotAnalytics", {"identifier": "e", "iotChannel": "c", "priority": 2}),
    ("IotSitewise", {"identifier": "e", "batchIntervalMillis": 60_000}),
    ("s3TaskExecutor", {"identifier": "e", **status_config("statuses")}),
]


@pytest.mark.parametrize(("kind", "config"), EXPORTS)
def test_pausing_and_resuming_change_nothing_else(
    site: Site, client: RawConnection, name: str, kind: str, config: dict[str, Any]
) -> None:
    exports: dict[str, list[dict[str, Any]]] = {kind: [config, {**config, "identifier": "f"}]}
    exports.setdefault("http", []).append({"identifier": "g", "uri": "http://127.0.0.1/"})
    path = f"/api/streams/{name}/exports/e"
    create(client, "statuses")
    create(client, name, maxSize=8192, streamSegmentSize=4096, timeToLiveMillis=70_000)
    client.append_many(name, [b"%d" % number for number in range(5)])
    definition = {**definition_of(client, name), "exportDefinition": exports}
    client.call(Operation.UpdateMessageStream, definition=definition)
    before = definition_of(client, name)

    assert site.post(f"{path}/pause").json == {"isPaused": True}
    assert definition_of(client, name) == disabled(before, kind, "e", True)
    assert {state["identifier"]: state["state"] for state in exports_of(site, name)} == {
        "e": "paused",
        "f": "waiting" if "batchIntervalMillis" in config else "due",
        "g": "due",
    }
    assert site.post(f"{path}/pause").json == {"isPaused": True}

    assert site.post(f"{path}/resume").json == {"isPaused": False}
    assert definition_of(client, name) == disabled(before, kind, "e", False)
    for created in (name, "statuses"):
        client.call(Operation.DeleteMessageStream, name=created)


def exports_of(site: Site, name: str) -> list[Json]:
    exports: list[Json] = site.get_json(f"/api/streams/{name}")["exports"]
    return exports


def test_resumed_export_continues_at_its_position(
    own_site: Site, own_client: RawConnection, name: str
) -> None:
    create(own_client, name)
    own_client.append_many(name, [b"1", b"2", b"3", b"4"])
    definition = {
        **definition_of(own_client, name),
        "exportDefinition": to_http(startSequenceNumber=1, priority=1),
    }
    own_client.call(Operation.UpdateMessageStream, definition=definition)
    (found,) = plan(own_client)
    assert (found["first"], found["end"]) == (1, 4)
    commit(own_client, found, settledEnd=3, exportedMessages=2, exportedBytes=2)
    (before,) = exports_of(own_site, name)
    path = f"/api/streams/{name}/exports/e"

    own_site.post(f"{path}/pause")
    assert plan(own_client, waitMillis=0) == []
    (paused,) = exports_of(own_site, name)
    own_site.post(f"{path}/resume")
    (after,) = exports_of(own_site, name)
    (found,) = plan(own_client)

    kept = ("lastExportedSequenceNumber", "exportedMessages", "exportedBytes", "messagesBehind")
    for key in kept:
        assert before[key] == paused[key] == after[key]
    assert (found["first"], found["end"]) == (3, 4)


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("nowhere/exports/e", 404, "the message stream 'nowhere' does not exist"),
        ("{name}/exports/E", 404, "the stream '{name}' has no export 'E': it has 'e', 'f'"),
        ("{name}/exports/%3Cb%3E", 404, "the stream '{name}' has no export '<b>': it has"),
    ],
)
def test_pausing_an_unknown_export_is_rejected(
    site: Site, client: RawConnection, name: str, path: str, status: int, sentence: str
) -> None:
    create(client, name, exportDefinition={"http": [*to_http()["http"], *to_http("f")["http"]]})
    answer = site.post(f"/api/streams/{path.format(name=name)}/pause")

    assert answer.status == status
    assert answer.json["error"].startswith(sentence.format(name=name))
    assert site.post(f"/api/streams/{name}/exports//pause").status == 404
    client.call(Operation.DeleteMessageStream, name=name)


def test_change_to_an_invalid_definition_is_rejected(
    site: Site, client: RawConnection, name: str
) -> None:
    create(client, f"{name} statuses")
    create(client, name, exportDefinition=to_s3(**status_config(f"{name} statuses")))
    client.call(Operation.DeleteMessageStream, name=f"{name} statuses")

    status, sentence = site.post(f"/api/streams/{name}/exports/e/pause").error

    assert status == 400
    assert "does not exist; create it first" in sentence
    client.call(Operation.DeleteMessageStream, name=name)


@pytest.mark.parametrize(("to", "number"), [("3", 3), ("earliest", 0), ("latest", 5), ("5", 5)])
def test_export_is_rewound(
    site: Site, client: RawConnection, name: str, to: str, number: int
) -> None:
    create(client, name, exportDefinition=to_http(startSequenceNumber=2))
    client.append_many(name, [b"x"] * 5)

    answer = site.post(f"/api/streams/{name}/exports/e/rewind?to={to}")

    assert answer.json == {"nextSequenceNumber": number}
    (export,) = exports_of(site, name)
    assert export["lastExportedSequenceNumber"] == number - 1
    assert export["messagesBehind"] == 5 - number


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("{name}/exports/e/rewind?to=6", 400, "sequenceNumber is 6: expected 0 to 5"),
        ("{name}/exports/e/rewind?to=-1", 400, "to is '-1': expected a whole number from 0 to 5"),
        ("{name}/exports/e/rewind?to=soon", 400, "earliest or latest"),
        ("{name}/exports/e/rewind", 400, "to is ''"),
        ("{name}/exports/f/rewind?to=0", 404, "has no export 'f': it has 'e'"),
        ("nowhere/exports/e/rewind?to=0", 404, "does not exist"),
    ],
)
def test_invalid_rewind_is_rejected(
    site: Site, client: RawConnection, name: str, path: str, status: int, sentence: str
) -> None:
    create(client, name, exportDefinition=to_http(startSequenceNumber=2))
    client.append_many(name, [b"x"] * 5)

    error = site.post(f"/api/streams/{path.format(name=name)}").error

    assert error[0] == status
    assert sentence in error[1]
    (export,) = exports_of(site, name)
    assert export["messagesBehind"] == 3


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.admin])
def test_rewind_needs_the_role_admin(
    site: Site, client: RawConnection, name: str, role: Role
) -> None:
    create(client, name, exportDefinition=to_http())
    append(client, name, b"x")
    token = site.make_token(role)

    status, sentence = site.post(f"/api/streams/{name}/exports/e/rewind?to=1", token).error

    expected = f"the role {role} does not allow changes; they need the role admin"
    assert (status, sentence) == (403, expected)
    (export,) = exports_of(site, name)
    assert export["messagesBehind"] == 1
