"""Continuous creation, update, filling and deletion of streams."""

from __future__ import annotations

import time
from random import Random
from typing import Any, NamedTuple

from penstock.errors import StreamManagerException
from penstock.wire.operations import Operation
from soak.checks import Defect, Finding, compare
from soak.ledger import Ledger, SourceLedger, StreamLedger
from soak.load import is_refused
from soak.load_threads import LoadThread
from soak.messages import make_payload
from soak.processes import BrokerAddress
from soak.reading import read_stream
from soak.report import Tally
from tests.raw_connection import RawConnection

_MAX_STREAMS = 12


class _Stream(NamedTuple):
    ledger: StreamLedger
    source: SourceLedger
    definition: dict[str, Any]


class ConfirmedStreams(NamedTuple):
    """Streams that exist and names of streams that do not, according to responses."""

    present: dict[str, _Stream]
    absent: set[str]


class Churn(LoadThread):
    """Changes definitions over one connection.

    Does not use a stream whose last change has no response: the stream may exist or not.
    """

    kind = "definition churn"

    def __init__(
        self,
        broker: BrokerAddress,
        tally: Tally,
        prefix: str,
        seed: int,
        pause_seconds: float,
        *,
        appends: bool = True,
    ) -> None:
        super().__init__()
        self._broker = broker
        self._tally = tally
        self._prefix = prefix
        self._random = Random(seed)
        self._pause_seconds = pause_seconds
        self._appends = appends
        self._ledger = Ledger()
        self._connection: RawConnection | None = None
        self._created = 0
        self.present: dict[str, _Stream] = {}
        self.absent: set[str] = set()

    @property
    def answers(self) -> int:
        return self._ledger.answers

    def work(self) -> None:
        if self._connection is None:
            self._connection = self._broker.connect()
        while self.may_work:
            self._change(self._connection)
            time.sleep(self._pause_seconds)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Changes

    def _change(self, connection: RawConnection) -> None:
        draw = self._random.random()
        if not self.present or (draw < 0.3 and len(self.present) < _MAX_STREAMS):
            self._create(connection)
            return
        name = self._random.choice(sorted(self.present))
        if draw < 0.5:
            self._update(connection, name)
        elif draw < 0.8:
            if self._appends:
                self._append(connection, name)
        else:
            self._delete_stream(connection, name)

    def _create(self, connection: RawConnection) -> None:
        self._created += 1
        name = f"{self._prefix}-{self._created}"
        definition = {
            "name": name,
            "strategyOnFull": 0,
            "maxSize": self._random.choice((1 << 20, 1 << 22, 1 << 24)),
            "streamSegmentSize": self._random.choice((2048, 16_384, 1 << 20)),
            "flushOnWrite": self._random.random() < 0.3,
        }
        try:
            connection.call(Operation.CreateMessageStream, definition=definition)
        except StreamManagerException:
            self.absent.add(name)
            return
        self._tally.count("definition changes")
        ledger = self._ledger.add(name)
        self.present[name] = _Stream(ledger, ledger.add_source(), definition)

    def _update(self, connection: RawConnection, name: str) -> None:
        stream = self.present.pop(name)
        definition = {
            **stream.definition,
            "maxSize": self._random.choice((1 << 22, 1 << 23, 1 << 24)),
            "flushOnWrite": self._random.random() < 0.5,
        }
        try:
            connection.call(Operation.UpdateMessageStream, definition=definition)
        except StreamManagerException:
            self.present[name] = stream
            return
        self._tally.count("definition changes")
        self.present[name] = stream._replace(definition=definition)

    def _append(self, connection: RawConnection, name: str) -> None:
        source = self.present[name].source
        for counter in range(first := source.send(5), first + 5):
            try:
                response = connection.call(
                    Operation.AppendMessage, name=name, payload=make_payload(source.name, counter)
                )
            except StreamManagerException as error:
                if is_refused(error.message):
                    source.refuse(counter)
            else:
                source.answer(counter, response["sequenceNumber"])

    def _delete_stream(self, connection: RawConnection, name: str) -> None:
        stream = self.present[name]
        found = read_stream(connection, name)
        self._tally.add_result(compare(name, stream.ledger.expected(), found))
        del self.present[name]
        try:
            connection.call(Operation.DeleteMessageStream, name=name)
        except StreamManagerException:
            self.present[name] = stream
            return
        self._tally.count("definition changes")
        self._ledger.remove(name)
        self.absent.add(name)

    # Checks

    def confirmed_streams(self) -> ConfirmedStreams:
        """Returns the confirmed streams at this time. Any thread may call this."""
        return ConfirmedStreams(dict(self.present), set(self.absent))

    def restore(self, confirmed: ConfirmedStreams) -> None:
        """Returns to an earlier state after a power cut. The thread is paused."""
        self.present = {
            name: stream
            for name, stream in confirmed.present.items()
            if self.present.get(name) is stream
        }
        self.absent = confirmed.absent

    def check(self, connection: RawConnection) -> None:
        """Checks that each confirmed change is stored. The thread is paused."""
        names = set(connection.call(Operation.ListStreams)["streams"])
        findings = [
            Finding(Defect.LOST, name, "the stream is missing")
            for name in self.present.keys() - names
        ]
        findings += [
            Finding(Defect.WRONG, name, "the stream exists, but was deleted or refused")
            for name in self.absent & names
        ]
        for name in self.present.keys() & names:
            stream = self.present[name]
            status = connection.call(Operation.DescribeMessageStream, name=name)
            definition = status["messageStreamInfo"]["definition"]
            for field, value in stream.definition.items():
                if definition[field] != value:
                    detail = f"{field} is {definition[field]!r}, not {value!r}"
                    findings.append(Finding(Defect.WRONG, name, detail))
            self._tally.add_result(
                compare(name, stream.ledger.expected(), read_stream(connection, name))
            )
        self._tally.add_findings(findings)
        # Each finding is reported once.
        self.absent -= names
        for name in self.present.keys() - names:
            del self.present[name]
        self._clear_up(connection, names)

    def _clear_up(self, connection: RawConnection, names: set[str]) -> None:
        """Deletes streams whose creation or deletion has no response."""
        for name in names - self.present.keys() - self.absent:
            if name.startswith(f"{self._prefix}-"):
                connection.call(Operation.DeleteMessageStream, name=name)
                self.absent.add(name)
