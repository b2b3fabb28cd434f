"""The broker that a command talks to: its options and timeouts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from penstock.cli.target import BrokerTarget, target_options
from tests.support import LocalBroker, Reachable

NOWHERE = BrokerTarget(root=None, host=None, port=None, unix_socket=None, tls_ca=None, config=None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reachable]:
    directory = tmp_path_factory.mktemp("target")
    with LocalBroker(directory / "root", unix_socket=str(directory / "socket")) as broker:
        yield broker


def parse(*words: str) -> BrokerTarget:
    """The target that a command gets for its options."""
    seen: list[Any] = []

    @click.command()
    @click.option("--other")
    @target_options
    def command(target: BrokerTarget, other: str) -> None:
        seen.append(target)
        assert other == "x"

    result = CliRunner(catch_exceptions=False).invoke(command, [*words, "--other", "x"])
    assert result.exit_code == 0, result.stderr
    (target,) = seen
    assert isinstance(target, BrokerTarget)
    return target


def test_options_select_the_target() -> None:
    assert parse() == NOWHERE
    assert parse("--root", "r", "--host", "h", "--port", "1") == NOWHERE._replace(
        root="r", host="h", port=1
    )
    assert parse("--unix-socket", "s", "--tls-ca", "t", "--config", "c") == NOWHERE._replace(
        unix_socket="s", tls_ca="t", config=Path("c")
    )


def test_connect_by_root_address_socket_and_configuration(
    broker: Reachable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", broker.token)
    config = tmp_path / "penstock.toml"
    config.write_text(f"[client]\nport = {broker.port}\n")
    for target in (
        NOWHERE._replace(root=str(broker.root)),
        NOWHERE._replace(host="127.0.0.1", port=broker.port),
        NOWHERE._replace(unix_socket=str(broker.root.parent / "socket")),
        NOWHERE._replace(config=config),
    ):
        with target.connect() as client:
            assert client.list_streams() == []


def test_connect_briefly_fails_fast_and_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with LocalBroker(tmp_path / "root") as broker:
        target = NOWHERE._replace(root=str(broker.root))
        with target.connect_briefly(1.5, 2.5) as client:
            assert (client.connect_timeout, client.request_timeout) == (1.5, 2.5)
            # A single attempt.
            assert client.reconnect_timeout == 0
            broker.stop()
            with pytest.raises(ConnectionError):
                client.list_streams()

    assert "StreamManagerClient" not in {record.name for record in caplog.records}


def test_serve_command_uses_the_same_root() -> None:
    assert NOWHERE.serve_command == "penstock serve"
    assert NOWHERE._replace(root="/my root").serve_command == "penstock serve --root '/my root'"
    assert NOWHERE.is_local
    assert NOWHERE._replace(host="localhost").is_local
    assert not NOWHERE._replace(host="edge-7.example.com").is_local
