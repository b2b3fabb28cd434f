"""Timing: a warm-up, then runs of all systems in turn, and the median of each."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes and repetitions of the measurements."""

    repetitions: int
    # For short runs: the machine's speed changes within seconds, and many runs average this out.
    short_repetitions: int
    one_at_a_time: int
    one_at_a_time_flushed: int
    many: int
    read: int
    stored: tuple[int, ...]
    scanned: int
    # Rounds, each with a new query, and messages per round.
    latency_rounds: int
    latency_messages: int
    idle_seconds: float
    # Seconds with the demo's load. The idle measurement takes half as long.
    edge_seconds: float
    # Exported messages per run.
    exported: int
    # Small files per run, and the size of the large file.
    files: int
    file_megabytes: int


FULL = Scale(
    repetitions=5,
    short_repetitions=25,
    one_at_a_time=2_000,
    one_at_a_time_flushed=300,
    many=200_000,
    read=100_000,
    stored=(1_000_000, 10_000_000),
    scanned=1_000_000,
    latency_rounds=3,
    latency_messages=200,
    idle_seconds=10,
    edge_seconds=60,
    exported=500_000,
    files=2_000,
    file_megabytes=1_000,
)
QUICK = Scale(
    repetitions=3,
    short_repetitions=9,
    one_at_a_time=1_000,
    one_at_a_time_flushed=200,
    many=40_000,
    read=20_000,
    stored=(100_000, 1_000_000),
    scanned=250_000,
    latency_rounds=1,
    latency_messages=200,
    idle_seconds=5,
    edge_seconds=20,
    exported=200_000,
    files=500,
    file_megabytes=400,
)


@dataclass(frozen=True)
class Figure:
    """The results of the runs of one system, in order."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """Half the distance between the best and the worst run, as a share of the median."""
        return (max(self.runs) - min(self.runs)) / 2 / self.median


@dataclass(frozen=True)
class Workload:
    """The work of one system: `prepare` is not timed, `work` is."""

    name: str
    work: Callable[[], None]
    prepare: Callable[[], None] = lambda: None
    # `work` processes the number of messages divided by this.
    divisor: int = 1


def measure_rates(
    workloads: list[Workload], messages: int, repetitions: int, warm_ups: int = 1
) -> Mapping[str, Figure]:
    """Measures messages per second, in turn: A, B, C, A, B, C.

    So other load on the machine affects all systems alike.
    """
    rates: dict[str, list[float]] = {workload.name: [] for workload in workloads}
    for repetition in range(warm_ups + repetitions):
        for workload in workloads:
            seconds = _time(workload)
            if repetition >= warm_ups:
                rates[workload.name].append(messages / workload.divisor / seconds)
    return {name: Figure(tuple(runs)) for name, runs in rates.items()}


def _time(workload: Workload) -> float:
    workload.prepare()
    # Pending writes of other systems would slow down this run.
    os.sync()
    start = time.perf_counter()
    workload.work()
    return time.perf_counter() - start
