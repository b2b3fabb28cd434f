"""The options and methods that both clients share."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from penstock import AsyncStreamManagerClient, SettingError, StreamManagerClient
from tests.support import LocalBroker


def test_both_clients_have_the_same_options() -> None:
    assert inspect.signature(StreamManagerClient) == inspect.signature(AsyncStreamManagerClient)


def test_both_clients_have_the_same_methods_and_parameters() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    # The blocking client connects when it is created.
    expected = methods(StreamManagerClient) | {"connect": ["self"]}
    assert methods(AsyncStreamManagerClient) == expected


def test_both_clients_show_their_address(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        waiting = AsyncStreamManagerClient(root=broker.root)
        with StreamManagerClient(root=broker.root) as connected:
            assert repr(connected) == f"<StreamManagerClient {address}>"
            assert repr(waiting) == f"<AsyncStreamManagerClient {address}, not connected>"
            for client in (connected, waiting):
                assert (client.host, client.port) == ("127.0.0.1", broker.port)
                assert client.auth_token == broker.token


def test_constructors_reject_an_invalid_port(tmp_path: Path) -> None:
    for kind in (StreamManagerClient, AsyncStreamManagerClient):
        with pytest.raises(SettingError, match="port is 70000"):
            kind(port=70_000)
