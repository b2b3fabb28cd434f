"""The checks of the settings and of the connection to the broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.checks.broker import check_broker, check_settings
from penstock.cli.checks.check import State
from tests.client.servers import Relay
from tests.support import LocalBroker, Reachable

from .examination import context, examine


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reachable]:
    with LocalBroker(tmp_path_factory.mktemp("broker") / "root") as broker:
        yield broker


def test_invalid_setting_is_named(tmp_path: Path) -> None:
    fine = examine(check_settings, tmp_path)
    wrong = examine(check_settings, tmp_path, PENSTOCK_MAX_CONNECTIONS="many")

    assert (fine.state, fine.found) == (State.ok, f"the root is {tmp_path}")
    assert wrong.state is State.fail
    assert wrong.found.startswith("PENSTOCK_MAX_CONNECTIONS is 'many': expected")


def test_answering_broker_passes(broker: Reachable) -> None:
    outcome = examine(check_broker, broker.root)

    assert outcome.state is State.ok
    assert outcome.found.startswith("penstock 0.")
    assert f"127.0.0.1:{broker.port}" in outcome.found


def test_rejected_token_fails(broker: Reachable) -> None:
    outcome = examine(check_broker, broker.root, AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong")

    assert outcome.state is State.fail
    assert "the token is not known" in outcome.found
    assert "AWS_CONTAINER_AUTHORIZATION_TOKEN" in outcome.mend


def test_stopped_broker_is_a_warning(tmp_path: Path) -> None:
    outcome = examine(check_broker, tmp_path / "my root")

    assert outcome.state is State.warn
    assert outcome.mend == f"`penstock serve --root '{tmp_path / 'my root'}'` starts one"


def test_stopped_broker_fails_if_its_port_is_given(tmp_path: Path) -> None:
    outcome = examine(check_broker, tmp_path, port=1)

    assert outcome.state is State.fail
    assert "127.0.0.1:1" in outcome.found


def test_broker_of_another_version_is_a_warning(broker: Reachable) -> None:
    with context(broker.root) as examined:
        contact = examined.contact
        assert contact.server is not None
        examined.contact = contact._replace(server=contact.server._replace(version="0.0.1"))
        outcome = check_broker(examined)

    assert outcome.state is State.warn
    assert outcome.found.startswith("penstock 0.0.1 at ")


def test_other_stream_manager_passes(broker: Reachable, tmp_path: Path) -> None:
    with Relay(broker, strip_extensions=True) as server:
        outcome = examine(
            check_broker, tmp_path, server.port, AWS_CONTAINER_AUTHORIZATION_TOKEN=server.token
        )

    assert outcome.state is State.ok
    assert outcome.found.startswith("stream manager")
    assert "not Penstock" in outcome.found
