"""Requests and errors of services."""

from __future__ import annotations

import json

import pytest

from penstock.sandbox.analytics_service import Analytics
from penstock.sandbox.s3_service import S3
from penstock.sandbox.service import ServiceError, ServiceRequest, fault_error, read_json

SIGNATURE = (
    "AWS4-HMAC-SHA256 Credential={}/20260101/eu-west-1/Kinesis/aws4_request, SignedHeaders=x"
)


def request(target: str = "/", **headers: str) -> ServiceRequest:
    return ServiceRequest("GET", target, headers, b"")


def test_target_is_split_into_path_and_query() -> None:
    parsed = request("/a%20b/c?name=%2Fx%2By&empty=")

    assert parsed.path == "/a b/c"
    assert parsed.query == {"name": "/x+y", "empty": ""}


@pytest.mark.parametrize("key", ["AKID", "a/key/with/slashes"])
def test_signature_names_its_service(key: str) -> None:
    assert request(authorization=SIGNATURE.format(key)).signed_service == "kinesis"


@pytest.mark.parametrize("authorization", ["", "Bearer x", "AWS4-HMAC-SHA256 Credential=a/b"])
def test_malformed_signature_names_no_service(authorization: str) -> None:
    assert request(authorization=authorization).signed_service == ""


def test_fault_without_a_status_throttles() -> None:
    error = fault_error(Analytics(1), None, None, 3)

    assert (error.status, error.code) == (429, "ThrottlingException")
    assert error.headers == {"Retry-After": "3"}


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (500, None, "InternalFailure"),
        (503, None, "ServiceUnavailable"),
        (418, None, "Status418"),
        (429, None, "ThrottlingException"),
        (599, None, "Status599"),
        (400, "AccessDeniedException", "AccessDeniedException"),
    ],
)
def test_status_of_a_fault_sets_its_code(status: int, code: str | None, expected: str) -> None:
    error = fault_error(Analytics(1), status, code, None)

    assert (error.status, error.code) == (status, expected)


def test_errors_are_json_or_xml_for_s3() -> None:
    error = ServiceError(400, "Wrong", "a < b", {"Retry-After": "1"})

    plain, xml = Analytics(1).render(error), S3(1).render(error)

    assert json.loads(plain.body) == {"__type": "Wrong", "message": "a < b"}
    assert b"<Code>Wrong</Code><Message>a &lt; b</Message>" in xml.body
    assert {plain.headers["Retry-After"], xml.headers["Retry-After"]} == {"1"}
    assert {plain.outcome, xml.outcome} == {"Wrong"}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"a": "text"}'])
def test_body_of_another_type_is_an_error(body: bytes) -> None:
    with pytest.raises(ServiceError) as raised:
        read_json(body, dict[str, int], "Wrong")

    assert (raised.value.status, raised.value.code) == (400, "Wrong")
