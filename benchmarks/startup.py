"""Start-up time, from the start of the process to its ready line, by the number of stored messages.

The files are in the page cache, as after a restart of the process without a reboot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients import PenstockPy
from benchmarks.peers import NatsPy, PeerError, RedisPy, has_hiredis
from benchmarks.report import Comparison, Target, Unit
from benchmarks.servers import Nats, Penstock, Redis, Server, is_installed
from benchmarks.systems import MESSAGE_BYTES, make_payloads
from benchmarks.timing import Figure, Scale

# Medians of equal starts differ by up to this factor on a machine with other load.
MAX_RATIO = 1.15

# Appended before a kill, so that there is data to recover: more than the broker leaves unverified
# between two checkpoints.
_UNVERIFIED_MESSAGES = 20_000
_MESSAGES_PER_BATCH = 10_000

_CLEAN, _KILLED = "after a stop", "after kill -9"


@dataclass
class FilledServer:
    """A server with stored messages, and its start-up times in seconds."""

    label: str
    server: Server
    messages: int
    append: Callable[[int], None]
    after_stop: list[float] = field(default_factory=list)
    after_kill: list[float] = field(default_factory=list)

    def fill(self) -> None:
        self.server.start()
        if self.messages:
            self.append(self.messages)
        self.server.stop()

    def measure_starts(self) -> None:
        """Starts after a clean stop, kills the server after appends, starts again, stops."""
        self.after_stop.append(self.server.start())
        if self.messages:
            self.append(_UNVERIFIED_MESSAGES)
        self.server.kill()
        self.after_kill.append(self.server.start())
        self.server.stop()


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    payloads = make_payloads(_MESSAGES_PER_BATCH)
    brokers = [_make_broker(directory, total, payloads) for total in (0, *scale.stored)]
    everything = [*brokers, *_make_peers(directory, scale.stored[0], payloads)]
    for stored in everything:
        stored.fill()
    os.sync()
    for _ in range(scale.repetitions + 1):  # the first is the warm-up
        for stored in everything:
            stored.measure_starts()
    yield _compare(_CLEAN, everything, brokers, lambda stored: stored.after_stop)
    yield _compare(_KILLED, everything, brokers, lambda stored: stored.after_kill)


def _compare(
    how: str,
    everything: Sequence[FilledServer],
    brokers: Sequence[FilledServer],
    starts: Callable[[FilledServer], list[float]],
) -> Comparison:
    figures = {stored.label: Figure(tuple(starts(stored)[1:])) for stored in everything}
    _, few, many = brokers
    ratio = figures[many.label].median / figures[few.label].median
    return Comparison(
        f"startup {how}",
        f"Start-up {how}, with messages of {MESSAGE_BYTES} bytes stored",
        Unit.SECONDS,
        figures,
        {many.label: Target(MAX_RATIO, ratio, is_maximum=True)},
        (f"the ratio compares {many.messages:,} with {few.messages:,} messages",),
    )


def _make_broker(directory: Path, messages: int, payloads: Sequence[bytes]) -> FilledServer:
    broker = Penstock(directory / f"penstock-{messages}")
    is_created = False

    def append(count: int) -> None:
        nonlocal is_created
        client = PenstockPy(broker.root)
        if not is_created:
            client.create_stream()
            is_created = True
        for _ in range(0, count, len(payloads)):
            client.append_many(payloads)
        client.close()

    return FilledServer(f"Penstock, {messages:,}", broker, messages, append)


def _make_peers(
    directory: Path, messages: int, payloads: Sequence[bytes]
) -> Iterator[FilledServer]:
    """Yields the peers with the smaller number of messages: Redis holds them in memory."""
    redis_server, nats_server = Redis(directory / "redis"), Nats(directory / "nats")

    def append_to_redis(count: int) -> None:
        client = RedisPy(redis_server.port, with_hiredis=has_hiredis())
        for _ in range(0, count, len(payloads)):
            client.append_many(payloads)
        client.close()

    def append_to_nats(count: int) -> None:
        client = NatsPy(nats_server.port)
        for _ in range(0, count, len(payloads)):
            client.fill(payloads)
        if client.count() < count:
            raise PeerError(f"NATS stored {client.count()} of {count} messages")
        client.close()

    if is_installed("redis-server"):
        yield FilledServer(f"Redis, {messages:,}", redis_server, messages, append_to_redis)
    if is_installed("nats-server"):
        yield FilledServer(f"NATS, {messages:,}", nats_server, messages, append_to_nats)
