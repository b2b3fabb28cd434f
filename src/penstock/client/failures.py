"""Connection failures, and whether the server may have executed the request."""

from __future__ import annotations

from typing import Any

from penstock.client.calls import ClientCall
from penstock.errors import (
    ConnectFailedException,
    ConnectionLostException,
    RequestTimeoutException,
    ResponseStatusCode,
)

# Seconds of "no timeout": the system cannot wait much longer.
NO_LIMIT = 20 * 24 * 3600.0


class NotSentError(ConnectionError):
    """The connection ended before the request was sent: the server did not execute it."""


def connection_lost(call: ClientCall[Any]) -> ConnectionLostException:
    return ConnectionLostException(
        f"connection lost before {call.operation.name} was answered: the server may have "
        "executed it"
    )


def request_timed_out(call: ClientCall[Any]) -> RequestTimeoutException:
    return RequestTimeoutException(
        f"{call.operation.name} timed out: the server may have executed it"
    )


def closed_in_handshake() -> ConnectFailedException:
    return ConnectFailedException(
        "the server closed the connection instead of answering the handshake",
        ResponseStatusCode.FailedToConnect,
    )


def is_retryable(error: Exception) -> bool:
    """Whether to retry to connect. A rejected token stays rejected; a broker may restart."""
    return (
        not isinstance(error, ConnectFailedException)
        or error.status is ResponseStatusCode.FailedToConnect
    )
