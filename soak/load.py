"""Clients that append: pipelined requests, Penstock's own client, an unmodified AWS SDK.

Every message is noted in the ledger before it leaves and when it is answered. A client whose broker
is gone connects again until it is stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from random import Random

from penstock import StreamManagerClient
from penstock.errors import (
    ClientException,
    InvalidRequestException,
    ResponseStatusCode,
    StreamManagerException,
    UnansweredException,
)
from penstock.testing.connection import Connection
from penstock.wire.operations import Operation
from soak.ledger import Source
from soak.messages import make_payload
from soak.processes import BrokerProgram, SoakError

PROJECT = Path(__file__).resolve().parents[1]
SDK_PYTHON = PROJECT / ".sdks" / "stream-manager-1.1.2" / "bin" / "python"

_WINDOW = 40
_PAUSE_TIMEOUT_SECONDS = 90.0
_RETRY_SECONDS = 0.05


def is_refused(message: str) -> bool:
    """Whether an error says that the message was not stored.

    One that could not be synced is stored, and may be lost in a power cut.
    """
    return "could not be synced" not in message


class Producer(threading.Thread, ABC):
    """Appends at a rate while the gate is open."""

    kind = ""

    def __init__(self, broker: BrokerProgram, sources: Sequence[Source], rate: float) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.sources = list(sources)
        self._rate = rate
        self._is_open = threading.Event()
        self._is_idle = threading.Event()
        self._is_over = threading.Event()
        self.answers = 0
        self.refusals = 0
        self.error: BaseException | None = None

    def open_gate(self) -> None:
        self._is_idle.clear()
        self._is_open.set()

    def close_gate(self) -> None:
        self._is_open.clear()

    def wait_until_idle(self) -> None:
        """Until no request is under way. The gate is closed."""
        if not self._is_idle.wait(_PAUSE_TIMEOUT_SECONDS) and self.is_alive():
            raise SoakError(f"a producer ({self.kind}) does not pause")

    def end(self) -> None:
        self._is_over.set()
        self._is_open.set()

    @property
    def may_append(self) -> bool:
        return self._is_open.is_set() and not self._is_over.is_set()

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                if not self._is_open.is_set():
                    self._is_idle.set()
                    self._is_open.wait(0.2)
                    continue
                try:
                    self.work()
                except (OSError, ClientException):
                    self.disconnect()
                    time.sleep(_RETRY_SECONDS)
                except StreamManagerException:
                    # A refusal of the connection, or of a stream that is just being made.
                    time.sleep(_RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - the arena raises it
            self.error = error
        finally:
            self.disconnect()
            self._is_idle.set()

    @abstractmethod
    def work(self) -> None:
        """Appends until the gate is closed. OSError if the broker is gone."""

    @abstractmethod
    def disconnect(self) -> None: ...

    def keep_pace(self, count: int) -> None:
        time.sleep(count / self._rate)


class PipelinedProducer(Producer):
    """Several appends under way on one connection."""

    kind = "pipelined"

    def __init__(self, broker: BrokerProgram, sources: Sequence[Source], rate: float) -> None:
        super().__init__(broker, sources, rate)
        self._connection: Connection | None = None

    def work(self) -> None:
        if self._connection is None:
            self._connection = self.broker.connect()
        while self.may_append:
            waiting: dict[str, tuple[Source, int]] = {}
            for source in self.sources:
                counter = source.send(_WINDOW)
                for place in range(counter, counter + _WINDOW):
                    request = self._connection.send(
                        Operation.AppendMessage,
                        name=source.stream,
                        payload=make_payload(source.name, place),
                    )
                    waiting[request] = source, place
            count = len(waiting)
            while waiting:
                _, response = self._connection.receive()
                source, place = waiting.pop(response["requestId"])
                if response["status"] == ResponseStatusCode.Success:
                    source.answer(place, response["sequenceNumber"])
                    self.answers += 1
                elif is_refused(response.get("errorMessage", "")):
                    source.refuse(place)
                    self.refusals += 1
            self.keep_pace(count)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ClientProducer(Producer):
    """Penstock's own client, one message or a batch at a time."""

    kind = "own client"

    def __init__(
        self, broker: BrokerProgram, sources: Sequence[Source], rate: float, seed: int
    ) -> None:
        super().__init__(broker, sources, rate)
        self._random = Random(seed)
        self._client: StreamManagerClient | None = None

    def work(self) -> None:
        if self._client is None:
            self._client = StreamManagerClient(
                "127.0.0.1", self.broker.port, token=self.broker.token, reconnect_timeout=0
            )
        while self.may_append:
            source = self._random.choice(self.sources)
            count = self._random.choice((1, 1, 1, 5, 20))
            first = source.send(count)
            payloads = [make_payload(source.name, first + place) for place in range(count)]
            try:
                if count == 1:
                    numbers: Sequence[int] = [
                        self._client.append_message(source.stream, payloads[0])
                    ]
                else:
                    numbers = self._client.append_messages(source.stream, payloads)
            except (UnansweredException, OSError):
                raise
            except StreamManagerException as error:
                if not isinstance(error, ClientException) and is_refused(error.message):
                    for place in range(count):
                        source.refuse(first + place)
                    self.refusals += count
            else:
                for place, number in enumerate(numbers):
                    source.answer(first + place, number)
                self.answers += count
            self.keep_pace(count)

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class SdkProducer(Producer):
    """The AWS SDK for Python, unmodified, in a process and an environment of its own."""

    kind = "AWS SDK"
    _BATCH = 20

    def __init__(self, broker: BrokerProgram, sources: Sequence[Source], rate: float) -> None:
        super().__init__(broker, sources, rate)
        self._process: subprocess.Popen[str] | None = None

    def work(self) -> None:
        if self._process is None:
            self._process = self._spawn()
        while self.may_append:
            for source in self.sources:
                self._append(source, source.send(self._BATCH))
            self.keep_pace(self._BATCH * len(self.sources))

    def _append(self, source: Source, first: int) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {
            "stream": source.stream,
            "source": source.name,
            "first": first,
            "count": self._BATCH,
            "port": self.broker.port,
        }
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        while True:
            line = self._process.stdout.readline()
            if not line:
                raise OSError("the process of the AWS SDK ended")
            answer = json.loads(line)
            if "done" in answer:
                return
            if "number" in answer:
                source.answer(answer["counter"], answer["number"])
                self.answers += 1
            elif answer["refused"] and is_refused(answer["refused"]):
                source.refuse(answer["counter"])
                self.refusals += 1

    def _spawn(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": self.broker.token,
        }
        return subprocess.Popen(
            [str(SDK_PYTHON), str(PROJECT / "soak" / "sdk_client.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def disconnect(self) -> None:
        # The process connects again by itself.
        if self._is_over.is_set() and self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


class Load:
    """All producers of an arena."""

    def __init__(self) -> None:
        self.producers: list[Producer] = []

    def add(self, producer: Producer) -> None:
        self.producers.append(producer)
        producer.start()

    def go(self) -> None:
        for producer in self.producers:
            producer.open_gate()

    def pause(self) -> None:
        """Until nothing is under way. The broker serves, or is gone."""
        for producer in self.producers:
            producer.close_gate()
        for producer in self.producers:
            producer.wait_until_idle()
            if producer.error is not None:
                raise SoakError(f"a producer ({producer.kind}) failed: {producer.error!r}")

    def end(self) -> None:
        for producer in self.producers:
            producer.end()
        for producer in self.producers:
            producer.join(_PAUSE_TIMEOUT_SECONDS)

    def answers_by_kind(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for producer in self.producers:
            totals[producer.kind] = totals.get(producer.kind, 0) + producer.answers
        return totals

    @property
    def refusals(self) -> int:
        return sum(producer.refusals for producer in self.producers)


def exists_already(error: StreamManagerException) -> bool:
    return isinstance(error, InvalidRequestException) and "exist" in error.message
