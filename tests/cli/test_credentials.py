"""`penstock env`, `dashboard` and `tokens` with a running broker."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from penstock.discovery import Address, read_address, write_address
from penstock.errors import ConnectFailedException, UnauthorizedException
from penstock.store.catalog import Catalog
from penstock.store.rows import TokenRow
from penstock.wire.operations import Operation
from tests.support import TIMEOUT_S, BrokerProcess, append, clean_environment, create

from .command import Finished, penstock


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # A space and a quote need quoting in a shell.
    with BrokerProcess(tmp_path_factory.mktemp("access") / "it's a root") as broker:
        with broker.connect() as client:
            create(client, "sensor-1")
            create(client, "other")
        yield broker


def tokens(broker: BrokerProcess, *words: str) -> Finished:
    return penstock("tokens", *words, "--root", str(broker.root))


# penstock env


def test_env_output_can_be_evaluated_by_a_shell(broker: BrokerProcess) -> None:
    lines = penstock("env", "--root", str(broker.root)).output

    shown = subprocess.run(
        ["/bin/sh", "-c", 'eval "$1"; env', "sh", lines],
        env=clean_environment(),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()

    assert "STREAM_MANAGER_SERVER_HOST=127.0.0.1" in shown
    assert f"STREAM_MANAGER_SERVER_PORT={broker.port}" in shown
    assert f"AWS_CONTAINER_AUTHORIZATION_TOKEN={broker.token}" in shown
    assert all(line.startswith("export ") for line in lines.splitlines())


def test_env_prints_the_same_variables_as_json(broker: BrokerProcess) -> None:
    finished = penstock("env", "--json", STREAM_MANAGER_STORE_ROOT_DIR=str(broker.root))

    assert json.loads(finished.output) == {
        "STREAM_MANAGER_SERVER_HOST": "127.0.0.1",
        "STREAM_MANAGER_SERVER_PORT": str(broker.port),
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": broker.token,
    }


def test_env_omits_the_token_without_authentication(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root", STREAM_MANAGER_AUTHENTICATE_CLIENT="false") as broker:
        finished = penstock("env", "--json", "--root", str(broker.root))

        assert "AWS_CONTAINER_AUTHORIZATION_TOKEN" not in json.loads(finished.output)
        with broker.connect("") as client:
            assert client.call(Operation.ListStreams)["status"] == 0


def test_env_without_a_broker_shows_how_to_start_one(tmp_path: Path) -> None:
    finished = penstock("env", "--root", str(tmp_path))

    assert finished.code == 3
    assert finished.output == ""
    assert finished.error_lines == [
        f"penstock: no broker serves {tmp_path}: start one with `penstock up --root {tmp_path}`"
    ]


def test_env_ignores_the_address_of_a_killed_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "root")
    broker.start()
    broker.kill()

    finished = penstock("env", "--root", str(broker.root))

    assert finished.code == 3
    assert "no broker serves" in finished.error


def test_relative_root_starts_at_the_current_directory(tmp_path: Path) -> None:
    finished = penstock("env", "--root", "here", directory=tmp_path)

    assert finished.code == 3
    assert f"no broker serves {tmp_path / 'here'}: " in finished.error


def test_damaged_address_file_fails_with_one_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        (broker.root / "broker.json").write_text("{")

        finished = penstock("env", "--root", str(broker.root))

    assert finished.code == 1
    assert "broker.json cannot be read" in finished.error_lines[0]
    assert len(finished.error_lines) == 1


# penstock dashboard


@pytest.fixture(scope="module")
def with_dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    root = tmp_path_factory.mktemp("dashboard") / "root"
    with BrokerProcess(root, "--http-port", "0") as broker:
        yield broker


def address_of(broker: BrokerProcess) -> Address:
    address = read_address(broker.root)
    assert address is not None
    return address


def test_dashboard_link_contains_the_token(with_dashboard: BrokerProcess) -> None:
    finished = penstock("dashboard", "--root", str(with_dashboard.root))

    link = f"{address_of(with_dashboard).http_url}#token={with_dashboard.token}"
    assert (finished.code, finished.output) == (0, f"{link}\n")
    as_json = penstock("dashboard", "--json", "--root", str(with_dashboard.root))
    assert json.loads(as_json.output) == {"url": link}


def test_token_of_the_dashboard_link_is_accepted(with_dashboard: BrokerProcess) -> None:
    link = penstock("dashboard", "--root", str(with_dashboard.root)).output.strip()
    url, _, token = link.partition("#token=")
    request = urllib.request.Request(
        f"{url}api/overview", headers={"Authorization": f"Bearer {token}"}
    )

    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        assert json.loads(answer.read())["access"]["mayChange"]


def test_dashboard_link_has_no_token_without_authentication(
    with_dashboard: BrokerProcess,
) -> None:
    address = address_of(with_dashboard)
    write_address(with_dashboard.root, msgspec.structs.replace(address, authenticate_client=False))
    try:
        finished = penstock("dashboard", "--root", str(with_dashboard.root))
        assert finished.output == f"{address.http_url}\n"
    finally:
        write_address(with_dashboard.root, address)


def test_broker_without_dashboard_shows_how_to_enable_it(broker: BrokerProcess) -> None:
    finished = penstock("dashboard", "--root", str(broker.root))

    assert finished.code == 5
    assert finished.output == ""
    assert finished.error_lines == [
        f"penstock: the broker of {broker.root} has no dashboard: start it with --http-port, or "
        "set http_port (PENSTOCK_HTTP_PORT)"
    ]


def test_dashboard_without_a_broker_fails(tmp_path: Path) -> None:
    finished = penstock("dashboard", "--root", str(tmp_path))

    assert finished.code == 3
    assert "no broker serves" in finished.error


# penstock tokens


def test_created_token_allows_its_role_and_streams_only(broker: BrokerProcess) -> None:
    made = tokens(broker, "create", "sensors", "--role", "producer", "--stream", "sensor-*")
    assert made.code == 0
    secret = made.output.strip()

    with broker.connect(secret) as client:
        assert append(client, "sensor-1", b"x") >= 0
        assert client.call(Operation.ListStreams)["streams"] == ["sensor-1"]
        with pytest.raises(UnauthorizedException):
            append(client, "other", b"x")


def test_empty_token_name_is_rejected(broker: BrokerProcess) -> None:
    finished = penstock("tokens", "create", " ", "--role", "admin", "--root", str(broker.root))

    assert finished.code == 2
    assert "NAME is empty" in finished.error


def test_tokens_are_listed_without_their_secrets(broker: BrokerProcess) -> None:
    made = tokens(
        broker,
        "create",
        "listed",
        "--role",
        "consumer",
        "--stream",
        "a*",
        "--stream",
        "b",
        "--json",
    )
    secret = json.loads(made.output)["token"]
    assert json.loads(made.output)["name"] == "listed"

    text = tokens(broker, "list").output
    listed = tokens(broker, "list", "--json").output

    shown = {row["name"]: row for row in json.loads(listed)}
    assert shown["listed"] == {
        "name": "listed",
        "role": "consumer",
        "streams": ["a*", "b"],
        "expires": None,
    }
    assert shown["first"]["role"] == "admin"
    assert [line.split() for line in text.splitlines() if "listed" in line] == [
        ["listed", "consumer", "a*,", "b", "never"]
    ]
    assert secret not in text + listed
    assert broker.token not in text + listed
    assert secret.encode() not in (broker.root / "catalog.sqlite").read_bytes()


def test_token_without_patterns_is_for_all_streams(broker: BrokerProcess) -> None:
    secret = tokens(broker, "create", "everywhere", "--role", "consumer").output.strip()

    with broker.connect(secret) as client:
        assert client.call(Operation.ListStreams)["streams"] == ["other", "sensor-1"]


def test_duplicate_token_name_is_rejected(broker: BrokerProcess) -> None:
    again = tokens(broker, "create", "first", "--role", "consumer")

    assert again.code == 1
    assert "the token 'first' already exists" in again.error
    with broker.connect() as client:
        assert client.call(Operation.ListStreams)["status"] == 0


def test_unknown_role_is_rejected_with_the_known_ones(broker: BrokerProcess) -> None:
    finished = tokens(broker, "create", "x", "--role", "king")

    assert finished.code == 2
    for role in ("admin", "producer", "consumer", "pipeline"):
        assert role in finished.error


def test_revoked_token_is_rejected_and_its_connections_are_closed(broker: BrokerProcess) -> None:
    secret = tokens(broker, "create", "leaked", "--role", "admin").output.strip()
    with broker.connect(secret) as client:
        assert tokens(broker, "revoke", "leaked").code == 0

        with pytest.raises(ConnectFailedException):
            broker.connect(secret)
        assert client.socket.recv(1) == b""
    again = tokens(broker, "revoke", "leaked")
    assert again.code == 5
    assert again.error_lines == ["penstock: there is no token 'leaked'"]


def test_expired_token_is_rejected_and_its_connections_are_closed(broker: BrokerProcess) -> None:
    made = tokens(broker, "create", "short", "--role", "consumer", "--expires", "90d", "--json")
    secret = json.loads(made.output)["token"]
    with broker.connect(secret) as client:
        expires_time = time.time_ns() // 1_000_000 + 1500
        with closing(Catalog(broker.root / "catalog.sqlite")) as catalog:
            catalog.add_token(TokenRow("short", "consumer", ("*",), 1, expires_time), secret)
        # The broker closes the connection when the token expires.
        assert client.socket.recv(1) == b""
    assert time.time_ns() // 1_000_000 >= expires_time
    with pytest.raises(ConnectFailedException, match="the token 'short' expired at"):
        broker.connect(secret)
    (line,) = [line for line in tokens(broker, "list").output.splitlines() if "short" in line]
    assert line.endswith("(expired)")


def test_rotated_token_is_valid_until_the_grace_period_ends(broker: BrokerProcess) -> None:
    made = tokens(broker, "create", "rotated", "--role", "consumer", "--expires", "90d", "--json")
    old = json.loads(made.output)
    with broker.connect(old["token"]) as client:
        new = json.loads(tokens(broker, "rotate", "rotated", "--json").output)
        assert new["token"] != old["token"]
        # It is valid for 90 days too.
        assert 0 <= new["expires"] - old["expires"] < 86_400_000
        for secret in (old["token"], new["token"]):
            broker.connect(secret).close()

        newest = tokens(broker, "rotate", "rotated", "--grace", "0s", "--expires", "1d")

        assert newest.code == 0
        assert client.socket.recv(1) == b""
    for secret in (old["token"], new["token"]):
        with pytest.raises(ConnectFailedException):
            broker.connect(secret)
    with broker.connect(newest.output.strip()) as client:
        assert client.call(Operation.ListStreams)["status"] == 0


def test_rotated_first_token_is_in_the_token_file(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        old = broker.token
        new = tokens(broker, "rotate", "first").output.strip()
        assert (broker.root / "token").read_text().strip() == new != old
        for secret in (old, new):
            broker.connect(secret).close()
        # The new token is valid even if the file cannot be written.
        (broker.root / "token.new").mkdir()
        finished = tokens(broker, "rotate", "first")
        assert finished.code == 1
        assert "the token is rotated, but" in finished.error
        broker.connect(finished.output.strip()).close()


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["rotate", "unknown"], 5, "there is no token 'unknown'"),
        (["rotate", "first", "--grace", "soon"], 2, "'soon' is not a duration"),
        (["create", "x", "--role", "admin", "--expires", "90"], 2, "'90' is not a duration"),
        (["create", "x", "--role", "admin", "--expires", "0s"], 2, "expected 1 s to 36500d"),
        (["create", "x", "--role", "admin", "--expires", "36501d"], 2, "expected 1 s to 36500d"),
        (["rotate", "first", "--expires", "0s"], 2, "expected 1 s to 36500d"),
        (["rotate", "first", "--grace", "36501d"], 2, "expected 0 s to 36500d"),
    ],
)
def test_invalid_rotations_and_expiries_are_rejected(
    broker: BrokerProcess, words: list[str], code: int, reason: str
) -> None:
    finished = tokens(broker, *words)
    assert finished.code == code
    assert reason in finished.error


def test_revoked_first_token_is_replaced_at_the_next_start(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        leaked = broker.token
        assert tokens(broker, "revoke", "first").code == 0
        with pytest.raises(ConnectFailedException):
            broker.connect(leaked)
    with BrokerProcess(tmp_path / "root") as broker:
        with pytest.raises(ConnectFailedException):
            broker.connect(leaked)
        with broker.connect() as client:
            assert client.call(Operation.ListStreams)["status"] == 0


@pytest.mark.parametrize("words", [["list"], ["create", "x", "--role", "admin"], ["revoke", "x"]])
def test_tokens_without_a_store_create_nothing(tmp_path: Path, words: list[str]) -> None:
    finished = penstock("tokens", *words, "--root", str(tmp_path))

    assert finished.code == 1
    assert finished.error_lines == [
        f"penstock: there is no store at {tmp_path}: `penstock serve` creates one"
    ]
    assert list(tmp_path.iterdir()) == []


def test_damaged_store_fails_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"not a database" * 100)

    finished = penstock("tokens", "list", "--root", str(tmp_path))

    assert finished.code == 1
    assert len(finished.error_lines) == 1
    assert "catalog.sqlite cannot be read" in finished.error
