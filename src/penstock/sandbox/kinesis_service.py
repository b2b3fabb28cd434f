"""Kinesis Data Streams, as far as those who put records and read them need it.

It keeps the streams itself: moto's put lists the numbers of all records before each of them, and
so becomes slower with every record.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.sandbox.kinesis_requests import (
    LARGE_RECORD_KIB,
    RECORD_KIB,
    CreateStream,
    GetRecords,
    GetShardIterator,
    ListStreams,
    NewRecord,
    OfStream,
    PutRecord,
    PutRecords,
)
from penstock.sandbox.kinesis_stream import (
    KinesisRecord,
    KinesisStream,
    ShardIterator,
    number_of,
    sequence_number,
)
from penstock.sandbox.record_buffer import Page
from penstock.sandbox.service import (
    ACCOUNT,
    Service,
    ServiceCall,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
    json_answer,
    read_json,
)

_MEBIBYTE = 1024 * 1024
_RECORDS_PER_CALL = 500
_CALL_BYTES, _LARGE_CALL_BYTES = 5 * _MEBIBYTE, 10 * _MEBIBYTE
_READ_BYTES = 10 * _MEBIBYTE
_ON_DEMAND_SHARDS = 4
_RETENTION_HOURS = 24
_INVALID = "ValidationException"


class _Operation(NamedTuple):
    kind: type[Any]
    perform: Callable[[Any], dict[str, Any]]


class Kinesis(Service):
    name = "kinesis"
    throttled = (400, "ProvisionedThroughputExceededException")
    refusal = "ProvisionedThroughputExceededException"

    def __init__(
        self,
        limit_bytes: int,
        clock: Callable[[], float],
        *,
        create_streams: bool = False,
        large_records: bool = False,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._creates_streams = create_streams
        self._max_record_kib = LARGE_RECORD_KIB if large_records else RECORD_KIB
        self._streams: dict[str, KinesisStream] = {}
        self._lock = threading.Lock()
        self._operations = {
            "CreateStream": _Operation(CreateStream, self._create),
            "DeleteStream": _Operation(OfStream, self._delete),
            "DescribeStream": _Operation(OfStream, self._describe),
            "DescribeStreamSummary": _Operation(OfStream, self._describe_summary),
            "GetRecords": _Operation(GetRecords, self._get_records),
            "GetShardIterator": _Operation(GetShardIterator, self._get_shard_iterator),
            "ListShards": _Operation(OfStream, self._list_shards),
            "ListStreams": _Operation(ListStreams, self._list_streams),
        }

    def create_stream(
        self,
        name: str,
        shards: int = 1,
        mode: str = "PROVISIONED",
        max_record_kib: int | None = None,
    ) -> None:
        """Raises ServiceError if there is one with this name."""
        stream = KinesisStream(
            name,
            shards,
            mode=mode,
            max_record_kib=max_record_kib or self._max_record_kib,
            created=self._clock(),
            limit=self._limit_bytes,
        )
        if self._streams.setdefault(name, stream) is not stream:
            raise ServiceError(
                400,
                "ResourceInUseException",
                f"Stream {name} under account {ACCOUNT} already exists.",
            )

    def read(self, request: ServiceRequest) -> ServiceCall:
        if "json" not in request.headers.get("content-type", ""):
            raise ServiceError(
                415, "SerializationException", "the sandbox's Kinesis speaks JSON only, not CBOR"
            )
        _, _, name = request.headers.get("x-amz-target", "").partition(".")
        if name == "PutRecords":
            return self._read_put_records(read_json(request.body, PutRecords, _INVALID))
        if name == "PutRecord":
            return self._read_put_record(read_json(request.body, PutRecord, _INVALID))
        operation = self._operations.get(name)
        if operation is None:
            raise ServiceError(
                400, "UnknownOperationException", f"the sandbox has no operation {name!r}"
            )
        asked = read_json(request.body, operation.kind, _INVALID)
        return ServiceCall(name, (asked.stream,), (), lambda _: _answer(operation.perform(asked)))

    def _read_put_records(self, asked: PutRecords) -> ServiceCall:
        records = asked.records

        def perform(refused: Mapping[int, str]) -> ServiceResponse:
            results = self._put(asked.stream, records, refused)
            return _answer(
                {"FailedRecordCount": len(refused), "Records": results},
                stored=len(records) - len(refused),
                refused=len(refused),
            )

        return ServiceCall("PutRecords", (asked.stream,), (asked.stream,) * len(records), perform)

    def _read_put_record(self, asked: PutRecord) -> ServiceCall:
        def perform(refused: Mapping[int, str]) -> ServiceResponse:
            if refused:
                raise ServiceError(400, refused[0] or self.refusal, _slow_down(asked.stream))
            (result,) = self._put(asked.stream, asked.records, {})
            return _answer(result, stored=1)

        return ServiceCall("PutRecord", (asked.stream,), (asked.stream,), perform)

    def _put(
        self, name: str, records: Sequence[NewRecord], refused: Mapping[int, str]
    ) -> list[dict[str, str]]:
        stream = self._find(name)
        _check_sizes(stream, records)
        results = []
        with self._lock:
            now = self._clock() * 1000
            for place, record in enumerate(records):
                if place in refused:
                    code = refused[place] or self.refusal
                    results.append({"ErrorCode": code, "ErrorMessage": _slow_down(name)})
                    continue
                shard = stream.find_shard(record.partition_key, record.explicit_hash_key)
                number = stream.buffer.add(
                    KinesisRecord(record.data, record.partition_key, shard, now), record.size
                )
                results.append({"SequenceNumber": sequence_number(number), "ShardId": shard})
        return results

    def _find(self, name: str) -> KinesisStream:
        if name not in self._streams and self._creates_streams:
            # Unless another call is faster.
            with contextlib.suppress(ServiceError):
                self.create_stream(name)
        stream = self._streams.get(name)
        if stream is None:
            raise ServiceError(
                400,
                "ResourceNotFoundException",
                f"Stream {name} under account {ACCOUNT} not found.",
            )
        return stream

    def _create(self, asked: CreateStream) -> dict[str, Any]:
        mode = asked.stream_mode_details.stream_mode
        shards = asked.shard_count or (_ON_DEMAND_SHARDS if mode == "ON_DEMAND" else 1)
        self.create_stream(asked.stream, shards, mode, asked.max_record_size_in_kib)
        return {}

    def _delete(self, asked: OfStream) -> dict[str, Any]:
        self._streams.pop(self._find(asked.stream).name, None)
        return {}

    def _list_streams(self, _: ListStreams) -> dict[str, Any]:
        streams = [self._streams[name] for name in self.names()]
        return {
            "StreamNames": [stream.name for stream in streams],
            "StreamSummaries": [_summary(stream) for stream in streams],
            "HasMoreStreams": False,
        }

    def _describe(self, asked: OfStream) -> dict[str, Any]:
        stream = self._find(asked.stream)
        more = {
            "Shards": stream.describe_shards(),
            "HasMoreShards": False,
            "RetentionPeriodHours": _RETENTION_HOURS,
            "EnhancedMonitoring": [],
            "EncryptionType": "NONE",
        }
        return {"StreamDescription": _summary(stream) | more}

    def _describe_summary(self, asked: OfStream) -> dict[str, Any]:
        stream = self._find(asked.stream)
        more = {
            "OpenShardCount": len(stream.shards),
            "ConsumerCount": 0,
            "RetentionPeriodHours": _RETENTION_HOURS,
            "EnhancedMonitoring": [],
            "EncryptionType": "NONE",
            "MaxRecordSizeInKiB": stream.max_record_kib,
        }
        return {"StreamDescriptionSummary": _summary(stream) | more}

    def _list_shards(self, asked: OfStream) -> dict[str, Any]:
        return {"Shards": self._find(asked.stream).describe_shards()}

    def _get_shard_iterator(self, asked: GetShardIterator) -> dict[str, Any]:
        stream = self._find(asked.stream)
        if asked.shard_id not in stream.shards:
            raise ServiceError(
                400,
                "ResourceNotFoundException",
                f"Shard {asked.shard_id} in stream {stream.name} under account {ACCOUNT} "
                "does not exist",
            )
        try:
            with self._lock:
                number = _STARTS[asked.shard_iterator_type](stream, asked)
        except ValueError as error:
            raise ServiceError(400, "InvalidArgumentException", str(error)) from None
        return {"ShardIterator": ShardIterator(stream.name, asked.shard_id, number).encode()}

    def _get_records(self, asked: GetRecords) -> dict[str, Any]:
        start = asked.start
        stream = self._find(start.stream)
        records: list[dict[str, Any]] = []
        size = millis_behind = 0
        with self._lock:
            following = max(start.number, stream.buffer.end)
            for number, record, record_size in stream.buffer.read(start.number):
                if record.shard_id != start.shard:
                    continue
                size += record_size
                if len(records) == asked.limit or (records and size > _READ_BYTES):
                    following = number
                    millis_behind = max(1, int(self._clock() * 1000 - record.time))
                    break
                records.append(
                    {
                        "SequenceNumber": sequence_number(number),
                        "ApproximateArrivalTimestamp": record.time / 1000,
                        "Data": record.data,
                        "PartitionKey": record.partition_key,
                    }
                )
        return {
            "Records": records,
            "NextShardIterator": start._replace(number=following).encode(),
            "MillisBehindLatest": millis_behind,
        }

    def names(self) -> list[str]:
        return sorted(self._streams)

    def page(self, name: str, number: int, limit: int) -> Page | None:
        stream = self._streams.get(name)
        if stream is None:
            return None
        with self._lock:
            return stream.buffer.page(number, limit)


def _answer(value: dict[str, Any], *, stored: int = 0, refused: int = 0) -> ServiceResponse:
    headers = {"Content-Type": "application/x-amz-json-1.1"}
    return json_answer(value, stored=stored, refused=refused, headers=headers)


def _summary(stream: KinesisStream) -> dict[str, Any]:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": "ACTIVE",
        "StreamModeDetails": {"StreamMode": stream.mode},
        "StreamCreationTimestamp": stream.created,
    }


def _slow_down(name: str) -> str:
    return f"Rate exceeded for stream {name} under account {ACCOUNT}."


def _check_sizes(stream: KinesisStream, records: Sequence[NewRecord]) -> None:
    if len(records) > _RECORDS_PER_CALL:
        raise _too_long("records", _RECORDS_PER_CALL)
    limit = stream.max_record_kib * 1024
    for place, record in enumerate(records, 1):
        if record.size > limit:
            raise _too_long(f"records.{place}.member.data", limit)
    call_bytes = _CALL_BYTES if stream.max_record_kib == RECORD_KIB else _LARGE_CALL_BYTES
    if sum(record.size for record in records) > call_bytes:
        raise ServiceError(
            400,
            "InvalidArgumentException",
            f"Records size exceeds {call_bytes // _MEBIBYTE} MB limit",
        )


def _too_long(what: str, limit: int) -> ServiceError:
    return ServiceError(
        400,
        _INVALID,
        f"1 validation error detected: Value at '{what}' failed to satisfy constraint: "
        f"Member must have length less than or equal to {limit}",
    )


def _at_time(stream: KinesisStream, asked: GetShardIterator) -> int:
    if asked.timestamp is None:
        raise ValueError("AT_TIMESTAMP needs a Timestamp")
    return stream.number_at_time(asked.timestamp * 1000)


_STARTS: dict[str, Callable[[KinesisStream, GetShardIterator], int]] = {
    "TRIM_HORIZON": lambda stream, _: stream.buffer.first,
    "LATEST": lambda stream, _: stream.buffer.end,
    "AT_SEQUENCE_NUMBER": lambda _, asked: number_of(asked.starting_sequence_number),
    "AFTER_SEQUENCE_NUMBER": lambda _, asked: number_of(asked.starting_sequence_number) + 1,
    "AT_TIMESTAMP": _at_time,
}
