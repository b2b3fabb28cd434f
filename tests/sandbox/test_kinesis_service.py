"""Kinesis of the sandbox, with boto3."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError
from mypy_boto3_kinesis.client import KinesisClient
from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

from penstock.sandbox.kinesis_service import Kinesis
from penstock.sandbox.local_sandbox import Sandbox
from penstock.sandbox.service import ServiceCall, ServiceRequest
from tests.support import MEBIBYTE

SHARD = "shardId-000000000000"


def records(*payloads: bytes, key: str = "k") -> Sequence[PutRecordsRequestEntryTypeDef]:
    return [{"Data": payload, "PartitionKey": key} for payload in payloads]


def read_shard(kinesis: KinesisClient, stream: str, **start: Any) -> list[bytes]:
    start = {"ShardId": SHARD, "ShardIteratorType": "TRIM_HORIZON"} | start
    iterator = kinesis.get_shard_iterator(StreamName=stream, **start)["ShardIterator"]
    return [record["Data"] for record in kinesis.get_records(ShardIterator=iterator)["Records"]]


def code_of(raised: pytest.ExceptionInfo[ClientError]) -> str:
    return str(raised.value.response["Error"]["Code"])


def test_records_are_read_in_order(kinesis: KinesisClient, stream: str) -> None:
    payloads = [os.urandom(20) for _ in range(500)]

    answer = kinesis.put_records(StreamName=stream, Records=records(*payloads))
    kinesis.put_record(StreamName=stream, Data=b"last", PartitionKey="k")

    assert answer["FailedRecordCount"] == 0
    numbers = [int(result["SequenceNumber"]) for result in answer["Records"]]
    assert numbers == sorted(set(numbers))
    assert read_shard(kinesis, stream) == [*payloads, b"last"]


def test_next_iterator_continues_after_the_last_read(kinesis: KinesisClient, stream: str) -> None:
    kinesis.put_records(StreamName=stream, Records=records(b"1", b"2", b"3"))
    iterator = kinesis.get_shard_iterator(
        StreamName=stream, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]

    first = kinesis.get_records(ShardIterator=iterator, Limit=2)
    second = kinesis.get_records(ShardIterator=first["NextShardIterator"])
    kinesis.put_records(StreamName=stream, Records=records(b"4"))
    third = kinesis.get_records(ShardIterator=second["NextShardIterator"])

    read = [[record["Data"] for record in page["Records"]] for page in (first, second, third)]
    assert read == [[b"1", b"2"], [b"3"], [b"4"]]
    assert first["MillisBehindLatest"] > 0
    assert second["MillisBehindLatest"] == 0


def test_read_has_at_most_ten_mebibytes(kinesis: KinesisClient, stream: str) -> None:
    for _ in range(3):
        kinesis.put_records(StreamName=stream, Records=records(*[bytes(MEBIBYTE - 1)] * 4))

    assert len(read_shard(kinesis, stream)) == 10


def test_read_starts_at_the_position_of_the_iterator(kinesis: KinesisClient, stream: str) -> None:
    put = kinesis.put_records(StreamName=stream, Records=records(b"1", b"2", b"3"))
    second = put["Records"][1]["SequenceNumber"]

    def read_from(kind: str, **more: Any) -> list[bytes]:
        return read_shard(kinesis, stream, ShardIteratorType=kind, **more)

    assert read_from("LATEST") == []
    assert read_from("AT_SEQUENCE_NUMBER", StartingSequenceNumber=second) == [b"2", b"3"]
    assert read_from("AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=second) == [b"3"]
    past, future = datetime(2020, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
    assert read_from("AT_TIMESTAMP", Timestamp=past) == [b"1", b"2", b"3"]
    assert read_from("AT_TIMESTAMP", Timestamp=future) == []
    for wrong in ({"StartingSequenceNumber": "1"}, {"ShardIteratorType": "AT_TIMESTAMP"}):
        with pytest.raises(kinesis.exceptions.InvalidArgumentException):
            read_shard(kinesis, stream, **{"ShardIteratorType": "AT_SEQUENCE_NUMBER", **wrong})


def test_shards_are_read_separately(sandbox: Sandbox, kinesis: KinesisClient) -> None:
    kinesis.create_stream(StreamName="sharded", ShardCount=3)
    kinesis.get_waiter("stream_exists").wait(StreamName="sharded")
    sent = [(str(number), str(number).encode()) for number in range(100)]
    put = kinesis.put_records(
        StreamName="sharded", Records=[{"Data": d, "PartitionKey": key} for key, d in sent]
    )

    described = kinesis.describe_stream(StreamName="sharded")["StreamDescription"]
    shards = [shard["ShardId"] for shard in kinesis.list_shards(StreamName="sharded")["Shards"]]

    assert [shard["ShardId"] for shard in described["Shards"]] == shards
    assert len(shards) == 3
    for shard in shards:
        expected = [
            data
            for (_, data), result in zip(sent, put["Records"], strict=True)
            if result["ShardId"] == shard
        ]
        assert expected
        assert read_shard(kinesis, "sharded", ShardId=shard) == expected
    assert sandbox.payloads("kinesis", "sharded") == [data for _, data in sent]


def test_streams_are_listed_described_and_deleted(kinesis: KinesisClient, stream: str) -> None:
    summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    assert summary["OpenShardCount"] == 1
    assert summary["StreamARN"].endswith(f":stream/{stream}")
    assert stream in kinesis.list_streams()["StreamNames"]
    kinesis.put_record(StreamARN=summary["StreamARN"], Data=b"by ARN", PartitionKey="k")
    assert read_shard(kinesis, stream) == [b"by ARN"]
    with pytest.raises(kinesis.exceptions.ResourceInUseException):
        kinesis.create_stream(StreamName=stream, ShardCount=1)

    kinesis.delete_stream(StreamName=stream)

    assert stream not in kinesis.list_streams()["StreamNames"]


def test_on_demand_stream_has_four_shards(kinesis: KinesisClient) -> None:
    kinesis.create_stream(StreamName="on-demand", StreamModeDetails={"StreamMode": "ON_DEMAND"})

    described = kinesis.describe_stream(StreamName="on-demand")["StreamDescription"]
    assert described["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
    assert len(described["Shards"]) == 4


def test_unknown_stream_or_shard_is_not_found(kinesis: KinesisClient, stream: str) -> None:
    with pytest.raises(kinesis.exceptions.ResourceNotFoundException, match="Stream none under"):
        kinesis.put_records(StreamName="none", Records=records(b"x"))
    with pytest.raises(kinesis.exceptions.ResourceNotFoundException):
        kinesis.describe_stream(StreamName="none")
    with pytest.raises(kinesis.exceptions.ResourceNotFoundException, match="Shard other"):
        read_shard(kinesis, stream, ShardId="other")


def test_unsupported_operation_is_an_error(kinesis: KinesisClient) -> None:
    with pytest.raises(
        ClientError, match="does not support the operation 'DescribeLimits'"
    ) as error:
        kinesis.describe_limits()
    assert code_of(error) == "UnknownOperationException"


@pytest.mark.parametrize(
    ("payloads", "code"),
    [
        ([b"x"] * 501, "ValidationException"),
        ([bytes(MEBIBYTE)], "ValidationException"),  # one byte too large with its key
        ([bytes(MEBIBYTE - 1)] * 5 + [b""], "InvalidArgumentException"),
    ],
)
def test_limits_equal_those_of_aws(
    kinesis: KinesisClient, stream: str, payloads: list[bytes], code: str
) -> None:
    with pytest.raises(ClientError) as raised:
        kinesis.put_records(StreamName=stream, Records=records(*payloads))

    assert code_of(raised) == code
    assert read_shard(kinesis, stream) == []
    kinesis.put_records(StreamName=stream, Records=records(*[bytes(MEBIBYTE - 1)] * 5))


def put_call(kinesis: Kinesis, count: int, payload: str = "eA==") -> ServiceCall:
    record = {"Data": payload, "PartitionKey": "k"}
    body = json.dumps({"StreamName": "a", "Records": [record] * count})
    headers = {
        "x-amz-target": "Kinesis_20131202.PutRecords",
        "content-type": "application/x-amz-json-1.1",
    }
    return kinesis.read(ServiceRequest("POST", "/", headers, body.encode()))


def test_large_records_are_accepted_if_enabled() -> None:
    kinesis = Kinesis(MEBIBYTE, lambda: 0.0, large_records=True)
    kinesis.create_stream("a")

    assert put_call(kinesis, 1, "AAAA" * (3 * MEBIBYTE)).perform({}).stored == 1


def test_stream_is_created_on_first_use_if_enabled() -> None:
    kinesis = Kinesis(MEBIBYTE, lambda: 0.0, create_streams=True)

    assert put_call(kinesis, 2).perform({}).stored == 2
    assert kinesis.names() == ["a"]


def test_oldest_records_are_evicted() -> None:
    kinesis = Kinesis(100 * (256 + 2), lambda: 0.0)
    kinesis.create_stream("a")

    for _ in range(3):
        put_call(kinesis, 100).perform({})

    page = kinesis.page("a", 0, 1000)
    assert page is not None
    assert (page.first, page.end) == (200, 300)


def test_only_records_refused_by_a_fault_fail(
    sandbox: Sandbox, kinesis: KinesisClient, stream: str
) -> None:
    sandbox.set_fault("kinesis", name=stream, refuse_every=3)

    answer = kinesis.put_records(StreamName=stream, Records=records(b"1", b"2", b"3", b"4"))

    assert answer["FailedRecordCount"] == 1
    failed = answer["Records"][2]
    assert failed["ErrorCode"] == "ProvisionedThroughputExceededException"
    assert stream in failed["ErrorMessage"]
    assert "SequenceNumber" not in failed
    assert read_shard(kinesis, stream) == [b"1", b"2", b"4"]
    (put,) = [call for call in sandbox.calls("kinesis") if call["operation"] == "PutRecords"]
    assert (put["records"], put["stored"], put["refused"]) == (4, 3, 1)
    assert put["outcome"] == "partial"


def test_single_record_refused_by_a_fault_is_an_error(
    sandbox: Sandbox, kinesis: KinesisClient, stream: str
) -> None:
    sandbox.set_fault("kinesis", refuse_every=1, refuse_with="InternalFailure")

    with pytest.raises(ClientError) as raised:
        kinesis.put_record(StreamName=stream, Data=b"x", PartitionKey="k")

    assert code_of(raised) == "InternalFailure"


def test_cbor_is_rejected() -> None:
    kinesis = Kinesis(MEBIBYTE, lambda: 0.0)

    with pytest.raises(Exception, match="supports JSON, not CBOR"):
        kinesis.read(
            ServiceRequest("POST", "/", {"content-type": "application/x-amz-cbor-1.1"}, b"")
        )
