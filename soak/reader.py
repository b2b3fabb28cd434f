"""A client that reads at random positions of streams during appends."""

from __future__ import annotations

import time
from random import Random

from penstock.errors import NotEnoughMessagesException
from penstock.wire.operations import Operation
from soak.checks import Defect, Finding
from soak.load_threads import LoadThread
from soak.messages import identify
from soak.processes import BrokerAddress
from soak.report import Tally
from tests.raw_connection import RawConnection

_MAX_MESSAGES = 200
_MAX_TIMEOUT_MILLIS = 200


class Reader(LoadThread):
    """Checks that each message was sent to the stream, and that sequence numbers have no gaps."""

    kind = "reader"

    def __init__(self, broker: BrokerAddress, tally: Tally, seed: int) -> None:
        super().__init__()
        self._broker = broker
        self._tally = tally
        self._random = Random(seed)
        self._connection: RawConnection | None = None
        # The prefixes of source names, by stream.
        self.streams: dict[str, str] = {}

    def work(self) -> None:
        if self._connection is None:
            self._connection = self._broker.connect()
        while self.may_work:
            name = self._random.choice(sorted(self.streams))
            self._read(self._connection, name)
            time.sleep(0.02)

    def _read(self, connection: RawConnection, name: str) -> None:
        storage = connection.call(Operation.DescribeMessageStream, name=name)["messageStreamInfo"][
            "storageStatus"
        ]
        oldest, newest = storage["oldestSequenceNumber"], storage["newestSequenceNumber"]
        options = {
            "desiredStartSequenceNumber": self._random.randint(oldest, max(newest + 20, oldest)),
            "minMessageCount": self._random.choice((1, 1, 20)),
            "maxMessageCount": _MAX_MESSAGES,
            "readTimeoutMillis": self._random.choice((0, _MAX_TIMEOUT_MILLIS)),
        }
        try:
            response = connection.call(
                Operation.ReadMessages, streamName=name, readMessagesOptions=options
            )
        except NotEnoughMessagesException:
            return
        numbers = [message["sequenceNumber"] for message in response["messages"]]
        findings = []
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            findings.append(Finding(Defect.WRONG, name, f"a read has gaps: {numbers[:50]}"))
        for message in response["messages"]:
            found = identify(message["payload"])
            if found is None or not found.source.startswith(self.streams[name]):
                detail = f"{message['sequenceNumber']} reads as {found}"
                findings.append(Finding(Defect.WRONG, name, detail))
        self._tally.add_findings(findings)
        self._tally.count("messages read during load", len(numbers))

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
