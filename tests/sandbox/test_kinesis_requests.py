"""Requests to Kinesis, as their JSON has them."""

from __future__ import annotations

import pytest

from penstock.sandbox.kinesis_requests import GetRecords, OfStream, PutRecord, PutRecords
from penstock.sandbox.service import ServiceError, read_json


@pytest.mark.parametrize(
    "body",
    [
        b'{"StreamName": "turbines"}',
        b'{"StreamARN": "arn:aws:kinesis:us-east-1:1:stream/turbines"}',
        b'{"StreamName": "turbines", "StreamARN": "ignored", "Unknown": 1}',
    ],
)
def test_a_stream_is_named_or_has_an_arn(body: bytes) -> None:
    assert read_json(body, OfStream, "Wrong").stream == "turbines"


def test_without_either_it_is_an_error() -> None:
    with pytest.raises(ServiceError, match="StreamName or StreamARN"):
        _ = OfStream().stream


def test_one_record_is_read_as_one_of_many() -> None:
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
def test_a_record_that_is_none_is_an_error(record: str) -> None:
    with pytest.raises(ServiceError):
        read_json(b'{"StreamName": "a", "Records": [%s]}' % record.encode(), PutRecords, "Wrong")


def test_an_iterator_that_is_none_is_an_error() -> None:
    with pytest.raises(ServiceError, match="Invalid ShardIterator"):
        _ = GetRecords("nonsense").stream
