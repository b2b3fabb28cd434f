"""Appends of 256 bytes over the wire: one at a time, pipelined, in batches; flushed or not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.report import Comparison
from benchmarks.systems import (
    MESSAGE_BYTES,
    NATS,
    PENSTOCK,
    REDIS,
    REDIS_HIREDIS,
    Systems,
    connected,
    make_payloads,
)
from benchmarks.timing import Contender, Scale, measure_rates

ONE_AT_A_TIME = {REDIS: 1.2, REDIS_HIREDIS: 1.2, NATS: 2.0}
PIPELINED = {REDIS: 1.5, REDIS_HIREDIS: 1.5, NATS: 5.0}
BATCHES = "Penstock, AppendMessages"


def measure_unflushed(directory: Path, scale: Scale) -> Iterator[Comparison]:
    with connected(directory) as systems:
        yield _one_at_a_time(systems, scale.one_at_a_time, scale.repetitions, flushed=False)
        yield _pipelined(systems, scale.pipelined, scale.repetitions, flushed=False)


def measure_flushed(directory: Path, scale: Scale) -> Iterator[Comparison]:
    with connected(directory, flush_on_write=True) as systems:
        yield _one_at_a_time(systems, scale.one_at_a_time_flushed, scale.repetitions, flushed=True)
        yield _pipelined(systems, scale.pipelined, scale.repetitions, flushed=True)


def _one_at_a_time(
    systems: Systems, messages: int, repetitions: int, *, flushed: bool
) -> Comparison:
    payloads = make_payloads(messages)
    contenders = [Contender(PENSTOCK, partial(systems.penstock.append_one_at_a_time, payloads))]
    contenders += [
        Contender(name, partial(peer.append_one_at_a_time, payloads), peer.empty)
        for name, peer in systems.peers()
    ]
    with systems.held_to_one_core():
        figures = measure_rates(contenders, messages, repetitions)
    return Comparison.of_rates(
        "one-at-a-time-flushed" if flushed else "one-at-a-time",
        f"Appends of {MESSAGE_BYTES} bytes, one at a time{_flushed(flushed)}",
        figures,
        ONE_AT_A_TIME,
        systems.notes,
    )


def _pipelined(systems: Systems, messages: int, repetitions: int, *, flushed: bool) -> Comparison:
    payloads = make_payloads(messages)
    contenders = [
        Contender(PENSTOCK, partial(systems.penstock.append_pipelined, payloads)),
        Contender(BATCHES, partial(systems.penstock.append_batches, payloads)),
    ]
    contenders += [
        Contender(name, partial(peer.append_pipelined, payloads), peer.empty)
        for name, peer in systems.peers()
    ]
    return Comparison.of_rates(
        "pipelined-flushed" if flushed else "pipelined",
        f"Appends of {MESSAGE_BYTES} bytes, pipelined{_flushed(flushed)}",
        measure_rates(contenders, messages, repetitions),
        PIPELINED,
        systems.notes,
    )


def _flushed(flushed: bool) -> str:
    return ", on the disk before the answer" if flushed else ""
