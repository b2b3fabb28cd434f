"""The HTTP server: static files, headers, malformed requests, health, connections, start, stop."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import ipaddress
import json
import logging
import os
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.errors import SettingError
from penstock.web import web_server as server
from penstock.web.uvicorn_adapter import HttpConnection
from penstock.web.web_server import PAGE
from tests.support import MEBIBYTE, TIMEOUT_S, append, create, wait_until
from tests.web.site import Site, send_request


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site") / "root") as site:
        yield site


def address(site: Site) -> tuple[str, int]:
    host, _, port = site.netloc.rpartition(":")
    return host, int(port)


def open_socket(site: Site) -> socket.socket:
    return socket.create_connection(address(site), TIMEOUT_S)


def send_raw(site: Site, request: bytes) -> bytes:
    """Sends these bytes, and returns all bytes that the server sends until it closes."""
    with open_socket(site) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        return receive_all(connection)


def receive_all(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while piece := connection.recv(65536):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


def get_raw(site: Site, path: str) -> bytes:
    """For paths that an HTTP client would normalize."""
    return send_raw(site, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())


# The page


def test_page_and_its_files_are_served(site: Site) -> None:
    page = site.get("/")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert page.body == (PAGE / "index.html").read_bytes()
    linked = re.findall(r'(?:src|href)="([^"#]+)"', page.body.decode())
    assert linked
    for address in linked:
        path = address if address.startswith("/") else f"/{address}"
        assert site.get(path).status == 200, address


@pytest.mark.parametrize(
    ("name", "kind"),
    [("app.js", "javascript"), ("style/base.css", "text/css"), ("mark.svg", "image/svg+xml")],
)
def test_files_have_correct_content_types(site: Site, name: str, kind: str) -> None:
    answer = site.get(f"/page/{name}")

    assert answer.status == 200
    assert kind in answer.headers["content-type"]
    assert answer.body == (PAGE / name).read_bytes()


def test_unchanged_file_is_not_sent_again(site: Site) -> None:
    first = site.get("/page/app.js")
    again = site.get("/page/app.js", headers={"If-None-Match": first.headers["etag"]})

    assert first.headers["cache-control"] == "no-cache"
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page/..%2fserver.py",
        "/page/%2e%2e%2fserver.py",
        "/page/style/../../server.py",
        "/page/....//server.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/..\\server.py",
        "/page/%00",
        "/page/app.js%00.css",
        "/page/" + "a/" * 5000,
        "/page/" + "a" * 5000,
        "/page/style",
        "/page/",
        "/page",
        "/../../etc/passwd",
    ],
)
def test_paths_outside_of_the_page_directory_are_not_served(site: Site, path: str) -> None:
    head, _, body = get_raw(site, path).partition(b"\r\n\r\n")

    assert head.split(b" ")[1] == b"404", head
    assert json.loads(body).keys() == {"error"}
    assert b"import" not in body
    assert b"root:" not in body


# Headers


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/api/overview", "/nowhere", "/healthz"])
def test_every_response_has_security_headers(site: Site, path: str) -> None:
    for headers in ({}, {"Host": "rebound.example"}):
        found = site.get(path, headers=headers).headers

        policy = found["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert found["x-content-type-options"] == "nosniff"
        assert found["referrer-policy"] == "no-referrer"
        assert found["cross-origin-resource-policy"] == "same-origin"
        assert found["cache-control"] == (
            "no-cache" if path in ("/", "/page/app.js") else "no-store"
        )
        assert "server" not in found
        assert "set-cookie" not in found
        assert "access-control-allow-origin" not in found


# Malformed requests


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2_000_000 + b"\r\n\r\n",
        b"\x01\x00\x00\x00\x05\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"\r\n" * 100_000,
    ],
    ids=range(8),
)
def test_malformed_request_is_rejected_and_the_server_continues(
    site: Site, request_bytes: bytes
) -> None:
    answer = send_raw(site, request_bytes)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert site.get("/healthz").status == 200


def test_http_1_0_request_without_host_needs_a_token(site: Site) -> None:
    answer = send_raw(site, b"GET /api/overview HTTP/1.0\r\n\r\n")

    assert answer.split(b" ")[1] == b"401"


def test_unneeded_body_does_not_delay_the_response(site: Site) -> None:
    with site.connect() as client:
        create(client, "s", exportDefinition={"http": [{"identifier": "e", "uri": "http://x"}]})
    connection = site.open()
    headers = {"Authorization": f"Bearer {site.token}"}
    connection.request("POST", "/api/streams/s/exports/e/pause", b"x" * 1_000_000, headers)
    assert connection.getresponse().status == 200
    connection.close()


def test_internal_error_does_not_expose_details(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("details")

    monkeypatch.setattr("penstock.web.presentation.render_overview", fail)
    with site.connect() as client:
        create(client, "another")

    answer = site.get("/api/overview")

    assert answer.error == (500, "internal error; see the log of the server")
    assert "GET /api/overview failed: RuntimeError('details')" in caplog.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    monkeypatch.undo()
    assert site.get("/api/overview").status == 200


CHUNKED = b"GET /api/overview HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_malformed_body_is_not_logged_as_internal_error(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert send_raw(site, CHUNKED + b"zz\r\n").startswith(b"HTTP/1.1 400 ")
    with open_socket(site) as answered:
        answered.sendall(CHUNKED)
        assert answered.recv(12) == b"HTTP/1.1 401"
        answered.sendall(b"zz\r\n")
        receive_all(answered)

    wait_until(lambda: site.run(lambda: site.web._server.is_idle))
    assert [each for each in caplog.records if each.levelno > logging.DEBUG] == []
    assert site._failures == []


# Health


def test_health_needs_no_token(site: Site) -> None:
    assert site.get("/healthz").json == {"status": "ok"}
    assert site.get("/readyz").json == {"status": "ready"}


def test_stopping_broker_is_healthy_but_not_ready(tmp_path: Path) -> None:
    with Site(tmp_path / "root") as site:
        site.broker._is_stopping.set()

        assert site.get("/readyz").status == 503
        assert site.get("/readyz").json == {"status": "stopping"}
        assert site.get("/healthz").status == 200


def test_broker_without_root_directory_is_not_ready(tmp_path: Path) -> None:
    with Site(tmp_path / "root") as site:
        site.root.rename(tmp_path / "elsewhere")
        answer = site.get("/readyz")
        (tmp_path / "elsewhere").rename(site.root)

        assert answer.status == 503
        assert answer.json == {
            "status": "the root directory cannot be read: No such file or directory"
        }
        assert site.get("/readyz").status == 200


def test_broker_with_full_disk_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=1000)
    with Site(tmp_path / "root") as site:
        monkeypatch.setattr(os, "statvfs", lambda _: full)

        assert site.get("/readyz").status == 503
        assert site.get("/readyz").json == {"status": "the disk is full"}
        assert site.get("/healthz").status == 200


def test_broker_below_min_free_disk_is_not_ready(tmp_path: Path) -> None:
    # Larger than any disk.
    with Site(tmp_path / "root", min_free_disk=1 << 50) as site:
        answer = site.get("/readyz")
        metrics = site.get("/metrics").body.decode()
        overview = site.get("/api/overview").json

    assert answer.status == 503
    assert answer.json == {"status": f"the disk has less than min_free_disk ({1 << 50} bytes) free"}
    assert "penstock_disk_low 1.0" in metrics
    assert "penstock_disk_min_free_bytes 1.125" in metrics
    assert overview["store"]["refusesAppends"] is True


# Connections


def test_connection_serves_several_requests(site: Site) -> None:
    connection = site.open()
    for _ in range(3):
        assert send_request(connection, "GET", "/healthz").status == 200
    connection.close()


@pytest.fixture
def site_with_three_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site with at most three connections."""
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 3)
    with Site(tmp_path / "root") as site:
        yield site


@pytest.fixture
def site_with_short_timeouts(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """A site with short timeouts."""
    seconds = getattr(request, "param", 1.5)
    monkeypatch.setattr(server, "_REQUEST_TIMEOUT_SECONDS", seconds)
    with Site(tmp_path / "root", unsent_response_timeout_ms=int(seconds * 1000)) as site:
        yield site


def test_oldest_incomplete_request_is_evicted(site_with_three_connections: Site) -> None:
    held = [open_socket(site_with_three_connections) for _ in range(3)]
    for connection in held:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
    wait_until(lambda: len(connections_of(site_with_three_connections)) == 3)

    with open_socket(site_with_three_connections) as another:
        another.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert receive_all(another).startswith(b"HTTP/1.1 200 ")

    assert receive_all(held[0]) == b""
    for connection in held[1:]:
        connection.sendall(b"Host: x\r\nConnection: close\r\n\r\n")
        assert receive_all(connection).startswith(b"HTTP/1.1 200 ")
    for connection in held:
        connection.close()


def test_client_that_does_not_read_its_response_is_evicted(
    site_with_three_connections: Site,
) -> None:
    with site_with_three_connections.connect() as client:
        create(client, "large")
        append(client, "large", bytes(24 * MEBIBYTE))
    path = "/api/streams/large/messages/0"
    hung = [open_socket(site_with_three_connections) for _ in range(3)]
    for connection in hung:
        connection.sendall(message_request(site_with_three_connections, path))
    wait_until(
        lambda: all(each.is_writing_paused for each in connections_of(site_with_three_connections))
    )

    assert site_with_three_connections.get("/healthz").status == 200

    for connection in hung:
        connection.close()


@pytest.mark.parametrize("uses_tls", [False, True], ids=["plain", "tls"])
def test_health_is_answered_despite_400_incomplete_requests(
    tmp_path: Path, certificate: Certificate, uses_tls: bool
) -> None:
    context = ssl.create_default_context(cafile=certificate.certificate)
    settings = {
        "http_host": "127.1",
        "tls_certificate": str(certificate.certificate),
        "tls_key": str(certificate.key),
    }
    with (
        Site(tmp_path / "root", **(settings if uses_tls else {})) as site,
        contextlib.ExitStack() as opened,
    ):

        def begin() -> socket.socket:
            connection = open_socket(site)
            if uses_tls:
                connection = context.wrap_socket(connection, server_hostname=address(site)[0])
            opened.enter_context(connection)
            connection.sendall(PART_OF_A_HEAD)
            return connection

        half_open = [begin() for _ in range(400)]

        with begin() as connection:
            connection.sendall(b"Connection: close\r\n\r\n")
            assert receive_all(connection).startswith(b"HTTP/1.1 200 ")

        assert receive_all(half_open[0]) == b""
        assert len(connections_of(site)) <= 256


PART_OF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "part", [b"", b"G", PART_OF_A_HEAD], ids=["no byte", "one byte", "part of head"]
)
def test_connection_without_complete_request_is_closed(
    site_with_short_timeouts: Site, part: bytes
) -> None:
    with open_socket(site_with_short_timeouts) as new:
        new.sendall(part)
        assert receive_all(new) == b""
    kept = site_with_short_timeouts.open()
    assert send_request(kept, "GET", "/healthz").status == 200
    kept.sock.sendall(part)
    assert receive_all(kept.sock) == b""
    kept.close()


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /",
        PART_OF_A_HEAD + b"\r\n" + PART_OF_A_HEAD + b"X: ",
        # A body that the response does not wait for.
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
    ],
    ids=["head", "second head", "body"],
)
def test_request_that_never_ends_is_closed(
    site_with_short_timeouts: Site, beginning: bytes
) -> None:
    with open_socket(site_with_short_timeouts) as connection:
        connection.sendall(beginning)

        def is_closed() -> bool:
            try:
                connection.sendall(b"x")
            except ConnectionError:
                return True
            return False

        wait_until(is_closed)


def message_request(site: Site, path: str) -> bytes:
    """A request with the admin's token that closes the connection after its response."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: {site.netloc}\r\n"
        f"Authorization: Bearer {site.token}\r\nConnection: close\r\n\r\n"
    ).encode()


# A longer timeout, because the slow reader must not be closed on a busy machine.
@pytest.mark.parametrize("site_with_short_timeouts", [4], indirect=True)
def test_connection_whose_client_reads_nothing_is_closed(site_with_short_timeouts: Site) -> None:
    with site_with_short_timeouts.connect() as client:
        create(client, "s")
        append(client, "s", bytes(16_000_000))
    with (
        open_socket(site_with_short_timeouts) as stuck,
        open_socket(site_with_short_timeouts) as slow,
    ):
        for connection in (stuck, slow):
            connection.sendall(
                message_request(site_with_short_timeouts, "/api/streams/s/messages/0")
            )

        # A client that continues to read gets the whole response.
        assert len(receive_all(slow)) > 16_000_000

        wait_until(lambda: not connections_of(site_with_short_timeouts))
        assert len(receive_all(stuck)) < 16_000_000


def test_connection_with_a_small_unread_rest_is_closed(site_with_short_timeouts: Site) -> None:
    with site_with_short_timeouts.connect() as client:
        create(client, "s")
        append(client, "s", bytes(50_000))
    with socket.socket() as stuck:
        # The smallest buffers that the system allows.
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        stuck.connect(address(site_with_short_timeouts))
        (server_side,) = wait_until(lambda: connections_of(site_with_short_timeouts))
        kept = server_side._transport.get_extra_info("socket")
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

        stuck.sendall(message_request(site_with_short_timeouts, "/api/streams/s/messages/0"))

        wait_until(lambda: not connections_of(site_with_short_timeouts))
        assert len(receive_all(stuck)) < 50_000


def connections_of(site: Site) -> list[HttpConnection]:
    return site.run(lambda: list(site.web._server.connections))


# Start


def test_url_is_published_and_printed(site: Site) -> None:
    written = json.loads((site.root / "broker.json").read_text())

    assert written["httpUrl"] == site.url
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", site.url)
    assert site.web.ready_message == f"penstock dashboard {site.url}"


def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = (
            f"cannot listen on 127.0.0.1:{port} for the dashboard: Address already in use; choose "
            r"another port with --http-port \(0 picks a free one\)"
        )
        with pytest.raises(SettingError, match=message):
            Site(tmp_path / "root", http_port=port).__enter__()


@pytest.mark.parametrize("host", ["nowhere.invalid", "203.0.113.1", "a b"])
def test_host_without_local_address_is_reported(tmp_path: Path, host: str) -> None:
    with pytest.raises(SettingError, match=f"cannot listen on {host}:0 for the dashboard: [A-Z]"):
        Site(tmp_path / "root", http_host=host).__enter__()


def test_server_listens_on_ipv6_loopback(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("the system has no IPv6")
    with Site(tmp_path / "root", http_host="::1") as site:
        assert site.url.startswith("http://[::1]:")
        assert site.get("/api/overview").status == 200


class Certificate(NamedTuple):
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    (directory / "tls.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (directory / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Certificate(directory / "tls.crt", directory / "tls.key")


def test_server_uses_tls_on_other_addresses_than_loopback(
    tmp_path: Path, certificate: Certificate
) -> None:
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    # The settings do not recognize this loopback address, and no other machine can open_socket it.
    with Site(tmp_path / "root", http_host="127.1", **files) as site:
        assert site.url == f"https://{site.netloc}/"
        context = ssl.create_default_context(cafile=certificate.certificate)
        connection = http.client.HTTPSConnection(site.netloc, timeout=TIMEOUT_S, context=context)
        assert send_request(connection, "GET", "/healthz").status == 200
        assert (
            send_request(connection, "GET", "/api/overview", site.token).json["access"]["role"]
            == "admin"
        )
        assert isinstance(connection.sock, ssl.SSLSocket)
        assert connection.sock.version() == "TLSv1.3"
        connection.close()
        assert not send_raw(site, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP")
        old = ssl.create_default_context(cafile=certificate.certificate)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        older = http.client.HTTPSConnection(site.netloc, timeout=TIMEOUT_S, context=old)
        assert send_request(older, "GET", "/healthz").status == 200
        assert isinstance(older.sock, ssl.SSLSocket)
        name = older.sock.cipher()
        assert name is not None
        assert "GCM" in name[0] or "CHACHA20" in name[0]
        older.close()


def test_silent_tls_connections_do_not_block_other_clients(
    tmp_path: Path, certificate: Certificate
) -> None:
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    with Site(tmp_path / "root", http_host="127.1", **files) as site:
        silent = [open_socket(site) for _ in range(300)]
        context = ssl.create_default_context(cafile=certificate.certificate)
        connection = http.client.HTTPSConnection(site.netloc, timeout=TIMEOUT_S, context=context)

        assert send_request(connection, "GET", "/healthz").status == 200

        # The oldest connections were closed.
        assert receive_all(silent[0]) == b""
        connection.close()
        for each in silent:
            each.close()


# Stop


def test_server_stops_while_clients_are_connected(tmp_path: Path) -> None:
    with Site(tmp_path / "root") as site:
        kept = site.open()
        assert send_request(kept, "GET", "/api/overview").status == 200
        silent, slow = open_socket(site), open_socket(site)
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        with site.connect() as client:
            append(client, create(client, "s"), b"x")

        site.stop()

        for connection in (kept.sock, silent, slow):
            assert receive_all(connection) == b""
            connection.close()
        with pytest.raises(ConnectionRefusedError):
            open_socket(site)


def test_stopped_server_removes_its_log_handler(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    with Site(tmp_path / "root"):
        assert len(logging.getLogger().handlers) == len(before) + 1
    assert logging.getLogger().handlers == before
