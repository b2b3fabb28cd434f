"""Reads of a thousand messages at a time, including decoding to Python objects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.report import Comparison
from benchmarks.systems import (
    AWS,
    MESSAGE_BYTES,
    REDIS,
    REDIS_HIREDIS,
    connected,
    make_payloads,
)
from benchmarks.timing import Scale, Workload, measure_rates

MESSAGES_PER_READ = 1000
READ_ALL = "Penstock, read_all"
MIN_RATIOS = {REDIS: 2.0, REDIS_HIREDIS: 2.0}


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    payloads = make_payloads(scale.read)
    with connected(directory) as systems:
        for name, client in systems.clients():
            if name not in (AWS, REDIS_HIREDIS):  # they read the stream of another client
                client.append_many(payloads)
        workloads = [
            Workload(name, partial(client.read, scale.read, MESSAGES_PER_READ))
            for name, client in systems.clients()
        ]
        workloads.insert(1, Workload(READ_ALL, partial(systems.penstock.read_all, scale.read)))
        yield Comparison.of_rates(
            "reads",
            f"Reads of {MESSAGES_PER_READ:,} messages of {MESSAGE_BYTES} bytes at a time",
            measure_rates(workloads, scale.read, scale.repetitions),
            MIN_RATIOS,
            systems.notes,
        )
