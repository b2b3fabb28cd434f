"""The broker as a whole: its root, its listeners, its start and its stop."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import resource
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock import StreamManagerClient
from penstock.errors import ConnectFailedException, ResponseStatusCode, StoreError
from penstock.store.files import Disk
from penstock.wire.operations import Operation
from tests.raw_connection import RawConnection
from tests.support import (
    MEBIBYTE,
    PENSTOCK,
    TIMEOUT_S,
    BrokerProcess,
    LocalBroker,
    Peer,
    append,
    append_frame,
    clean_environment,
    create,
    frame,
    wait_until,
)


def serve(root: Path, *flags: str, **environment: str) -> tuple[int, list[str]]:
    """Starts a broker that is expected to fail; returns its exit code and its output."""
    finished = subprocess.run(
        [str(PENSTOCK), "serve", "--root", str(root), *flags],
        env=clean_environment(**environment),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert finished.stdout == ""
    return finished.returncode, finished.stderr.splitlines()


# The root


def test_second_broker_of_a_root_does_not_start(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with BrokerProcess(root) as broker:
        assert broker.process is not None
        code, lines = serve(root, "--port", "0")

        assert code == 1
        assert lines == [
            f"penstock: another broker (process {broker.process.pid}) serves {root}: stop it, or "
            "choose another root with --root"
        ]
        with broker.connect() as client:
            assert client.call(Operation.ListStreams)["status"] == 0


def test_root_is_created_for_its_owner_only(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    root.parent.mkdir()
    with BrokerProcess(root):
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        for secret in ("token", "catalog.sqlite", "broker.json"):
            assert stat.S_IMODE((root / secret).stat().st_mode) == 0o600


def test_address_file_exists_while_the_broker_runs(tmp_path: Path) -> None:
    file = tmp_path / "root" / "broker.json"
    with BrokerProcess(tmp_path / "root") as broker:
        assert broker.process is not None
        address = json.loads(file.read_text())
        assert len(address.pop("instance")) == 32
        assert address == {
            "pid": broker.process.pid,
            "host": "127.0.0.1",
            "port": broker.port,
            "tls": False,
            "tlsCertificate": None,
            "localPort": None,
            "unixSocket": None,
            "authenticateClient": True,
            "httpUrl": None,
        }
    assert not file.exists()


def test_first_token_survives_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        token = broker.token
    with BrokerProcess(tmp_path / "root") as broker, broker.connect(token) as client:
        assert client.call(Operation.ListStreams)["status"] == 0


@pytest.mark.parametrize("what", ["file", "directory without rights"])
def test_unusable_root_is_reported_in_one_line(tmp_path: Path, what: str) -> None:
    root = tmp_path / "root"
    if what == "file":
        root.touch()
    else:
        root = Path("/proc/penstock")

    code, lines = serve(root, "--port", "0")

    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("penstock: ")
    assert str(root) in lines[0]


# Listeners


def test_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = serve(tmp_path / "root", "--port", str(port))

    assert code == 1
    assert lines == [
        f"penstock: cannot listen on 127.0.0.1:{port}: Address already in use; choose another "
        "port with --port (0 picks a free one)"
    ]
    # The root is released.
    with BrokerProcess(tmp_path / "root"):
        pass


def test_failed_start_releases_the_root(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Exception, match="listen"):
        LocalBroker(tmp_path / "root", local_port=taken.getsockname()[1]).__enter__()

    with LocalBroker(tmp_path / "root"), pytest.raises(StoreError, match="another broker"):
        LocalBroker(tmp_path / "root").__enter__()


class Certificate(NamedTuple):
    certificate: Path
    key: Path

    def environment(self) -> dict[str, str]:
        return {
            "PENSTOCK_TLS_CERTIFICATE": str(self.certificate),
            "PENSTOCK_TLS_KEY": str(self.key),
        }

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
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


@pytest.fixture(scope="module")
def with_tls(
    certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path_factory.mktemp("server") / "root",
        PENSTOCK_LOCAL_PORT="0",
        PENSTOCK_HANDSHAKE_TIMEOUT_MS="3000",
        **certificate.environment(),
    ) as broker:
        yield broker


def connect_with_tls(broker: BrokerProcess, certificate: Certificate) -> RawConnection:
    plain = socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S)
    context = certificate.client_context()
    return RawConnection(context.wrap_socket(plain, server_hostname="127.0.0.1"), broker.token)


def connect_to(broker: BrokerProcess, certificate: Certificate) -> StreamManagerClient:
    return StreamManagerClient(
        "127.0.0.1", broker.port, token=broker.token, tls=certificate.certificate
    )


def local_port(broker: BrokerProcess) -> int:
    return int(json.loads((broker.root / "broker.json").read_text())["localPort"])


def test_client_connects_with_tls(with_tls: BrokerProcess, certificate: Certificate) -> None:
    with connect_with_tls(with_tls, certificate) as client:
        create(client, "over TLS")
        payload = bytes(range(256)) * 8192
        assert append(client, "over TLS", payload) == 0
        answer = client.call(Operation.ReadMessages, streamName="over TLS")
        assert answer["messages"][0]["payload"] == payload


def test_plain_client_on_the_tls_port_is_disconnected(
    with_tls: BrokerProcess, certificate: Certificate
) -> None:
    with with_tls.reach() as peer:
        peer.say(b"\x01" + frame(Operation.Connect, protocolVersion="1.1.0"))
        assert peer.take_rest()[:1] != b"\x01"
    with connect_with_tls(with_tls, certificate) as client:
        assert client.call(Operation.ListStreams)["status"] == 0


def test_missing_tls_handshake_times_out(with_tls: BrokerProcess) -> None:
    began = time.monotonic()
    with with_tls.reach() as peer:
        assert peer.take_rest() == b""

    # Less than the default of asyncio, a minute.
    assert time.monotonic() - began < 50


def test_unfinished_tls_handshakes_leave_descriptors_for_others(
    certificate: Certificate, tmp_path: Path
) -> None:
    # The timeout is longer than the test: the connections are not ended by it.
    long_timeout = {
        **certificate.environment(),
        "PENSTOCK_LOCAL_PORT": "0",
        "PENSTOCK_MAX_CONNECTIONS": "40",
        "PENSTOCK_HANDSHAKE_TIMEOUT_MS": "600000",
    }
    with (
        BrokerProcess(tmp_path / "root", **long_timeout) as broker,
        connect_with_tls(broker, certificate) as client,
        contextlib.ExitStack() as flood,
    ):
        assert broker.process is not None
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (200, hard))
        create(client, "before", streamSegmentSize=4096)
        for _ in range(250):
            flood.enter_context(broker.reach())
        # Each append begins a segment, which has two files.
        assert [append(client, "before", bytes(4000)) for _ in range(20)] == list(range(20))
        create(client, "meanwhile")

        # Clients with a handshake, and clients without TLS, can connect.
        with (
            connect_to(broker, certificate) as newcomer,
            RawConnection.open("127.0.0.1", local_port(broker), broker.token) as plain,
        ):
            assert newcomer.append_message("meanwhile", b"x") == 0
            assert append(plain, "meanwhile", b"y") == 1
        # Refused connections are counted, and the first client is still connected.
        refused = client.call(Operation.Statistics)["statistics"]["connectionsRefused"]
        assert refused > 250 - 40 - 20
        assert "its TLS handshake is unfinished, and the limit of 40 connections is reached" in (
            broker.log
        )


def test_tls_connection_above_the_limit_is_refused_with_the_reason(
    certificate: Certificate, tmp_path: Path
) -> None:
    few = {**certificate.environment(), "PENSTOCK_MAX_CONNECTIONS": "1"}
    with (
        BrokerProcess(tmp_path / "root", **few) as broker,
        connect_with_tls(broker, certificate) as client,
    ):
        with pytest.raises(
            ConnectFailedException, match="the server has reached its limit of 1 connections"
        ):
            connect_to(broker, certificate)
        assert client.call(Operation.ListStreams)["status"] == 0


def test_local_port_accepts_plain_connections_beside_tls(with_tls: BrokerProcess) -> None:
    port = local_port(with_tls)

    with RawConnection.open("127.0.0.1", port, with_tls.token) as client:
        assert client.call(Operation.ListStreams)["status"] == 0


def test_invalid_certificate_is_reported_in_one_line(
    tmp_path: Path, certificate: Certificate
) -> None:
    broken = tmp_path / "broken.crt"
    broken.write_text("no certificate")

    code, lines = serve(
        tmp_path / "root", "--port", "0", **certificate._replace(certificate=broken).environment()
    )

    assert code == 1
    assert len(lines) == 1
    assert "are not a PEM certificate and its key" in lines[0]


def test_unix_socket_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "penstock.sock"
    with BrokerProcess(tmp_path / "root", "--unix-socket", str(path)) as broker:
        assert path.is_socket()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as plain:
            plain.settimeout(TIMEOUT_S)
            plain.connect(str(path))
            with RawConnection(plain, broker.token) as client:
                create(client, "s")
                assert append(client, "s", b"x") == 0
        with socket.socket(socket.AF_UNIX) as plain:
            plain.settimeout(TIMEOUT_S)
            plain.connect(str(path))
            with Peer(plain) as peer:
                # The Unix socket requires a token too.
                assert peer.introduce()["status"] == ResponseStatusCode.Unauthorized
        broker.kill()
        # The socket of the killed broker is replaced.
        broker.start()
        assert path.is_socket()
    assert not path.exists()


def test_existing_file_at_the_unix_socket_path_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "penstock.sock"
    path.write_text("precious")

    code, lines = serve(tmp_path / "root", "--port", "0", "--unix-socket", str(path))

    assert code == 1
    assert len(lines) == 1
    assert f"cannot listen on the Unix socket {path}" in lines[0]
    assert path.read_text() == "precious"


# Stop


def test_every_stored_append_is_answered_when_the_broker_stops(tmp_path: Path) -> None:
    """The store has no message without an answer, at any time of the stop."""
    with BrokerProcess(tmp_path / "root") as broker:
        with broker.connect() as client:
            create(client, "flushed", flushOnWrite=True)
            create(client, "plain")
        with broker.meet() as peer:
            peer.say((append_frame("flushed", b"x" * 100) + append_frame("plain", b"y")) * 3000)
            first = peer.take_answer()[1]
            assert first["status"] == 0

            broker.signal_stop()
            answered = 1
            rest = peer.take_rest()
            while rest:
                length = int.from_bytes(rest[:4], "big")
                rest = rest[4 + length :]
                answered += 1
        broker.stop()
        lines_before = len(broker.log_lines)

        broker.start()

        started = broker.log_lines[lines_before:]
        assert not [line for line in started if " WARN " in line or " ERROR " in line]
        with broker.connect() as client:
            stored = sum(
                stream["newestSequenceNumber"] + 1
                for stream in client.call(Operation.Statistics)["statistics"]["streams"]
            )
    assert stored == answered


class HeldUpDisk(Disk):
    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()

    def sync(self, descriptor: int) -> None:
        self.may_sync.wait(TIMEOUT_S)
        super().sync(descriptor)


def test_stop_waits_for_appends_that_wait_for_the_disk(tmp_path: Path) -> None:
    disk = HeldUpDisk()
    with (
        LocalBroker(tmp_path / "root", disk, sync_interval_ms=3_600_000) as broker,
        broker.meet() as peer,
    ):
        with broker.connect() as client:
            create(client, "flushed", flushOnWrite=True)
            create(client, "quiet")
        wait_until(lambda: len(broker.sessions) == 1)
        disk.may_sync.clear()
        wait = {"readTimeoutMillis": 60_000}
        peer.say(
            frame(Operation.ReadMessages, streamName="quiet", readMessagesOptions=wait)
            + append_frame("flushed", b"x") * 5
        )
        wait_until(lambda: broker.sessions[0]._open_calls == 2)

        stop = threading.Thread(target=broker.stop)
        stop.start()
        operation, answer = peer.take_answer()
        assert operation == Operation.ReadMessagesResponse
        assert answer["status"] == ResponseStatusCode.NotEnoughMessages
        # No further request is handled.
        peer.say(frame(Operation.ListStreams))
        assert stop.is_alive()
        disk.may_sync.set()

        assert [peer.take_answer()[1]["sequenceNumber"] for _ in range(5)] == list(range(5))
        assert peer.take_rest() == b""
        stop.join(TIMEOUT_S)


def test_stop_does_not_wait_for_the_next_sync(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "root", PENSTOCK_SYNC_INTERVAL_MS="3600000")
    with broker:
        with broker.connect() as client:
            append(client, create(client, "s"), b"x")
        began = time.monotonic()
        broker.stop()

    assert time.monotonic() - began < 60


def test_stop_times_out_if_a_client_reads_no_answers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root", PENSTOCK_STOP_TIMEOUT_MS="300") as broker:
        with broker.connect() as client:
            create(client, "s")
            for _ in range(4):
                client.append_many("s", [bytes(MEBIBYTE)] * 4)
        with broker.meet() as slow:
            read = frame(
                Operation.ReadMessages, streamName="s", readMessagesOptions={"minMessageCount": 16}
            )
            slow.say(read * 100)
            slow.take(1)
            began = time.monotonic()
            broker.stop()

    assert time.monotonic() - began < 60


def test_stopping_broker_accepts_no_connections(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        port = broker.port
        broker.stop()

        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S)


def test_idle_tls_client_does_not_delay_a_stop(certificate: Certificate, tmp_path: Path) -> None:
    # Longer than the test waits: the stop must not wait for it.
    long_timeout = {**certificate.environment(), "PENSTOCK_STOP_TIMEOUT_MS": "600000"}
    with (
        BrokerProcess(tmp_path / "root", **long_timeout) as broker,
        connect_with_tls(broker, certificate) as client,
    ):
        assert client.call(Operation.ListStreams)["status"] == 0
        broker.stop()
