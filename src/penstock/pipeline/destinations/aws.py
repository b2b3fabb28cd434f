"""AWS as destinations see it: calls with a body that they made, and errors sorted once.

Of what boto3 does for a call most is work on each part of it: it checks, copies and encodes, and
parses as much in the answer. Here bodies go out and answers come in as they are. Endpoints,
credentials, signatures and connections stay boto3's.

Where a service is, as whom and through which proxy is settled by the standard variables and files
of the AWS SDKs, and by nothing else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import boto3
import boto3.session
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from penstock import __version__
from penstock.pipeline.destinations.destination import RefusedError, UnavailableError

# What AWS says of a call whose contents are wrong, whoever makes it and however often.
_REFUSALS = frozenset(
    (
        "InvalidArgumentException",
        "InvalidRequestException",
        "SerializationException",
        "ValidationException",
    )
)

_SET_CREDENTIALS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN if "
    "they are temporary), for the pipeline"
)
_CHECK_STREAM = "create it, or correct its name, or AWS_REGION"
# What the user can do, by the error code.
_ADVICE = {
    "AccessDeniedException": "allow it to the role or user of the pipeline",
    "AccessDenied": "allow it to the role or user of the pipeline",
    "ExpiredToken": f"the credentials have expired: {_SET_CREDENTIALS}",
    "ExpiredTokenException": f"the credentials have expired: {_SET_CREDENTIALS}",
    "IncompleteSignatureException": _SET_CREDENTIALS,
    "InvalidAccessKeyId": f"the credentials are not known: {_SET_CREDENTIALS}",
    "InvalidClientTokenId": f"the credentials are not known: {_SET_CREDENTIALS}",
    "InvalidSignatureException": f"check the clock, and {_SET_CREDENTIALS}",
    "InvalidToken": _SET_CREDENTIALS,
    "MissingAuthenticationTokenException": _SET_CREDENTIALS,
    "RequestTimeTooSkewed": "set the clock of this machine",
    "ResourceNotFoundException": _CHECK_STREAM,
    "SignatureDoesNotMatch": f"check the clock, and {_SET_CREDENTIALS}",
    "UnrecognizedClientException": f"the credentials are not known: {_SET_CREDENTIALS}",
}

# Under this name a body passes through boto3; no operation has a parameter that is called so.
_BODY = "PenstockBody"
# The one service whose calls boto3 makes as it always does: to files that adds little.
S3 = "s3"

_lock = threading.Lock()
_clients: dict[tuple[str, float], Any] = {}
# As many as jobs that a task may have.
_MAX_CONNECTIONS = 256


def forget_clients() -> None:
    """Lets the next call look anew where the services are, and as whom."""
    _clients.clear()


# A connection that a child shares with its parent would mix the answers of both.
os.register_at_fork(after_in_child=forget_clients)


def call(service: str, operation: str, body: bytes, timeout: float) -> bytes:
    """The body of the answer to a call. The timeout is for each read and write.

    UnavailableError or RefusedError if it failed. Several threads may call at once.
    """
    with sorting_errors(service, operation), using_client(service, timeout) as client:
        answer: bytes = getattr(client, xform_name(operation))(**{_BODY: body})[_BODY]
    return answer


def find_endpoint(service: str, timeout: float) -> str:
    with sorting_errors(service, "endpoint"), using_client(service, timeout) as client:
        endpoint: str = client.meta.endpoint_url
    return endpoint


@contextmanager
def using_client(service: str, timeout: float) -> Iterator[Any]:
    """The client of a service, which all threads share; after errors of credentials a new one."""
    try:
        yield _get_client(service, timeout)
    except (NoCredentialsError, ClientError) as error:
        if _is_about_credentials(error):
            # There may be others by the next time, which this client would not look for.
            _clients.pop((service, timeout), None)
        raise


def _get_client(service: str, timeout: float) -> Any:
    # To make one takes a tenth of a second and more.
    with _lock:
        client = _clients.get((service, timeout))
        if client is None:
            client = _clients[service, timeout] = _make_client(service, timeout)
        return client


def _is_about_credentials(error: NoCredentialsError | ClientError) -> bool:
    if isinstance(error, NoCredentialsError):
        return True
    return _SET_CREDENTIALS in _ADVICE.get(error.response.get("Error", {}).get("Code", ""), "")


def _make_client(service: str, timeout: float) -> Any:
    if service == S3:
        client = _open_client(service, timeout)
        if not _is_of_aws(client.meta.endpoint_url):
            # Names of buckets before the name of a machine of our own lead nowhere.
            client = _open_client(service, timeout, s3={"addressing_style": "path"})
        return client
    client = _open_client(service, timeout)
    if not _is_of_aws(client.meta.endpoint_url):
        # "data." before the name of a machine of our own, or before an address, leads nowhere.
        client.meta.config.inject_host_prefix = False
    events = client.meta.events
    events.register("before-parameter-build", _put_aside)
    events.register("before-call", _put_in)
    events.register("before-parse", _hand_out)
    return client


def _open_client(service: str, timeout: float, **options: Any) -> Any:
    # boto3 knows the first name alone; other SDKs, and Greengrass, have the second.
    region = os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION")
    return boto3.session.Session().client(  # type: ignore[call-overload] # any service
        service,
        region_name=region or None,
        config=Config(
            # Whoever calls knows what has failed, and when it is worth to be sent again.
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=timeout,
            read_timeout=timeout,
            # Destinations check what they send themselves, with reasons that name the message.
            parameter_validation=False,
            tcp_keepalive=True,
            # One that is given is not put together anew for each call, which takes longer than
            # its signature.
            user_agent=f"penstock/{__version__} boto3/{boto3.__version__}",
            max_pool_connections=_MAX_CONNECTIONS,
            # What is sent has a digest of our own.
            request_checksum_calculation="when_required",
            **options,
        ),
    )


def _put_aside(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    context[_BODY] = params.pop(_BODY)


def _put_in(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    params["body"] = context.pop(_BODY)
    params["headers"].setdefault("Content-Type", "application/json")


def _hand_out(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    # An error is boto3's to read.
    if response_dict["status_code"] < 300:
        customized_response_dict[_BODY] = response_dict["body"]
        response_dict["body"] = b"{}"


def _is_of_aws(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return ".amazonaws." in host or host.endswith((".api.aws", ".amazonwebservices.com.cn"))


@contextmanager
def sorting_errors(service: str, operation: str) -> Iterator[None]:
    """Turns what boto3 raises into UnavailableError or RefusedError."""
    try:
        yield
    except ClientError as error:
        raise _sort_answer(error, service, operation) from None
    except (NoCredentialsError, PartialCredentialsError) as error:
        text = f"{service} {operation}: {str(error).rstrip('.')}; {_SET_CREDENTIALS}"
        raise UnavailableError(text) from None
    except NoRegionError:
        raise UnavailableError(
            f"{service} {operation}: no region; set AWS_REGION for the pipeline"
        ) from None
    except (BotoCoreError, ValueError) as error:
        # The latter for an endpoint that is no URL.
        raise UnavailableError(f"{service} {operation}: {error}") from None


def _sort_answer(
    error: ClientError, service: str, operation: str
) -> UnavailableError | RefusedError:
    answer: Any = error.response
    code = answer.get("Error", {}).get("Code") or "no error code"
    message = answer.get("Error", {}).get("Message") or ""
    metadata = answer.get("ResponseMetadata", {})
    text = f"{service} {operation}: {code}: {message}".rstrip(": ")
    if code in _REFUSALS and metadata.get("HTTPStatusCode", 400) < 500:
        return RefusedError(text)
    if code in _ADVICE:
        text = f"{text.rstrip('.')}; {_ADVICE[code]}"
    return UnavailableError(
        text, retry_after=_parse_seconds(metadata.get("HTTPHeaders", {}).get("retry-after"))
    )


def _parse_seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() else None
