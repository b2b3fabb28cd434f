"""Kinesis Data Streams: the operations that producers and consumers of records need.

The sandbox has its own streams, because moto scans all sequence numbers for each new record, and
becomes slower with every record.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.sandbox.kinesis_requests import (
    MAX_LARGE_RECORD_KIB,
    MAX_RECORD_KIB,
    CreateStream,
    GetRecords,
    GetShardIterator,
    ListStreams,
    NewRecord,
    PutRecord,
    PutRecords,
    StreamRequest,
)
from penstock.sandbox.kinesis_stream import (
    KinesisRecord,
    KinesisStream,
    ShardIterator,
    format_sequence_number,
    parse_sequence_number,
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
_MAX_RECORDS_PER_CALL = 500
_MAX_CALL_BYTES, _MAX_LARGE_CALL_BYTES = 5 * _MEBIBYTE, 10 * _MEBIBYTE
_MAX_READ_BYTES = 10 * _MEBIBYTE
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
        self._max_record_kib = MAX_LARGE_RECORD_KIB if large_records else MAX_RECORD_KIB
        self._streams: dict[str, KinesisStream] = {}
        self._lock = threading.Lock()
        self._operations = {
            "CreateStream": _Operation(CreateStream, self._create),
            "DeleteStream": _Operation(StreamRequest, self._delete),
            "DescribeStream": _Operation(StreamRequest, self._describe),
            "DescribeStreamSummary": _Operation(StreamRequest, self._describe_summary),
            "GetRecords": _Operation(GetRecords, self._get_records),
            "GetShardIterator": _Operation(GetShardIterator, self._get_shard_iterator),
            "ListShards": _Operation(StreamRequest, self._list_shards),
            "ListStreams": _Operation(ListStreams, self._list_streams),
        }

    def create_stream(
        self,
        name: str,
        shards: int = 1,
        mode: str = "PROVISIONED",
        max_record_kib: int | None = None,
    ) -> None:
        """Raises ServiceError if the stream exists."""
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
                415, "SerializationException", "the Kinesis of the sandbox supports JSON, not CBOR"
            )
        _, _, name = request.headers.get("x-amz-target", "").partition(".")
        if name == "PutRecords":
            return self._read_put_records(read_json(request.body, PutRecords, _INVALID))
        if name == "PutRecord":
            return self._read_put_record(read_json(request.body, PutRecord, _INVALID))
        operation = self._operations.get(name)
        if operation is None:
            raise ServiceError(
                400,
                "UnknownOperationException",
                f"the sandbox does not support the operation {name!r}",
            )
        parsed = read_json(request.body, operation.kind, _INVALID)
        return ServiceCall(name, (parsed.stream,), (), lambda _: _answer(operation.perform(parsed)))

    def _read_put_records(self, request: PutRecords) -> ServiceCall:
        records = request.records

        def perform(refused: Mapping[int, str]) -> ServiceResponse:
            results = self._put(request.stream, records, refused)
            return _answer(
                {"FailedRecordCount": len(refused), "Records": results},
                stored=len(records) - len(refused),
                refused=len(refused),
            )

        return ServiceCall(
            "PutRecords", (request.stream,), (request.stream,) * len(records), perform
        )

    def _read_put_record(self, request: PutRecord) -> ServiceCall:
        def perform(refused: Mapping[int, str]) -> ServiceResponse:
            if refused:
                raise ServiceError(400, refused[0] or self.refusal, _rate_exceeded(request.stream))
            (result,) = self._put(request.stream, request.records, {})
            return _answer(result, stored=1)

        return ServiceCall("PutRecord", (request.stream,), (request.stream,), perform)

    def _put(
        self, name: str, records: Sequence[NewRecord], refused: Mapping[int, str]
    ) -> list[dict[str, str]]:
        stream = self._find(name)
        _check_sizes(stream, records)
        results = []
        with self._lock:
            now = self._clock() * 1000
            for index, record in enumerate(records):
                if index in refused:
                    code = refused[index] or self.refusal
                    results.append({"ErrorCode": code, "ErrorMessage": _rate_exceeded(name)})
                    continue
                shard = stream.find_shard(record.partition_key, record.explicit_hash_key)
                number = stream.buffer.add(
                    KinesisRecord(record.data, record.partition_key, shard, now), record.size
                )
                results.append({"SequenceNumber": format_sequence_number(number), "ShardId": shard})
        return results

    def _find(self, name: str) -> KinesisStream:
        if name not in self._streams and self._creates_streams:
            # A concurrent call may have created it.
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

    def _create(self, request: CreateStream) -> dict[str, Any]:
        mode = request.stream_mode_details.stream_mode
        shards = request.shard_count or (_ON_DEMAND_SHARDS if mode == "ON_DEMAND" else 1)
        self.create_stream(request.stream, shards, mode, request.max_record_size_in_kib)
        return {}

    def _delete(self, request: StreamRequest) -> dict[str, Any]:
        self._streams.pop(self._find(request.stream).name, None)
        return {}

    def _list_streams(self, _: ListStreams) -> dict[str, Any]:
        streams = [self._streams[name] for name in self.names()]
        return {
            "StreamNames": [stream.name for stream in streams],
            "StreamSummaries": [_summary(stream) for stream in streams],
            "HasMoreStreams": False,
        }

    def _describe(self, request: StreamRequest) -> dict[str, Any]:
        stream = self._find(request.stream)
        details = {
            "Shards": stream.describe_shards(),
            "HasMoreShards": False,
            "RetentionPeriodHours": _RETENTION_HOURS,
            "EnhancedMonitoring": [],
            "EncryptionType": "NONE",
        }
        return {"StreamDescription": _summary(stream) | details}

    def _describe_summary(self, request: StreamRequest) -> dict[str, Any]:
        stream = self._find(request.stream)
        details = {
            "OpenShardCount": len(stream.shards),
            "ConsumerCount": 0,
            "RetentionPeriodHours": _RETENTION_HOURS,
            "EnhancedMonitoring": [],
            "EncryptionType": "NONE",
            "MaxRecordSizeInKiB": stream.max_record_kib,
        }
        return {"StreamDescriptionSummary": _summary(stream) | details}

    def _list_shards(self, request: StreamRequest) -> dict[str, Any]:
        return {"Shards": self._find(request.stream).describe_shards()}

    def _get_shard_iterator(self, request: GetShardIterator) -> dict[str, Any]:
        stream = self._find(request.stream)
        if request.shard_id not in stream.shards:
            raise ServiceError(
                400,
                "ResourceNotFoundException",
                f"Shard {request.shard_id} in stream {stream.name} under account {ACCOUNT} "
                "does not exist",
            )
        try:
            with self._lock:
                number = _STARTS[request.shard_iterator_type](stream, request)
        except ValueError as error:
            raise ServiceError(400, "InvalidArgumentException", str(error)) from None
        return {"ShardIterator": ShardIterator(stream.name, request.shard_id, number).encode()}

    def _get_records(self, request: GetRecords) -> dict[str, Any]:
        start = request.start
        stream = self._find(start.stream)
        records: list[dict[str, Any]] = []
        size = millis_behind = 0
        with self._lock:
            next_number = max(start.number, stream.buffer.end)
            for number, record, record_size in stream.buffer.read(start.number):
                if record.shard_id != start.shard:
                    continue
                size += record_size
                if len(records) == request.limit or (records and size > _MAX_READ_BYTES):
                    next_number = number
                    millis_behind = max(1, int(self._clock() * 1000 - record.time))
                    break
                records.append(
                    {
                        "SequenceNumber": format_sequence_number(number),
                        "ApproximateArrivalTimestamp": record.time / 1000,
                        "Data": record.data,
                        "PartitionKey": record.partition_key,
                    }
                )
        return {
            "Records": records,
            "NextShardIterator": start._replace(number=next_number).encode(),
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


def _rate_exceeded(name: str) -> str:
    return f"Rate exceeded for stream {name} under account {ACCOUNT}."


def _check_sizes(stream: KinesisStream, records: Sequence[NewRecord]) -> None:
    if len(records) > _MAX_RECORDS_PER_CALL:
        raise _too_long("records", _MAX_RECORDS_PER_CALL)
    limit = stream.max_record_kib * 1024
    for number, record in enumerate(records, 1):
        if record.size > limit:
            raise _too_long(f"records.{number}.member.data", limit)
    has_large_records = stream.max_record_kib > MAX_RECORD_KIB
    call_bytes = _MAX_LARGE_CALL_BYTES if has_large_records else _MAX_CALL_BYTES
    if sum(record.size for record in records) > call_bytes:
        raise ServiceError(
            400,
            "InvalidArgumentException",
            f"Records size exceeds {call_bytes // _MEBIBYTE} MB limit",
        )


def _too_long(field: str, limit: int) -> ServiceError:
    return ServiceError(
        400,
        _INVALID,
        f"1 validation error detected: Value at '{field}' failed to satisfy constraint: "
        f"Member must have length less than or equal to {limit}",
    )


def _at_time(stream: KinesisStream, request: GetShardIterator) -> int:
    if request.timestamp is None:
        raise ValueError("AT_TIMESTAMP needs a Timestamp")
    return stream.find_number_at_time(request.timestamp * 1000)


_STARTS: dict[str, Callable[[KinesisStream, GetShardIterator], int]] = {
    "TRIM_HORIZON": lambda stream, _: stream.buffer.first,
    "LATEST": lambda stream, _: stream.buffer.end,
    "AT_SEQUENCE_NUMBER": lambda _, request: parse_sequence_number(
        request.starting_sequence_number
    ),
    "AFTER_SEQUENCE_NUMBER": lambda _, request: (
        parse_sequence_number(request.starting_sequence_number) + 1
    ),
    "AT_TIMESTAMP": _at_time,
}
