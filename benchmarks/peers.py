"""Benchmark clients of the peers: redis-py and nats-py, used as their documentation recommends.

Each uses one stream, one connection and one thread, and checks every response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Protocol

import nats
import redis
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StorageType
from redis._parsers import _RESP2Parser
from redis.connection import Connection, PythonRespSerializer

COMMANDS_PER_PIPELINE = 1000

_STREAM = "measured"
_FIELD = b"p"


class PeerError(Exception):
    """A peer returned an unexpected response."""


class BenchmarkClient(Protocol):
    """The operations of every measured client."""

    def empty(self) -> None: ...
    def append_one_at_a_time(self, payloads: Sequence[bytes]) -> None: ...
    def append_many(self, payloads: Sequence[bytes]) -> None: ...
    def read(self, total: int, count: int) -> None: ...


def has_hiredis() -> bool:
    return find_spec("hiredis") is not None


class PythonConnection(Connection):
    """A redis-py connection in pure Python, even if hiredis is installed."""

    def __init__(self, **options: Any) -> None:
        # redis-py has no types here. It chooses the RESP3 parser itself if it needs that.
        super().__init__(parser_class=_RESP2Parser, **options)  # type: ignore[no-untyped-call]

    def _construct_command_packer(self, packer: Any) -> Any:  # noqa: ARG002 - redis-py's
        return PythonRespSerializer(self._buffer_cutoff, self.encoder.encode)


class RedisPy:
    def __init__(self, port: int, *, with_hiredis: bool) -> None:
        kind = Connection if with_hiredis else PythonConnection
        pool = redis.ConnectionPool(connection_class=kind, host="127.0.0.1", port=port)
        self._redis = redis.Redis(connection_pool=pool)

    def close(self) -> None:
        self._redis.close()

    def empty(self) -> None:
        self._redis.delete(_STREAM)

    def append_one_at_a_time(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            if not self._redis.xadd(_STREAM, {_FIELD: payload}):
                raise PeerError("Redis returned no id")

    def append_many(self, payloads: Sequence[bytes]) -> None:
        for start in range(0, len(payloads), COMMANDS_PER_PIPELINE):
            batch = payloads[start : start + COMMANDS_PER_PIPELINE]
            pipeline = self._redis.pipeline(transaction=False)
            for payload in batch:
                pipeline.xadd(_STREAM, {_FIELD: payload})
            if len(set(pipeline.execute())) != len(batch):
                raise PeerError("Redis did not return a unique id for each append")

    def read(self, total: int, count: int) -> None:
        start = b"-"
        for _ in range(0, total, count):
            entries: Any = self._redis.xrange(_STREAM, min=start, count=count)
            if len(entries) != count:
                raise PeerError(f"Redis returned {len(entries)} of {count} messages")
            start = b"(" + entries[-1][0]


class NatsPy:
    """nats-py in an event loop that runs only during a call."""

    def __init__(self, port: int) -> None:
        self._runner = asyncio.Runner()
        self._run: Callable[[Coroutine[Any, Any, Any]], Any] = self._runner.run
        self._client = self._run(nats.connect(f"nats://127.0.0.1:{port}"))
        self._stream: JetStreamContext = self._client.jetstream()
        self._run(
            self._stream.add_stream(name=_STREAM, subjects=[_STREAM], storage=StorageType.FILE)
        )

    def close(self) -> None:
        self._run(self._client.close())
        self._runner.close()

    def empty(self) -> None:
        self._run(self._stream.purge_stream(_STREAM))

    def append_one_at_a_time(self, payloads: Sequence[bytes]) -> None:
        async def publish() -> None:
            last = 0
            for payload in payloads:
                answer = await self._stream.publish(_STREAM, payload)
                if answer.seq <= last:
                    raise PeerError("NATS returned sequence numbers that do not increase")
                last = answer.seq

        self._run(publish())

    def append_many(self, payloads: Sequence[bytes]) -> None:
        """Publishes with the default limit of nats-py: 4,000 messages in flight."""

        async def publish() -> None:
            futures = [await self._stream.publish_async(_STREAM, payload) for payload in payloads]
            answers = await asyncio.gather(*futures)
            if not all(before.seq < after.seq for before, after in pairwise(answers)):
                raise PeerError("NATS returned sequence numbers that do not increase")

        self._run(publish())

    def fill(self, payloads: Sequence[bytes]) -> None:
        """Appends without acknowledgements, to fill the stream before a measurement."""

        async def publish() -> None:
            for payload in payloads:
                await self._client.publish(_STREAM, payload)
            await self._client.flush(timeout=60)

        self._run(publish())

    def count(self) -> int:
        info = self._run(self._stream.stream_info(_STREAM))
        return int(info.state.messages)

    def read(self, total: int, count: int) -> None:
        async def fetch() -> None:
            # No acknowledgements, because reads of the other systems have none.
            subscription = await self._stream.pull_subscribe(
                _STREAM, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
            )
            for _ in range(0, total, count):
                messages = await subscription.fetch(count, timeout=30)
                if len(messages) != count:
                    raise PeerError(f"NATS returned {len(messages)} of {count} messages")
            await subscription.unsubscribe()

        self._run(fetch())
