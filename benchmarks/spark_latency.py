"""A streaming query: how soon it has a message, and what it costs while there is none.

The peer is what programs without a broker do: each message is a text file, moved into a directory
that Spark watches.
"""

from __future__ import annotations

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil

from benchmarks.clients import STREAM, PenstockPy, WrongAnswerError
from benchmarks.processes import measure_shares
from benchmarks.report import Comparison, Unit
from benchmarks.servers import Penstock, running
from benchmarks.spark_session import describe, started
from benchmarks.timing import Figure, Scale

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NO_QUERY = "no query"

_TIMEOUT_SECONDS = 60.0
# Between two messages, on average; never the same twice, so that they do not march in step with the
# batches.
_PAUSE_SECONDS = 0.05
# Of a query: its first batches are slower.
_WARM_UP_MESSAGES = 50
# What the last batch leaves to do is done.
_SETTLE_SECONDS = 2.0


class MessageSource(ABC):
    """Where a query gets its messages from, new for each round."""

    name: ClassVar[str]
    # The column in which they are.
    column: ClassVar[str]

    @abstractmethod
    def open(self) -> DataFrame:
        """What comes from now on."""

    @abstractmethod
    def send(self, message: str) -> None:
        """Store a message."""


class StreamSource(MessageSource):
    name = "Penstock"
    column = "payload"

    def __init__(self, spark: SparkSession, broker: Penstock, client: PenstockPy) -> None:
        self._spark = spark
        self._broker = broker
        self._client = client.client

    def open(self) -> DataFrame:
        reader = self._spark.readStream.format("penstock").option("stream", STREAM)
        reader = reader.option("root", str(self._broker.root))
        return reader.option("startingPosition", "latest").load()

    def send(self, message: str) -> None:
        self._client.append_message(STREAM, message.encode())


class TextFileSource(MessageSource):
    name = "text files"
    column = "value"

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._rounds = 0

    def open(self) -> DataFrame:
        self._rounds += 1
        self._watched.mkdir(parents=True)
        return self._spark.readStream.text(str(self._watched))

    def send(self, message: str) -> None:
        # Moved when it is complete, or Spark might read a part of it.
        beginning = self._directory / message
        beginning.write_text(f"{message}\n")
        beginning.rename(self._watched / message)

    @property
    def _watched(self) -> Path:
        return self._directory / f"watched-{self._rounds}"


@dataclass
class QueryMeasurements:
    """What the rounds of a source gave."""

    # Seconds, by round.
    latencies: list[list[float]] = field(default_factory=list)
    idle_shares: list[float] = field(default_factory=list)

    def percentile(self, percent: int) -> Figure:
        return Figure(tuple(_percentile(round_, percent) for round_ in self.latencies))


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    broker = Penstock(directory / "penstock")
    with running(broker), started(directory) as spark:
        client = PenstockPy(broker.root)
        try:
            client.create_stream()
            sources = [
                StreamSource(spark, broker, client),
                TextFileSource(spark, directory / "texts"),
            ]
            yield from _compare(spark, sources, directory / "checkpoints", scale)
        finally:
            client.close()


def _compare(
    spark: SparkSession, sources: list[MessageSource], checkpoints: Path, scale: Scale
) -> Iterator[Comparison]:
    measured = {source.name: QueryMeasurements() for source in sources}
    without = []
    for number in range(scale.latency_rounds + 1):
        for source in sources:
            query = RunningQuery(source, checkpoints / f"{source.name}-{number}")
            try:
                latencies = query.measure_latencies(scale.latency_messages)
                if number == 0:  # the warm-up
                    continue
                measured[source.name].latencies.append(latencies)
                measured[source.name].idle_shares.append(_measure_processor(scale.idle_seconds))
            finally:
                query.stop()
        if number > 0:
            without.append(_measure_processor(scale.idle_seconds))
    pause = f"{_PAUSE_SECONDS * 1000:.0f} ms"
    yield Comparison(
        "spark-latency",
        f"From a message to the rows of a streaming query, one each {pause}",
        Unit.SECONDS,
        {
            f"{name}, p{percent}": figures.percentile(percent)
            for name, figures in measured.items()
            for percent in (50, 99)
        },
        notes=(
            describe(spark),
            f"{scale.latency_rounds} x {scale.latency_messages} messages each",
        ),
    )
    idle = {name: Figure(tuple(figures.idle_shares)) for name, figures in measured.items()}
    yield Comparison(
        "spark-idle",
        "Processor time of an idle streaming query: Java, Python workers, broker",
        Unit.CORE_SHARE,
        {**idle, NO_QUERY: Figure(tuple(without))},
    )


class RunningQuery:
    """A query that notes when it has which message; a message is the moment it was sent."""

    def __init__(self, source: MessageSource, checkpoint: Path) -> None:
        self._source = source
        self._arrivals: dict[int, int] = {}
        writer = source.open().writeStream.foreachBatch(self._take)
        self._query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).start()

    def stop(self) -> None:
        self._query.stop()

    def measure_latencies(self, messages: int) -> list[float]:
        """Seconds from before a message is sent until its row is in this process."""
        self._send_until(lambda: bool(self._arrivals))
        for _ in range(_WARM_UP_MESSAGES):
            self._send()
        sent = [self._send() for _ in range(messages)]
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._arrivals.keys() >= set(sent):
            self._check(deadline)
            time.sleep(_PAUSE_SECONDS)
        return [(self._arrivals[moment] - moment) / 1e9 for moment in sent]

    def _take(self, frame: DataFrame, _: int) -> None:
        rows = frame.collect()
        now = time.monotonic_ns()
        for row in rows:
            moment = int(row[self._source.column])
            if moment in self._arrivals:
                raise WrongAnswerError(f"{self._source.name} gave a message twice")
            self._arrivals[moment] = now

    def _send_until(self, arrived: Callable[[], bool]) -> None:
        """A query that starts with the latest message does not have those before its start."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not arrived():
            self._check(deadline)
            self._send()

    def _send(self) -> int:
        time.sleep(random.uniform(0.5, 1.5) * _PAUSE_SECONDS)
        moment = time.monotonic_ns()
        self._source.send(str(moment))
        return moment

    def _check(self, deadline: float) -> None:
        error = self._query.exception()
        if error is not None:
            # Its text, which it asks Java for: that is gone when it is printed.
            raise WrongAnswerError(str(error))
        if time.monotonic() > deadline:
            raise WrongAnswerError(f"messages from {self._source.name} do not arrive")


def _measure_processor(seconds: float) -> float:
    """Percent of a core that all processes started from here use: Java, its Python, the broker."""
    time.sleep(_SETTLE_SECONDS)
    me = psutil.Process()
    return measure_shares(lambda: {"all": me.children(recursive=True)}, seconds)["all"]


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]
