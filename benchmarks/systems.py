"""All measured systems: running servers and connected clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients import AwsPy, PenstockPy, has_aws_client
from benchmarks.peers import BenchmarkClient, NatsPy, RedisPy, has_hiredis
from benchmarks.servers import Nats, Penstock, Redis, Server, is_installed, running

MESSAGE_BYTES = 256

PENSTOCK = "Penstock"
AWS = "AWS client on Penstock"
REDIS = "redis-py"
REDIS_HIREDIS = "redis-py with hiredis"
NATS = "nats-py"


@dataclass
class Systems:
    servers: list[Server]
    penstock: PenstockPy
    aws: AwsPy | None = None
    redis: dict[str, RedisPy] = field(default_factory=dict)
    nats: NatsPy | None = None
    notes: tuple[str, ...] = ()

    def clients(self) -> Iterator[tuple[str, BenchmarkClient]]:
        """Yields all clients, ours first."""
        yield PENSTOCK, self.penstock
        if self.aws is not None:
            yield AWS, self.aws
        yield from self.peers()

    def peers(self) -> Iterator[tuple[str, BenchmarkClient]]:
        yield from self.redis.items()
        if self.nats is not None:
            yield NATS, self.nats

    @contextmanager
    def pinned_to_one_core(self) -> Iterator[None]:
        """Runs clients and servers on one core during the block.

        With one request at a time, only one of client and server has work. On separate cores each
        request wakes an idle core twice, which in a virtual machine costs more than the request.
        The scheduler's choice of cores differs between runs and would dominate the figure.
        """
        cores = os.sched_getaffinity(0)
        self._pin_to({min(cores)})
        try:
            yield
        finally:
            self._pin_to(cores)

    def _pin_to(self, cores: set[int]) -> None:
        os.sched_setaffinity(0, cores)
        for server in self.servers:
            server.pin_to(cores)
        if self.aws is not None:
            self.aws.pin_to(cores)


@contextmanager
def connected(directory: Path, *, flush_on_write: bool = False) -> Iterator[Systems]:
    """Starts the servers and connects the clients, each to an empty stream."""
    broker = Penstock(directory / "penstock")
    redis_server = Redis(directory / "redis", sync_always=flush_on_write)
    nats_server = Nats(directory / "nats", sync_always=flush_on_write)
    servers: list[Server] = [broker]
    notes = []
    if not has_aws_client():
        notes.append("the AWS client is omitted: it is not installed")
    if is_installed("redis-server"):
        servers.append(redis_server)
    else:
        notes.append("Redis is omitted: redis-server is not installed")
    if not is_installed("nats-server"):
        notes.append("NATS is omitted: nats-server is not installed")
    elif flush_on_write and not nats_server.can_sync_always():
        notes.append("NATS is omitted: this version cannot sync before it responds")
    else:
        servers.append(nats_server)
    with ExitStack() as stack:
        stack.enter_context(running(*servers))
        client = PenstockPy(broker.root)
        stack.callback(client.close)
        client.create_stream(flush_on_write=flush_on_write)
        systems = Systems(servers, client, notes=tuple(notes))
        if has_aws_client():
            systems.aws = AwsPy(broker.port, broker.token)
            stack.callback(systems.aws.close)
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
    """Returns random messages, each a separate object."""
    data = os.urandom(count * MESSAGE_BYTES)
    return [data[start : start + MESSAGE_BYTES] for start in range(0, len(data), MESSAGE_BYTES)]
