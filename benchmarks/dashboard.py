"""Cost of the dashboard: a broker with 200 streams and a viewer, and one without a dashboard.

Measures append throughput at full load, and processor time at a million messages per minute.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.report import Comparison, Target, Unit
from benchmarks.servers import Penstock, running
from benchmarks.systems import MESSAGE_BYTES, make_payloads
from benchmarks.timing import Figure, Scale, Workload, measure_rates
from penstock import (
    ExportDefinition,
    KinesisConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.discovery import read_address

STREAMS = 200
MESSAGES_PER_MINUTE = 1_000_000
# As a share of the throughput, and of a core.
MAX_COST = 0.05

_BATCH_SIZE = 100
_PACED_ROUNDS = 3
_MAX_SIZE = 4 * 1024 * 1024


class WatchedPenstock(Penstock):
    name = "Penstock, watched"

    def command(self) -> list[str]:
        return [*super().command(), "--http-port", "0"]

    @property
    def url(self) -> str:
        address = read_address(self.root)
        assert address is not None
        assert address.http_url is not None
        return address.http_url


class UnwatchedPenstock(Penstock):
    name = "Penstock without a dashboard"


class Devices:
    """A client that appends to all streams in turn."""

    def __init__(self, server: Penstock) -> None:
        self.server = server
        self._client = StreamManagerClient(root=server.root)
        self._names = [f"dashboard-{number}" for number in range(STREAMS)]
        for name in self._names:
            self._client.create_message_stream(
                MessageStreamDefinition(
                    name=name,
                    max_size=_MAX_SIZE,
                    stream_segment_size=_MAX_SIZE // 4,
                    strategy_on_full=StrategyOnFull.OverwriteOldestData,
                    export_definition=ExportDefinition(
                        kinesis=[KinesisConfig("to-kinesis", kinesis_stream_name="k")]
                    ),
                )
            )

    def append(self, payloads: list[bytes]) -> None:
        """Appends without pauses."""
        for place, start in enumerate(range(0, len(payloads), _BATCH_SIZE)):
            name = self._names[place % STREAMS]
            self._client.append_messages(name, payloads[start : start + _BATCH_SIZE])

    def append_for(self, seconds: float, payloads: list[bytes]) -> float:
        """Appends a million messages per minute; returns the server's processor time in seconds."""
        began, used = time.perf_counter(), self._processor_seconds()
        sent = 0
        while (passed := time.perf_counter() - began) < seconds:
            if sent < passed * MESSAGES_PER_MINUTE / 60:
                name = self._names[sent // _BATCH_SIZE % STREAMS]
                self._client.append_messages(name, payloads[:_BATCH_SIZE])
                sent += _BATCH_SIZE
            else:
                time.sleep(0.001)
        return self._processor_seconds() - used

    def _processor_seconds(self) -> float:
        times = self.server.process().cpu_times()
        return times.user + times.system

    def close(self) -> None:
        self._client.close()


class Viewer:
    """Starts and stops `benchmarks.viewer`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.viewer", self._url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the viewer got no response")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate()
            if process.returncode:
                raise RuntimeError("a request of the viewer failed")

    def kill(self) -> None:
        """Ends a process that a failed measurement has left."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    watched = WatchedPenstock(directory / "watched")
    unwatched = UnwatchedPenstock(directory / "unwatched")
    with (
        running(watched, unwatched),
        _devices(watched) as ours,
        _devices(unwatched) as theirs,
        _viewer(watched.url) as viewer,
    ):
        yield _measure_full_load(ours, theirs, viewer, scale)
        yield _measure_paced_load(ours, theirs, viewer, scale)
        yield Comparison(
            "dashboard memory",
            f"Memory of a broker with {STREAMS} streams",
            Unit.MEGABYTES,
            {
                server.name: Figure((server.resident_bytes() / 1e6,))
                for server in (watched, unwatched)
            },
        )


@contextmanager
def _devices(server: Penstock) -> Iterator[Devices]:
    devices = Devices(server)
    try:
        yield devices
    finally:
        devices.close()


@contextmanager
def _viewer(url: str) -> Iterator[Viewer]:
    viewer = Viewer(url)
    try:
        yield viewer
    finally:
        viewer.kill()


def _measure_full_load(ours: Devices, theirs: Devices, viewer: Viewer, scale: Scale) -> Comparison:
    # A run takes several seconds, so that it includes polls, which are a second apart.
    payloads = make_payloads(scale.many) * 5

    workloads = [
        Workload(ours.server.name, partial(ours.append, payloads), viewer.start),
        Workload(theirs.server.name, partial(theirs.append, payloads), viewer.stop),
    ]
    figures = measure_rates(workloads, len(payloads), scale.repetitions)
    return Comparison.of_rates(
        "dashboard",
        f"Appends of {MESSAGE_BYTES} bytes to {STREAMS} streams, in batches",
        figures,
        {theirs.server.name: 1 - MAX_COST},
    )


def _measure_paced_load(ours: Devices, theirs: Devices, viewer: Viewer, scale: Scale) -> Comparison:
    payloads = make_payloads(_BATCH_SIZE)
    shares: dict[str, list[float]] = {ours.server.name: [], theirs.server.name: []}
    seconds = scale.idle_seconds
    for _ in range(_PACED_ROUNDS):
        viewer.start()
        shares[ours.server.name].append(100 * ours.append_for(seconds, payloads) / seconds)
        viewer.stop()
        shares[theirs.server.name].append(100 * theirs.append_for(seconds, payloads) / seconds)
    figures = {name: Figure(tuple(runs)) for name, runs in shares.items()}
    added = figures[ours.server.name].median - figures[theirs.server.name].median
    return Comparison(
        "dashboard processor",
        f"A broker at {MESSAGES_PER_MINUTE:,} messages a minute in {STREAMS} streams",
        Unit.CORE_SHARE,
        figures,
        {
            ours.server.name: Target(
                figures[theirs.server.name].median + 100 * MAX_COST,
                figures[ours.server.name].median,
                is_maximum=True,
                is_ratio=False,
            )
        },
        (f"The viewer adds {added:.1f} % of a core.",),
    )
