"""Kinesis data streams: PutRecords, at most 500 records at a time."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable, Sequence

import msgspec

from penstock.model import KinesisConfig
from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import (
    CallResult,
    Destination,
    DestinationCall,
    ExportContext,
    Messages,
    RefusedError,
    UnavailableError,
)

_SERVICE = "kinesis"
_MEBIBYTE = 1024 * 1024
_MAX_RECORDS = 500
_MAX_KEY_CHARACTERS = 256
# A stream's name or ARN.
_STREAM_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}|arn:[^\s\"\\]{1,2000}")
# The validity of a result of ListShards, and of a temporary failure.
_KNOWN_SECONDS = 300.0
_FAILED_SECONDS = 30.0

# By stream: the time until which the result of ListShards is valid, and whether it succeeded.
_shards: dict[str, tuple[float, bool]] = {}


class _Record(msgspec.Struct, gc=False, rename="pascal"):
    """A record of a call; bytes are base64 in JSON."""

    data: bytes
    partition_key: str


class _RecordResult(msgspec.Struct, rename="pascal"):
    # Required: an answer without it is not from Kinesis, so the records may not have arrived.
    failed_record_count: int
    # Decoded only if records failed.
    records: msgspec.Raw = msgspec.Raw()


_encode = msgspec.json.Encoder().encode
_decode_result = msgspec.json.Decoder(_RecordResult).decode
_decode_records = msgspec.json.Decoder(list[dict[str, str | None]]).decode


class KinesisDestination(Destination):
    def __init__(self, export: ExportContext) -> None:
        assert isinstance(export.config, KinesisConfig)
        settings = export.settings
        self._name = export.config.kinesis_stream_name
        self._timeout = export.timeout
        self.max_messages = min(export.config.batch_size or _MAX_RECORDS, _MAX_RECORDS)
        self._max_record_bytes = (10 if settings.kinesis_large_records else 1) * _MEBIBYTE
        self._max_call_bytes = (10 if settings.kinesis_large_records else 5) * _MEBIBYTE
        self._delay = settings.kinesis_inter_call_delay_ms / 1000
        self._key = settings.kinesis_partition_key
        self._stream = {"StreamARN" if self._name.startswith("arn:") else "StreamName": self._name}

    def prepare(self, messages: Messages) -> DestinationCall:
        numbers, payloads = messages.numbers, messages.payloads
        keys = self._make_keys(messages.stream, payloads)
        records = list(map(_Record, payloads, keys))
        skipped: dict[int, str] = {}
        # An upper bound: most calls are far below the limits.
        key_bytes = 4 * max(map(len, keys))
        if (
            max(map(len, payloads)) + key_bytes > self._max_record_bytes
            or sum(map(len, payloads)) + len(keys) * key_bytes > self._max_call_bytes
        ):
            fitting, skipped = self._fit(numbers, records)
            numbers, records = [*fitting], [*fitting.values()]
        body = _encode({**self._stream, "Records": records}) if records else b""
        return DestinationCall(len(records) + len(skipped), numbers, body, len(body), skipped)

    def _fit(
        self, numbers: Iterable[int], records: Iterable[_Record]
    ) -> tuple[dict[int, _Record], dict[int, str]]:
        """The first records, as many as fit in a call, and the reasons to skip others."""
        fitting: dict[int, _Record] = {}
        skipped: dict[int, str] = {}
        room = self._max_call_bytes
        for number, record in zip(numbers, records, strict=True):
            key_bytes = len(record.partition_key.encode())
            size = len(record.data) + key_bytes
            if size > self._max_record_bytes:
                skipped[number] = (
                    f"{len(record.data)} bytes and a partition key of {key_bytes}: the maximum "
                    f"of a Kinesis record is {self._max_record_bytes}"
                )
            elif size > room:
                break
            else:
                room -= size
                fitting[number] = record
        return fitting, skipped

    def send(self, call: DestinationCall) -> CallResult:
        if not _STREAM_NAME.fullmatch(self._name):
            raise UnavailableError(
                f"kinesisStreamName is {self._name!r}: expected up to 128 of a-z, A-Z, 0-9, _, . "
                "and -, or the ARN of a stream"
            )
        with aws.mapping_errors(_SERVICE, "PutRecords"):
            result = _decode_result(aws.call(_SERVICE, "PutRecords", call.content, self._timeout))
            if not result.failed_record_count:
                return CallResult()
            records = _decode_records(result.records)
            if len(records) != len(call.numbers):
                raise ValueError(f"{len(records)} results for {len(call.numbers)} records")
            failed = {
                number: f"kinesis PutRecords: {code}: {record.get('ErrorMessage') or ''}"
                for number, record in zip(call.numbers, records, strict=True)
                if (code := record.get("ErrorCode"))
            }
            if not failed:
                raise ValueError(f"{result.failed_record_count} failed records without ErrorCode")
        return CallResult(failed)

    @property
    def pause(self) -> float:
        """The configured delay, or 0 if the pipeline may list the shards of the stream."""
        if not self._delay:
            return 0.0
        valid_until, is_known = _shards.get(self._name, (0.0, False))
        if time.monotonic() >= valid_until:
            is_known, seconds = True, _KNOWN_SECONDS
            try:
                body = _encode({**self._stream, "MaxResults": 1})
                aws.call(_SERVICE, "ListShards", body, self._timeout)
            except (UnavailableError, RefusedError) as error:
                is_known = False
                if "AccessDenied" not in str(error):
                    seconds = _FAILED_SECONDS
            _shards[self._name] = time.monotonic() + seconds, is_known
        return 0.0 if is_known else self._delay

    def _make_keys(self, stream: str, payloads: Sequence[bytes]) -> list[str]:
        if self._key == "stream-name":
            return [stream] * len(payloads)
        digits = random.randbytes(16 * len(payloads)).hex()  # noqa: S311 - no secret
        keys = [digits[place : place + 32] for place in range(0, len(digits), 32)]
        if self._key.startswith("field:"):
            path = self._key.removeprefix("field:").split(".")
            pairs = zip(payloads, keys, strict=True)
            # A message without the field gets a random key instead of being skipped.
            keys = [_find_key(payload, path) or key for payload, key in pairs]
        return keys


def _find_key(payload: bytes, path: Sequence[str]) -> str | None:
    """The value of a JSON field; None if there is no such field, or it cannot be a key."""
    try:
        value = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        return None
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return str(value)[:_MAX_KEY_CHARACTERS]
