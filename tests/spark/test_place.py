"""The broker's address on the driver and in tasks, on other machines and in other environments."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.errors import ConnectFailedException, SettingError
from penstock.spark.options import BrokerOptions
from penstock.spark.place import Place
from tests.support import BrokerProcess, clean_environment, running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory and an environment without a broker or configuration."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "root") as broker:
        yield broker


def find(**options: Any) -> Place:
    """Finds a place, and returns the copy that a task receives."""
    place = Place.find(BrokerOptions(**options))
    copy: Place = pickle.loads(pickle.dumps(place))
    return copy


def on_another_machine(place: Place) -> Place:
    return place._replace(machine="another")


def reaches(place: Place, broker: BrokerProcess, **choices: bool) -> bool:
    with place.connect(**choices) as client:
        return client.port == broker.port and client.list_streams() == []


def test_options_lead_to_the_broker(broker: BrokerProcess) -> None:
    place = find(host="127.0.0.1", port=str(broker.port), token=broker.token)

    assert reaches(place, broker)
    assert reaches(on_another_machine(place), broker)


def test_address_from_the_environment_is_passed_to_tasks(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAM_MANAGER_SERVER_PORT", str(broker.port))
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", broker.token)
    place = find()
    monkeypatch.setenv("STREAM_MANAGER_SERVER_PORT", "1")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "another")
    monkeypatch.setenv("PENSTOCK_TLS_CA", "/nowhere")

    assert reaches(place, broker)
    assert reaches(on_another_machine(place), broker)


def test_token_of_a_root_is_passed_to_tasks(broker: BrokerProcess) -> None:
    place = find(root=str(broker.root))

    assert reaches(place, broker)
    assert reaches(on_another_machine(place), broker)


def test_relative_root_is_resolved_on_the_driver(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = find(root="root")
    monkeypatch.chdir("/")

    assert reaches(place, broker)


def test_root_leads_to_a_broker_restarted_on_another_port(broker: BrokerProcess) -> None:
    place = find(root=str(broker.root))
    before = broker.port
    broker.stop()
    broker.port = 0
    broker.start()

    assert broker.port != before
    assert reaches(place, broker)


def test_wait_retries_until_the_broker_has_restarted(broker: BrokerProcess) -> None:
    by_port = find(port=str(broker.port), token=broker.token)
    by_root = find(root=str(broker.root))
    options = BrokerOptions(root=str(broker.root))
    broker.stop()
    reached: list[bool] = []

    def connect() -> None:
        found = Place.find(options, wait=True)
        reached.extend(reaches(place, broker, wait=True) for place in (by_port, by_root, found))

    with running(connect):
        broker.start()
    assert reached == [True, True, True]


def test_wait_logs_the_reason_once(broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    place = find(port=str(broker.port), token=broker.token, reconnect_timeout=2)
    broker.stop()

    with pytest.raises(ConnectionRefusedError):
        place.connect(wait=True)
    assert [message for name, _, message in caplog.record_tuples if "place" in name] == [
        f"no stream manager answers on 127.0.0.1:{broker.port}: Connection refused; retrying for "
        "2 s"
    ]


def test_connect_without_wait_fails_immediately(broker: BrokerProcess) -> None:
    place = find(port=str(broker.port), token=broker.token)
    broker.stop()

    with pytest.raises(ConnectionRefusedError, match=f"on 127.0.0.1:{broker.port}"):
        place.connect()


def test_wait_ends_after_reconnect_timeout(broker: BrokerProcess) -> None:
    place = find(port=str(broker.port), token=broker.token, reconnect_timeout=0.2)
    broker.stop()

    with pytest.raises(ConnectionRefusedError, match=f"on 127.0.0.1:{broker.port}"):
        place.connect(wait=True)


def test_refused_token_is_not_retried(broker: BrokerProcess) -> None:
    place = find(port=str(broker.port), token="unknown", reconnect_timeout=1e9)

    with pytest.raises(ConnectFailedException, match="token"):
        place.connect(wait=True)


def test_root_without_a_broker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionRefusedError, match="no stream manager serves"):
        find(root=str(tmp_path))


def test_invalid_port_is_an_error() -> None:
    with pytest.raises(SettingError, match="port is 'eighty'"):
        find(port="eighty")


def test_repr_does_not_show_the_token(broker: BrokerProcess) -> None:
    place = find(root=str(broker.root))

    assert repr(place) == str(place) == f"<Place 127.0.0.1:{broker.port}>"


# TLS


@pytest.fixture
def with_tls(home: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on 127.0.0.1 with a self-signed certificate in `tls.crt`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test")])
    now = dt.datetime.now(dt.UTC)
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([here]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "tls.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with BrokerProcess(
        home / ".penstock",
        PENSTOCK_TLS_CERTIFICATE=str(tmp_path / "tls.crt"),
        PENSTOCK_TLS_KEY=str(tmp_path / "tls.key"),
    ) as broker:
        yield broker


@pytest.mark.parametrize("how", ["option", "environment"])
def test_configured_certificate_is_trusted_by_tasks(
    how: str, with_tls: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "tls.crt")
    if how == "environment":
        monkeypatch.setenv("PENSTOCK_TLS_CA", file)
        place = find()
        monkeypatch.delenv("PENSTOCK_TLS_CA")
    else:
        place = find(tls=file)

    assert reaches(place, with_tls)
    assert reaches(on_another_machine(place), with_tls)


def test_certificate_of_a_root_is_trusted_by_tasks(with_tls: BrokerProcess) -> None:
    assert reaches(find(root=str(with_tls.root)), with_tls)


def test_certificate_that_tasks_cannot_find_is_an_error(with_tls: BrokerProcess) -> None:
    with pytest.raises(SettingError, match=r"set option tls to the certificate, or option root"):
        find()
