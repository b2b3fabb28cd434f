"""Unknown operation numbers."""

from __future__ import annotations

import pytest

from .harness import Client, for_1_0_sdks, for_1_1_sdks, refused

# Zero, an unused number, a response, and the limits of a signed byte.
numbers = pytest.mark.parametrize("operation", [0, 42, 9, 127, -128])


@for_1_1_sdks
@numbers
def test_unknown_operation_is_answered(client: Client, operation: int) -> None:
    with refused("UnknownOperationException"):
        client.send(operation)


@for_1_0_sdks
@numbers
def test_1_0_client_gets_only_statuses_that_it_knows(client: Client, operation: int) -> None:
    # This client knows neither the answer's operation nor a status above 14. It raises an error
    # for the operation. An unknown status would end its read loop.
    with refused("ClientException", "unknown operation"):
        client.send(operation)

    assert client.last_response()["status"] == 3


@numbers
def test_client_stays_usable_after_an_unknown_operation(client: Client, operation: int) -> None:
    expected = "UnknownOperationException" if client.sdk.knows_1_1 else "ClientException"
    name = client.create()
    for _ in range(3):
        with refused(expected):
            client.send(operation)

    assert client.append(name, b"x") == 0
