"""The handshake: versions and tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import BrokerProcess

from .conftest import Connect
from .harness import Client, Sdk, SdkError

without_a_token = pytest.mark.parametrize("token", [None, ""], ids=["missing", "empty"])


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    root = tmp_path_factory.mktemp("open") / "root"
    with BrokerProcess(root, STREAM_MANAGER_AUTHENTICATE_CLIENT="false") as broker:
        yield broker


def rejection(connect: Connect, sdk: Sdk, token: str | None) -> SdkError:
    with pytest.raises(SdkError) as caught:
        connect(sdk, token=token)
    return caught.value


def test_client_is_connected_with_its_protocol_version(client: Client) -> None:
    response = client.connect_response()

    assert response["status"] == 0
    assert response["protocolVersion"] == client.sdk.protocol
    assert set(response["supportedProtocolVersions"]) >= {"1.0.0", "1.1.0"}
    assert response["serverVersion"]
    assert response["clientIdentifier"]


def test_wrong_token_is_rejected_with_an_answer(connect: Connect, sdk: Sdk) -> None:
    error = rejection(connect, sdk, "not the token")

    # A connection closed without an answer would raise another error.
    assert (error.error, error.status) == (sdk.unauthorized_error, "Unauthorized")


@without_a_token
def test_missing_token_is_rejected_with_an_answer(
    connect: Connect, sdk: Sdk, token: str | None
) -> None:
    error = rejection(connect, sdk, token)

    assert (error.error, error.status) == (sdk.unauthorized_error, "Unauthorized")


def test_rejected_clients_do_not_affect_others(connect: Connect, client: Client) -> None:
    name = client.create()

    for _ in range(5):
        rejection(connect, client.sdk, "not the token")

    assert client.append(name, b"still here") == 0


@without_a_token
def test_no_token_is_needed_without_authentication(
    connect: Connect, open_broker: BrokerProcess, sdk: Sdk, token: str | None
) -> None:
    client = connect(sdk, to=open_broker, token=token)

    assert client.append(client.create(), b"welcome") == 0


def test_any_token_is_accepted_without_authentication(
    connect: Connect, open_broker: BrokerProcess, sdk: Sdk
) -> None:
    client = connect(sdk, to=open_broker, token="any token")

    assert client.append(client.create(), b"welcome") == 0
