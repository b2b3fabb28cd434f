"""The HTTP server of the sandbox."""

from __future__ import annotations

import http.client
import socket
import urllib.parse
from collections.abc import Iterator

import pytest

from penstock.sandbox.local_sandbox import Sandbox
from tests.support import TIMEOUT_S, Peer, wait_until


@pytest.fixture
def connection(sandbox: Sandbox) -> Iterator[http.client.HTTPConnection]:
    address = urllib.parse.urlsplit(sandbox.url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port, TIMEOUT_S)
    yield connection
    connection.close()


@pytest.fixture
def peer(sandbox: Sandbox) -> Iterator[Peer]:
    port = urllib.parse.urlsplit(sandbox.url).port
    with Peer(socket.create_connection(("127.0.0.1", port), TIMEOUT_S)) as peer:
        yield peer


def test_connection_serves_several_calls(
    sandbox: Sandbox, connection: http.client.HTTPConnection
) -> None:
    connection.connect()
    first = connection.sock
    for _ in range(3):
        connection.request("POST", "/_sandbox/http/kept-open", b"x")
        connection.getresponse().read()

    assert connection.sock is first
    assert len(sandbox.records("http", "kept-open")) == 3


def test_chunked_body_is_read(sandbox: Sandbox, connection: http.client.HTTPConnection) -> None:
    for _ in range(2):
        connection.request("POST", "/_sandbox/http/chunks", iter([b"one", b"two" * 1000]))
        assert connection.getresponse().read() == b"{}"

    assert sandbox.payloads("http", "chunks") == [b"one" + b"two" * 1000] * 2


def test_trailers_are_skipped(sandbox: Sandbox, peer: Peer) -> None:
    peer.say(
        b"POST /_sandbox/http/trailers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;extension=1\r\nabc\r\n0\r\nx-amz-checksum: 1\r\n\r\n"
        b"GET /_sandbox/nothing HTTP/1.0\r\n\r\n"
    )

    assert b" 404 " in peer.take_rest()
    assert sandbox.payloads("http", "trailers") == [b"abc"]


def test_expect_100_continue_is_answered(sandbox: Sandbox, peer: Peer) -> None:
    peer.say(
        b"POST /_sandbox/http/asking HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert peer.take(25) == b"HTTP/1.1 100 Continue\r\n\r\n"

    peer.say(b"abc")

    assert peer.take(15) == b"HTTP/1.1 200 OK"
    assert sandbox.payloads("http", "asking") == [b"abc"]


@pytest.mark.parametrize(
    "header", [b"Content-Length: x", b"Content-Length: -1", b"Transfer-Encoding: chunked"]
)
def test_invalid_length_of_body_is_rejected(peer: Peer, header: bytes) -> None:
    peer.say(b"POST /_sandbox/http/a HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\nwhat?\r\n")

    assert peer.take_rest().startswith(b"HTTP/1.1 400 ")


def test_incomplete_body_is_not_a_call(sandbox: Sandbox, peer: Peer) -> None:
    peer.say(b"POST /_sandbox/http/half HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
    peer.socket.shutdown(socket.SHUT_WR)

    assert peer.take_rest() == b""
    assert sandbox.calls("http") == []


def test_disconnect_ends_a_hanging_call(sandbox: Sandbox, peer: Peer) -> None:
    sandbox.set_fault("http", name="left", hang=True)
    peer.say(b"POST /_sandbox/http/left HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")

    peer.close()

    wait_until(lambda: [call["outcome"] for call in sandbox.calls("http")] == ["gone"])
    assert sandbox.records("http", "left") == []


def test_head_response_has_length_and_no_body(connection: http.client.HTTPConnection) -> None:
    connection.request("HEAD", "/_sandbox/health")
    response = connection.getresponse()

    assert int(response.headers["Content-Length"]) > 0
    assert response.read() == b""
