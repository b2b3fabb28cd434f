"""Parsing of the requests of Kinesis."""

from __future__ import annotations

import pytest

from penstock.sandbox.kinesis_requests import GetRecords, PutRecord, PutRecords, StreamRequest
from penstock.sandbox.service import ServiceError, read_json


@pytest.mark.parametrize(
    "body",
    [
        b'{"StreamName": "turbines"}',
        b'{"StreamARN": "arn:aws:kinesis:us-east-1:1:stream/turbines"}',
        b'{"StreamName": "turbines", "StreamARN": "ignored", "Unknown": 1}',
    ],
)
def test_stream_is_given_by_name_or_arn(body: bytes) -> None:
    assert read_json(body, StreamRequest, "Wrong").stream == "turbines"


def test_missing_stream_is_an_error() -> None:
    with pytest.raises(ServiceError, match="StreamName or StreamARN"):
        _ = StreamRequest().stream


def test_put_record_has_a_list_of_one_record() -> None:
    one = read_json(b'{"StreamName": "a", "Data": "aGk=", "PartitionKey": "k"}', PutRecord, "Wrong")
    many = read_json(
        b'{"StreamName": "a", "Records": [{"Data": "aGk=", "PartitionKey": "k"}]}',
        PutRecords,
        "Wrong",
    )

    assert one.records == many.records
    assert many.records[0].data == b"hi"
    assert many.records[0].size == 3


@pytest.mark.parametrize(
    "record",
    [
        '{"Data": "not base64", "PartitionKey": "k"}',
        '{"Data": "aGk=", "PartitionKey": ""}',
        '{"Data": "aGk=", "PartitionKey": "%s"}' % ("k" * 257),
        '{"Data": "aGk=", "PartitionKey": "k", "ExplicitHashKey": "-1"}',
        '{"PartitionKey": "k"}',
    ],
)
def test_malformed_record_is_an_error(record: str) -> None:
    with pytest.raises(ServiceError):
        read_json(b'{"StreamName": "a", "Records": [%s]}' % record.encode(), PutRecords, "Wrong")


def test_malformed_iterator_is_an_error() -> None:
    with pytest.raises(ServiceError, match="Invalid ShardIterator"):
        _ = GetRecords("nonsense").stream
