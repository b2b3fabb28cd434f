"""All errors of Penstock and their statuses on the wire, for clients and the broker.

The names are those of the AWS SDKs, so that existing `except` clauses work.
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
    # The following statuses are new in protocol 1.1.0; see `status_for_version`.
    OutOfMemoryError = 15
    UpdateFailed = 16
    UpdateNotAllowed = 17
    UnknownOperation = 18

    __str__ = Enum.__str__


class StreamManagerException(Exception):
    """The base class of all errors that clients raise."""

    # The number of messages that `append_messages` stored before it failed.
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
    """An error of the client itself, without an answer of the server."""


class ValidationException(ClientException):
    """A value that the client refuses to send."""


class ConnectFailedException(ClientException):
    """The server refused the handshake."""


class UnansweredException(ClientException):
    """A request was sent and not answered: the server may have executed it."""


class ConnectionLostException(UnansweredException, ConnectionError):
    """The connection ended between a request and its answer."""


class RequestTimeoutException(UnansweredException, TimeoutError):
    """The answer did not come in time."""


class UnknownFailureException(StreamManagerException):
    """The server failed; the request is valid."""


class UnauthorizedException(StreamManagerException):
    """The token is unknown, or its role does not allow the operation."""


class InvalidRequestException(StreamManagerException):
    """The request breaks a rule; the message names the field and the allowed values."""


class RequestPayloadTooLargeException(StreamManagerException):
    """The frame or the message is larger than the maximum."""


class ResourceNotFoundException(StreamManagerException):
    """There is no stream of this name."""


class ServerTimeoutException(StreamManagerException):
    """The operation timed out on the server."""


class ResponsePayloadTooLargeException(StreamManagerException):
    """The requested minimum of messages does not fit into a frame."""


class NotEnoughMessagesException(StreamManagerException):
    """The stream has fewer messages than the requested minimum, even after the timeout."""


class MessageStoreReadErrorException(StreamManagerException):
    """The requested messages are damaged."""


class ServerOutOfMemoryException(StreamManagerException):
    """The server has no memory left for the request."""


class UpdateFailedException(StreamManagerException):
    """An allowed update could not be carried out."""


class UpdateNotAllowedException(InvalidRequestException):
    """An update of a field that cannot change."""


class UnknownOperationException(StreamManagerException):
    """The server has no operation with this number."""


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

# An unknown status crashes a 1.0.0 client, so each newer status is replaced by an older one.
_STATUS_IN_1_0_0 = {
    ResponseStatusCode.OutOfMemoryError: ResponseStatusCode.UnknownFailure,
    ResponseStatusCode.UpdateFailed: ResponseStatusCode.InvalidRequest,
    ResponseStatusCode.UpdateNotAllowed: ResponseStatusCode.InvalidRequest,
    ResponseStatusCode.UnknownOperation: ResponseStatusCode.InvalidRequest,
}


def status_for_version(status: ResponseStatusCode, protocol_version: str) -> ResponseStatusCode:
    """The status for a client of this protocol version."""
    if protocol_version == "1.0.0":
        return _STATUS_IN_1_0_0.get(status, status)
    return status


class StoreError(Exception):
    """The store cannot be opened: the broker does not start."""


class SettingError(ValueError):
    """A setting has an invalid value; the message names the setting and the allowed values."""
