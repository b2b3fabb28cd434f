"""Reads of a thousand messages at a time, up to Python objects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.report import Comparison
from benchmarks.systems import (
    MESSAGE_BYTES,
    PENSTOCK,
    REDIS,
    REDIS_HIREDIS,
    connected,
    make_payloads,
)
from benchmarks.timing import Contender, Scale, measure_rates
from benchmarks.wire_client import WireClient, WrongAnswerError

MESSAGES_A_READ = 1000
WANTED = {REDIS: 2.0, REDIS_HIREDIS: 2.0}


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    payloads = make_payloads(scale.read)
    with connected(directory) as systems:
        systems.penstock.append_batches(payloads)
        contenders = [Contender(PENSTOCK, partial(_read_all, systems.penstock, scale.read))]
        for name, peer in systems.peers():
            if name != REDIS_HIREDIS:  # it reads what redis-py has appended
                peer.append_pipelined(payloads)
            contenders.append(Contender(name, partial(peer.read, scale.read, MESSAGES_A_READ)))
        yield Comparison.of_rates(
            "reads",
            f"Reads of {MESSAGES_A_READ:,} messages of {MESSAGE_BYTES} bytes at a time",
            measure_rates(contenders, scale.read, scale.repetitions),
            WANTED,
            systems.notes,
        )


def _read_all(client: WireClient, total: int) -> None:
    for start in range(0, total, MESSAGES_A_READ):
        messages = client.read(start, MESSAGES_A_READ)
        numbers = messages[0]["sequenceNumber"], messages[-1]["sequenceNumber"]
        if len(messages) != MESSAGES_A_READ or numbers != (start, start + MESSAGES_A_READ - 1):
            raise WrongAnswerError(f"{len(messages)} messages, {numbers}, from {start} on")
