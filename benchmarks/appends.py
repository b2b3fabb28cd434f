"""Appends of 256 bytes, one at a time and many at a time, with and without flush on write."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.report import Comparison
from benchmarks.systems import (
    AWS,
    MESSAGE_BYTES,
    NATS,
    REDIS,
    REDIS_HIREDIS,
    Systems,
    connected,
    make_payloads,
)
from benchmarks.timing import Scale, Workload, measure_rates

MIN_RATIOS_ONE_AT_A_TIME = {REDIS: 1.2, REDIS_HIREDIS: 1.2, NATS: 2.0}
# The AWS client appends this fraction of the messages: 1 / AWS_DIVISOR.
AWS_DIVISOR = 40

MIN_RATIOS_MANY = {REDIS: 1.5, REDIS_HIREDIS: 1.5, NATS: 5.0}


def measure_unflushed(directory: Path, scale: Scale) -> Iterator[Comparison]:
    with connected(directory) as systems:
        yield _measure_one_at_a_time(
            systems, scale.one_at_a_time, scale.short_repetitions, flushed=False
        )
        yield _measure_many(systems, scale.many, scale.repetitions, flushed=False)


def measure_flushed(directory: Path, scale: Scale) -> Iterator[Comparison]:
    with connected(directory, flush_on_write=True) as systems:
        yield _measure_one_at_a_time(
            systems, scale.one_at_a_time_flushed, scale.short_repetitions, flushed=True
        )
        yield _measure_many(systems, scale.many, scale.repetitions, flushed=True)


def _measure_one_at_a_time(
    systems: Systems, messages: int, repetitions: int, *, flushed: bool
) -> Comparison:
    payloads = make_payloads(messages)
    workloads = [
        Workload(name, partial(client.append_one_at_a_time, payloads), client.empty)
        for name, client in systems.clients()
    ]
    with systems.pinned_to_one_core():
        figures = measure_rates(workloads, messages, repetitions)
    return Comparison.of_rates(
        "one-at-a-time-flushed" if flushed else "one-at-a-time",
        f"Appends of {MESSAGE_BYTES} bytes, one at a time{_title_suffix(flushed)}",
        figures,
        MIN_RATIOS_ONE_AT_A_TIME,
        systems.notes,
    )


def _measure_many(
    systems: Systems, messages: int, repetitions: int, *, flushed: bool
) -> Comparison:
    payloads = make_payloads(messages)
    workloads = [
        Workload(name, partial(client.append_many, payloads), client.empty)
        for name, client in systems.clients()
        if name != AWS
    ]
    if systems.aws is not None:
        # It is slower by orders of magnitude, so it appends fewer messages.
        few = payloads[: messages // AWS_DIVISOR]
        workloads.append(Workload(AWS, partial(systems.aws.append_many, few), divisor=AWS_DIVISOR))
    return Comparison.of_rates(
        "many-flushed" if flushed else "many",
        f"Appends of {MESSAGE_BYTES} bytes, many at a time{_title_suffix(flushed)}",
        measure_rates(workloads, messages, repetitions),
        MIN_RATIOS_MANY,
        systems.notes,
    )


def _title_suffix(flushed: bool) -> str:
    return ", synced before the response" if flushed else ""
