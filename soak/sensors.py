"""Measurements for IoT SiteWise. Each message is an entry of its calls."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from penstock import StreamManagerClient
from penstock.errors import StreamManagerException, UnansweredException
from soak.checks import Defect, Finding
from soak.load_threads import LoadThread
from soak.messages import MessageId
from soak.processes import BrokerAddress

ALIAS = "/soak/sensor"
_SOURCE = "sensor"


def make_entry(counter: int, now: float) -> bytes:
    """Creates a value with a unique time, because SiteWise keeps one value per time."""
    seconds, fraction = divmod(now, 1)
    value = {
        "value": {"integerValue": counter},
        "timestamp": {"timeInSeconds": int(seconds), "offsetInNanos": int(fraction * 1e9)},
    }
    entry = {"entryId": str(counter), "propertyAlias": ALIAS, "propertyValues": [value]}
    return json.dumps(entry).encode()


def identify_entry(entry: Mapping[str, object]) -> MessageId:
    return MessageId(_SOURCE, int(str(entry["entryId"])))


class SensorProducer(LoadThread):
    """Appends entries at a low rate."""

    kind = "sensor"

    def __init__(self, broker: BrokerAddress, stream: str, pause_seconds: float) -> None:
        super().__init__()
        self._broker = broker
        self._stream = stream
        self._pause_seconds = pause_seconds
        self._client: StreamManagerClient | None = None
        self._made = 0
        # Sequence numbers and entries, in the order of acknowledgements.
        self.answered: list[tuple[int, MessageId]] = []

    def work(self) -> None:
        if self._client is None:
            self._client = StreamManagerClient(
                "127.0.0.1", self._broker.port, token=self._broker.token, reconnect_timeout=0
            )
        while self.may_work:
            counter = self._made
            self._made += 1
            try:
                number = self._client.append_message(self._stream, make_entry(counter, time.time()))
            except (UnansweredException, OSError):
                raise
            except StreamManagerException:
                # The disk is full.
                time.sleep(self._pause_seconds)
                continue
            self.answered.append((number, MessageId(_SOURCE, counter)))
            time.sleep(self._pause_seconds)

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def compare_entries(
    name: str, answered: list[tuple[int, MessageId]], stored: Mapping[int, MessageId]
) -> list[Finding]:
    """Checks that each acknowledged entry is stored at its number, and that numbers are unique."""
    findings = []
    if len(dict(answered)) < len(answered):
        findings.append(Finding(Defect.REUSED, name, "a number was assigned to two entries"))
    for number, entry in answered:
        if number not in stored:
            findings.append(Finding(Defect.LOST, name, f"{number}, {entry}, is missing"))
        elif stored[number] != entry:
            findings.append(
                Finding(Defect.WRONG, name, f"{number} is {stored[number]}, not {entry}")
            )
    return findings
