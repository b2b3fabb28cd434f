"""The service of a request, and the effects of faults on it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from mypy_boto3_kinesis.client import KinesisClient

from penstock.sandbox.analytics_service import Analytics
from penstock.sandbox.call_log import CallLog
from penstock.sandbox.dispatch import ConnectionDropped, Dispatcher
from penstock.sandbox.faults import Fault, Faults
from penstock.sandbox.http_sink import HttpSink
from penstock.sandbox.kinesis_service import Kinesis
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
def call_log() -> CallLog:
    return CallLog()


@pytest.fixture
def dispatcher(faults: Faults, call_log: CallLog) -> Dispatcher:
    return Dispatcher(SERVICES, faults, call_log)


def post(name: str = "a", is_disconnected: Callable[[], bool] = lambda: False) -> ServiceRequest:
    return ServiceRequest("POST", f"/_sandbox/http/{name}", {}, b"x", is_disconnected)


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
def test_service_is_found_by_signature_target_or_path(
    dispatcher: Dispatcher,
    call_log: CallLog,
    method: str,
    target: str,
    headers: dict[str, str],
    service: str,
) -> None:
    dispatcher.answer(ServiceRequest(method, target, {"host": "127.0.0.1", **headers}, b""))

    assert [call.service for call in call_log.calls()] == [service]


def test_control_requests_are_not_logged_as_calls(
    dispatcher: Dispatcher, call_log: CallLog
) -> None:
    assert dispatcher.answer(ServiceRequest("GET", "/_sandbox/health", {}, b"")).status == 200
    assert call_log.calls() == []


def test_service_that_is_down_drops_the_connection(
    dispatcher: Dispatcher, faults: Faults, call_log: CallLog
) -> None:
    faults.put(Fault("http", down=True))

    with pytest.raises(ConnectionDropped):
        dispatcher.answer(post())

    assert [call.outcome for call in call_log.calls()] == ["down"]
    assert call_log.totals()["http"]["failedCalls"] == 1


def test_hanging_call_continues_when_the_fault_is_cleared(
    dispatcher: Dispatcher, faults: Faults, call_log: CallLog
) -> None:
    faults.put(Fault("http", name="held", hang=True))
    with running(lambda: dispatcher.answer(post("held"))):
        assert dispatcher.answer(post("other")).status == 200
        assert [call.name for call in call_log.calls()] == ["other"]
        faults.clear()

    assert [call.name for call in call_log.calls()] == ["other", "held"]


@pytest.mark.parametrize("fault", [Fault("http", hang=True), Fault("http", delay_millis=10**9)])
def test_delayed_call_of_a_disconnected_client_is_not_performed(
    dispatcher: Dispatcher, faults: Faults, call_log: CallLog, fault: Fault
) -> None:
    faults.put(fault)

    with pytest.raises(ConnectionDropped):
        dispatcher.answer(post("gone", is_disconnected=lambda: True))

    assert [(call.outcome, call.stored) for call in call_log.calls()] == [("gone", 0)]


def test_delay_precedes_the_response(dispatcher: Dispatcher, faults: Faults) -> None:
    checks = []

    def is_disconnected() -> bool:
        checks.append(True)
        return False

    assert dispatcher.answer(post(is_disconnected=is_disconnected)).status == 200
    assert not checks
    faults.put(Fault("http", delay_millis=500))
    assert dispatcher.answer(post(is_disconnected=is_disconnected)).status == 200
    assert checks


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
def test_boto3_gets_the_error_while_the_fault_lasts(
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


def test_boto3_gets_a_closed_connection_from_a_service_that_is_down(
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
