"""Latency of a streaming query, and its processor time while idle.

The peer works without a broker: each message is a text file, moved into a directory that Spark
watches.
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
# The mean pause between two messages. Pauses are random, so that messages and batches are not in
# step.
_PAUSE_SECONDS = 0.05
# The first batches of a query are slower.
_WARM_UP_MESSAGES = 50
# Time for background work after the last batch.
_SETTLE_SECONDS = 2.0


class MessageSource(ABC):
    """The source of a query's messages. Each round opens it again."""

    name: ClassVar[str]
    # The column with the messages.
    column: ClassVar[str]

    @abstractmethod
    def open(self) -> DataFrame:
        """Returns a streaming DataFrame of the messages after this call."""

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
        # Moved when it is complete, so that Spark does not read a part of it.
        temporary = self._directory / message
        temporary.write_text(f"{message}\n")
        temporary.rename(self._watched / message)

    @property
    def _watched(self) -> Path:
        return self._directory / f"watched-{self._rounds}"


@dataclass
class QueryMeasurements:
    """Latencies and idle processor shares of the rounds of a source."""

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
    idle_without_query = []
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
            idle_without_query.append(_measure_processor(scale.idle_seconds))
    pause = f"{_PAUSE_SECONDS * 1000:.0f} ms"
    yield Comparison(
        "spark-latency",
        f"Latency from append to the rows of a streaming query, one each {pause}",
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
        {**idle, NO_QUERY: Figure(tuple(idle_without_query))},
    )


class RunningQuery:
    """A query that records the arrival time of each message. A message is its send time."""

    def __init__(self, source: MessageSource, checkpoint: Path) -> None:
        self._source = source
        self._arrivals: dict[int, int] = {}
        writer = source.open().writeStream.foreachBatch(self._record_arrivals)
        self._query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).start()

    def stop(self) -> None:
        self._query.stop()

    def measure_latencies(self, messages: int) -> list[float]:
        """Returns the seconds from before each send until the row is in this process."""
        self._send_until(lambda: bool(self._arrivals))
        for _ in range(_WARM_UP_MESSAGES):
            self._send()
        sent = [self._send() for _ in range(messages)]
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._arrivals.keys() >= set(sent):
            self._check(deadline)
            time.sleep(_PAUSE_SECONDS)
        return [(self._arrivals[moment] - moment) / 1e9 for moment in sent]

    def _record_arrivals(self, frame: DataFrame, _: int) -> None:
        rows = frame.collect()
        now = time.monotonic_ns()
        for row in rows:
            moment = int(row[self._source.column])
            if moment in self._arrivals:
                raise WrongAnswerError(f"{self._source.name}: duplicate message")
            self._arrivals[moment] = now

    def _send_until(self, arrived: Callable[[], bool]) -> None:
        """Sends messages until one arrives: the query skips messages before its start."""
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
            # The text is read now: it comes from Java, which has stopped when the error is printed.
            raise WrongAnswerError(str(error))
        if time.monotonic() > deadline:
            raise WrongAnswerError(f"timed out: messages from {self._source.name} do not arrive")


def _measure_processor(seconds: float) -> float:
    """Measures the percent of a core of all child processes: Java, Python workers, the broker."""
    time.sleep(_SETTLE_SECONDS)
    me = psutil.Process()
    return measure_shares(lambda: {"all": me.children(recursive=True)}, seconds)["all"]


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]
