"""`python -m benchmarks.kinesis_endpoint` serves a Kinesis that responds at once.

Its cost is the same for all clients: it counts the records of a call, and computes the latency of
small records, which contain their send time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from functools import cache
from typing import cast

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_DATA = re.compile(rb'"Data": ?"([A-Za-z0-9+/=]{1,32})"')
_RECORD = (
    b'{"SequenceNumber":"49590338271490256608559692538361571095921575989136588898",'
    b'"ShardId":"shardId-000000000000"}'
)
_SHARDS = (
    b'{"Shards":[{"ShardId":"shardId-000000000000","HashKeyRange":{"StartingHashKey":"0",'
    b'"EndingHashKey":"1"},"SequenceNumberRange":{"StartingSequenceNumber":"1"}}]}'
)
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n%b"
)


class RecordCounter:
    """Number of received records, and latencies by send time."""

    def __init__(self) -> None:
        self.records = 0
        self.latencies: dict[str, float] = {}

    def add(self, body: bytes) -> int:
        """Counts the records of a call, and returns their number."""
        count = body.count(b'"PartitionKey"')
        self.records += count
        if len(body) < 128 * count + 128:
            now = time.monotonic_ns()
            for data in _DATA.findall(body):
                sent = base64.b64decode(data).decode()
                self.latencies.setdefault(sent, (now - int(sent)) / 1e9)
        return count


@cache
def _response(count: int) -> bytes:
    records = b",".join([_RECORD] * count)
    return b'{"FailedRecordCount":0,"Records":[' + records + b"]}"


class KinesisConnection(asyncio.Protocol):
    def __init__(self, counts: RecordCounter) -> None:
        self._counts = counts
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (request := self._take_request()) is not None:
            assert self._transport is not None
            answer = self._answer(*request)
            self._transport.write(_ANSWER % (len(answer), answer))

    def _take_request(self) -> tuple[bytes, bytes] | None:
        head_end = self._received.find(b"\r\n\r\n") + 4
        if head_end < 4:
            return None
        length = _LENGTH.search(self._received, 0, head_end)
        end = head_end + (int(length[1]) if length else 0)
        if len(self._received) < end:
            return None
        head, body = bytes(self._received[:head_end]), bytes(self._received[head_end:end])
        del self._received[:end]
        return head, body

    def _answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"GET"):
            counts = {"records": self._counts.records, "latencies": self._counts.latencies}
            return json.dumps(counts).encode()
        if b"ListShards" in head:
            return _SHARDS
        return _response(self._counts.add(body))


async def _serve() -> None:
    counts = RecordCounter()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: KinesisConnection(counts), "127.0.0.1", 0)
    print(f"kinesis ready 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(_serve())
