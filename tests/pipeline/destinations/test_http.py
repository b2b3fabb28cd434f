from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.model import ExportFormat, HTTPConfig
from penstock.pipeline.delivery import DeliveryTotals
from penstock.pipeline.destinations.destination import Messages
from penstock.pipeline.destinations.http import HttpDestination
from tests.pipeline.destinations.suite import deliver, make_export

pytestmark = pytest.mark.usefixtures("clean_environment")


class Peer:
    """A server with configurable answers, which records requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Mapping[str, str], bytes]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.text = b""
        # Bodies that contain this are refused, with 422.
        self.rejected: bytes | None = None
        self.connections = 0
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                peer.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                peer.requests.append((self.path, headers, body))
                is_rejected = peer.rejected is not None and peer.rejected in body
                self.send_response(422 if is_rejected else peer.status)
                for name, value in peer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(peer.text)))
                self.end_headers()
                self.wfile.write(peer.text)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.requests]

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def make_messages(*payloads: bytes) -> Messages:
    numbers = range(len(payloads))
    return Messages("turbine", 0, numbers, [1700 + number for number in numbers], payloads)


def run(uri: str, *payloads: bytes, batched: bool = False) -> DeliveryTotals:
    kind = ExportFormat.JSON_BATCHED if batched else None
    config = HTTPConfig(identifier="e", uri=uri, export_format=kind)
    return deliver(HttpDestination(make_export(config)), make_messages(*payloads))


def test_message_is_the_body_of_a_post(peer: Peer) -> None:
    delivery = run(f"http://{peer.place}/in?key=1", b"\0\xff", b"two")
    assert delivery.error == ""
    assert peer.bodies == [b"\0\xff", b"two"]
    path, headers, _ = peer.requests[0]
    assert path == "/in?key=1"
    assert headers["content-type"] == "application/octet-stream"
    assert peer.connections == 1


def test_batch_is_a_json_list(peer: Peer) -> None:
    run(f"http://{peer.place}", b"\0\xff", b"two", batched=True)
    (_, headers, body), *others = peer.requests
    assert not others
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == [
        {
            "streamName": "turbine",
            "sequenceNumber": number,
            "ingestTime": 1700 + number,
            "payload": base64.b64encode(payload).decode(),
        }
        for number, payload in enumerate((b"\0\xff", b"two"))
    ]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_status_is_a_success(peer: Peer, status: int, batched: bool) -> None:
    peer.status = status
    delivery = run(f"http://{peer.place}", b"x", b"y", batched=batched)
    assert delivery.error == ""
    assert delivery.exported_messages == 2


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 504])
def test_temporary_status_is_unavailable(peer: Peer, status: int, batched: bool) -> None:
    peer.status, peer.text = status, b"busy"
    peer.headers = {"Retry-After": "7"}
    delivery = run(f"http://{peer.place}/in?secret=1", b"x", batched=batched)
    assert delivery.error.startswith(f"POST http://{peer.place}/in: {status} ")
    assert delivery.error.endswith(": busy")
    assert "secret" not in delivery.error
    assert delivery.pause == 7
    assert delivery.settled_end == 0
    assert len(peer.requests) == 1


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 405])
def test_wrong_endpoint_skips_all_messages_of_a_call(
    peer: Peer, status: int, batched: bool
) -> None:
    peer.status, peer.text = status, b"no " * 1000
    peer.headers = {"Location": f"http://{peer.place}/elsewhere"}
    delivery = run(f"http://{peer.place}", b"x", b"y", batched=batched)
    assert [number for number, _ in delivery.skipped] == [0, 1]
    reason = delivery.skipped[0][1]
    assert f" {status} " in reason
    assert len(reason) < 300
    assert delivery.settled_end == 2
    assert len(peer.requests) == (1 if batched else 2)


def test_invalid_messages_of_a_refused_batch_are_found(peer: Peer) -> None:
    peer.rejected = base64.b64encode(b"bad")
    payloads = [b"bad" if number in (3, 8) else str(number).encode() for number in range(10)]
    delivery = run(f"http://{peer.place}", *payloads, batched=True)
    assert [number for number, _ in delivery.skipped] == [3, 8]
    assert delivery.exported_messages == 8
    taken = [body for body in peer.bodies if peer.rejected not in body]
    numbers = [message["sequenceNumber"] for body in taken for message in json.loads(body)]
    assert numbers == [0, 1, 2, 4, 5, 6, 7, 9]


def test_connection_is_reused_unless_an_answer_is_large(peer: Peer) -> None:
    peer.text = b"x" * 1000
    assert run(f"http://{peer.place}/in", *[b"m"] * 3).error == ""
    assert peer.connections == 1
    peer.text = b"x" * 1_000_000
    delivery = run(f"http://{peer.place}/in", *[b"m"] * 3)
    assert (delivery.error, delivery.exported_messages) == ("", 3)
    assert peer.connections == 3


def test_message_is_skipped_although_the_answer_cannot_be_decoded(peer: Peer) -> None:
    peer.status, peer.headers, peer.text = 422, {"Content-Encoding": "gzip"}, b"no gzip"
    delivery = run(f"http://{peer.place}/in", b"m")
    ((_, reason),) = delivery.skipped
    assert reason.endswith("422 Unprocessable Entity: no gzip")


def test_refused_message_is_skipped(peer: Peer) -> None:
    peer.rejected = b"bad"
    delivery = run(f"http://{peer.place}", b"good", b"bad", b"fine")
    ((number, reason),) = delivery.skipped
    assert number == 1
    assert " 422 " in reason
    assert delivery.exported_messages == 2


@pytest.mark.parametrize(
    "uri", ["ftp://host/x", "http://", "host", "/path", "http://[::1", "file:///etc/passwd"]
)
def test_invalid_uri_is_an_error_and_skips_no_message(uri: str) -> None:
    delivery = run(uri, b"x")
    assert "expected http:// or https:// and a host" in delivery.error
    assert delivery.skipped == []


def test_refused_connection_is_an_error() -> None:
    delivery = run("http://127.0.0.1:1/", b"x")
    assert delivery.error.startswith("POST http://127.0.0.1:1/: NewConnectionError: ")
    assert " at 0x" not in delivery.error


def test_credentials_of_the_uri_are_sent_and_not_shown_in_errors(peer: Peer) -> None:
    peer.status = 500
    delivery = run(f"http://me:s%40cret@{peer.place}/", b"x")
    expected = base64.b64encode(b"me:s@cret").decode()
    assert peer.requests[0][1]["authorization"] == f"Basic {expected}"
    assert "cret" not in delivery.error


def test_untrusted_certificate_is_an_error(peer: Peer) -> None:
    delivery = run(f"https://{peer.place}/", b"x")
    assert "SSLError" in delivery.error
    assert peer.requests == []


def test_proxy_of_the_environment_is_used(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{peer.place}")
    assert run("http://somewhere.example/in", b"x").error == ""
    assert peer.requests[0][0] == "http://somewhere.example/in"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert run(f"http://{peer.place}/direct", b"x").error == ""
    assert peer.requests[1][0] == "/direct"
