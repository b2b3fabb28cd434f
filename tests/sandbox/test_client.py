"""The client of the sandbox."""

from __future__ import annotations

import os

import boto3
import pytest
from mypy_boto3_kinesis.client import KinesisClient
from mypy_boto3_s3.client import S3Client

from penstock.sandbox.client import SandboxClient, SandboxError
from penstock.sandbox.local_sandbox import Sandbox
from tests.sandbox.posting import post


@pytest.fixture
def client(sandbox: Sandbox) -> SandboxClient:
    return SandboxClient(sandbox.url + "/")


def test_fields_of_faults_are_in_snake_case_or_camel_case(client: SandboxClient) -> None:
    client.set_fault("s3", refuse_every=2, refuse_with="InternalError")
    client.set_fault("http", delayMillis=1, forCalls=3)

    assert client.faults() == [
        {"service": "s3", "refuseEvery": 2, "refuseWith": "InternalError", "callsMet": 0},
        {"service": "http", "delayMillis": 1, "forCalls": 3, "callsMet": 0},
    ]
    client.clear_faults("s3")
    assert len(client.faults()) == 1
    client.clear_faults()
    assert client.faults() == []


def test_error_has_the_message_of_the_sandbox(client: SandboxClient) -> None:
    with pytest.raises(SandboxError, match=r"^forCalls: must be a whole number, 1 or more$"):
        client.set_fault("s3", down=True, for_calls=0)
    with pytest.raises(SandboxError, match="name: does not exist"):
        client.records("kinesis", "never made")


def test_property_without_values_has_no_records(client: SandboxClient) -> None:
    assert client.records("iotsitewise", "/never/put") == []


def test_records_of_several_pages_are_read(
    client: SandboxClient, kinesis: KinesisClient, stream: str
) -> None:
    for call in range(21):
        kinesis.put_records(
            StreamName=stream,
            Records=[
                {"Data": b"%d" % (call * 500 + index), "PartitionKey": "k"} for index in range(500)
            ],
        )

    assert client.payloads("kinesis", stream) == [b"%d" % number for number in range(10_500)]
    assert client.payloads("kinesis", stream, first=10_499) == [b"10499"]
    assert client.payloads("kinesis", stream, first=20_000) == []


def test_calls_and_totals_are_counted_until_they_are_reset(client: SandboxClient) -> None:
    post(client.http_url("counted"), b"four")

    (call,) = client.calls("http", "counted")
    assert call["bodyBytes"] == 4
    assert client.totals()["http"]["stored"] == 1
    client.reset_calls()
    assert client.calls() == []
    assert client.totals() == {}


def test_boto3_uses_the_sandbox_with_its_variables(
    client: SandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in client.variables.items():
        monkeypatch.setenv(name, value)
    session = boto3.Session()

    session.client("kinesis").list_streams()
    session.client("s3").list_buckets()
    session.client("iotsitewise").batch_put_asset_property_value(
        entries=[
            {
                "entryId": "e",
                "propertyAlias": "/by/variables",
                "propertyValues": [
                    {"value": {"booleanValue": True}, "timestamp": {"timeInSeconds": 1}}
                ],
            }
        ]
    )

    assert [call["service"] for call in client.calls()] == ["kinesis", "s3", "iotsitewise"]


def test_bucket_is_created_unless_it_exists(client: SandboxClient, s3: S3Client) -> None:
    client.create_bucket("made-by-the-client")
    client.create_bucket("made-by-the-client")

    names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    assert names.count("made-by-the-client") == 1


def test_error_of_bucket_creation_has_the_code_of_s3(client: SandboxClient) -> None:
    with pytest.raises(SandboxError, match=r"^bucket 'x': InvalidBucketName$"):
        client.create_bucket("x")
    client.set_fault("s3", status=503)
    with pytest.raises(SandboxError, match=r"^bucket 'out-of-reach': \w+$"):
        client.create_bucket("out-of-reach")


def test_unreachable_sandbox_is_not_healthy(client: SandboxClient) -> None:
    assert client.is_healthy()
    assert not SandboxClient("http://127.0.0.1:1").is_healthy()
