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
    with pytest.raises((UnavailableError, RefusedError)) as raised, aws.mapping_errors("k", "Put"):
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
def test_codes_of_invalid_calls_are_refusals(code: str) -> None:
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
def test_other_codes_are_unavailable_and_have_advice(code: str, advice: str) -> None:
    error = sort(answer(code))
    assert isinstance(error, UnavailableError)
    assert f"k Put: {code}: It is so" in str(error)
    assert advice in str(error)


def test_server_error_is_unavailable_despite_the_code_of_a_refusal() -> None:
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


def test_error_without_credentials_names_the_variables(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(UnavailableError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        put()


def test_credentials_that_are_set_later_are_found(
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


def test_error_without_a_region_names_the_variable(clean_environment: None) -> None:
    with pytest.raises(UnavailableError, match="set AWS_REGION"):
        put()


def test_error_names_a_missing_profile(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(UnavailableError, match="no-such-profile"):
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
def test_endpoints_follow_the_variables_of_the_sdks(
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
def test_host_outside_of_aws_gets_no_prefix(
    clean_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name_it: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert aws._get_client("iotsitewise", 1.0).meta.config.inject_host_prefix
    name_it(monkeypatch, tmp_path)
    assert not aws._get_client("iotsitewise", 2.0).meta.config.inject_host_prefix


def test_client_is_created_once_per_timeout(sandbox: Sandbox) -> None:
    assert aws._get_client("kinesis", 5.0) is aws._get_client("kinesis", 5.0)
    assert aws._get_client("kinesis", 5.0) is not aws._get_client("kinesis", 6.0)


def test_failed_call_is_not_retried_by_boto3(sandbox: Sandbox) -> None:
    sandbox.set_fault("kinesis", status=503)
    with pytest.raises(UnavailableError):
        put()
    assert len(sandbox.calls("kinesis")) == 1
