"""The context of checks: the connection to a broker, and the store of a stopped one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.checks.context import Contact, Inventory
from penstock.errors import SettingError
from tests.broker.exports.workbench import to_http
from tests.support import LocalBroker, Reachable, append, create
from tests.web.site import commit, plan

from .examination import context


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reachable]:
    with LocalBroker(tmp_path_factory.mktemp("context") / "root") as broker:
        with broker.connect() as client:
            create(client, "a")
            create(client, "b")
        yield broker


def test_contact_has_the_streams_of_the_broker(broker: Reachable) -> None:
    with context(broker.root) as examined:
        contact = examined.contact
        assert examined.is_served

    assert contact.address == f"127.0.0.1:{broker.port}"
    assert contact.server is not None
    assert contact.server.has_extensions
    assert [definition.name for definition in contact.definitions] == ["a", "b"]


def test_contact_knows_working_exports(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker:
        with broker.connect() as client:
            for name in ("working", "failing", "new"):
                append(client, create(client, name, exportDefinition=to_http()), b"x")
            for found in plan(client):
                if found["stream"] != "new":
                    commit(client, found, error="down" if found["stream"] == "failing" else "")
        with context(broker.root) as examined:
            assert examined.contact.working == {"working/e"}


def test_contact_knows_that_the_token_is_rejected(broker: Reachable) -> None:
    with context(broker.root, AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong") as examined:
        contact = examined.contact

    assert contact.is_refused
    assert contact.server is None
    assert "the token is not known" in contact.error


def test_contact_has_an_error_without_a_broker(tmp_path: Path) -> None:
    with context(tmp_path) as examined:
        contact = examined.contact
        assert not examined.is_served

    assert contact == Contact(error=f"no stream manager serves {tmp_path}")


def test_inventory_reads_the_store_without_changing_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root) as broker, broker.connect() as client:
        create(client, "s", maxSize=4096, streamSegmentSize=1024)
        for _ in range(30):
            append(client, "s", b"x" * 100)

    with context(root) as examined:
        inventory = examined.inventory
        assert not examined.is_served

    assert inventory.exists
    assert [definition.name for definition in inventory.definitions] == ["s"]
    assert inventory.stored_bytes == 3000
    with sqlite3.connect(root / "catalog.sqlite") as catalog:
        assert catalog.execute("SELECT count(*) FROM stream").fetchone() == (1,)
    catalog.close()


def test_inventory_creates_no_store(tmp_path: Path) -> None:
    with context(tmp_path / "root") as examined:
        assert examined.inventory == Inventory()

    assert not (tmp_path / "root").exists()


def test_inventory_of_a_damaged_store_has_an_error(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"not a database" * 100)

    with context(tmp_path) as examined:
        assert examined.inventory == Inventory(exists=True, error="file is not a database")


def test_invalid_settings_have_an_empty_inventory(tmp_path: Path) -> None:
    with context(tmp_path, PENSTOCK_MAX_CONNECTIONS="many") as examined:
        with pytest.raises(SettingError, match="PENSTOCK_MAX_CONNECTIONS is 'many'"):
            _ = examined.settings
        assert examined.inventory == Inventory()
        assert not examined.is_served


def test_port_option_without_host_is_a_setting(tmp_path: Path) -> None:
    with context(tmp_path, port=1234) as examined:
        assert examined.settings.port == 1234
    with context(tmp_path, port=1234, STREAM_MANAGER_SERVER_PORT="5678") as examined:
        examined.target = examined.target._replace(host="192.0.2.1")
        assert examined.settings.port == 5678
