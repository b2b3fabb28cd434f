"""Calls of a boto3 client whose bodies pass unchanged in both directions.

boto3 checks, copies and encodes each record of a call, and parses as much in the answer. Here that
is up to the destination. The first call of an operation goes through boto3, which finds endpoint,
headers and signature. The following ones repeat its request with another body: botocore signs and
sends it, which takes half as long as a call through boto3.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from botocore import xform_name
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.endpoint import convert_to_response_dict
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

# The parameter of a call, and the field of an answer, that carry a body through boto3.
_BODY = "PenstockBody"
_SCOPE = re.compile(
    r"AWS4-HMAC-SHA256 Credential=.+/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request"
)
# They belong to one request.
_CHANGING = {
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "authorization",
    "content-length",
    "x-amz-date",
    "x-amz-security-token",
}


class _Template(NamedTuple):
    """A request that was sent, without its body and its signature."""

    method: str
    url: str
    headers: dict[str, str]
    # Of the signature.
    region: str
    service: str


class RawCalls:
    """Several threads may call at once."""

    def __init__(self, client: Any, credentials: Any) -> None:
        """`credentials` are those of the client's session; None if it has none."""
        self._client = client
        self._credentials = credentials
        # By operation.
        self._templates: dict[str, _Template] = {}
        client.meta.events.register("before-parameter-build", _take_body)
        client.meta.events.register("before-call", _insert_body)
        client.meta.events.register("before-parse", _return_body)
        client.meta.events.register("before-send", self._learn)

    @property
    def meta(self) -> Any:
        """What boto3 tells about its client."""
        return self._client.meta

    def call(self, operation: str, body: bytes) -> bytes:
        """The body of the answer. Errors are those of boto3."""
        template = self._templates.get(operation)
        if template is None:
            answer: bytes = getattr(self._client, xform_name(operation))(**{_BODY: body})[_BODY]
            return answer
        request = AWSRequest(template.method, template.url, template.headers, body)
        credentials = self._credentials.get_frozen_credentials()
        SigV4Auth(credentials, template.service, template.region).add_auth(request)
        response = self._client._endpoint.http_session.send(request.prepare())  # noqa: SLF001
        if response.status_code >= 300:
            raise self._read_error(operation, response)
        content: bytes = response.content
        return content

    def _learn(self, request: Any, event_name: str, **_: Any) -> None:
        scope = _SCOPE.match(_text(request.headers.get("Authorization", "")))
        # Others are signed in another way, which only boto3 knows.
        if scope is not None and self._credentials is not None:
            headers = {
                name: _text(value)
                for name, value in request.headers.items()
                if name.lower() not in _CHANGING
            }
            operation = event_name.rpartition(".")[2]
            self._templates[operation] = _Template(
                request.method, request.url, headers, scope["region"], scope["service"]
            )

    def _read_error(self, operation: str, response: Any) -> ClientError:
        model = self._client.meta.service_model
        parser: Any = create_parser(model.resolved_protocol)
        answer = convert_to_response_dict(response, model.operation_model(operation))
        return ClientError(parser.parse(answer, None), operation)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _take_body(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    context[_BODY] = params.pop(_BODY)


def _insert_body(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    params["body"] = context.pop(_BODY)
    params["headers"].setdefault("Content-Type", "application/json")


def _return_body(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    # boto3 parses errors.
    if response_dict["status_code"] < 300:
        customized_response_dict[_BODY] = response_dict["body"]
        response_dict["body"] = b"{}"
