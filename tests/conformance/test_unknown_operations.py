"""Operation numbers that the server does not know."""

from __future__ import annotations

import pytest

from .harness import Client, for_1_0_sdks, for_1_1_sdks, refused

# Nothing at all, a number of the future, a response, and the two ends of the signed byte.
numbers = pytest.mark.parametrize("operation", [0, 42, 9, 127, -128])


@for_1_1_sdks
@numbers
def test_an_unknown_operation_is_answered_as_such(client: Client, operation: int) -> None:
    with refused("UnknownOperationException"):
        client.send(operation)


@for_1_0_sdks
@numbers
def test_a_1_0_client_never_sees_a_status_it_does_not_know(client: Client, operation: int) -> None:
    # This client knows neither the answer's operation nor any status above 14. It can tell
    # the caller about the first; the second would end its read loop.
    with refused("ClientException", "unknown operation"):
        client.send(operation)

    assert client.last_response()["status"] == 3


@numbers
def test_a_client_is_as_good_as_new_after_an_unknown_operation(
    client: Client, operation: int
) -> None:
    expected = "UnknownOperationException" if client.sdk.knows_1_1 else "ClientException"
    name = client.create()
    for _ in range(3):
        with refused(expected):
            client.send(operation)

    assert client.append(name, b"x") == 0
