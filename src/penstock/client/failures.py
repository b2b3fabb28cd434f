"""What goes wrong between a client and its server, and what it means for the request."""

from __future__ import annotations

from typing import Any

from penstock.client.calls import ClientCall
from penstock.errors import (
    ConnectFailedException,
    ConnectionLostException,
    RequestTimeoutException,
    ResponseStatusCode,
)

# Seconds that stand for no limit: as many as the system can wait for.
NO_LIMIT = 20 * 24 * 3600.0


class NotSentError(ConnectionError):
    """The connection ended before the request had left: it cannot have been carried out."""


def connection_lost(call: ClientCall[Any]) -> ConnectionLostException:
    return ConnectionLostException(
        f"the connection was lost before {call.operation.name} was answered: it may have been "
        "carried out, or not"
    )


def not_in_time(call: ClientCall[Any]) -> RequestTimeoutException:
    return RequestTimeoutException(
        f"{call.operation.name} was not answered in time: it may have been carried out, or not"
    )


def closed_in_handshake() -> ConnectFailedException:
    return ConnectFailedException(
        "the server closed the connection instead of answering the handshake",
        ResponseStatusCode.FailedToConnect,
    )


def may_pass(error: Exception) -> bool:
    """Whether to connect again: a refused token will be refused again, a broker may come back."""
    return (
        not isinstance(error, ConnectFailedException)
        or error.status is ResponseStatusCode.FailedToConnect
    )
