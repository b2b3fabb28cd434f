"""Calls to AWS: endpoints, credentials and connections are boto3's, and errors are classified once.

Endpoints, credentials and proxies are set by the standard variables and files of the AWS SDKs, and
by nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import boto3
import boto3.session
import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock import __version__
from penstock.pipeline.destinations.destination import (
    RefusedError,
    UnavailableError,
    parse_retry_after,
)
from penstock.pipeline.destinations.raw_calls import RawCalls

# Error codes of calls whose contents are invalid: a retry would not help.
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
# What the user can do, by the code of AWS or the name of boto3's exception.
_ADVICE = {
    "AccessDenied": "allow it to the role or user of the pipeline",
    "AccessDeniedException": "allow it to the role or user of the pipeline",
    "ExpiredToken": f"the credentials have expired: {_SET_CREDENTIALS}",
    "ExpiredTokenException": f"the credentials have expired: {_SET_CREDENTIALS}",
    "IncompleteSignatureException": _SET_CREDENTIALS,
    "InvalidAccessKeyId": f"the credentials are not known: {_SET_CREDENTIALS}",
    "InvalidClientTokenId": f"the credentials are not known: {_SET_CREDENTIALS}",
    "InvalidSignatureException": f"check the clock, and {_SET_CREDENTIALS}",
    "InvalidToken": _SET_CREDENTIALS,
    "MissingAuthenticationTokenException": _SET_CREDENTIALS,
    "NoCredentialsError": _SET_CREDENTIALS,
    "NoRegionError": "set AWS_REGION for the pipeline",
    "PartialCredentialsError": _SET_CREDENTIALS,
    "RequestTimeTooSkewed": "set the clock of this machine",
    "ResourceNotFoundException": "create it, or correct its name, or AWS_REGION",
    "SignatureDoesNotMatch": f"check the clock, and {_SET_CREDENTIALS}",
    "UnrecognizedClientException": f"the credentials are not known: {_SET_CREDENTIALS}",
}

# Its calls are ordinary calls of boto3: for files that adds little.
S3 = "s3"

_lock = threading.Lock()
_clients: dict[tuple[str, float], Any] = {}
# The maximum number of jobs of a task.
_MAX_CONNECTIONS = 256


def forget_clients() -> None:
    """Makes the next call look up endpoints and credentials again."""
    _clients.clear()


# A connection that a child shares with its parent would mix the answers of both.
os.register_at_fork(after_in_child=forget_clients)


def call(service: str, operation: str, body: bytes, timeout: float) -> bytes:
    """The body of the answer to a call. The timeout is for each read and write.

    UnavailableError or RefusedError if it failed. Several threads may call at once.
    """
    with sorting_errors(service, operation), using_client(service, timeout) as client:
        answer: bytes = client.call(operation, body)
    return answer


@contextmanager
def using_client(service: str, timeout: float) -> Iterator[Any]:
    """The client of S3, or the RawCalls of another service, which all threads share."""
    client = _get_client(service, timeout)
    try:
        yield client
    except (BotoCoreError, ClientError) as error:
        is_about_credentials = _SET_CREDENTIALS in _ADVICE.get(_code_of(error), "")
        # The next client looks for new credentials, which this one would not.
        if is_about_credentials and _clients.get((service, timeout)) is client:
            _clients.pop((service, timeout), None)
        raise


def _get_client(service: str, timeout: float) -> Any:
    found = _clients.get((service, timeout))
    if found is not None:
        return found
    # Making a client takes a tenth of a second or more, and longer if credentials are slow to get.
    with _lock:
        client = _clients.get((service, timeout))
        if client is None:
            client = _clients[service, timeout] = _make_client(service, timeout)
        return client


def _make_client(service: str, timeout: float, **options: Any) -> Any:
    session = boto3.session.Session()
    client = session.client(  # type: ignore[call-overload] # any service
        service,
        # boto3 knows the first variable only; other SDKs, and Greengrass, use the second.
        region_name=os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION") or None,
        config=Config(
            # The delivery retries, and only what has failed.
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=timeout,
            read_timeout=timeout,
            # Destinations check what they send, with reasons that name the message.
            parameter_validation=False,
            tcp_keepalive=True,
            # Without it boto3 composes one for each call, which takes longer than the signature.
            user_agent=f"penstock/{__version__} boto3/{boto3.__version__}",
            max_pool_connections=_MAX_CONNECTIONS,
            # Uploads carry a digest that we compute.
            request_checksum_calculation="when_required",
            **options,
        ),
    )
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if ".amazonaws." not in host and not host.endswith((".api.aws", ".amazonwebservices.com.cn")):
        # Only hosts of AWS resolve with the name of a bucket, or "data.", in front of them.
        if service == S3 and not options:
            return _make_client(service, timeout, s3={"addressing_style": "path"})
        client.meta.config.inject_host_prefix = False
    return client if service == S3 else RawCalls(client, session.get_credentials())


@contextmanager
def sorting_errors(service: str, operation: str) -> Iterator[None]:
    """Turns errors of boto3, and of decoding an answer, into UnavailableError or RefusedError."""
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
