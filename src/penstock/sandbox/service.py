"""The interface of the services of the sandbox.

Parsing and performing a call are two steps: a fault may affect a single stream, bucket or channel,
whose name is in the body of the call.
"""

from __future__ import annotations

import time
import urllib.parse
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from penstock.model.validation import prepare
from penstock.sandbox.record_buffer import Page, RecordBuffers

T = TypeVar("T")
R = TypeVar("R")

REGION = "us-east-1"
# The account of moto, so that the ARNs of all services are consistent.
ACCOUNT = "123456789012"

# Error codes that all AWS services share.
_CODES = {
    500: "InternalFailure",
    503: "ServiceUnavailable",
    403: "AccessDeniedException",
}


class ServiceRequest(NamedTuple):
    method: str
    # From the request line, with the query.
    target: str
    # By lower-case name.
    headers: Mapping[str, str]
    body: bytes
    # Whether the client has disconnected.
    is_disconnected: Callable[[], bool] = lambda: False

    @property
    def path(self) -> str:
        return urllib.parse.unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        text = self.target.partition("?")[2]
        return dict(urllib.parse.parse_qsl(text, keep_blank_values=True))

    @property
    def signed_service(self) -> str:
        """The service that the signature names, or "". Signatures are not verified."""
        _, _, scope = self.headers.get("authorization", "").partition("Credential=")
        parts = scope.split(",")[0].split("/")
        # Key, day, region, service, and a constant. A key may contain slashes.
        return parts[-2].lower() if len(parts) >= 5 else ""


class ServiceResponse(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    # Numbers of records.
    stored: int = 0
    refused: int = 0
    outcome: str = "ok"


class ServiceError(Exception):
    """The error response to a whole call."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def unknown_operation(request: ServiceRequest) -> ServiceError:
    """The error for an operation that the sandbox does not support."""
    return ServiceError(
        404,
        "UnknownOperationException",
        f"the sandbox does not support {request.method} {request.path}",
    )


class ServiceCall(NamedTuple):
    """A parsed call that is not performed yet."""

    operation: str
    # The streams, buckets, channels or properties of the call.
    names: tuple[str, ...]
    # One of these names for each record.
    records: tuple[str, ...]
    # Performs the call. Takes the error codes of refused records by index.
    perform: Callable[[Mapping[int, str]], ServiceResponse]


class Service(ABC):
    """A simulated AWS service. Thread-safe."""

    # The name in signatures.
    name: ClassVar[str]
    # Status and code of a throttled call, and the code of a throttled record.
    throttled: ClassVar[tuple[int, str]]
    refusal: ClassVar[str]

    @abstractmethod
    def read(self, request: ServiceRequest) -> ServiceCall:
        """Parses a request. Raises ServiceError if it is invalid."""

    def render(self, error: ServiceError) -> ServiceResponse:
        """Returns an error in the format of the service."""
        body = {"__type": error.code, "message": error.message}
        return json_answer(
            body,
            error.status,
            outcome=error.code,
            headers={"x-amzn-ErrorType": error.code, **error.headers},
        )

    @abstractmethod
    def names(self) -> list[str]:
        """Returns the names that have records."""

    @abstractmethod
    def page(self, name: str, number: int, limit: int) -> Page | None:
        """Returns records of a name from a number on; None if the name does not exist."""


class RecordingService(Service, Generic[R]):
    """A service in which the first record creates a name."""

    def __init__(self, limit_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.buffers: RecordBuffers[R] = RecordBuffers(limit_bytes)

    def names(self) -> list[str]:
        return self.buffers.names()

    def page(self, name: str, number: int, limit: int) -> Page:
        return self.buffers.page(name, number, limit)


def fault_error(
    service: Service, status: int | None, code: str | None, retry_after: int | None
) -> ServiceError:
    """The error of a fault: without a status, the error of a throttled call."""
    default_status, default_code = service.throttled
    if status is not None and status != default_status:
        default_code = _CODES.get(status, f"Status{status}")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return ServiceError(status or default_status, code or default_code, "injected fault", headers)


def json_answer(
    value: Any,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
    stored: int = 0,
    refused: int = 0,
    outcome: str | None = None,
) -> ServiceResponse:
    return ServiceResponse(
        status,
        msgspec.json.encode(value),
        {
            "Content-Type": "application/json",
            "x-amzn-RequestId": str(uuid.uuid4()),
            **(headers or {}),
        },
        stored,
        refused,
        outcome or ("partial" if refused else "ok"),
    )


def read_json(body: bytes, kind: type[T], code: str) -> T:
    """Parses a body. Raises ServiceError with this code if it does not have the type."""
    prepare(kind)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise ServiceError(400, code, str(error)) from None
