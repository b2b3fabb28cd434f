"""Whose a request is, and what faults do to it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from mypy_boto3_kinesis.client import KinesisClient

from penstock.sandbox.analytics_service import Analytics
from penstock.sandbox.dispatch import Application, Dropped
from penstock.sandbox.faults import Fault, Faults
from penstock.sandbox.http_sink import HttpSink
from penstock.sandbox.kinesis_service import Kinesis
from penstock.sandbox.ledger import Ledger
from penstock.sandbox.local_sandbox import Sandbox
from penstock.sandbox.s3_service import S3
from penstock.sandbox.service import ServiceRequest
from penstock.sandbox.sitewise_service import SiteWise
from tests.support import running, wait_until

SIGNED = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/{}/aws4_request, SignedHeaders=x"
SERVICES = {
    service.name: service
    for service in (Kinesis(1, time.time), S3(1), SiteWise(1), Analytics(1), HttpSink(1))
}


@pytest.fixture
def faults() -> Faults:
    return Faults(time.monotonic)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def application(faults: Faults, ledger: Ledger) -> Application:
    return Application(SERVICES, faults, ledger)


def post(name: str = "a", is_gone: Callable[[], bool] = lambda: False) -> ServiceRequest:
    return ServiceRequest("POST", f"/_sandbox/http/{name}", {}, b"x", is_gone)


@pytest.mark.parametrize(
    ("method", "target", "headers", "service"),
    [
        ("POST", "/", {"x-amz-target": "Kinesis_20131202.PutRecords"}, "kinesis"),
        ("POST", "/", {"authorization": SIGNED.format("kinesis")}, "kinesis"),
        ("POST", "/properties", {"authorization": SIGNED.format("iotsitewise")}, "iotsitewise"),
        ("POST", "/properties", {}, "iotsitewise"),
        ("PUT", "/properties", {"authorization": SIGNED.format("s3")}, "s3"),
        ("POST", "/messages/batch", {}, "iotanalytics"),
        ("GET", "/", {"authorization": SIGNED.format("s3")}, "s3"),
        ("GET", "/bucket/key", {}, "s3"),
        ("GET", "/bucket/key", {"authorization": SIGNED.format("sqs")}, "s3"),
        ("POST", "/_sandbox/http/a", {}, "http"),
    ],
)
def test_a_request_is_for_the_service_that_its_signature_target_or_path_names(
    application: Application,
    ledger: Ledger,
    method: str,
    target: str,
    headers: dict[str, str],
    service: str,
) -> None:
    application.answer(ServiceRequest(method, target, {"host": "127.0.0.1", **headers}, b""))

    assert [call.service for call in ledger.calls()] == [service]


def test_the_control_api_is_no_call(application: Application, ledger: Ledger) -> None:
    assert application.answer(ServiceRequest("GET", "/_sandbox/health", {}, b"")).status == 200
    assert ledger.calls() == []


def test_a_service_that_is_down_drops_the_connection(
    application: Application, faults: Faults, ledger: Ledger
) -> None:
    faults.put(Fault("http", down=True))

    with pytest.raises(Dropped):
        application.answer(post())

    assert [call.outcome for call in ledger.calls()] == ["down"]
    assert ledger.totals()["http"]["failedCalls"] == 1


def test_a_call_that_hangs_goes_on_when_the_switch_is_turned_off(
    application: Application, faults: Faults, ledger: Ledger
) -> None:
    faults.put(Fault("http", name="held", hang=True))
    with running(lambda: application.answer(post("held"))):
        assert application.answer(post("other")).status == 200
        assert [call.name for call in ledger.calls()] == ["other"]
        faults.clear()

    assert [call.name for call in ledger.calls()] == ["other", "held"]


@pytest.mark.parametrize("fault", [Fault("http", hang=True), Fault("http", delay_millis=10**9)])
def test_a_call_of_which_nobody_waits_for_the_answer_is_not_carried_out(
    application: Application, faults: Faults, ledger: Ledger, fault: Fault
) -> None:
    faults.put(fault)

    with pytest.raises(Dropped):
        application.answer(post("gone", is_gone=lambda: True))

    assert [(call.outcome, call.stored) for call in ledger.calls()] == [("gone", 0)]


def test_a_delay_comes_before_the_answer(application: Application, faults: Faults) -> None:
    looks = []

    def is_gone() -> bool:
        looks.append(True)
        return False

    assert application.answer(post(is_gone=is_gone)).status == 200
    assert not looks
    faults.put(Fault("http", delay_millis=500))
    assert application.answer(post(is_gone=is_gone)).status == 200
    assert looks


def put(kinesis: KinesisClient, stream: str) -> None:
    kinesis.put_record(StreamName=stream, Data=b"x", PartitionKey="k")


@pytest.mark.parametrize(
    ("fault", "code", "status"),
    [
        ({"throttle": True}, "ProvisionedThroughputExceededException", 400),
        ({"status": 503}, "ServiceUnavailable", 503),
        ({"status": 500}, "InternalFailure", 500),
        ({"status": 400, "code": "AccessDeniedException"}, "AccessDeniedException", 400),
    ],
)
def test_boto3_sees_the_fault_as_long_as_it_lasts(
    sandbox: Sandbox,
    kinesis: KinesisClient,
    stream: str,
    fault: dict[str, object],
    code: str,
    status: int,
) -> None:
    sandbox.set_fault("kinesis", name=stream, for_calls=1, **fault)

    with pytest.raises(ClientError) as raised:
        put(kinesis, stream)

    assert raised.value.response["Error"]["Code"] == code
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    put(kinesis, stream)
    assert [call["outcome"] for call in sandbox.calls("kinesis")] == [code, "ok"]


def test_boto3_sees_a_service_that_is_down_as_a_connection_that_is_closed(
    sandbox: Sandbox, kinesis: KinesisClient, stream: str
) -> None:
    sandbox.set_fault("kinesis", name=stream, down=True, for_calls=1)

    with pytest.raises(ConnectionClosedError):
        put(kinesis, stream)

    put(kinesis, stream)
    assert len(sandbox.records("kinesis", stream)) == 1


def test_boto3_waits_while_a_call_hangs(
    sandbox: Sandbox, kinesis: KinesisClient, stream: str
) -> None:
    sandbox.set_fault("kinesis", name=stream, hang=True)

    with running(lambda: put(kinesis, stream)):
        wait_until(lambda: sandbox.faults()[0]["callsMet"] == 1)
        assert sandbox.records("kinesis", stream) == []
        sandbox.clear_faults()

    assert len(sandbox.records("kinesis", stream)) == 1
