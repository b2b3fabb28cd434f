"""The proxy for the web page of Spark; `tests/integration/` tests the page itself."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

import pytest

from penstock.spark.web_page import SparkPage
from tests.support import TIMEOUT_S


class Upstream(BaseHTTPRequestHandler):
    """Redirects / as Spark does, and answers other paths with the request's headers."""

    def do_GET(self) -> None:
        if self.path == "/":
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}/jobs/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = str(self.headers).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def address(upstream: HTTPServer) -> Iterator[str]:
    page = SparkPage()
    yield urlsplit(page.open(f"http://127.0.0.1:{upstream.server_port}")).netloc
    page.close()


def get(address: str, path: str, host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    return connection.getresponse()


def test_requests_are_signed(address: str) -> None:
    response = get(address, "/jobs/")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain"
    assert b"Authorization: Bearer ey" in response.read()


def test_redirects_lead_to_the_proxy(address: str) -> None:
    port = address.partition(":")[2]
    for host in (address, f"localhost:{port}", f"[::1]:{port}"):
        response = get(address, "/", host)
        assert response.status == 302
        assert response.headers["Location"] == f"http://{host}/jobs/"


@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:{port}", "127.0.0.1", ""])
def test_other_host_headers_are_refused(address: str, host: str) -> None:
    response = get(address, "/jobs/", host.format(port=address.partition(":")[2]))
    assert response.status == 403
    assert b"Authorization" not in response.read()


def test_unavailable_spark_is_a_bad_gateway(address: str, upstream: HTTPServer) -> None:
    upstream.socket.close()
    assert get(address, "/jobs/").status == 502


def test_page_that_was_never_opened_can_be_closed() -> None:
    SparkPage().close()
