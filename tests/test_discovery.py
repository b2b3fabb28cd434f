"""Files in the root of a broker that other programs read."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.discovery import (
    ADDRESS_FILE,
    LOCK_FILE,
    TOKEN_FILE,
    Address,
    default_root,
    find_config,
    is_served,
    read_address,
    read_config,
    read_token,
    write_address,
)
from penstock.errors import SettingError
from tests.support import BrokerProcess, LocalBroker

ADDRESS = Address(
    pid=5,
    instance="this run",
    host="0.0.0.0",
    port=8088,
    tls=True,
    tls_certificate="/tls.crt",
    local_port=8089,
    unix_socket="/run/penstock.sock",
    authenticate_client=False,
)


@contextmanager
def locked(root: Path, pid: int = ADDRESS.pid) -> Iterator[None]:
    """Holds the lock of a root like a broker."""
    descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, f"{pid}\n".encode(), 0)
    yield
    os.close(descriptor)


# The address


def test_address_survives_a_round_trip(tmp_path: Path) -> None:
    write_address(tmp_path, ADDRESS)

    with locked(tmp_path):
        assert read_address(tmp_path) == ADDRESS


def test_address_file_is_for_its_owner_only(tmp_path: Path) -> None:
    write_address(tmp_path, ADDRESS)

    assert stat.S_IMODE((tmp_path / ADDRESS_FILE).stat().st_mode) == 0o600


def test_unknown_fields_of_an_address_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ADDRESS_FILE).write_text('{"pid":1,"host":"::1","port":2,"color":"blue"}')

    with locked(tmp_path, 1):
        assert read_address(tmp_path) == Address(pid=1, host="::1", port=2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid":1}', '{"pid":1,"host":"h","port":"x"}'])
def test_invalid_address_file_raises_value_error(tmp_path: Path, text: str) -> None:
    (tmp_path / ADDRESS_FILE).write_text(text)

    with locked(tmp_path), pytest.raises(ValueError, match=r"."):
        read_address(tmp_path)


def test_starting_broker_has_no_address(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert read_address(tmp_path) is None


def test_address_of_a_killed_broker_is_ignored_while_the_next_starts(tmp_path: Path) -> None:
    write_address(tmp_path, ADDRESS)
    # The next broker holds the lock, but does not listen yet.
    with locked(tmp_path, ADDRESS.pid + 1):
        assert read_address(tmp_path) is None


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("192.0.2.1", "192.0.2.1"),
    ],
)
def test_broker_on_all_addresses_is_reached_on_loopback(host: str, local: str) -> None:
    assert Address(pid=1, host=host, port=1).local_host == local


def test_running_broker_is_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root) as broker:
        address = read_address(root)

        assert address is not None
        assert (address.pid, address.port) == (os.getpid(), broker.port)
        assert read_token(root) == broker.token
    assert read_address(root) is None


def test_every_run_of_a_broker_has_its_own_instance_id(tmp_path: Path) -> None:
    instances = set()
    for _ in range(3):
        with LocalBroker(tmp_path / "root"):
            address = read_address(tmp_path / "root")
            assert address is not None
            instances.add(address.instance)

    assert len(instances - {""}) == 3


def test_address_without_an_instance_id_is_read(tmp_path: Path) -> None:
    (tmp_path / ADDRESS_FILE).write_text('{"pid":1,"host":"::1","port":2}')

    with locked(tmp_path, 1):
        address = read_address(tmp_path)
    assert address is not None
    assert address.instance == ""


def test_killed_broker_is_not_found(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "root")
    broker.start()
    try:
        assert read_address(broker.root) is not None
    finally:
        broker.kill()

    assert (broker.root / ADDRESS_FILE).exists()
    assert read_address(broker.root) is None


# The lock


def test_root_is_served_while_its_lock_is_held(tmp_path: Path) -> None:
    assert not is_served(tmp_path)
    with locked(tmp_path):
        assert is_served(tmp_path)
        assert is_served(tmp_path)
    assert not is_served(tmp_path)


def test_lock_of_another_reader_is_not_a_broker(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).touch()
    with (tmp_path / LOCK_FILE).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not is_served(tmp_path)


def test_is_served_leaks_no_descriptor_and_creates_no_file(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    is_served(tmp_path)
    with locked(tmp_path):
        is_served(tmp_path)
    is_served(tmp_path)

    assert set(Path("/proc/self/fd").iterdir()) <= before
    assert not is_served(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


# The token


def test_token_is_read_without_the_newline(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("secret\n")

    assert read_token(tmp_path) == "secret"


def test_missing_token_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_token(tmp_path)


# The configuration file


def test_default_root_is_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert default_root() == tmp_path / ".penstock"


def test_named_file_has_precedence_over_variable_and_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config({}) is None

    named, variable, here = (tmp_path / name for name in ("a.toml", "b.toml", "penstock.toml"))
    for path in (named, variable, here):
        path.touch()
    environment = {"PENSTOCK_CONFIG": str(variable)}
    assert find_config(environment, named) == named
    assert find_config(environment) == variable
    found = find_config({"PENSTOCK_CONFIG": ""})
    assert found is not None
    assert found.absolute() == here


def test_named_file_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"

    for environment, path in (({}, missing), ({"PENSTOCK_CONFIG": str(missing)}, None)):
        with pytest.raises(SettingError, match=r"missing\.toml does not exist"):
            find_config(environment, path)
    with pytest.raises(SettingError, match="does not exist"):
        find_config({}, tmp_path)


def test_missing_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("port = 1\n[client]\nhost = 'h'\n")

    assert read_config(None) == {}
    assert read_config(tmp_path / "penstock.toml") == {"port": 1, "client": {"host": "h"}}


@pytest.mark.parametrize("data", [b"port =", b"\xff", b"a = 1\na = 2\n"])
def test_invalid_file_is_named_in_the_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "penstock.toml").write_bytes(data)

    with pytest.raises(SettingError, match=r"penstock\.toml cannot be read: "):
        read_config(tmp_path / "penstock.toml")
