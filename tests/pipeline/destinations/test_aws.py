from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import RefusedError, UnavailableError
from penstock.sandbox.local_sandbox import Sandbox


def answer(code: str, status: int = 400, **headers: str) -> ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": "It is so."},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    return ClientError(response, "PutRecords")


def sort(error: Exception) -> Exception:
    with pytest.raises((UnavailableError, RefusedError)) as raised, aws.sorting_errors("k", "Put"):
        raise error
    return raised.value


@pytest.mark.parametrize(
    "code",
    [
        "InvalidArgumentException",
        "InvalidRequestException",
        "SerializationException",
        "ValidationException",
    ],
)
def test_what_is_invalid_is_refused(code: str) -> None:
    error = sort(answer(code))
    assert isinstance(error, RefusedError)
    assert str(error) == f"k Put: {code}: It is so."


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("AccessDeniedException", "allow it"),
        ("ExpiredTokenException", "AWS_SESSION_TOKEN"),
        ("InvalidSignatureException", "AWS_SECRET_ACCESS_KEY"),
        ("LimitExceededException", ""),
        ("ProvisionedThroughputExceededException", ""),
        ("ResourceNotFoundException", "create it"),
        ("SomethingNew", ""),
        ("UnrecognizedClientException", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_can_change_is_not_available_and_there_is_advice(code: str, advice: str) -> None:
    error = sort(answer(code))
    assert isinstance(error, UnavailableError)
    assert f"k Put: {code}: It is so" in str(error)
    assert advice in str(error)


def test_a_server_that_fails_may_recover_whatever_it_calls_it() -> None:
    error = sort(answer("ValidationException", 503, **{"retry-after": "7"}))
    assert isinstance(error, UnavailableError)
    assert error.retry_after == 7


@pytest.mark.parametrize(
    "error",
    [
        ConnectTimeoutError(endpoint_url="http://x"),
        ReadTimeoutError(endpoint_url="http://x"),
        EndpointConnectionError(endpoint_url="http://x"),
        NoCredentialsError(),
    ],
)
def test_call_without_an_answer_is_unavailable(error: Exception) -> None:
    assert isinstance(sort(error), UnavailableError)


BODY = b'{"StreamName": "s", "Records": [{"Data": "YQ==", "PartitionKey": "k"}]}'


def put(service: str = "kinesis", operation: str = "PutRecords") -> bytes:
    return aws.call(service, operation, BODY, 5.0)


def test_without_credentials_it_is_said_what_to_set(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(UnavailableError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        put()


def test_credentials_that_come_later_are_found(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", sandbox.url)
    with pytest.raises(UnavailableError):
        put()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert b'"FailedRecordCount":0' in put().replace(b" ", b"")
    sandbox.set_fault("kinesis", status=400, code="UnrecognizedClientException", for_calls=1)
    client = aws._get_client("kinesis", 5.0)
    with pytest.raises(UnavailableError):
        put()
    assert aws._get_client("kinesis", 5.0) is not client


def test_without_a_region_it_is_said_what_to_set(clean_environment: None) -> None:
    with pytest.raises(UnavailableError, match="set AWS_REGION"):
        put()


def test_a_profile_that_is_not_there_is_said(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UnavailableError, match="nobody"):
        put()


def test_refused_connection_is_an_error(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:1")
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        put()


def endpoint_of(service: str, timeout: float) -> Any:
    return aws._get_client(service, timeout).meta.endpoint_url


@pytest.mark.parametrize("service", ["kinesis", "iotsitewise"])
def test_services_are_found_by_the_variables_of_the_sdks(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert endpoint_of(service, 5.0) == f"https://{service}.eu-central-1.amazonaws.com"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert endpoint_of(service, 6.0) == f"https://{service}.eu-west-1.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2")
    assert endpoint_of(service, 7.0) == "http://127.0.0.1:2"


def _endpoint_variable(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2")


def _service_variable(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setenv("AWS_ENDPOINT_URL_IOTSITEWISE", "http://127.0.0.1:2")


def _config_file(patch: pytest.MonkeyPatch, directory: Path) -> None:
    config = directory / "config"
    config.write_text("[default]\nendpoint_url = http://127.0.0.1:2\n")
    patch.setenv("AWS_CONFIG_FILE", str(config))


@pytest.mark.parametrize("name_it", [_endpoint_variable, _service_variable, _config_file])
def test_a_host_of_our_own_gets_no_prefix(
    clean_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name_it: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert aws._get_client("iotsitewise", 1.0).meta.config.inject_host_prefix
    name_it(monkeypatch, tmp_path)
    assert not aws._get_client("iotsitewise", 2.0).meta.config.inject_host_prefix


def test_a_client_is_made_once(sandbox: Sandbox) -> None:
    assert aws._get_client("kinesis", 5.0) is aws._get_client("kinesis", 5.0)
    assert aws._get_client("kinesis", 5.0) is not aws._get_client("kinesis", 6.0)


def test_a_call_is_made_once(sandbox: Sandbox) -> None:
    sandbox.set_fault("kinesis", status=503)
    with pytest.raises(UnavailableError):
        put()
    assert len(sandbox.calls("kinesis")) == 1
