"""What a service of the sandbox is: it reads a request, and answers it unless a fault gets there.

Reading and carrying out are two steps, because a fault may be for one stream, bucket or channel
only, and which one a call is for stands in its body.
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
# The one that moto gives everybody, so that names of all services fit together.
ACCOUNT = "123456789012"

# The codes that AWS has for these, whatever the service.
_CODES = {
    500: "InternalFailure",
    503: "ServiceUnavailable",
    403: "AccessDeniedException",
}


class ServiceRequest(NamedTuple):
    method: str
    # As it stands in the request line, with its query.
    target: str
    # By names in lower case.
    headers: Mapping[str, str]
    body: bytes
    # Whether nobody waits for the answer any more.
    is_gone: Callable[[], bool] = lambda: False

    @property
    def path(self) -> str:
        return urllib.parse.unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        text = self.target.partition("?")[2]
        return dict(urllib.parse.parse_qsl(text, keep_blank_values=True))

    @property
    def signed_for(self) -> str:
        """The service that the signature names, or nothing: signatures are not checked."""
        _, _, scope = self.headers.get("authorization", "").partition("Credential=")
        parts = scope.split(",")[0].split("/")
        # The key, the day, the region, the service, a constant; a key may have slashes in it.
        return parts[-2].lower() if len(parts) >= 5 else ""


class ServiceResponse(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    # How many records were kept, and how many refused.
    stored: int = 0
    refused: int = 0
    outcome: str = "ok"


class ServiceError(Exception):
    """What a whole call is answered with if it is not carried out."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def unknown(request: ServiceRequest) -> ServiceError:
    """What is answered to a call that the sandbox does not have."""
    return ServiceError(
        404, "UnknownOperationException", f"the sandbox has no {request.method} {request.path}"
    )


class ServiceCall(NamedTuple):
    """A call as it was read; nothing of it has been carried out."""

    operation: str
    # The streams, buckets, channels or properties it is for.
    names: tuple[str, ...]
    # Which of them each of its records is for.
    records: tuple[str, ...]
    # Carries it out but for records that are refused: by their place, the code they get.
    perform: Callable[[Mapping[int, str]], ServiceResponse]


class Service(ABC):
    """One service of the cloud, called from many threads at once."""

    # As signatures have it.
    name: ClassVar[str]
    # What a call and what a record get when there are too many of them.
    throttled: ClassVar[tuple[int, str]]
    refusal: ClassVar[str]

    @abstractmethod
    def read(self, request: ServiceRequest) -> ServiceCall:
        """What a request asks for; raises ServiceError if that cannot be said."""

    def render(self, error: ServiceError) -> ServiceResponse:
        """An error in the words of the service's protocol."""
        body = {"__type": error.code, "message": error.message}
        return json_answer(
            body,
            error.status,
            outcome=error.code,
            headers={"x-amzn-ErrorType": error.code, **error.headers},
        )

    @abstractmethod
    def names(self) -> list[str]:
        """Under which something arrived."""

    @abstractmethod
    def page(self, name: str, number: int, limit: int) -> Page | None:
        """What arrived under a name, from a number on; None if there can be no such name."""


class RecordingService(Service, Generic[R]):
    """A service whose names are there once something arrived under them."""

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
    """What a fault answers for the service: with no status, that there are too many calls."""
    usual_status, usual_code = service.throttled
    if status is not None and status != usual_status:
        usual_code = _CODES.get(status, f"Status{status}")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return ServiceError(
        status or usual_status, code or usual_code, "a fault of the sandbox", headers
    )


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
    """A body of a kind; raises ServiceError with the code if it is something else."""
    prepare(kind)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise ServiceError(400, code, str(error)) from None
