"""Calls to AWS: boto3 finds endpoints, credentials and connections; errors are classified here.

Endpoints, credentials and proxies are set only by the standard variables and files of the AWS SDKs.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import boto3
import boto3.session
import botocore.session
import msgspec
from botocore import xform_name
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.endpoint import EndpointCreator, convert_to_response_dict
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import URLLib3Session
from botocore.loaders import Loader, create_loader
from botocore.parsers import create_parser

from penstock import __version__
from penstock.pipeline.destinations.destination import (
    RefusedError,
    UnavailableError,
    parse_retry_after,
)
from penstock.pipeline.destinations.signing import RequestTemplate

# Error codes of invalid calls: a retry would not help.
_REFUSALS = {
    "InvalidArgumentException",
    "InvalidRequestException",
    "SerializationException",
    "ValidationException",
}

_SET_CREDENTIALS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN if "
    "they are temporary), for the pipeline"
)
# Advice for the user, by error codes of AWS and names of boto3's exceptions.
_ADVICE = {
    code: advice
    for codes, advice in {
        "AccessDenied AccessDeniedException": "allow it for the role or user of the pipeline",
        "ExpiredToken ExpiredTokenException": f"the credentials have expired: {_SET_CREDENTIALS}",
        "IncompleteSignatureException InvalidToken MissingAuthenticationTokenException "
        "NoCredentialsError PartialCredentialsError": _SET_CREDENTIALS,
        "InvalidAccessKeyId InvalidClientTokenId UnrecognizedClientException": (
            f"the credentials are unknown: {_SET_CREDENTIALS}"
        ),
        "InvalidSignatureException SignatureDoesNotMatch": (
            f"check the clock, and {_SET_CREDENTIALS}"
        ),
        "NoRegionError": "set AWS_REGION for the pipeline",
        "RequestTimeTooSkewed": "set the clock of this machine",
        "ResourceNotFoundException": "create it, or correct its name, or AWS_REGION",
    }.items()
    for code in codes.split()
}

# S3 is called through boto3: its overhead is small compared to a file.
S3 = "s3"

# Equal to the maximum number of jobs of a task.
_MAX_CONNECTIONS = 256

# By service and timeout.
_clients: dict[tuple[str, float], Any] = {}
_clients_lock = threading.Lock()


def forget_clients() -> None:
    """Removes all clients: the next call looks up endpoints and credentials again."""
    _clients.clear()


# A child process must not use the connections of its parent.
os.register_at_fork(after_in_child=forget_clients)


def call(service: str, operation: str, body: bytes, timeout: float) -> bytes:
    """Makes a call and returns the body of the answer. The timeout is for each read and write.

    Raises UnavailableError or RefusedError. Several threads may call at once.
    """
    with mapping_errors(service, operation), using_client(service, timeout) as client:
        answer: bytes = client.call(operation, body)
    return answer


@contextmanager
def using_client(service: str, timeout: float) -> Iterator[Any]:
    """The boto3 client of S3, or the `RawCalls` of another service, which all threads share."""
    client = _get_client(service, timeout)
    try:
        yield client
    except (BotoCoreError, ClientError) as error:
        is_about_credentials = _SET_CREDENTIALS in _ADVICE.get(_code_of(error), "")
        # Only a new client looks for new credentials.
        if is_about_credentials and _clients.get((service, timeout)) is client:
            _clients.pop((service, timeout), None)
        raise


def _get_client(service: str, timeout: float) -> Any:
    found = _clients.get((service, timeout))
    if found is None:
        # Creating a client takes 0.1 s or more, and longer if the source of credentials is slow.
        with _clients_lock:
            found = _clients.get((service, timeout))
            if found is None:
                found = _clients[service, timeout] = _make_client(service, timeout)
    return found


@cache
def _share_data_loader(path: str | None) -> Loader:
    """Reads botocore's descriptions of services, whose parsing takes 0.15 s for each session."""
    return create_loader(path)


def _make_client(service: str, timeout: float, **options: Any) -> Any:
    core = botocore.session.get_session()
    path = core.get_config_variable("data_path")
    core.register_component("data_loader", _share_data_loader(path))
    session = boto3.session.Session(botocore_session=core)
    client = session.client(  # type: ignore[call-overload] # any service
        service,
        # boto3 reads the first variable only; other SDKs and Greengrass use the second.
        region_name=os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION") or None,
        config=Config(
            # The delivery retries failed messages.
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=timeout,
            read_timeout=timeout,
            # Destinations validate each message.
            parameter_validation=False,
            tcp_keepalive=True,
            # boto3's default is composed for each call, which takes longer than the signature.
            user_agent=f"penstock/{__version__} boto3/{boto3.__version__}",
            max_pool_connections=_MAX_CONNECTIONS,
            # Uploads set their own checksums.
            request_checksum_calculation="when_required",
            **options,
        ),
    )
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if ".amazonaws." not in host and not host.endswith((".api.aws", ".amazonwebservices.com.cn")):
        # Endpoints outside AWS have no DNS names with a bucket, or "data.", as prefix.
        if service == S3 and not options:
            return _make_client(service, timeout, s3={"addressing_style": "path"})
        client.meta.config.inject_host_prefix = False
    if service == S3:
        return client
    return RawCalls(client, session.get_credentials(), make_http_session(core, client))


def make_http_session(session: botocore.session.Session, client: Any) -> URLLib3Session:
    """HTTP connections with the proxies, certificates and timeouts of a client of the session.

    The client's own connections are private members of botocore.
    """
    config = client.meta.config
    endpoint = EndpointCreator(client.meta.events).create_endpoint(
        client.meta.service_model,
        client.meta.region_name,
        client.meta.endpoint_url,
        verify=session.get_config_variable("ca_bundle"),
        # `connect_timeout` has the same value.
        timeout=config.read_timeout,
        max_pool_connections=config.max_pool_connections,
        socket_options=[
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        ],
    )
    http_session: URLLib3Session = endpoint.http_session
    return http_session


# Errors


@contextmanager
def mapping_errors(service: str, operation: str) -> Iterator[None]:
    """Maps errors of boto3, and of decoding an answer, to UnavailableError and RefusedError."""
    try:
        yield
    except msgspec.DecodeError as error:
        raise UnavailableError(f"{service} {operation}: not a valid answer: {error}") from None
    except (BotoCoreError, ClientError, ValueError) as error:
        # ValueError: the endpoint is not a URL.
        raise _classify(error, f"{service} {operation}") from None


def _code_of(error: Exception) -> str:
    if isinstance(error, ClientError):
        return error.response.get("Error", {}).get("Code") or "no error code"
    return type(error).__name__


def _classify(error: Exception, operation: str) -> UnavailableError | RefusedError:
    code = _code_of(error)
    text = f"{operation}: {error}"
    retry_after = None
    if isinstance(error, ClientError):
        answer: Any = error.response
        text = f"{operation}: {code}: {answer.get('Error', {}).get('Message') or ''}".rstrip(": ")
        metadata = answer.get("ResponseMetadata", {})
        if code in _REFUSALS and metadata.get("HTTPStatusCode", 400) < 500:
            return RefusedError(text)
        header = metadata.get("HTTPHeaders", {}).get("retry-after")
        retry_after = parse_retry_after(header, time.time())
    if code in _ADVICE:
        text = f"{text.rstrip('.')}; {_ADVICE[code]}"
    return UnavailableError(text, retry_after=retry_after)


# Raw calls

# The parameter of a call, and the field of an answer, that carry a body through boto3.
_BODY = "PenstockBody"
_SCOPE = re.compile(
    r"AWS4-HMAC-SHA256 Credential=.+/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request"
)
# The path of other URLs has to be normalized for the signature.
_PLAIN_URL = re.compile(r"https?://[^/?#]+(?:/[\w~-][\w.~-]*)*/?", re.ASCII)
# Headers that differ between requests.
_REQUEST_HEADERS = {
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "authorization",
    "content-length",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
}


class RawCalls:
    """Calls of a boto3 client whose bodies pass unchanged in both directions.

    boto3 validates, copies and encodes each record of a call, and parses each record of the answer.
    Here the destination encodes and parses records. The first call of an operation goes through
    boto3, which finds the endpoint and headers. Later calls reuse them with a new body and
    signature, which takes half the CPU time of a call through boto3.

    Several threads may call at once.
    """

    def __init__(self, client: Any, credentials: Any, http_session: URLLib3Session) -> None:
        """`credentials` come from the client's session, and may be None."""
        self.meta = client.meta
        self._client = client
        self._credentials = credentials
        self._http_session = http_session
        # By operation.
        self._templates: dict[str, RequestTemplate] = {}
        client.meta.events.register("before-parameter-build", _take_body)
        client.meta.events.register("before-call", _insert_body)
        client.meta.events.register("before-parse", _return_body)
        client.meta.events.register("before-send", self._save_template)

    def call(self, operation: str, body: bytes) -> bytes:
        """Returns the body of the answer. Raises boto3's errors."""
        template = self._templates.get(operation)
        if template is None:
            answer: bytes = getattr(self._client, xform_name(operation))(**{_BODY: body})[_BODY]
            return answer
        headers = template.sign(body, self._credentials.get_frozen_credentials(), time.time())
        request = AWSRequest(template.method, template.url, headers, body)
        response = self._http_session.send(request.prepare())
        if response.status_code >= 300:
            raise self._read_error(operation, response)
        content: bytes = response.content
        return content

    def _save_template(self, request: Any, event_name: str, **_: Any) -> None:
        scope = _SCOPE.match(_decode(request.headers.get("Authorization", "")))
        # Only boto3 can make other kinds of signatures, or sign other URLs.
        is_plain = _PLAIN_URL.fullmatch(request.url) is not None
        if scope is not None and is_plain and self._credentials is not None:
            headers = {
                name: _decode(value)
                for name, value in request.headers.items()
                if name.lower() not in _REQUEST_HEADERS
            }
            self._templates[event_name.rpartition(".")[2]] = RequestTemplate(
                request.method, request.url, headers, scope["region"], scope["service"]
            )

    def _read_error(self, operation: str, response: Any) -> ClientError:
        model = self.meta.service_model
        parser: Any = create_parser(model.resolved_protocol)
        answer = convert_to_response_dict(response, model.operation_model(operation))
        return ClientError(parser.parse(answer, None), operation)


def _decode(value: str | bytes) -> str:
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
