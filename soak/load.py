"""Clients that append: pipelined requests, Penstock's client, the unmodified AWS SDK.

The ledger records each message before it is sent, and its response.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from penstock import StreamManagerClient
from penstock.errors import (
    ClientException,
    ResponseStatusCode,
    StreamManagerException,
    UnansweredException,
)
from penstock.wire.operations import Operation
from soak import load_threads
from soak.ledger import SourceLedger
from soak.load_threads import LoadThread
from soak.messages import make_payload
from soak.processes import BrokerAddress
from tests.raw_connection import RawConnection

PROJECT = Path(__file__).resolve().parents[1]
SDK_PYTHON = PROJECT / ".sdks" / "stream-manager-1.1.2" / "bin" / "python"

_MAX_IN_FLIGHT = 40


def is_refused(message: str) -> bool:
    """Returns whether an error says that the message was not stored.

    A message that cannot be synced is stored, and may be lost in a power cut.
    """
    return "cannot sync" not in message


class Producer(LoadThread):
    """Appends each message once, at a max rate."""

    def __init__(self, broker: BrokerAddress, sources: Sequence[SourceLedger], rate: float) -> None:
        super().__init__()
        self.broker = broker
        self.sources = list(sources)
        self._rate = rate
        self.answers = 0
        self.refusals = 0

    def limit_rate(self, count: int) -> None:
        time.sleep(count / self._rate)


class PipelinedProducer(Producer):
    """Pipelines appends on one connection."""

    kind = "pipelined"

    def __init__(self, broker: BrokerAddress, sources: Sequence[SourceLedger], rate: float) -> None:
        super().__init__(broker, sources, rate)
        self._connection: RawConnection | None = None

    def work(self) -> None:
        if self._connection is None:
            self._connection = self.broker.connect()
        while self.may_work:
            pending: dict[str, tuple[SourceLedger, int]] = {}
            for source in self.sources:
                counter = source.send(_MAX_IN_FLIGHT)
                for place in range(counter, counter + _MAX_IN_FLIGHT):
                    request = self._connection.send(
                        Operation.AppendMessage,
                        name=source.stream,
                        payload=make_payload(source.name, place),
                    )
                    pending[request] = source, place
            count = len(pending)
            while pending:
                _, response = self._connection.receive()
                source, place = pending.pop(response["requestId"])
                if response["status"] == ResponseStatusCode.Success:
                    source.answer(place, response["sequenceNumber"])
                    self.answers += 1
                elif is_refused(response.get("errorMessage", "")):
                    source.refuse(place)
                    self.refusals += 1
            self.limit_rate(count)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ClientProducer(Producer):
    """Appends with Penstock's client, one message or a batch at a time."""

    kind = "own client"

    def __init__(
        self, broker: BrokerAddress, sources: Sequence[SourceLedger], rate: float, seed: int
    ) -> None:
        super().__init__(broker, sources, rate)
        self._random = Random(seed)
        self._client: StreamManagerClient | None = None

    def work(self) -> None:
        if self._client is None:
            self._client = StreamManagerClient(
                "127.0.0.1", self.broker.port, token=self.broker.token, reconnect_timeout=0
            )
        while self.may_work:
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
            self.limit_rate(count)

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class SdkProducer(Producer):
    """Appends with the unmodified AWS SDK for Python, in a separate process and environment."""

    kind = "AWS SDK"
    _BATCH = 20

    def __init__(self, broker: BrokerAddress, sources: Sequence[SourceLedger], rate: float) -> None:
        super().__init__(broker, sources, rate)
        self._process: subprocess.Popen[str] | None = None

    def work(self) -> None:
        if self._process is None:
            self._process = self._spawn()
        while self.may_work:
            for source in self.sources:
                self._append(source, source.send(self._BATCH))
            self.limit_rate(self._BATCH * len(self.sources))

    def _append(self, source: SourceLedger, first: int) -> None:
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
                raise OSError("the process of the AWS SDK has ended")
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
        # The process reconnects by itself.
        if self.is_over and self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


class Load:
    """All producers of an arena, and its other load threads."""

    def __init__(self) -> None:
        self.producers: list[Producer] = []
        self._others: list[LoadThread] = []

    def add(self, producer: Producer) -> None:
        self.producers.append(producer)
        producer.start()

    def add_other(self, thread: LoadThread) -> None:
        self._others.append(thread)
        thread.start()

    @property
    def _threads(self) -> list[LoadThread]:
        return [*self.producers, *self._others]

    def resume(self) -> None:
        for each in self._threads:
            each.resume()

    def pause(self) -> None:
        load_threads.pause(self._threads)

    def end(self) -> None:
        load_threads.end(self._threads)

    def answers_by_kind(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for producer in self.producers:
            totals[producer.kind] = totals.get(producer.kind, 0) + producer.answers
        return totals

    @property
    def refusals(self) -> int:
        return sum(producer.refusals for producer in self.producers)
