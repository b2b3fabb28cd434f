"""What an error says, what it is, and whether to try again after it."""

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
    may_pass,
    not_in_time,
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
def test_a_lost_connection_names_the_operation_and_what_may_have_become_of_it(
    call: ClientCall[Any],
) -> None:
    error = connection_lost(call)

    assert call.operation.name in str(error)
    assert "may have been carried out, or not" in str(error)
    assert isinstance(error, (UnansweredException, ConnectionError))
    assert isinstance(error, StreamManagerException)
    assert not isinstance(error, TimeoutError)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.operation.name)
def test_an_answer_that_is_not_in_time_says_the_same(call: ClientCall[Any]) -> None:
    error = not_in_time(call)

    assert call.operation.name in str(error)
    assert "may have been carried out, or not" in str(error)
    assert isinstance(error, (UnansweredException, TimeoutError))
    assert isinstance(error, StreamManagerException)
    assert not isinstance(error, ConnectionError)


def test_what_was_not_sent_is_no_answer_that_is_missing() -> None:
    error: Exception = NotSentError("gone")

    assert isinstance(error, ConnectionError)
    assert not isinstance(error, UnansweredException)


def test_a_server_that_hangs_up_in_the_handshake_failed_to_connect() -> None:
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
        # A broker that is about to stop, or has all the connections that it may have.
        ConnectFailedException("the server is stopping", ResponseStatusCode.FailedToConnect),
    ],
    ids=repr,
)
def test_a_broker_that_is_away_may_come_back(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize(
    "status",
    [
        None,
        ResponseStatusCode.Unauthorized,
        ResponseStatusCode.UnsupportedProtocolVersion,
        ResponseStatusCode.InvalidRequest,
    ],
)
def test_a_refusal_stays_one(status: ResponseStatusCode | None) -> None:
    assert not may_pass(ConnectFailedException("no", status))
