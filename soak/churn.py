"""Streams that are created, updated, filled and deleted all the time."""

from __future__ import annotations

import threading
import time
from random import Random
from typing import Any, NamedTuple

from penstock.errors import StreamManagerException
from penstock.testing.connection import Connection
from penstock.wire.operations import Operation
from soak.checks import Fault, Finding, compare
from soak.ledger import Ledger, Source, StreamLedger
from soak.load import is_refused
from soak.messages import make_payload
from soak.processes import BrokerProgram, SoakError
from soak.reading import read_stream
from soak.report import Tally

_MAX_STREAMS = 12
_PAUSE_TIMEOUT_SECONDS = 90.0


class _Stream(NamedTuple):
    ledger: StreamLedger
    source: Source
    definition: dict[str, Any]


class Churn(threading.Thread):
    """One connection that changes definitions while the gate is open.

    A stream whose last change was not answered is left alone: it may be there or not.
    """

    def __init__(
        self, broker: BrokerProgram, tally: Tally, prefix: str, seed: int, pause_seconds: float
    ) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._tally = tally
        self._prefix = prefix
        self._random = Random(seed)
        self._pause_seconds = pause_seconds
        self._ledger = Ledger()
        self._is_open = threading.Event()
        self._is_idle = threading.Event()
        self._is_over = threading.Event()
        self._connection: Connection | None = None
        self._created = 0
        # What is certain: streams that are there, and names of streams that are not.
        self.present: dict[str, _Stream] = {}
        self.absent: set[str] = set()
        self.error: BaseException | None = None

    # The gate, as producers have it

    def open_gate(self) -> None:
        self._is_idle.clear()
        self._is_open.set()

    def pause(self) -> None:
        self._is_open.clear()
        if not self._is_idle.wait(_PAUSE_TIMEOUT_SECONDS) and self.is_alive():
            raise SoakError("the definition churn does not pause")
        if self.error is not None:
            raise SoakError(f"the definition churn failed: {self.error!r}")

    def end(self) -> None:
        self._is_over.set()
        self._is_open.set()
        self.join(_PAUSE_TIMEOUT_SECONDS)

    @property
    def answers(self) -> int:
        return self._ledger.answers

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                if not self._is_open.is_set():
                    self._is_idle.set()
                    self._is_open.wait(0.2)
                    continue
                try:
                    if self._connection is None:
                        self._connection = self._broker.connect()
                    self._change(self._connection)
                except (OSError, StreamManagerException):
                    self._disconnect()
                time.sleep(self._pause_seconds)
        except BaseException as error:  # noqa: BLE001 - the arena raises it
            self.error = error
        finally:
            self._disconnect()
            self._is_idle.set()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Changes

    def _change(self, connection: Connection) -> None:
        draw = self._random.random()
        if not self.present or (draw < 0.3 and len(self.present) < _MAX_STREAMS):
            self._create(connection)
            return
        name = self._random.choice(sorted(self.present))
        if draw < 0.5:
            self._update(connection, name)
        elif draw < 0.8:
            self._append(connection, name)
        else:
            self._delete_stream(connection, name)

    def _create(self, connection: Connection) -> None:
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

    def _update(self, connection: Connection, name: str) -> None:
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

    def _append(self, connection: Connection, name: str) -> None:
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

    def _delete_stream(self, connection: Connection, name: str) -> None:
        stream = self.present[name]
        found = read_stream(connection, name)
        self._tally.add(compare(name, stream.ledger.expected(), found))
        del self.present[name]
        try:
            connection.call(Operation.DeleteMessageStream, name=name)
        except StreamManagerException:
            self.present[name] = stream
            return
        self._tally.count("definition changes")
        self._ledger.remove(name)
        self.absent.add(name)

    # What must hold

    def check(self, connection: Connection) -> None:
        """Every answered change is there. The gate is closed."""
        names = set(connection.call(Operation.ListStreams)["streams"])
        findings = [
            Finding(Fault.LOST, name, "the stream is not there")
            for name in self.present.keys() - names
        ]
        findings += [
            Finding(Fault.WRONG, name, "the stream is there, and was deleted or refused")
            for name in self.absent & names
        ]
        for name in self.present.keys() & names:
            stream = self.present[name]
            status = connection.call(Operation.DescribeMessageStream, name=name)
            definition = status["messageStreamInfo"]["definition"]
            for field, value in stream.definition.items():
                if definition[field] != value:
                    detail = f"{field} is {definition[field]!r}, not {value!r}"
                    findings.append(Finding(Fault.WRONG, name, detail))
            self._tally.add(compare(name, stream.ledger.expected(), read_stream(connection, name)))
        self._tally.find(findings)
