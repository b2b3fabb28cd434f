"""All systems under one measurement: servers that run, clients that are connected to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import NatsPy, Peer, RedisPy, has_hiredis
from benchmarks.servers import Nats, Penstock, Redis, Server, is_installed, running
from benchmarks.wire_client import WireClient

MESSAGE_BYTES = 256

PENSTOCK = "Penstock"
REDIS = "redis-py"
REDIS_HIREDIS = "redis-py with hiredis"
NATS = "nats-py"


@dataclass
class Systems:
    servers: list[Server]
    penstock: WireClient
    redis: dict[str, RedisPy] = field(default_factory=dict)
    nats: NatsPy | None = None
    notes: tuple[str, ...] = ()

    def peers(self) -> Iterator[tuple[str, Peer]]:
        yield from self.redis.items()
        if self.nats is not None:
            yield NATS, self.nats

    @contextmanager
    def held_to_one_core(self) -> Iterator[None]:
        """Clients and servers on one core.

        With one request at a time only one of the two ever has work. On cores of their own each
        request wakes an idle core twice, which in a virtual machine costs more than all the work;
        whether they get cores of their own is the scheduler's mood, and the figure would be too.
        """
        cores = os.sched_getaffinity(0)
        self._hold_to({min(cores)})
        try:
            yield
        finally:
            self._hold_to(cores)

    def _hold_to(self, cores: set[int]) -> None:
        os.sched_setaffinity(0, cores)
        for server in self.servers:
            server.hold_to(cores)


@contextmanager
def connected(directory: Path, *, flush_on_write: bool = False) -> Iterator[Systems]:
    """Each with an empty stream; Penstock's already holds the messages that prime the client."""
    broker = Penstock(directory / "penstock")
    redis_server = Redis(directory / "redis", sync_always=flush_on_write)
    nats_server = Nats(directory / "nats", sync_always=flush_on_write)
    servers: list[Server] = [broker]
    notes = []
    if is_installed("redis-server"):
        servers.append(redis_server)
    else:
        notes.append("Redis is left out: redis-server is not installed")
    if not is_installed("nats-server"):
        notes.append("NATS is left out: nats-server is not installed")
    elif flush_on_write and not nats_server.can_sync_always():
        notes.append("NATS is left out: this release cannot sync before it answers")
    else:
        servers.append(nats_server)
    with ExitStack() as stack:
        stack.enter_context(running(*servers))
        client = WireClient(broker.port, broker.token, "measured", MESSAGE_BYTES)
        systems = Systems(servers, stack.enter_context(client), notes=tuple(notes))
        client.create_stream(flush_on_write=flush_on_write)
        client.prime(make_payloads(10_000))
        if redis_server in servers:
            systems.redis[REDIS] = RedisPy(redis_server.port, with_hiredis=False)
            if has_hiredis():
                systems.redis[REDIS_HIREDIS] = RedisPy(redis_server.port, with_hiredis=True)
            for redis_client in systems.redis.values():
                stack.callback(redis_client.close)
        if nats_server in servers:
            systems.nats = NatsPy(nats_server.port)
            stack.callback(systems.nats.close)
        yield systems


def make_payloads(count: int) -> list[bytes]:
    """Random bytes, and an object of its own for each message."""
    data = os.urandom(count * MESSAGE_BYTES)
    return [data[start : start + MESSAGE_BYTES] for start in range(0, len(data), MESSAGE_BYTES)]
