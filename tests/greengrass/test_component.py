"""The broker as a component: tokens, port, state, and an unavailable nucleus."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import MessageStreamDefinition, StrategyOnFull, StreamManagerClient
from penstock.errors import ConnectFailedException, ResponseStatusCode
from penstock.greengrass.component import (
    SOCKET_VARIABLE,
    TOKEN_VARIABLE,
    Component,
    find_component,
)
from tests.greengrass.ipc_server import STREAM_MANAGER, NucleusServer
from tests.support import (
    TIMEOUT_S,
    BrokerProcess,
    LocalBroker,
    append,
    connect_frame,
    create,
    read,
    wait_until,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ipc.socket"


@contextmanager
def component(path: Path, root: Path, token: str = "svcuid") -> Iterator[LocalBroker]:
    """Runs a broker as a component of the nucleus."""
    with LocalBroker(root) as broker:
        service = find_component({SOCKET_VARIABLE: str(path), TOKEN_VARIABLE: token})
        assert service is not None
        broker.finish(service.start(broker.broker))
        try:
            yield broker
        finally:
            broker.finish(service.stop())


@pytest.mark.parametrize(
    "environment", [{}, {SOCKET_VARIABLE: "/s"}, {TOKEN_VARIABLE: "t", SOCKET_VARIABLE: ""}]
)
def test_process_without_greengrass_variables_is_no_component(
    environment: dict[str, str],
) -> None:
    assert find_component(environment) is None


def test_tokens_of_components_and_of_the_broker_are_accepted(path: Path, tmp_path: Path) -> None:
    with (
        NucleusServer(path, press="press-token") as server,
        component(path, tmp_path / "root") as broker,
    ):
        connection = broker.connect("press-token")
        append(connection, create(connection, "s"), b"x")
        assert [each["payload"] for each in read(broker.connect(), "s")] == [b"x"]
        broker.connect("svcuid")
        broker.connect("press-token")

        assert server.validated == ["press-token"]


def test_port_and_state_are_announced(path: Path, tmp_path: Path) -> None:
    with NucleusServer(path) as server, component(path, tmp_path / "root") as broker:
        wait_until(lambda: server.states)

        assert server.states == [(STREAM_MANAGER, "RUNNING")]
        assert server.configurations == {STREAM_MANAGER: {"port": broker.port}}


def test_failed_announcement_is_retried_and_does_not_delay_the_others(
    path: Path, tmp_path: Path
) -> None:
    with NucleusServer(path) as server:
        server.failures = 1
        with component(path, tmp_path / "root") as broker:
            wait_until(lambda: server.configurations)

            assert server.states == [(STREAM_MANAGER, "RUNNING")]
            assert server.configurations == {STREAM_MANAGER: {"port": broker.port}}


def test_unknown_token_is_rejected(path: Path, tmp_path: Path) -> None:
    with NucleusServer(path), component(path, tmp_path / "root") as broker:
        with broker.reach() as peer:
            answer = peer.introduce("wrong")
            assert answer["status"] == ResponseStatusCode.Unauthorized
            assert "nor the Greengrass nucleus accepts" in answer["errorMessage"]
            assert peer.take_rest() == b""
        with broker.reach() as peer:
            assert "a token is required" in peer.introduce()["errorMessage"]


def test_unavailable_nucleus_rejects_only_components(path: Path, tmp_path: Path) -> None:
    server = NucleusServer(path, press="press-token")
    with component(path, tmp_path / "root") as broker:
        with broker.reach() as peer:
            answer = peer.introduce("press-token")
            assert answer["status"] == ResponseStatusCode.FailedToConnect
            assert "cannot verify the token with the Greengrass nucleus" in answer["errorMessage"]
        broker.connect()
        broker.connect("svcuid")
        with server:
            broker.connect("press-token")
            wait_until(lambda: server.states)


def test_pending_verification_does_not_block_other_clients(path: Path, tmp_path: Path) -> None:
    with (
        NucleusServer(path, press="press-token") as server,
        component(path, tmp_path / "root") as broker,
    ):
        server.is_silent = True
        with broker.reach() as peer:
            peer.say(b"\x01" + connect_frame("press-token"))
            wait_until(lambda: len(broker.sessions) == 1)
            create(broker.connect(), "s")
            peer.close()


def test_component_stays_connected_when_tokens_change(path: Path, tmp_path: Path) -> None:
    with (
        NucleusServer(path, press="press-token"),
        component(path, tmp_path / "root") as broker,
    ):
        connection = broker.connect("press-token")
        access = broker.run(lambda: next(iter(broker.broker._sessions)).access)

        assert broker.run(lambda: broker.broker.authenticator.admits(access))
        create(connection, "s")


def test_broker_runs_without_the_aws_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "awscrt.io", None)
    monkeypatch.delitem(sys.modules, "penstock.greengrass.nucleus", raising=False)
    with LocalBroker(tmp_path / "root") as broker:
        service = Component("/nowhere", "svcuid")
        broker.finish(service.start(broker.broker))
        broker.connect()
        broker.finish(service.stop())

    assert "pip install 'penstock-streams[greengrass]'" in caplog.text


def test_broker_started_by_greengrass_serves_other_components(path: Path, tmp_path: Path) -> None:
    with NucleusServer(path, press="press-token") as server:
        variables = {SOCKET_VARIABLE: str(path), TOKEN_VARIABLE: "svcuid"}
        with BrokerProcess(tmp_path / "root", LOG_LEVEL="TRACE", **variables) as broker:
            wait_until(lambda: server.states)
            port = server.configurations[STREAM_MANAGER]["port"]
            with StreamManagerClient(port=port, token="press-token") as client:
                client.create_message_stream(
                    MessageStreamDefinition(
                        name="s", strategy_on_full=StrategyOnFull.OverwriteOldestData
                    )
                )
                assert client.append_message("s", b"x") == 0
            with pytest.raises(ConnectFailedException, match="nor the Greengrass nucleus accepts"):
                StreamManagerClient(port=port, token="wrong").list_streams()
        assert "press-token" not in broker.log


def test_aws_client_is_not_imported_without_greengrass() -> None:
    program = (
        "import sys; from penstock.cli.main import main; import penstock.greengrass.component; "
        "sys.exit(any(name.startswith('aws') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT_S)
