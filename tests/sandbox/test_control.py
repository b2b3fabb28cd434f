"""The control API, byte by byte as curl has it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mypy_boto3_kinesis.client import KinesisClient

from penstock.sandbox.control import Control
from penstock.sandbox.faults import Faults
from penstock.sandbox.http_sink import HttpSink
from penstock.sandbox.ledger import Ledger
from penstock.sandbox.local_sandbox import Sandbox
from penstock.sandbox.service import ServiceRequest


@pytest.fixture
def control() -> Control:
    return Control({"http": HttpSink(1 << 20)}, Faults(lambda: 0.0), Ledger())


def ask(control: Control, method: str, what: str, body: bytes = b"") -> tuple[int, Any]:
    answer = control.answer(ServiceRequest(method, f"/_sandbox/{what}", {}, body))
    return answer.status, json.loads(answer.body)


def test_it_says_that_it_is_well(control: Control) -> None:
    status, health = ask(control, "GET", "health")

    assert status == 200
    assert health["status"] == "ok"
    assert health["services"] == ["http"]


def test_faults_are_put_listed_and_cleared(control: Control) -> None:
    fault = {"service": "http", "throttle": True, "forCalls": 2}

    status, listed = ask(control, "PUT", "faults", json.dumps(fault).encode())

    assert status == 200
    assert listed == {"faults": [{**fault, "callsMet": 0}]}
    assert ask(control, "GET", "faults")[1] == listed
    assert ask(control, "DELETE", "faults?service=s3")[1] == listed
    assert ask(control, "DELETE", "faults")[1] == {"faults": []}


def test_a_bad_fault_is_told_and_changes_nothing(control: Control) -> None:
    status, answer = ask(control, "PUT", "faults", b'{"service": "http", "throttle": 1}')

    assert (status, answer) == (400, {"error": "throttle: has to be true or false"})
    assert ask(control, "GET", "faults")[1] == {"faults": []}


@pytest.mark.parametrize(
    ("what", "status", "complaint"),
    [
        ("records", 400, "service: has to be one of http"),
        ("records?service=sqs&name=a", 400, "service: has to be one of http"),
        ("records?service=http&name=a&from=-1", 400, "from: has to be a whole number"),
        ("records?service=http&name=a&limit=x", 400, "limit: has to be a whole number"),
        ("nothing", 404, "GET /_sandbox/health, GET /_sandbox/faults, PUT /_sandbox/faults"),
    ],
)
def test_what_cannot_be_answered_is_told(
    control: Control, what: str, status: int, complaint: str
) -> None:
    found, answer = ask(control, "GET", what)

    assert found == status
    assert complaint in answer["error"]


def test_records_come_in_pages(sandbox: Sandbox, kinesis: KinesisClient, stream: str) -> None:
    for data in (b"1", b"2", b"3"):
        kinesis.put_record(StreamName=stream, Data=data, PartitionKey="k")

    control = sandbox._ask("GET", "records", {"service": "kinesis", "name": stream, "from": "1"})
    limited = sandbox._ask("GET", "records", {"service": "kinesis", "name": stream, "limit": "1"})

    assert [record["data"] for record in control["records"]] == ["Mg==", "Mw=="]
    assert (control["first"], control["next"], control["end"]) == (1, 3, 3)
    assert (limited["first"], limited["next"], limited["end"]) == (0, 1, 3)
    (record,) = limited["records"]
    assert record["partitionKey"] == "k"
    assert record["shardId"] == "shardId-000000000000"
    assert isinstance(record["time"], float)
