"""A Kinesis stream and its records: shards, sequence numbers, iterators."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, NamedTuple

import msgspec

from penstock.sandbox.record_buffer import RecordBuffer
from penstock.sandbox.service import ACCOUNT, REGION

_HASHES = 2**128

# As long as those of AWS are, so that nobody takes them for numbers of 64 bits.
_SEQUENCE_PREFIX, _SEQUENCE_DIGITS = "4966", 52


class KinesisRecord(msgspec.Struct, rename="camel"):
    """A record as it is kept; in JSON its data is base64."""

    data: bytes
    partition_key: str
    shard_id: str
    # When it came, in milliseconds since 1970.
    time: float


class KinesisStream:
    """Records of all shards in the one order in which they came.

    A record's number on the buffer makes its sequence number, so those of a shard have gaps.
    """

    def __init__(
        self, name: str, shards: int, *, mode: str, max_record_kib: int, created: float, limit: int
    ) -> None:
        self.name = name
        self.arn = f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{name}"
        self.mode = mode
        self.max_record_kib = max_record_kib
        self.created = created
        self.shards = [f"shardId-{number:012d}" for number in range(shards)]
        self.buffer: RecordBuffer[KinesisRecord] = RecordBuffer(limit)

    def find_shard(self, partition_key: str, explicit_hash_key: str | None) -> str:
        if len(self.shards) == 1:
            return self.shards[0]
        if explicit_hash_key is not None:
            number = int(explicit_hash_key)
        else:
            digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
            number = int.from_bytes(digest)
        step = _HASHES // len(self.shards)
        return self.shards[min(number // step, len(self.shards) - 1)]

    def describe_shards(self) -> list[dict[str, Any]]:
        step = _HASHES // len(self.shards)
        starts = [step * place for place in range(len(self.shards))]
        ends = [start - 1 for start in starts[1:]] + [_HASHES - 1]
        return [
            {
                "ShardId": shard,
                "HashKeyRange": {"StartingHashKey": str(start), "EndingHashKey": str(end)},
                "SequenceNumberRange": {"StartingSequenceNumber": sequence_number(0)},
            }
            for shard, start, end in zip(self.shards, starts, ends, strict=True)
        ]

    def number_at_time(self, millis: float) -> int:
        """The first that came at this time or later."""
        numbers = (number for number, record, _ in self.buffer.read(0) if record.time >= millis)
        return next(numbers, self.buffer.end)


def sequence_number(number: int) -> str:
    return f"{_SEQUENCE_PREFIX}{number:0{_SEQUENCE_DIGITS}d}"


def number_of(sequence_number: str) -> int:
    """Raises ValueError if no stream of the sandbox has such a one."""
    if not sequence_number.startswith(_SEQUENCE_PREFIX):
        raise ValueError(f"{sequence_number} is not a sequence number")
    return int(sequence_number.removeprefix(_SEQUENCE_PREFIX))


class ShardIterator(NamedTuple):
    """Where the next read of a shard begins."""

    stream: str
    shard: str
    number: int

    def encode(self) -> str:
        return base64.b64encode(f"{self.stream}/{self.shard}/{self.number}".encode()).decode()

    @classmethod
    def decode(cls, text: str) -> ShardIterator:
        """Raises ValueError if it was not made by `encode`."""
        stream, shard, number = base64.b64decode(text, validate=True).decode().split("/")
        return cls(stream, shard, int(number))
