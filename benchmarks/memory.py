"""Resident memory of idle servers, and of servers after appends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.clients import PenstockPy
from benchmarks.peers import NatsPy, RedisPy, has_hiredis
from benchmarks.report import Comparison, Target, Unit
from benchmarks.servers import Nats, Penstock, Redis, Server, is_installed, running
from benchmarks.systems import make_payloads
from benchmarks.timing import Figure, Scale

MAX_IDLE_MEGABYTES = 45

_SETTLE_SECONDS = 2.0


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    broker = Penstock(directory / "penstock")
    redis_server, nats_server = Redis(directory / "redis"), Nats(directory / "nats")
    servers: list[Server] = [broker]
    servers += [redis_server] if is_installed("redis-server") else []
    servers += [nats_server] if is_installed("nats-server") else []
    with running(*servers):
        idle = _resident(servers)
        yield Comparison(
            "memory idle",
            "Memory of an idle server",
            Unit.MEGABYTES,
            idle,
            {
                broker.name: Target(
                    MAX_IDLE_MEGABYTES, idle[broker.name].median, is_maximum=True, is_ratio=False
                )
            },
        )
        payloads = make_payloads(scale.many)
        client = PenstockPy(broker.root)
        client.create_stream()
        client.append_many(payloads)
        client.close()
        if redis_server in servers:
            redis_client = RedisPy(redis_server.port, with_hiredis=has_hiredis())
            redis_client.append_many(payloads)
            redis_client.close()
        if nats_server in servers:
            nats_client = NatsPy(nats_server.port)
            nats_client.append_many(payloads)
            nats_client.close()
        yield Comparison(
            "memory after appends",
            f"Memory after {scale.many:,} appends",
            Unit.MEGABYTES,
            _resident(servers),
        )


def _resident(servers: list[Server]) -> dict[str, Figure]:
    time.sleep(_SETTLE_SECONDS)
    return {server.name: Figure((server.resident_bytes() / 1e6,)) for server in servers}
