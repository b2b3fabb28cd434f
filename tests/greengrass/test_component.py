"""The broker as a component: the tokens of others, its port, its state, a nucleus that is away."""

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
    """A broker of which the nucleus knows."""
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
def test_a_process_that_greengrass_did_not_start_is_no_component(
    environment: dict[str, str],
) -> None:
    assert find_component(environment) is None


def test_a_component_gets_in_with_its_token_and_so_does_who_has_one_of_ours(
    path: Path, tmp_path: Path
) -> None:
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


def test_the_port_and_the_state_are_told(path: Path, tmp_path: Path) -> None:
    with NucleusServer(path) as server, component(path, tmp_path / "root") as broker:
        wait_until(lambda: server.states)

        assert server.states == [(STREAM_MANAGER, "RUNNING")]
        assert server.configurations == {STREAM_MANAGER: {"port": broker.port}}


def test_what_could_not_be_told_is_told_later_and_the_rest_at_once(
    path: Path, tmp_path: Path
) -> None:
    with NucleusServer(path) as server:
        server.failures = 1
        with component(path, tmp_path / "root") as broker:
            wait_until(lambda: server.configurations)

            assert server.states == [(STREAM_MANAGER, "RUNNING")]
            assert server.configurations == {STREAM_MANAGER: {"port": broker.port}}


def test_a_token_that_nobody_knows_is_refused(path: Path, tmp_path: Path) -> None:
    with NucleusServer(path), component(path, tmp_path / "root") as broker:
        with broker.reach() as peer:
            answer = peer.introduce("wrong")
            assert answer["status"] == ResponseStatusCode.Unauthorized
            assert "nor to the Greengrass nucleus" in answer["errorMessage"]
            assert peer.take_rest() == b""
        with broker.reach() as peer:
            assert "a token is required" in peer.introduce()["errorMessage"]


def test_without_a_nucleus_components_are_refused_and_others_are_served(
    path: Path, tmp_path: Path
) -> None:
    server = NucleusServer(path, press="press-token")
    with component(path, tmp_path / "root") as broker:
        with broker.reach() as peer:
            answer = peer.introduce("press-token")
            assert answer["status"] == ResponseStatusCode.FailedToConnect
            assert "cannot be checked with the Greengrass nucleus" in answer["errorMessage"]
        broker.connect()
        broker.connect("svcuid")
        with server:
            broker.connect("press-token")
            wait_until(lambda: server.states)


def test_while_the_nucleus_is_asked_others_are_served(path: Path, tmp_path: Path) -> None:
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


def test_a_component_stays_connected_when_a_token_is_revoked(path: Path, tmp_path: Path) -> None:
    with (
        NucleusServer(path, press="press-token"),
        component(path, tmp_path / "root") as broker,
    ):
        connection = broker.connect("press-token")
        access = broker.run(lambda: next(iter(broker.broker._sessions)).access)

        assert broker.run(lambda: broker.broker.authenticator.admits(access))
        create(connection, "s")


def test_without_the_client_of_aws_the_broker_runs_with_its_own_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "awscrt.io", None)
    monkeypatch.delitem(sys.modules, "penstock.greengrass.nucleus", raising=False)
    with LocalBroker(tmp_path / "root") as broker:
        service = Component("/nowhere", "svcuid")
        broker.finish(service.start(broker.broker))
        broker.connect()
        broker.finish(service.stop())

    assert "pip install 'penstock[greengrass]'" in caplog.text


def test_a_broker_that_greengrass_started_serves_the_other_components(
    path: Path, tmp_path: Path
) -> None:
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
            with pytest.raises(ConnectFailedException, match="nor to the Greengrass nucleus"):
                StreamManagerClient(port=port, token="wrong").list_streams()
        assert "press-token" not in broker.log


def test_the_client_of_aws_is_not_loaded_where_greengrass_is_not() -> None:
    program = (
        "import sys; from penstock.cli.main import main; import penstock.greengrass.component; "
        "sys.exit(any(name.startswith('aws') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT_S)
