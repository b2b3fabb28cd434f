"""Calls that repeat the request of the first call, with other bodies and signatures."""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import boto3.session
import botocore.session
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from penstock.pipeline.destinations.aws import _PLAIN_URL, RawCalls, make_http_session
from tests.client.servers import make_certificates

KEYS = {"id": "secret", "other-id": "other-secret"}
BODIES = [b'{"StreamName": "s"}', b'{"StreamName": "t", "Records": []}', b'{"StreamName": "u"}']
OPERATIONS = [("kinesis", "PutRecords"), ("iotsitewise", "BatchPutAssetPropertyValue")]


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Server(ThreadingHTTPServer):
    """Records requests, and gives each the same answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Received] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.answer = b"{}"
        self.delay = 0.0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append(Received(self.path, headers, body))
        time.sleep(self.server.delay)
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server
        server.shutdown()


def make(
    server: Server,
    service: str = "kinesis",
    token: str | None = None,
    path: str = "",
    url: str = "",
    **options: Any,
) -> tuple[RawCalls, Any]:
    """The calls, and the credentials that sign them."""
    core = botocore.session.get_session()
    session = boto3.session.Session("id", "secret", token, "eu-west-1", core)
    client: Any = session.client(  # type: ignore[call-overload] # any service
        service,
        endpoint_url=url or f"http://127.0.0.1:{server.server_port}{path}",
        config=Config(
            inject_host_prefix=False,
            parameter_validation=False,
            request_checksum_calculation="when_required",
            retries={"total_max_attempts": 1},
            user_agent="penstock",
            **options,
        ),
    )
    credentials = session.get_credentials()
    return RawCalls(client, credentials, make_http_session(core, client)), credentials


def find_scope(received: Received) -> list[str]:
    """The key's id, date, region and service of a signature."""
    scope = received.headers["authorization"].split("Credential=")[1].split("/aws4_request")[0]
    return scope.split("/")


def is_signed(received: Received) -> bool:
    """Whether the signature is correct according to the documentation of AWS."""
    key_id, day, region, service = find_scope(received)
    fields = received.headers["authorization"].split(", ")
    names = fields[1].removeprefix("SignedHeaders=")
    canonical = "\n".join(
        [
            "POST",
            received.path,
            "",
            *(f"{name}:{received.headers[name]}" for name in names.split(";")),
            "",
            names,
            hashlib.sha256(received.body).hexdigest(),
        ]
    )
    signed = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            received.headers["x-amz-date"],
            f"{day}/{region}/{service}/aws4_request",
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{KEYS[key_id]}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return fields[2] == f"Signature={hmac.new(key, signed.encode(), 'sha256').hexdigest()}"


@pytest.mark.parametrize("token", [None, "a-token"])
@pytest.mark.parametrize(("service", "operation"), OPERATIONS)
def test_all_calls_have_the_same_headers_and_are_signed(
    server: Server, service: str, operation: str, token: str | None
) -> None:
    calls, _ = make(server, service, token)
    for body in BODIES:
        assert calls.call(operation, body) == b"{}"
    assert [each.body for each in server.received] == BODIES
    assert all(map(is_signed, server.received))
    first, *others = server.received
    changing = {"authorization", "content-length", "x-amz-date"}
    # They identify one call, and are not needed.
    of_first = {"amz-sdk-invocation-id", "amz-sdk-request"}
    for other in others:
        assert other.path == first.path
        assert other.headers.keys() == first.headers.keys() - of_first
        names = other.headers.keys() - changing
        assert {name: other.headers[name] for name in names} == {
            name: first.headers[name] for name in names
        }
    assert first.headers.get("x-amz-security-token") == token


def test_only_the_first_call_goes_through_boto3(server: Server) -> None:
    calls, _ = make(server)
    through_boto3: list[str] = []
    calls.meta.events.register("before-call", lambda **_: through_boto3.append("call"))
    for body in BODIES:
        calls.call("PutRecords", body)
    assert through_boto3 == ["call"]


def test_call_is_signed_with_the_current_credentials(server: Server) -> None:
    calls, credentials = make(server)
    calls.call("PutRecords", BODIES[0])
    credentials.access_key, credentials.secret_key = "other-id", "other-secret"
    calls.call("PutRecords", BODIES[1])
    assert [find_scope(each)[0] for each in server.received] == ["id", "other-id"]
    assert all(map(is_signed, server.received))


def test_unsigned_calls_go_through_boto3(server: Server) -> None:
    calls, _ = make(server, signature_version=UNSIGNED)
    for body in BODIES:
        calls.call("PutRecords", body)
    assert [each.body for each in server.received] == BODIES
    assert all("authorization" not in each.headers for each in server.received)


@pytest.mark.parametrize("path", ["/a/../b", "//a", "/a%20b", "/a b"])
def test_call_whose_path_has_to_be_normalized_goes_through_boto3(server: Server, path: str) -> None:
    calls, _ = make(server, path=path)
    through_boto3: list[str] = []
    calls.meta.events.register("before-call", lambda **_: through_boto3.append("call"))
    for body in BODIES:
        calls.call("PutRecords", body)
    assert len(through_boto3) == len(BODIES)


def test_long_url_is_matched_in_linear_time() -> None:
    for path in ("", "/properties", "/a/b.c/~d/"):
        assert _PLAIN_URL.fullmatch(f"https://{'kinesis-gateway.' * 20}example.com{path}")
    for path in ("//", "/a%20b", "/a/../b", f"/{'a' * 1000}%20", "/?query"):
        assert not _PLAIN_URL.fullmatch(f"https://{'kinesis-gateway.' * 20}example.com{path}")


@pytest.mark.parametrize(
    ("service", "operation", "headers", "answer"),
    [
        (*OPERATIONS[0], {}, b'{"__type": "a#SomeException", "message": "It is so"}'),
        (*OPERATIONS[1], {"x-amzn-ErrorType": "SomeException"}, b'{"message": "It is so"}'),
    ],
)
def test_error_is_the_same_for_all_calls(
    server: Server, service: str, operation: str, headers: dict[str, str], answer: bytes
) -> None:
    calls, _ = make(server, service)
    server.status, server.answer = 400, answer
    server.headers = {"Retry-After": "7", **headers}
    for body in BODIES:
        with pytest.raises(ClientError) as caught:
            calls.call(operation, body)
        response: Any = caught.value.response
        assert response["Error"] == {"Code": "SomeException", "Message": "It is so"}
        assert response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"


def test_unavailable_server_raises_an_error_of_boto3(server: Server) -> None:
    calls, _ = make(server)
    server.headers = {"Connection": "close"}
    calls.call("PutRecords", BODIES[0])
    server.shutdown()
    server.server_close()
    with pytest.raises(EndpointConnectionError):
        calls.call("PutRecords", BODIES[1])


def test_all_calls_use_the_proxy_of_the_environment(
    clean_environment: None, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    calls, _ = make(server, url="http://kinesis.example")
    for body in BODIES:
        calls.call("PutRecords", body)
    assert [each.path for each in server.received] == ["http://kinesis.example/"] * len(BODIES)


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_all_calls_trust_the_ca_bundle_of_the_environment(
    clean_environment: None,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variable: str,
) -> None:
    certificates = make_certificates(tmp_path)
    server.socket = certificates.server_context().wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}"
    monkeypatch.setenv(variable, str(certificates.authority))
    calls, _ = make(server, url=url)
    for body in BODIES:
        calls.call("PutRecords", body)
    assert [each.body for each in server.received] == BODIES


def test_all_calls_have_the_timeout_of_the_client(server: Server) -> None:
    calls, _ = make(server, connect_timeout=1.0, read_timeout=1.0)
    calls.call("PutRecords", BODIES[0])
    server.delay = 10.0
    for body in BODIES:
        with pytest.raises(ReadTimeoutError):
            calls.call("PutRecords", body)
