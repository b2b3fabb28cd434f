"""A broker with its HTTP server in a thread of this process, and requests to it."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

from penstock.broker.access import Role, new_secret
from penstock.model.exporting import DeliveryReport
from penstock.store.rows import TokenRow
from penstock.web.web_server import WebServer
from penstock.wire.operations import Operation
from tests.raw_connection import RawConnection
from tests.support import TIMEOUT_S, Json, LocalBroker

_numbers = count()


class HttpResponse(NamedTuple):
    status: int
    # By lower-case name.
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        assert self.headers["content-type"] == "application/json"
        value: Json = json.loads(self.body)
        return value

    @property
    def error(self) -> tuple[int, str]:
        """The status and the message of an error."""
        assert self.json.keys() == {"error"}
        return self.status, self.json["error"]


class Site(LocalBroker):
    """A `LocalBroker` with an HTTP server."""

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.web = WebServer()
        self._is_served = False

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.finish(self.web.start(self.broker))
        except BaseException:
            super().__exit__()
            raise
        self._is_served = True
        assert self.broker.http_url is not None
        self.url = self.broker.http_url
        self.netloc = urllib.parse.urlsplit(self.url).netloc
        return self

    def stop(self) -> None:
        if self._is_served:
            self._is_served = False
            self.finish(self.web.stop())
        super().stop()

    def link(self, token: str | None = None) -> str:
        """A link to the dashboard with this token, or with the admin's."""
        return f"{self.url}#token={self.token if token is None else token}"

    def open(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.netloc, timeout=TIMEOUT_S)

    def request(
        self, method: str, path: str, token: str = "", headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Sends a request, by default without a token."""
        connection = self.open()
        try:
            return send_request(connection, method, path, token, headers)
        finally:
            connection.close()

    def get(
        self, path: str, token: str = "", headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        return self.request("GET", path, token, headers)

    def get_json(self, path: str, token: str | None = None) -> Json:
        """Gets JSON with this token, or with the admin's."""
        answer = self.get(path, self.token if token is None else token)
        assert answer.status == 200, answer.body
        return answer.json

    def post(self, path: str, token: str | None = None) -> HttpResponse:
        return self.request("POST", path, self.token if token is None else token)

    def make_token(self, role: Role, *patterns: str, name: str = "") -> str:
        secret = new_secret()
        row = TokenRow(name or f"t{next(_numbers)}", role, patterns or ("*",), 1)
        self.run(lambda: self.broker._store.catalog.add_token(row, secret))
        return secret

    def revoke_token(self, name: str) -> None:
        assert self.run(lambda: self.broker._store.catalog.remove_token(name))


def send_request(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    token: str = "",
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    sent = dict(headers or {})
    if token:
        sent["Authorization"] = f"Bearer {token}"
    connection.request(method, path, headers=sent)
    answer = connection.getresponse()
    names = {name.lower(): value for name, value in answer.getheaders()}
    return HttpResponse(answer.status, names, answer.read())


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def plan(connection: RawConnection, **fields: Any) -> list[Json]:
    """Requests work for a task, and returns it as soon as there is some."""
    plain = {
        "pipeline": "p",
        "task": "1",
        "maxBytes": 1 << 20,
        "leaseMillis": 60_000,
        "waitMillis": 20_000,
    }
    work: list[Json] = connection.call(Operation.PlanExports, **{**plain, **fields})["work"]
    return work


def commit(connection: RawConnection, found: Json, **fields: Any) -> None:
    """Reports a slice as exported, with the given fields of the report changed."""
    plain = {
        "lease": found["lease"],
        "stream": found["stream"],
        "streamId": found["streamId"],
        "identifier": found["identifier"],
        "first": found["first"],
        "settledEnd": found["end"],
        "exportedMessages": found["end"] - found["first"],
    }
    assert fields.keys() <= set(DeliveryReport.__struct_encode_fields__)
    answer = connection.call(Operation.CommitExports, reports=[{**plain, **fields}])
    assert answer["accepted"] == [found["lease"]]
