"""The requests of Kinesis, parsed from JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from penstock.sandbox.kinesis_stream import ShardIterator
from penstock.sandbox.service import ServiceError

MAX_RECORD_KIB, MAX_LARGE_RECORD_KIB = 1024, 10_240
MAX_READ_RECORDS = 10_000

_Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"\A[a-zA-Z0-9_.-]+\Z")]
_PartitionKey = Annotated[str, Meta(min_length=1, max_length=256)]
_HashKey = Annotated[str, Meta(pattern=r"\A(0|[1-9]\d{0,38})\Z")]


class StreamRequest(msgspec.Struct, rename="pascal", kw_only=True):
    """A request about one stream, by its name or its ARN."""

    stream_name: _Name | None = None
    stream_arn: str | None = field(default=None, name="StreamARN")

    @property
    def stream(self) -> str:
        if self.stream_name is not None:
            return self.stream_name
        if self.stream_arn is not None:
            return self.stream_arn.rpartition("/")[2]
        raise ServiceError(400, "InvalidArgumentException", "StreamName or StreamARN is needed")


class _Mode(msgspec.Struct, rename="pascal"):
    stream_mode: Literal["PROVISIONED", "ON_DEMAND"]


class CreateStream(StreamRequest, rename="pascal", kw_only=True):
    stream_name: _Name
    shard_count: Annotated[int, Meta(ge=1, le=500)] | None = None
    stream_mode_details: _Mode = msgspec.field(default_factory=lambda: _Mode("PROVISIONED"))
    max_record_size_in_kib: (
        Annotated[int, Meta(ge=MAX_RECORD_KIB, le=MAX_LARGE_RECORD_KIB)] | None
    ) = field(default=None, name="MaxRecordSizeInKiB")


class NewRecord(msgspec.Struct, rename="pascal", kw_only=True):
    data: bytes
    partition_key: _PartitionKey
    explicit_hash_key: _HashKey | None = None

    @property
    def size(self) -> int:
        """The size that counts for limits: data and partition key."""
        return len(self.data) + len(self.partition_key.encode())


class PutRecords(StreamRequest, rename="pascal", kw_only=True):
    records: Annotated[list[NewRecord], Meta(min_length=1)]


class PutRecord(StreamRequest, rename="pascal", kw_only=True):
    data: bytes
    partition_key: _PartitionKey
    explicit_hash_key: _HashKey | None = None

    @property
    def records(self) -> list[NewRecord]:
        return [
            NewRecord(
                data=self.data,
                partition_key=self.partition_key,
                explicit_hash_key=self.explicit_hash_key,
            )
        ]


class GetShardIterator(StreamRequest, rename="pascal", kw_only=True):
    shard_id: str
    shard_iterator_type: Literal[
        "TRIM_HORIZON", "LATEST", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"
    ]
    starting_sequence_number: str = ""
    # Seconds since 1970.
    timestamp: float | None = None


class GetRecords(msgspec.Struct, rename="pascal"):
    shard_iterator: str
    limit: Annotated[int, Meta(ge=1, le=MAX_READ_RECORDS)] = MAX_READ_RECORDS

    @property
    def start(self) -> ShardIterator:
        try:
            return ShardIterator.decode(self.shard_iterator)
        except ValueError:
            raise ServiceError(400, "InvalidArgumentException", "Invalid ShardIterator.") from None

    @property
    def stream(self) -> str:
        return self.start.stream


class ListStreams(msgspec.Struct):
    """Lists all streams, without pages: a sandbox has few streams."""

    stream: str = ""
