"""Kinesis data streams: PutRecords, at most 500 records at a time."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.model import KinesisConfig
from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import (
    Answer,
    Call,
    Destination,
    Export,
    Messages,
    RefusedError,
    UnavailableError,
)

_SERVICE = "kinesis"
_MEBIBYTE = 1024 * 1024
_MAX_RECORDS = 500
_MAX_KEY_CHARACTERS = 256
_FIELD = "field:"
# A stream's name, or its ARN in place of it.
_STREAM_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}|arn:[^\s\"\\]{1,2000}")
# How long it is believed what ListShards said; and that it said nothing, for once.
_KNOWN_SECONDS = 300.0
_FAILED_SECONDS = 30.0

# Until when what is known of the shards of a stream is believed, and whether they are known.
_shards: dict[tuple[str, str], tuple[float, bool]] = {}


class _Sent(NamedTuple):
    numbers: Sequence[int]
    body: bytes


class _Put(msgspec.Struct, gc=False, rename="pascal"):
    """A record on its way; bytes are base64 in JSON."""

    data: bytes
    partition_key: str


class _Counted(msgspec.Struct, rename="pascal"):
    """All that is looked at of an answer without failures."""

    # Not optional: what has none is no answer of Kinesis, and nothing may have arrived.
    failed_record_count: int


class _Record(msgspec.Struct, rename="pascal"):
    error_code: str | None = None
    error_message: str | None = None


class _Answered(msgspec.Struct, rename="pascal"):
    records: list[_Record]


_encode = msgspec.json.Encoder().encode
_decode_counted = msgspec.json.Decoder(_Counted).decode
_decode_answered = msgspec.json.Decoder(_Answered).decode


class KinesisDestination(Destination):
    def __init__(self, export: Export) -> None:
        assert isinstance(export.config, KinesisConfig)
        settings = export.settings
        self._name = export.config.kinesis_stream_name
        self._timeout = export.timeout
        self._max_records = min(export.config.batch_size or _MAX_RECORDS, _MAX_RECORDS)
        large = settings.kinesis_large_records
        self._record_bytes = (10 if large else 1) * _MEBIBYTE
        self._call_bytes = (10 if large else 5) * _MEBIBYTE
        self._delay = settings.kinesis_inter_call_delay_ms / 1000
        self._make_keys = _choose_keys(settings.kinesis_partition_key, export.stream)
        name = "StreamARN" if self._name.startswith("arn:") else "StreamName"
        self._stream = {name: self._name}

    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        end = min(start + min(limit, self._max_records), len(messages.numbers))
        payloads = messages.payloads[start:end]
        keys = self._make_keys(payloads)
        # No key has more bytes than that, and nearly all calls are far below the limits.
        key_bytes = 4 * max(map(len, keys))
        sizes = [len(payload) + key_bytes for payload in payloads]
        if sum(sizes) <= self._call_bytes and max(sizes) <= self._record_bytes:
            return self._make_call(start, end, {}, messages.numbers[start:end], payloads, keys)
        return self._prepare_large(messages, start, payloads, keys)

    def _prepare_large(
        self, messages: Messages, start: int, payloads: Sequence[bytes], keys: Sequence[str]
    ) -> Call:
        """A call that the sizes of its messages end, or of which some are too large."""
        skipped: dict[int, str] = {}
        places: list[int] = []
        stop, room = start, self._call_bytes
        for place, (payload, key) in enumerate(zip(payloads, keys, strict=True)):
            key_bytes = len(key.encode())
            size = len(payload) + key_bytes
            if size > self._record_bytes:
                skipped[messages.numbers[start + place]] = (
                    f"{len(payload)} bytes and {key_bytes} of its partition key: a Kinesis record "
                    f"has {self._record_bytes} at most"
                )
            elif size > room:
                break
            else:
                room -= size
                places.append(place)
            stop += 1
        return self._make_call(
            start,
            stop,
            skipped,
            [messages.numbers[start + place] for place in places],
            [payloads[place] for place in places],
            [keys[place] for place in places],
        )

    def _make_call(
        self,
        start: int,
        stop: int,
        skipped: Mapping[int, str],
        numbers: Sequence[int],
        payloads: Sequence[bytes],
        keys: Sequence[str],
    ) -> Call:
        if not numbers:
            return Call(start, stop, skipped, None, 0)
        records = list(map(_Put, payloads, keys))
        body = _encode({**self._stream, "Records": records})
        return Call(start, stop, skipped, _Sent(numbers, body), len(body))

    def send(self, call: Call) -> Answer:
        if not _STREAM_NAME.fullmatch(self._name):
            raise UnavailableError(
                f"kinesisStreamName is {self._name!r}: expected up to 128 of a-z, A-Z, 0-9, _, . "
                "and -, or the ARN of a stream"
            )
        numbers, body = call.content
        return _read_answer(aws.call(_SERVICE, "PutRecords", body, self._timeout), numbers)

    @property
    def pause(self) -> float:
        return self._delay if self._delay and not self._knows_shards() else 0.0

    def _knows_shards(self) -> bool:
        place = aws.find_endpoint(_SERVICE, self._timeout), self._name
        until, is_known = _shards.get(place, (0.0, False))
        if time.monotonic() < until:
            return is_known
        seconds = _KNOWN_SECONDS
        try:
            question = _encode({**self._stream, "MaxResults": 1})
            aws.call(_SERVICE, "ListShards", question, self._timeout)
            is_known = True
        except (UnavailableError, RefusedError) as error:
            is_known = False
            if "AccessDenied" not in str(error):
                seconds = _FAILED_SECONDS
        _shards[place] = time.monotonic() + seconds, is_known
        return is_known

    def close(self) -> None:
        """Nothing: connections are those of the process."""


def _read_answer(body: bytes, numbers: Sequence[int]) -> Answer:
    try:
        if not _decode_counted(body).failed_record_count:
            return Answer()
        records = _decode_answered(body).records
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"kinesis PutRecords: an answer that is none: {error}") from None
    if len(records) != len(numbers):
        raise UnavailableError(
            f"kinesis PutRecords: an answer with {len(records)} records to {len(numbers)}"
        )
    return Answer(
        {
            number: f"kinesis PutRecords: {record.error_code}: {record.error_message or ''}"
            for number, record in zip(numbers, records, strict=True)
            if record.error_code
        }
    )


def _choose_keys(choice: str, stream: str) -> Callable[[Sequence[bytes]], list[str]]:
    """How the partition keys of payloads are made.

    A payload that is no JSON, or lacks the field, gets a random one: it is not worth losing it.
    """
    if choice == "stream-name":
        return lambda payloads: [stream] * len(payloads)
    if choice.startswith(_FIELD):
        path = choice.removeprefix(_FIELD).split(".")
        return lambda payloads: [
            _find_key(payload, path) or key
            for payload, key in zip(payloads, _random_keys(payloads), strict=True)
        ]
    return _random_keys


def _random_keys(payloads: Sequence[bytes]) -> list[str]:
    digits = random.randbytes(16 * len(payloads)).hex()  # noqa: S311 - they only spread
    return [digits[place : place + 32] for place in range(0, len(digits), 32)]


def _find_key(payload: bytes, path: Sequence[str]) -> str | None:
    """The value of a field; None where there is no such field, or none that can be a key."""
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return str(value)[:_MAX_KEY_CHARACTERS]
