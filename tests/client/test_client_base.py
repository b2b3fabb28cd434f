"""What both clients are made with."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from penstock import AsyncStreamManagerClient, SettingError, StreamManagerClient
from tests.support import LocalBroker


def test_both_take_the_same() -> None:
    assert inspect.signature(StreamManagerClient) == inspect.signature(AsyncStreamManagerClient)


def test_both_have_the_same_methods_and_each_takes_the_same() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    # The blocking one connects when it is made.
    expected = methods(StreamManagerClient) | {"connect": ["self"]}
    assert methods(AsyncStreamManagerClient) == expected


def test_both_say_where_they_are(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        waiting = AsyncStreamManagerClient(root=broker.root)
        with StreamManagerClient(root=broker.root) as connected:
            assert repr(connected) == f"<StreamManagerClient {address}>"
            assert repr(waiting) == f"<AsyncStreamManagerClient {address}, not connected>"
            for client in (connected, waiting):
                assert (client.host, client.port) == ("127.0.0.1", broker.port)
                assert client.auth_token == broker.token


def test_what_makes_no_sense_is_told_at_once(tmp_path: Path) -> None:
    for kind in (StreamManagerClient, AsyncStreamManagerClient):
        with pytest.raises(SettingError, match="port is 70000"):
            kind(port=70_000)
