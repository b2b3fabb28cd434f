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


def refusal(connect: Connect, sdk: Sdk, token: str | None) -> SdkError:
    with pytest.raises(SdkError) as caught:
        connect(sdk, token=token)
    return caught.value


def test_a_client_is_connected_in_the_protocol_version_it_speaks(client: Client) -> None:
    response = client.connect_response()

    assert response["status"] == 0
    assert response["protocolVersion"] == client.sdk.protocol
    assert set(response["supportedProtocolVersions"]) >= {"1.0.0", "1.1.0"}
    assert response["serverVersion"]
    assert response["clientIdentifier"]


def test_a_wrong_token_is_refused_with_an_answer(connect: Connect, sdk: Sdk) -> None:
    error = refusal(connect, sdk, "not the token")

    # A connection that was closed without an answer surfaces as something else altogether.
    assert (error.error, error.status) == (sdk.unauthorized_error, "Unauthorized")


@without_a_token
def test_no_token_is_refused_with_an_answer(connect: Connect, sdk: Sdk, token: str | None) -> None:
    error = refusal(connect, sdk, token)

    assert (error.error, error.status) == (sdk.unauthorized_error, "Unauthorized")


def test_refused_clients_do_not_disturb_the_others(connect: Connect, client: Client) -> None:
    name = client.create()

    for _ in range(5):
        refusal(connect, client.sdk, "not the token")

    assert client.append(name, b"still here") == 0


@without_a_token
def test_no_token_is_needed_where_clients_are_not_authenticated(
    connect: Connect, open_broker: BrokerProcess, sdk: Sdk, token: str | None
) -> None:
    client = connect(sdk, to=open_broker, token=token)

    assert client.append(client.create(), b"welcome") == 0


def test_any_token_will_do_where_clients_are_not_authenticated(
    connect: Connect, open_broker: BrokerProcess, sdk: Sdk
) -> None:
    client = connect(sdk, to=open_broker, token="whatever")

    assert client.append(client.create(), b"welcome") == 0
