"""Clients during a restart of the broker on the same directory and port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import BrokerProcess

from .conftest import Connect
from .harness import AVAILABLE_SDKS, OVERWRITE_OLDEST_DATA, STREAM_MANAGER, definition


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "root") as broker:
        yield broker


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop], ids=["kill-9", "sigterm"])
def test_streams_messages_and_clients_survive_a_restart(
    own_broker: BrokerProcess, connect: Connect, end: Callable[[BrokerProcess], None]
) -> None:
    clients = [connect(sdk, to=own_broker) for sdk in AVAILABLE_SDKS]
    assert [client.list_streams() for client in clients] == [[]] * len(clients)
    plain = [client.create() for client in clients]
    flushed = [client.create(flushOnWrite=True) for client in clients]
    for client, *names in zip(clients, plain, flushed, strict=True):
        for name in names:
            client.append(name, b"before")
            client.append(name, b"before too")
    token = own_broker.token

    end(own_broker)
    own_broker.start()

    assert own_broker.token == token
    for client, *names in zip(clients, plain, flushed, strict=True):
        assert sorted(client.list_streams()) == sorted(plain + flushed)
        for name in names:
            assert client.append(name, b"after") == 2
            messages = client.read(name, minMessageCount=3)
            payloads = [message["payload"] for message in messages]
            assert payloads == [b"before", b"before too", b"after"]


def test_definitions_and_numbers_survive_kill_9(
    own_broker: BrokerProcess, connect: Connect
) -> None:
    client = connect(STREAM_MANAGER, to=own_broker)
    kinesis = {"identifier": "k", "kinesisStreamName": "s", "disabled": True}
    wanted = definition(
        "..",
        maxSize=4096,
        streamSegmentSize=1024,
        timeToLiveMillis=3600000,
        strategyOnFull=OVERWRITE_OLDEST_DATA,
        exportDefinition={"kinesis": [kinesis]},
    )
    client.create(**wanted)
    for _ in range(20):
        client.append("..", b"x" * 500)
    before = client.describe("..")
    assert before["storageStatus"]["oldestSequenceNumber"] > 0
    client.delete(client.create(name="deleted"))

    own_broker.kill()
    own_broker.start()

    assert client.list_streams() == [".."]
    assert client.describe("..") == before
    assert client.append("..", b"x" * 500) == 20
