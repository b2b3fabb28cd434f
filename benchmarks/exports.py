"""Throughput and latency of exports through Spark to a Kinesis endpoint that responds at once.

The peer is a program without a stream manager: a loop around boto3's `put_records` with full
calls, in one process.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import psutil

from benchmarks.clients import WrongAnswerError
from benchmarks.processes import memory_bytes
from benchmarks.report import Comparison, Target, Unit
from benchmarks.servers import Penstock, Server, running
from benchmarks.timing import Figure, Scale, Workload, measure_rates
from penstock import (
    ExportDefinition,
    KinesisConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)

LOOP = "boto3, put_records in a loop"
ONE_BY_ONE = "boto3, put_record"

_MESSAGE = bytes(256)
_RECORDS_PER_CALL = 500
_TIMEOUT_SECONDS = 300.0
_PAUSE_SECONDS = 0.05
_STREAMS = 10
_EXPORTS = 10
_BACKLOG_FACTOR = 4
_URGENT = 1

# Targets.
_MIN_RATIO = 2.0
_MIN_RATIO_MANY = 3.0
_MAX_URGENT_SECONDS = 0.02
_MAX_BEHIND_BACKLOG_SECONDS = 0.3
_MAX_AFTER_IDLING_SECONDS = 1.0


class KinesisEndpoint(Server):
    name = "Kinesis"
    ready_line = re.compile(r"^kinesis ready ")
    port_line = re.compile(r"^kinesis ready .*:(\d+)$")

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.kinesis_endpoint"]

    @property
    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}

    @property
    def aws_variables(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def counts(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/") as answer:
            counts: dict[str, Any] = json.load(answer)
            return counts

    def wait_for(self, records: int) -> None:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while (got := self.counts()["records"]) < records:
            if time.monotonic() > deadline:
                raise WrongAnswerError(f"timed out: {got} of {records} records have arrived")
            time.sleep(0.01)


class PipelineServer(Server):
    name = "Penstock pipeline"
    ready_line = re.compile(r"^penstock pipeline ready")
    port_line = re.compile(r"(?!)")

    def __init__(self, directory: Path, broker: Penstock, variables: dict[str, str]) -> None:
        super().__init__(directory)
        self._broker = broker
        # Endpoint and credentials of the destination.
        self._variables = variables

    def command(self) -> list[str]:
        return [sys.executable, "-m", "penstock", "pipeline", "--root", str(self._broker.root)]

    @property
    def variables(self) -> dict[str, str]:
        return self._variables

    def processes(self) -> list[psutil.Process]:
        """Returns the driver, Java and the Python workers."""
        driver = self.process()
        return [driver, *driver.children(recursive=True)]


class ExportBench:
    """A running broker, pipeline and Kinesis endpoint."""

    def __init__(
        self, broker: Penstock, pipeline: PipelineServer, kinesis: KinesisEndpoint
    ) -> None:
        self.broker = broker
        self.pipeline = pipeline
        self.kinesis = kinesis
        self.client = StreamManagerClient(root=broker.root)
        self._names = count()
        variables = kinesis.aws_variables
        self.boto3 = boto3.client(
            "kinesis",
            endpoint_url=variables["AWS_ENDPOINT_URL"],
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            region_name=variables["AWS_DEFAULT_REGION"],
        )

    def create(self, messages: int, exports: int = 1, priority: int | None = None) -> str:
        """Creates a stream with messages and paused exports."""
        name = f"bench-{next(self._names)}"
        configs = [
            KinesisConfig(f"k{number}", kinesis_stream_name=name, priority=priority, disabled=True)
            for number in range(exports)
        ]
        self.client.create_message_stream(
            MessageStreamDefinition(
                name=name,
                max_size=1 << 33,
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                export_definition=ExportDefinition(kinesis=configs),
            )
        )
        if messages:
            self.client.append_messages(name, [_MESSAGE] * messages)
        return name

    def resume(self, *names: str) -> None:
        for name in names:
            definition = self.client.describe_message_stream(name).definition
            for config in definition.export_definition.kinesis or []:
                config.disabled = False
            self.client.update_message_stream(definition)

    def export(self, names: list[str], records: int) -> None:
        before = self.kinesis.counts()["records"]
        self.resume(*names)
        self.kinesis.wait_for(before + records)

    def delete_streams(self, *names: str) -> None:
        for name in names:
            with suppress(Exception):
                self.client.delete_message_stream(name)


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    kinesis = KinesisEndpoint(directory / "kinesis")
    broker = Penstock(directory / "penstock")
    with running(kinesis), running(broker):
        pipeline = PipelineServer(directory / "pipeline", broker, kinesis.aws_variables)
        with running(pipeline):
            bench = ExportBench(broker, pipeline, kinesis)
            try:
                yield _compare_rates(bench, scale)
                yield _compare_many(bench, scale)
                yield _compare_latencies(bench, scale)
                yield _measure_urgent(bench, scale)
                yield _measure_after_idling(bench, scale)
                yield _measure_memory(bench)
            finally:
                bench.client.close()


def _put_in_loop(bench: ExportBench, records: int) -> None:
    for _ in range(records // _RECORDS_PER_CALL):
        bench.boto3.put_records(
            StreamName="loop",
            Records=[
                {"Data": _MESSAGE, "PartitionKey": f"{random.getrandbits(128):032x}"}
                for _ in range(_RECORDS_PER_CALL)
            ],
        )


def _compare_rates(bench: ExportBench, scale: Scale) -> Comparison:
    names: list[str] = []

    def prepare() -> None:
        bench.delete_streams(*names)
        names[:] = [bench.create(scale.exported)]

    workloads = [
        Workload("Penstock", lambda: bench.export(names, scale.exported), prepare),
        Workload(LOOP, lambda: _put_in_loop(bench, scale.exported // 4), divisor=4),
    ]
    figures = measure_rates(workloads, scale.exported, scale.repetitions)
    bench.delete_streams(*names)
    return Comparison.of_rates(
        "exports",
        "Exports of 256-byte messages to Kinesis, one stream with one export",
        figures,
        {LOOP: _MIN_RATIO},
    )


def _compare_many(bench: ExportBench, scale: Scale) -> Comparison:
    names: list[str] = []
    each = scale.exported // _STREAMS // _EXPORTS

    def prepare() -> None:
        bench.delete_streams(*names)
        names[:] = [bench.create(each, _EXPORTS) for _ in range(_STREAMS)]

    records = each * _STREAMS * _EXPORTS
    workloads = [
        Workload("Penstock", lambda: bench.export(names, records), prepare),
        Workload(LOOP, lambda: _put_in_loop(bench, records // 4), divisor=4),
    ]
    figures = measure_rates(workloads, records, scale.repetitions)
    bench.delete_streams(*names)
    return Comparison.of_rates(
        "exports-many",
        f"{_STREAMS} streams with {_EXPORTS} exports each, one pipeline",
        figures,
        {LOOP: _MIN_RATIO_MANY},
    )


def _compare_latencies(bench: ExportBench, scale: Scale) -> Comparison:
    urgent, usual = bench.create(0, priority=_URGENT), bench.create(0)
    bench.resume(urgent, usual)
    streams = {"Penstock, priority 1": urgent, "Penstock, gathered": usual, ONE_BY_ONE: None}
    rounds: dict[str, list[list[float]]] = {name: [] for name in streams}
    for _ in range(scale.latency_rounds):
        for name, stream in streams.items():
            rounds[name].append(_measure_latencies(bench, scale.latency_messages, stream))
    bench.delete_streams(urgent, usual)
    figures = {
        f"{name}, p{percent}": Figure(tuple(_percentile(run, percent) for run in runs))
        for name, runs in rounds.items()
        for percent in (50, 99)
    }
    name, figure = next(iter(figures.items()))
    return Comparison(
        "exports-latency",
        f"Latency from append to arrival at Kinesis, one each {_PAUSE_SECONDS * 1000:.0f} ms",
        Unit.SECONDS,
        figures,
        {name: Target(_MAX_URGENT_SECONDS, figure.median, is_maximum=True, is_ratio=False)},
        notes=("messages without a priority are gathered for a second: export_gather_ms",),
    )


def _measure_latencies(bench: ExportBench, messages: int, stream: str | None) -> list[float]:
    return _wait_for_latencies(bench, [_send(bench, stream) for _ in range(messages + 20)][20:])


def _wait_for_latencies(bench: ExportBench, sent: list[str]) -> list[float]:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not (found := bench.kinesis.counts()["latencies"]).keys() >= set(sent):
        if time.monotonic() > deadline:
            raise WrongAnswerError("timed out: messages do not arrive")
        time.sleep(_PAUSE_SECONDS)
    return [found[moment] for moment in sent]


def _send(bench: ExportBench, stream: str | None) -> str:
    """Sends a message with its send time, through a stream or directly to Kinesis."""
    time.sleep(random.uniform(0.5, 1.5) * _PAUSE_SECONDS)
    moment = str(time.monotonic_ns())
    if stream is None:
        bench.boto3.put_record(StreamName="one", Data=moment.encode(), PartitionKey=moment)
    else:
        bench.client.append_message(stream, moment.encode())
    return moment


def _measure_urgent(bench: ExportBench, scale: Scale) -> Comparison:
    """Measures the latency of urgent messages while a backlog is exported."""
    worst = []
    for _ in range(scale.latency_rounds):
        backlog = bench.create(scale.exported * _BACKLOG_FACTOR, priority=10)
        urgent = bench.create(0, priority=_URGENT)
        before = bench.kinesis.counts()["records"]
        bench.resume(urgent, backlog)
        bench.kinesis.wait_for(before + scale.exported // 4)
        worst.append(max(_measure_latencies(bench, 20, urgent)))
        bench.delete_streams(backlog, urgent)
    figure = Figure(tuple(worst))
    backlog_size = f"{scale.exported * _BACKLOG_FACTOR:,}"
    return Comparison(
        "exports-urgent",
        f"Slowest of 20 messages at priority 1, behind {backlog_size} at priority 10",
        Unit.SECONDS,
        {"Penstock": figure},
        {
            "Penstock": Target(
                _MAX_BEHIND_BACKLOG_SECONDS, figure.median, is_maximum=True, is_ratio=False
            )
        },
    )


def _measure_after_idling(bench: ExportBench, scale: Scale) -> Comparison:
    """Measures the latency of the first message after an idle time; it is not gathered."""
    name = bench.create(0)
    bench.resume(name)
    latencies = []
    for _ in range(scale.latency_rounds):
        time.sleep(scale.idle_seconds)
        latencies += _wait_for_latencies(bench, [_send(bench, name)])
    bench.delete_streams(name)
    figure = Figure(tuple(latencies))
    return Comparison(
        "exports-after-idling",
        f"First message after {scale.idle_seconds:g} s without messages",
        Unit.SECONDS,
        {"Penstock": figure},
        {
            "Penstock": Target(
                _MAX_AFTER_IDLING_SECONDS, max(latencies), is_maximum=True, is_ratio=False
            )
        },
    )


def _measure_memory(bench: ExportBench) -> Comparison:
    pipeline = bench.pipeline.processes()
    groups = {
        "Penstock broker": [bench.broker.process()],
        "Penstock pipeline, Java": [each for each in pipeline if each.name() == "java"],
        "Penstock pipeline, Python": [each for each in pipeline if each.name() != "java"],
    }
    return Comparison(
        "exports-memory",
        "Memory of broker and pipeline after these runs",
        Unit.MEGABYTES,
        {name: Figure((memory_bytes(members) / 1e6,)) for name, members in groups.items()},
    )


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]
