"""The checks of file descriptors, ports, TLS and the Unix socket."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.cli.checks.check import Check, State, ok
from penstock.cli.checks.listeners import (
    check_dashboard,
    check_descriptors,
    check_port,
    check_tls,
    check_unix_socket,
    judge_descriptors,
)
from penstock.cli.main import DEFAULT_HTTP_PORT
from tests.support import LocalBroker, Reachable

from .examination import examine


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reachable]:
    directory = tmp_path_factory.mktemp("listeners")
    with LocalBroker(directory / "root", unix_socket=str(directory / "socket")) as broker:
        yield broker


@pytest.mark.parametrize(
    ("hard", "connections", "state"),
    [(-1, 8192, State.ok), (20_000, 8192, State.ok), (4096, 8192, State.warn)],
)
def test_descriptor_limit_fits_max_connections(hard: int, connections: int, state: State) -> None:
    assert judge_descriptors(hard, connections).state is state


@pytest.mark.parametrize(("used", "state"), [(100, State.ok), (1020, State.fail)])
def test_descriptors_of_a_running_broker_are_counted(used: int, state: State) -> None:
    outcome = judge_descriptors(1024, 100, used)
    assert outcome.state is state
    assert f"the broker uses {used}" in outcome.found


def test_descriptors_of_the_broker_of_this_root_are_counted(broker: LocalBroker) -> None:
    outcome = examine(check_descriptors, broker.root)
    assert "the broker uses" in outcome.found


# Ports


def test_unused_port_passes(tmp_path: Path) -> None:
    outcome = examine(check_port, tmp_path)

    assert outcome.state is State.ok
    assert outcome.found.endswith(" is free")


@pytest.mark.parametrize(
    ("check", "variable"),
    [(check_port, "STREAM_MANAGER_SERVER_PORT"), (check_dashboard, "PENSTOCK_HTTP_PORT")],
)
def test_port_of_another_program_fails(check: Check, variable: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        outcome = examine(check, tmp_path, None, **{variable: str(port)})

    assert outcome.state is State.fail
    assert outcome.found == f"127.0.0.1:{port} is taken by another program"
    assert variable in outcome.mend


def test_port_of_the_broker_itself_passes(broker: Reachable) -> None:
    outcome = examine(check_port, broker.root, STREAM_MANAGER_SERVER_PORT=str(broker.port))

    assert outcome.state is State.ok
    assert outcome.found == f"the broker of this root listens on 127.0.0.1:{broker.port}"


def test_taken_default_dashboard_port_is_a_warning(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Another program may use it already.
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", DEFAULT_HTTP_PORT))
        outcome = examine(check_dashboard, tmp_path)

    assert outcome.state is State.warn
    assert str(DEFAULT_HTTP_PORT) in outcome.found


def test_unused_dashboard_port_passes(tmp_path: Path) -> None:
    outcome = examine(check_dashboard, tmp_path, PENSTOCK_HTTP_PORT="0")

    assert outcome == ok("127.0.0.1:any port is free")


def test_broker_without_dashboard_is_skipped(broker: Reachable) -> None:
    assert examine(check_dashboard, broker.root).state is State.skip


def test_address_of_another_machine_fails(tmp_path: Path) -> None:
    outcome = examine(
        check_port, tmp_path, PENSTOCK_HOST="192.0.2.1", **make_certificate(tmp_path, days=90)
    )

    assert outcome.state is State.fail
    assert outcome.found.startswith("192.0.2.1:")


# Unix sockets


def test_unix_socket_needs_a_usable_path(tmp_path: Path) -> None:
    def state(path: Path) -> State:
        return examine(check_unix_socket, tmp_path, PENSTOCK_UNIX_SOCKET=str(path)).state

    (tmp_path / "file").touch()
    assert state(tmp_path / "new") is State.ok
    assert state(tmp_path / "file") is State.fail
    assert state(tmp_path / "missing" / "new") is State.fail
    assert state(tmp_path / ("x" * 108)) is State.fail
    with socket.socket(socket.AF_UNIX) as used:
        used.bind(str(tmp_path / "used"))
        used.listen()
        assert state(tmp_path / "used") is State.fail
    # The file of a closed socket can be replaced.
    assert state(tmp_path / "used") is State.ok


def test_unix_socket_of_the_broker_itself_passes(broker: Reachable) -> None:
    path = str(broker.root.parent / "socket")

    assert examine(check_unix_socket, broker.root, PENSTOCK_UNIX_SOCKET=path).state is State.ok


# TLS


def make_certificate(directory: Path, days: int, name: str = "tls") -> dict[str, Any]:
    """Writes a self-signed certificate that expires in `days`, and returns its settings."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=100))
        .not_valid_after(now + dt.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / f"{name}.crt", directory / f"{name}.key"
    certificate_path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return {"PENSTOCK_TLS_CERTIFICATE": str(certificate_path), "PENSTOCK_TLS_KEY": str(key_path)}


@pytest.mark.parametrize(
    ("days", "state", "found"),
    [
        (90, State.ok, "is valid until 2"),
        (3, State.warn, "is valid until 2"),
        (-1, State.fail, "expired"),
    ],
)
def test_certificate_expiry_is_checked(tmp_path: Path, days: int, state: State, found: str) -> None:
    outcome = examine(check_tls, tmp_path, **make_certificate(tmp_path, days))

    assert outcome.state is state
    assert found in outcome.found


def test_key_of_another_certificate_fails(tmp_path: Path) -> None:
    other = make_certificate(tmp_path, 90, "other")["PENSTOCK_TLS_KEY"]
    settings = {**make_certificate(tmp_path, 90), "PENSTOCK_TLS_KEY": other}

    assert examine(check_tls, tmp_path, **settings).state is State.fail
    Path(other).write_text("no key")
    assert examine(check_tls, tmp_path, **settings).state is State.fail
