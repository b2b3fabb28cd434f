"""A Kinesis stream and its records: shards, sequence numbers, iterators."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, NamedTuple

import msgspec

from penstock.sandbox.record_buffer import RecordBuffer
from penstock.sandbox.service import ACCOUNT, REGION

_HASHES = 2**128

# The same length as in AWS, to detect clients that parse them as 64-bit numbers.
_SEQUENCE_PREFIX, _SEQUENCE_DIGITS = "4966", 52


class KinesisRecord(msgspec.Struct, rename="camel"):
    """A stored record. In JSON its data is base64."""

    data: bytes
    partition_key: str
    shard_id: str
    # Arrival, in milliseconds since 1970.
    time: float


class KinesisStream:
    """A stream whose shards share one buffer of records, in order of arrival.

    A sequence number is made from a record's number in the buffer, so the sequence numbers of a
    shard have gaps.
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
        starts = [step * index for index in range(len(self.shards))]
        ends = [start - 1 for start in starts[1:]] + [_HASHES - 1]
        return [
            {
                "ShardId": shard,
                "HashKeyRange": {"StartingHashKey": str(start), "EndingHashKey": str(end)},
                "SequenceNumberRange": {"StartingSequenceNumber": format_sequence_number(0)},
            }
            for shard, start, end in zip(self.shards, starts, ends, strict=True)
        ]

    def find_number_at_time(self, millis: float) -> int:
        """Returns the number of the first record that arrived at this time or later."""
        numbers = (number for number, record, _ in self.buffer.read(0) if record.time >= millis)
        return next(numbers, self.buffer.end)


def format_sequence_number(number: int) -> str:
    return f"{_SEQUENCE_PREFIX}{number:0{_SEQUENCE_DIGITS}d}"


def parse_sequence_number(text: str) -> int:
    """Raises ValueError if the text is not a sequence number of the sandbox."""
    if not text.startswith(_SEQUENCE_PREFIX):
        raise ValueError(f"{text} is not a sequence number")
    return int(text.removeprefix(_SEQUENCE_PREFIX))


class ShardIterator(NamedTuple):
    """The position of the next read of a shard."""

    stream: str
    shard: str
    number: int

    def encode(self) -> str:
        return base64.b64encode(f"{self.stream}/{self.shard}/{self.number}".encode()).decode()

    @classmethod
    def decode(cls, text: str) -> ShardIterator:
        """Raises ValueError if `encode` did not create the text."""
        stream, shard, number = base64.b64decode(text, validate=True).decode().split("/")
        return cls(stream, shard, int(number))
