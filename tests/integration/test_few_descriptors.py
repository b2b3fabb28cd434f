"""A broker process with more streams than open files are allowed."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.discovery import read_address
from penstock.wire.operations import Operation
from tests.raw_connection import RawConnection
from tests.support import BrokerProcess, append, create, read

LIMIT = 128
STREAMS = 80
# Each message fills a segment of these streams.
SEGMENT_BYTES = 4096
ROUNDS = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "root", PENSTOCK_HTTP_PORT="0")
    broker.limit_descriptors(LIMIT)
    with broker:
        yield broker


def payload(stream: int, number: int) -> bytes:
    return f"{stream}/{number} ".encode().ljust(3000, b".")


def name_of(stream: int) -> str:
    return f"stream {stream}"


def health(broker: BrokerProcess) -> int:
    address = read_address(broker.root)
    assert address is not None
    assert address.http_url is not None
    with urllib.request.urlopen(f"{address.http_url}healthz") as answer:
        return int(answer.status)


def open_descriptors(broker: BrokerProcess) -> int:
    assert broker.process is not None
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def expect_all_messages(client: RawConnection) -> None:
    for stream in range(STREAMS):
        found = read(client, name_of(stream), minMessageCount=ROUNDS, maxMessageCount=100)
        assert [message["payload"] for message in found] == [
            payload(stream, number) for number in range(ROUNDS)
        ]


def test_streams_outnumber_descriptors(broker: BrokerProcess) -> None:
    with broker.connect() as client:
        for stream in range(STREAMS):
            create(
                client,
                name_of(stream),
                streamSegmentSize=SEGMENT_BYTES,
                flushOnWrite=stream % 2 == 0,
            )
        for number in range(ROUNDS):
            for stream in range(STREAMS):
                assert append(client, name_of(stream), payload(stream, number)) == number
        expect_all_messages(client)
        assert health(broker) == 200
        with broker.connect() as another:
            assert len(another.call(Operation.ListStreams)["streams"]) == STREAMS
        assert open_descriptors(broker) < LIMIT

    broker.kill()
    broker.start()
    with broker.connect() as client:
        expect_all_messages(client)
        assert health(broker) == 200
    broker.stop()
    broker.start()
    with broker.connect() as client:
        expect_all_messages(client)
    assert "Too many open files" not in broker.log
    assert "damaged" not in broker.log
