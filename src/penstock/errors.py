"""Every error of Penstock and its status on the wire: one table for both ends.

The names are those of the AWS SDKs, so that `except` clauses move over unchanged.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class ResponseStatusCode(IntEnum):
    """The status of a response on the wire."""

    Success = 0
    UnknownFailure = 1
    Unauthorized = 2
    InvalidRequest = 3
    RequestPayloadTooLarge = 4
    ResourceNotFound = 5
    ServerTimeout = 6
    ResponsePayloadTooLarge = 7
    UnsupportedConnectVersion = 8
    UnexpectedOperation = 9
    UnsupportedProtocolVersion = 10
    InvalidProtocolVersion = 11
    FailedToConnect = 12
    NotEnoughMessages = 13
    MessageStoreReadError = 14
    # The rest came with protocol 1.1.0; see `status_for_version`.
    OutOfMemoryError = 15
    UpdateFailed = 16
    UpdateNotAllowed = 17
    UnknownOperation = 18

    __str__ = Enum.__str__


class StreamManagerException(Exception):
    """The root of everything that a client of Penstock has to catch."""

    # How many messages of an `append_messages` were stored before it failed.
    appended: int = 0

    def __init__(
        self,
        message: str = "",
        status: ResponseStatusCode | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status if status is not None else STATUS_OF.get(type(self))
        self.request_id = request_id


class ClientException(StreamManagerException):
    """Raised on the client's side, before or without an answer of the server."""


class ValidationException(ClientException):
    """A value that the client refuses to send."""


class ConnectFailedException(ClientException):
    """The server refused the handshake."""


class UnansweredException(ClientException):
    """A request was sent and no answer came: it may have been carried out, or not."""


class ConnectionLostException(UnansweredException, ConnectionError):
    """The connection ended between a request and its answer."""


class RequestTimeoutException(UnansweredException, TimeoutError):
    """The answer did not come in time."""


class UnknownFailureException(StreamManagerException):
    """The server could not do it, through no fault of the request."""


class UnauthorizedException(StreamManagerException):
    """The token is not known, or its role does not allow the operation."""


class InvalidRequestException(StreamManagerException):
    """The request breaks a rule; the message names the field and what is allowed."""


class RequestPayloadTooLargeException(StreamManagerException):
    """The frame or the message is larger than can ever be taken."""


class ResourceNotFoundException(StreamManagerException):
    """There is no stream of that name."""


class ServerTimeoutException(StreamManagerException):
    """The server gave up on an operation that took too long."""


class ResponsePayloadTooLargeException(StreamManagerException):
    """The smallest answer that was asked for does not fit a frame."""


class NotEnoughMessagesException(StreamManagerException):
    """Fewer messages than the wanted minimum, also after waiting."""


class MessageStoreReadErrorException(StreamManagerException):
    """The stored messages that were asked for are damaged."""


class ServerOutOfMemoryException(StreamManagerException):
    """The server has no memory left for the request."""


class UpdateFailedException(StreamManagerException):
    """An update that is allowed could not be carried out."""


class UpdateNotAllowedException(InvalidRequestException):
    """An update of something that can never change."""


class UnknownOperationException(StreamManagerException):
    """An operation number that the server does not know."""


STATUS_OF: dict[type[StreamManagerException], ResponseStatusCode] = {
    UnknownFailureException: ResponseStatusCode.UnknownFailure,
    UnauthorizedException: ResponseStatusCode.Unauthorized,
    InvalidRequestException: ResponseStatusCode.InvalidRequest,
    RequestPayloadTooLargeException: ResponseStatusCode.RequestPayloadTooLarge,
    ResourceNotFoundException: ResponseStatusCode.ResourceNotFound,
    ServerTimeoutException: ResponseStatusCode.ServerTimeout,
    ResponsePayloadTooLargeException: ResponseStatusCode.ResponsePayloadTooLarge,
    NotEnoughMessagesException: ResponseStatusCode.NotEnoughMessages,
    MessageStoreReadErrorException: ResponseStatusCode.MessageStoreReadError,
    ServerOutOfMemoryException: ResponseStatusCode.OutOfMemoryError,
    UpdateFailedException: ResponseStatusCode.UpdateFailed,
    UpdateNotAllowedException: ResponseStatusCode.UpdateNotAllowed,
    UnknownOperationException: ResponseStatusCode.UnknownOperation,
}

EXCEPTION_OF = {status: exception for exception, status in STATUS_OF.items()}

# A 1.0.0 client dies for good of a status it does not know, so each newer one has a stand-in.
_STATUS_IN_1_0_0 = {
    ResponseStatusCode.OutOfMemoryError: ResponseStatusCode.UnknownFailure,
    ResponseStatusCode.UpdateFailed: ResponseStatusCode.InvalidRequest,
    ResponseStatusCode.UpdateNotAllowed: ResponseStatusCode.InvalidRequest,
    ResponseStatusCode.UnknownOperation: ResponseStatusCode.InvalidRequest,
}


def status_for_version(status: ResponseStatusCode, protocol_version: str) -> ResponseStatusCode:
    """The status as a client of that protocol version can understand it."""
    if protocol_version == "1.0.0":
        return _STATUS_IN_1_0_0.get(status, status)
    return status


class StoreError(Exception):
    """A store that cannot be opened at all: the broker does not start."""


class SettingError(ValueError):
    """A setting with a value that is not allowed; the message names both."""
