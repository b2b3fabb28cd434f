"""Authorization: by token, by loopback, and of forwarded and cross-origin requests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

import pytest

from penstock.broker.access import Access, Role
from penstock.errors import UnauthorizedException
from penstock.settings import LoopbackAccess
from penstock.store.rows import TokenRow
from tests.broker.exports.workbench import to_http, to_s3
from tests.support import append, create
from tests.web.site import HttpResponse, Site

STATISTICS = ("/api/overview", "/api/history", "/api/pipeline", "/api/events", "/metrics")
MESSAGES = "/api/streams/mine/messages"
TASKS = "/api/tasks?stream=tasks"
PAUSE = "/api/streams/mine/exports/e/pause"
REWIND = "/api/streams/mine/exports/e/rewind?to=latest"


def make_site(root: pytest.TempPathFactory, name: str, **settings: object) -> Site:
    return Site(root.mktemp(name) / "root", **settings)


def fill(site: Site) -> None:
    with site.connect() as client:
        append(client, create(client, "mine", exportDefinition=to_http()), b"secret")
        append(client, create(client, "tasks", exportDefinition=to_s3()), b"{}")
        create(client, "other")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with make_site(tmp_path_factory, "usual") as site:
        fill(site)
        yield site


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with make_site(tmp_path_factory, "none", http_loopback_access=LoopbackAccess.NONE) as site:
        fill(site)
        yield site


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    access = LoopbackAccess.MESSAGES
    with make_site(tmp_path_factory, "messages", http_loopback_access=access) as site:
        fill(site)
        yield site


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker without authentication."""
    with make_site(tmp_path_factory, "open", authenticate_client=False) as site:
        fill(site)
        yield site


# Without a token


@pytest.mark.parametrize("path", STATISTICS)
def test_local_programs_see_statistics_without_a_token(site: Site, path: str) -> None:
    assert site.get(path).status == 200


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/0", TASKS, "/api/tasks"])
def test_messages_and_tasks_need_a_token(site: Site, path: str) -> None:
    answer = site.get(path)

    status, sentence = answer.error
    assert status == 401
    assert "messages need a token: send `Authorization: Bearer` and a token" in sentence
    assert 'http_loopback_access = "messages"' in sentence
    assert answer.headers["www-authenticate"] == 'Bearer realm="penstock"'
    assert b"secret" not in answer.body


def test_overview_has_the_permissions_of_requests_without_a_token(
    site: Site, shown: Site, unguarded: Site
) -> None:
    def access(of: Site) -> object:
        return of.get("/api/overview").json["access"]

    assert access(site) == {"role": None, "mayReadMessages": False, "mayChange": False}
    assert access(shown) == {"role": None, "mayReadMessages": True, "mayChange": False}
    assert access(unguarded) == {"role": None, "mayReadMessages": True, "mayChange": True}


@pytest.mark.parametrize("path", [*STATISTICS, MESSAGES, TASKS, "/api/streams/mine"])
def test_loopback_access_none_requires_a_token(closed: Site, path: str) -> None:
    assert closed.get(path).status == 401
    assert closed.get(path, closed.token).status == 200


def test_health_and_page_need_no_token(closed: Site) -> None:
    elsewhere = {"X-Forwarded-For": "203.0.113.9"}
    for path in ("/healthz", "/readyz", "/"):
        assert closed.get(path, headers=elsewhere).status == 200


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/0", TASKS])
def test_loopback_access_messages_shows_messages_without_a_token(shown: Site, path: str) -> None:
    assert shown.get(path).status == 200


def test_changes_need_a_token_with_loopback_access_messages(shown: Site) -> None:
    status, sentence = shown.request("POST", PAUSE).error

    assert status == 401
    assert "changes need a token with the role admin" in sentence


def test_everything_is_allowed_without_authentication(unguarded: Site) -> None:
    assert unguarded.get(MESSAGES).status == 200
    assert unguarded.request("POST", PAUSE).json == {"isPaused": True}


# Forwarded and cross-origin requests


FORWARDED = [
    {"Forwarded": "for=203.0.113.9"},
    {"X-Forwarded-For": "127.0.0.1"},
    {"x-forwarded-host": "a.example"},
    {"X-Real-IP": "203.0.113.9"},
    {"Via": "1.1 a"},
]
FOREIGN_HOSTS = [
    {"Host": "rebound.example"},
    {"Host": "rebound.example:8089"},
    {"Host": "127.0.0.1.nip.example"},
    {"Host": "127.0.0.1@rebound.example"},
    {"Host": "0.0.0.0"},
    {"Host": "[::1"},
    {"Host": "2130706433"},
    {"Host": ""},
]
FOREIGN_ORIGINS = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1.evil.example"},
    # Another port is another origin, and every sandboxed frame has the origin null.
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://[::1"},
]


@pytest.mark.parametrize("headers", [*FORWARDED, *FOREIGN_HOSTS, *FOREIGN_ORIGINS], ids=str)
def test_forwarded_and_cross_origin_requests_need_a_token(
    shown: Site, headers: Mapping[str, str]
) -> None:
    for path in ("/api/overview", MESSAGES):
        status, sentence = shown.get(path, headers=headers).error
        assert status == 401
        assert "a token is needed" in sentence
        assert shown.get(path, shown.token, headers).status == 200


@pytest.mark.parametrize("token", ["", "made up"])
@pytest.mark.parametrize("headers", [*FORWARDED, *FOREIGN_HOSTS, *FOREIGN_ORIGINS], ids=str)
def test_cross_origin_requests_are_rejected_without_authentication(
    unguarded: Site, headers: Mapping[str, str], token: str
) -> None:
    unguarded.request("POST", PAUSE.replace("pause", "resume"))

    assert unguarded.request("POST", PAUSE, token, headers).status == 401
    assert unguarded.request("POST", REWIND, token, headers).status == 401
    assert unguarded.get(MESSAGES, token, headers).status == 401
    (export,) = unguarded.get("/api/streams/mine").json["exports"]
    assert not export["isPaused"]
    assert export["messagesBehind"] == 1


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:5"])
def test_loopback_names_are_accepted_as_host(site: Site, host: str) -> None:
    host = host.format(port=site.netloc.rpartition(":")[2])

    assert site.get("/api/overview", headers={"Host": host}).status == 200
    own = {"Host": host, "Origin": f"http://{host}"}
    assert site.get("/api/overview", headers=own).status == 200


# With a token


@pytest.mark.parametrize(
    "header", ["Basic YTpi", "Bearer", "Bearer ", "bearer", "Bearer\t", "Token x", "secret", "\xff"]
)
def test_header_without_bearer_token_is_rejected(site: Site, header: str) -> None:
    status, sentence = site.get("/api/overview", headers={"Authorization": header}).error

    assert status == 401
    assert "not a bearer token" in sentence


@pytest.mark.parametrize("token", ["unknown", "x" * 4000, "' OR 1=1 --", "\xe9\xff"])
def test_unknown_token_is_rejected(site: Site, token: str) -> None:
    assert site.get("/api/overview", token).error == (
        401,
        "the token is not known to this server",
    )


def test_bearer_scheme_ignores_case_and_spaces(site: Site) -> None:
    for word in ("bearer", "BEARER", "Bearer  "):
        answer = site.get("/api/overview", headers={"Authorization": f"{word} {site.token}"})
        assert answer.json["access"]["role"] == "admin"


@pytest.mark.parametrize(
    ("role", "may_read", "may_change"),
    [
        (Role.admin, True, True),
        (Role.producer, False, False),
        (Role.consumer, True, False),
        (Role.pipeline, True, False),
        (Role.observer, False, False),
    ],
)
def test_role_allows_the_same_as_in_the_protocol(
    site: Site, role: Role, may_read: bool, may_change: bool
) -> None:
    token = site.make_token(role)

    access = site.get_json("/api/overview", token)["access"]
    assert access == {"role": role, "mayReadMessages": may_read, "mayChange": may_change}
    for path in (MESSAGES, f"{MESSAGES}/0", TASKS):
        answer = site.get(path, token)
        assert answer.status == (200 if may_read else 403)
    changed = site.post(PAUSE, token)
    assert changed.status == (200 if may_change else 403)
    if not may_read:
        sentence = f"the role {role} does not allow reading messages"
        assert site.get(MESSAGES, token).error == (403, sentence)
    if not may_change:
        sentence = f"the role {role} does not allow changes; they need the role admin"
        assert changed.error == (403, sentence)


def test_token_sees_the_streams_that_it_allows(site: Site) -> None:
    token = site.make_token(Role.admin, "mi*")

    overview = site.get_json("/api/overview", token)
    assert [stream["name"] for stream in overview["streams"]] == ["mine"]
    assert overview["store"]["segments"] == 1
    assert site.get("/api/streams/mine", token).status == 200
    assert site.get_json("/api/tasks", token) == {"tasks": [], "waiting": 0}
    assert 'stream="mine"' in site.get("/metrics", token).body.decode()
    assert 'stream="other"' not in site.get("/metrics", token).body.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/api/streams/other",
        "/api/streams/other/messages",
        "/api/streams/other/messages/0",
        "/api/streams/nowhere",
        "/api/history?stream=other",
        "/api/tasks?stream=tasks",
    ],
)
def test_token_does_not_reveal_whether_other_streams_exist(site: Site, path: str) -> None:
    token = site.make_token(Role.admin, "mine")

    status, sentence = site.get(path, token).error
    assert status == 403
    assert sentence.startswith("the token does not allow the stream ")


def test_events_need_a_token_for_all_streams(site: Site) -> None:
    token = site.make_token(Role.admin, "mine")
    assert site.get("/api/events", token).error == (
        403,
        "events need a token that allows all streams",
    )


def test_token_changes_only_streams_that_it_allows(site: Site) -> None:
    token = site.make_token(Role.admin, "mine")

    assert site.post(PAUSE, token).json == {"isPaused": True}
    assert site.post("/api/streams/tasks/exports/e/pause", token).status == 403


def test_revoked_token_is_rejected_at_once(site: Site) -> None:
    token = site.make_token(Role.consumer, name="leaked")
    assert site.get(MESSAGES, token).status == 200

    site.revoke_token("leaked")

    assert site.get(MESSAGES, token).status == 401


def test_request_is_rejected_when_tokens_cannot_be_looked_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(site.broker._store.catalog, "find_token", fail)

    answers: list[HttpResponse] = [site.get(path, site.token) for path in ("/metrics", MESSAGES)]
    for answer in answers:
        assert answer.error == (503, "cannot look up the token: database is locked")


def test_external_verifier_accepts_tokens(site: Site) -> None:
    class ExternalVerifier:
        async def verify(self, secret: str) -> Access:
            if secret != "theirs":
                raise UnauthorizedException("unknown token")
            return Access(TokenRow("theirs", Role.admin, ("*",), 0))

    authenticator = site.broker.authenticator
    authenticator.verifier = ExternalVerifier()
    try:
        assert site.get_json("/api/overview", "theirs")["access"]["role"] == "admin"
        assert site.get("/api/overview", "wrong").error == (401, "unknown token")
    finally:
        authenticator.verifier = None
