"""`kill -9` of a broker process under load: acknowledged messages survive unchanged, once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.errors import NotEnoughMessagesException
from penstock.wire.operations import Operation
from tests.raw_connection import RawConnection, raise_for_status
from tests.support import BrokerProcess, wait_until

KILLS = 5
WINDOW = 50
STREAMS: dict[str, dict[str, object]] = {
    "plain": {},
    "flushed": {"flushOnWrite": True},
    # Segments roll often, so that kills hit the change of segments.
    "small segments": {"streamSegmentSize": 16_384},
}


class Producer(threading.Thread):
    """Pipelines appends on one connection until the broker is killed."""

    def __init__(self, broker: BrokerProcess, stream: str, round_number: int) -> None:
        super().__init__(daemon=True)
        self._connection = broker.connect()
        self._stream = stream
        self._label = f"{stream}/{round_number}"
        self._random = Random(round_number)
        self.answered: dict[int, bytes] = {}
        self.sent: list[bytes] = []

    def wait_for_answers(self, count: int) -> None:
        wait_until(lambda: len(self.answered) >= count, "acknowledged appends")

    def run(self) -> None:
        waiting: dict[str, bytes] = {}
        try:
            while True:
                while len(waiting) < WINDOW:
                    number = len(self.sent)
                    filler = self._random.randbytes(self._random.randint(1, 600))
                    payload = f"{self._label}/{number} ".encode() + filler
                    request = self._connection.send(
                        Operation.AppendMessage, name=self._stream, payload=payload
                    )
                    self.sent.append(payload)
                    waiting[request] = payload
                _, response = self._connection.receive()
                raise_for_status(response)
                self.answered[response["sequenceNumber"]] = waiting.pop(response["requestId"])
        except OSError:
            self._connection.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "root") as broker:
        yield broker


def read_all(connection: RawConnection, stream: str) -> dict[int, bytes]:
    stored: dict[int, bytes] = {}
    while True:
        options = {"desiredStartSequenceNumber": len(stored), "maxMessageCount": 10_000}
        try:
            response = connection.call(
                Operation.ReadMessages, streamName=stream, readMessagesOptions=options
            )
        except NotEnoughMessagesException:
            return stored
        for message in response["messages"]:
            stored[message["sequenceNumber"]] = message["payload"]


def test_acknowledged_appends_survive_kills_under_load(broker: BrokerProcess) -> None:
    with broker.connect() as connection:
        for name, fields in STREAMS.items():
            definition = {"name": name, "strategyOnFull": 1, "maxSize": 1 << 30, **fields}
            connection.call(Operation.CreateMessageStream, definition=definition)
    answered: dict[str, dict[int, bytes]] = {name: {} for name in STREAMS}
    sent: dict[str, set[bytes]] = {name: set() for name in STREAMS}
    for round_number in range(KILLS):
        producers = {name: Producer(broker, name, round_number) for name in STREAMS}
        for producer in producers.values():
            producer.start()
        for producer in producers.values():
            producer.wait_for_answers(200 + 150 * round_number)
        broker.kill()
        for name, producer in producers.items():
            producer.join()
            assert not answered[name].keys() & producer.answered.keys(), (
                "a sequence number was assigned twice"
            )
            answered[name] |= producer.answered
            sent[name] |= set(producer.sent)
        broker.start()
        with broker.connect() as connection:
            for name in STREAMS:
                stored = read_all(connection, name)
                assert list(stored) == list(range(len(stored)))
                lost = answered[name].items() - stored.items()
                assert not lost, f"{len(lost)} acknowledged messages of {name} are missing"
                assert set(stored.values()) <= sent[name], "a stored message was not sent"
                assert max(Counter(stored.values()).values()) == 1, "a message is stored twice"
    assert "damaged" not in broker.log
