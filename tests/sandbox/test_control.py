"""The control API over plain HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mypy_boto3_kinesis.client import KinesisClient

from penstock.sandbox.call_log import CallLog
from penstock.sandbox.control import Control
from penstock.sandbox.faults import Faults
from penstock.sandbox.http_sink import HttpSink
from penstock.sandbox.local_sandbox import Sandbox
from penstock.sandbox.service import ServiceRequest


@pytest.fixture
def control() -> Control:
    return Control({"http": HttpSink(1 << 20)}, Faults(lambda: 0.0), CallLog())


def send(control: Control, method: str, resource: str, body: bytes = b"") -> tuple[int, Any]:
    answer = control.answer(ServiceRequest(method, f"/_sandbox/{resource}", {}, body))
    return answer.status, json.loads(answer.body)


def test_health(control: Control) -> None:
    status, health = send(control, "GET", "health")

    assert status == 200
    assert health["status"] == "ok"
    assert health["services"] == ["http"]


def test_faults_are_put_listed_and_cleared(control: Control) -> None:
    fault = {"service": "http", "throttle": True, "forCalls": 2}

    status, listed = send(control, "PUT", "faults", json.dumps(fault).encode())

    assert status == 200
    assert listed == {"faults": [{**fault, "callsMet": 0}]}
    assert send(control, "GET", "faults")[1] == listed
    assert send(control, "DELETE", "faults?service=s3")[1] == listed
    assert send(control, "DELETE", "faults")[1] == {"faults": []}


def test_invalid_fault_is_rejected(control: Control) -> None:
    status, answer = send(control, "PUT", "faults", b'{"service": "http", "throttle": 1}')

    assert (status, answer) == (400, {"error": "throttle: must be true or false"})
    assert send(control, "GET", "faults")[1] == {"faults": []}


@pytest.mark.parametrize(
    ("resource", "status", "message"),
    [
        ("records", 400, "service: must be one of http"),
        ("records?service=sqs&name=a", 400, "service: must be one of http"),
        ("records?service=http&name=a&from=-1", 400, "from: must be a whole number"),
        ("records?service=http&name=a&limit=x", 400, "limit: must be a whole number"),
        ("nothing", 404, "GET /_sandbox/health, GET /_sandbox/faults, PUT /_sandbox/faults"),
    ],
)
def test_invalid_request_is_rejected(
    control: Control, resource: str, status: int, message: str
) -> None:
    found, answer = send(control, "GET", resource)

    assert found == status
    assert message in answer["error"]


def test_records_have_pages(sandbox: Sandbox, kinesis: KinesisClient, stream: str) -> None:
    for data in (b"1", b"2", b"3"):
        kinesis.put_record(StreamName=stream, Data=data, PartitionKey="k")

    rest = sandbox._request("GET", "records", {"service": "kinesis", "name": stream, "from": "1"})
    limited = sandbox._request(
        "GET", "records", {"service": "kinesis", "name": stream, "limit": "1"}
    )

    assert [record["data"] for record in rest["records"]] == ["Mg==", "Mw=="]
    assert (rest["first"], rest["next"], rest["end"]) == (1, 3, 3)
    assert (limited["first"], limited["next"], limited["end"]) == (0, 1, 3)
    (record,) = limited["records"]
    assert record["partitionKey"] == "k"
    assert record["shardId"] == "shardId-000000000000"
    assert isinstance(record["time"], float)
