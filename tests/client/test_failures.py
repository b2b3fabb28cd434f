"""Texts and classes of connection failures, and which ones are retried."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from penstock.client import calls
from penstock.client.calls import ClientCall
from penstock.client.failures import (
    NotSentError,
    closed_in_handshake,
    connection_lost,
    is_retryable,
    request_timed_out,
)
from penstock.errors import (
    ClientException,
    ConnectFailedException,
    ResponseStatusCode,
    StreamManagerException,
    UnansweredException,
)

CALLS: list[ClientCall[Any]] = [
    calls.append_message("s", b"x"),
    calls.delete_message_stream("s"),
    calls.list_streams(),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.operation.name)
def test_lost_connection_names_the_operation(
    call: ClientCall[Any],
) -> None:
    error = connection_lost(call)

    assert call.operation.name in str(error)
    assert "the server may have executed it" in str(error)
    assert isinstance(error, (UnansweredException, ConnectionError))
    assert isinstance(error, StreamManagerException)
    assert not isinstance(error, TimeoutError)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.operation.name)
def test_timeout_names_the_operation(call: ClientCall[Any]) -> None:
    error = request_timed_out(call)

    assert call.operation.name in str(error)
    assert "the server may have executed it" in str(error)
    assert isinstance(error, (UnansweredException, TimeoutError))
    assert isinstance(error, StreamManagerException)
    assert not isinstance(error, ConnectionError)


def test_unsent_request_is_not_an_unanswered_one() -> None:
    error: Exception = NotSentError("gone")

    assert isinstance(error, ConnectionError)
    assert not isinstance(error, UnansweredException)


def test_close_during_the_handshake_has_status_failed_to_connect() -> None:
    error = closed_in_handshake()

    assert isinstance(error, ClientException)
    assert error.status is ResponseStatusCode.FailedToConnect


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        ConnectionResetError(),
        TimeoutError(),
        FileNotFoundError(),
        ssl.SSLError(),
        closed_in_handshake(),
        # A broker that is stopping, or has its max number of connections.
        ConnectFailedException("the server is stopping", ResponseStatusCode.FailedToConnect),
    ],
    ids=repr,
)
def test_unavailable_broker_is_retryable(error: Exception) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize(
    "status",
    [
        None,
        ResponseStatusCode.Unauthorized,
        ResponseStatusCode.UnsupportedProtocolVersion,
        ResponseStatusCode.InvalidRequest,
    ],
)
def test_rejection_is_not_retryable(status: ResponseStatusCode | None) -> None:
    assert not is_retryable(ConnectFailedException("no", status))
