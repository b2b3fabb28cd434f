"""The tests' connection, against a broker and against scripted servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cbor2
import pytest

from penstock import __version__
from penstock.errors import (
    EXCEPTION_OF,
    ConnectFailedException,
    InvalidRequestException,
    ResponseStatusCode,
    StreamManagerException,
    UpdateNotAllowedException,
)
from penstock.wire.codec import encode_response
from penstock.wire.frames import HEADER
from penstock.wire.operations import Operation
from tests.raw_connection import RawConnection, raise_for_status
from tests.support import LocalBroker, append, create, read

Json = dict[str, object]
Script = Callable[[socket.socket], object]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("client") / "root") as broker:
        yield broker


@contextmanager
def server(script: Script) -> Iterator[int]:
    """Serves one connection with a script, and yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as accepted:
                script(accepted)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def receive_request(accepted: socket.socket) -> tuple[int, Json]:
    with accepted.makefile("rb") as reader:
        length, operation = HEADER.unpack(reader.read(5))
        return operation, cbor2.loads(reader.read(length - 1))


def accept_handshake(
    accepted: socket.socket, status: ResponseStatusCode, message: str = ""
) -> Json:
    assert accepted.recv(1) == b"\x01"
    operation, request = receive_request(accepted)
    assert operation == Operation.Connect
    accepted.sendall(
        b"\x01"
        + encode_response(Operation.ConnectResponse, str(request["requestId"]), status, message)
    )
    return request


def test_requests_are_answered_in_order(broker: LocalBroker) -> None:
    with broker.connect() as client:
        create(client, "s")
        assert [append(client, "s", b"%d" % number) for number in range(3)] == [0, 1, 2]
        messages = read(client, "s", minMessageCount=3)

    assert [message["payload"] for message in messages] == [b"0", b"1", b"2"]


def test_requests_are_pipelined(broker: LocalBroker) -> None:
    with broker.connect() as client:
        sent = [client.send(Operation.ListStreams) for _ in range(100)]
        received = [client.receive() for _ in sent]

    assert [answer["requestId"] for _, answer in received] == sent
    assert {operation for operation, _ in received} == {Operation.ListStreamsResponse}
    assert len(set(sent)) == 100


def test_error_is_raised_as_the_exception_of_its_status(broker: LocalBroker) -> None:
    with broker.connect() as client:
        with pytest.raises(InvalidRequestException, match="missing required field name") as caught:
            client.call(Operation.DescribeMessageStream)
        assert caught.value.status == ResponseStatusCode.InvalidRequest
        # The connection stays usable.
        assert client.call(Operation.ListStreams)["status"] == 0


def test_wrong_token_is_a_failed_connect(broker: LocalBroker) -> None:
    plain = socket.create_connection(("127.0.0.1", broker.port))

    with pytest.raises(ConnectFailedException, match="not known") as caught:
        RawConnection(plain, "wrong")

    assert caught.value.status is ResponseStatusCode.Unauthorized
    assert plain.fileno() == -1


@pytest.mark.parametrize("status", [s for s in ResponseStatusCode if s in EXCEPTION_OF])
def test_every_status_has_its_exception(status: ResponseStatusCode) -> None:
    with pytest.raises(EXCEPTION_OF[status]) as caught:
        raise_for_status({"status": int(status), "errorMessage": "why", "requestId": "r"})

    assert type(caught.value) is EXCEPTION_OF[status]
    assert (caught.value.message, caught.value.status, caught.value.request_id) == (
        "why",
        status,
        "r",
    )


@pytest.mark.parametrize("status", [8, 9, 12, 99])
def test_other_status_is_raised(status: int) -> None:
    with pytest.raises(StreamManagerException, match="why"):
        raise_for_status({"status": status, "errorMessage": "why"})


def test_success_raises_nothing() -> None:
    raise_for_status({"status": 0, "errorMessage": ""})


def test_update_not_allowed_is_an_invalid_request() -> None:
    assert issubclass(UpdateNotAllowedException, InvalidRequestException)


# Scripted servers


@pytest.mark.parametrize(("token", "sent"), [("secret", "secret"), ("", None)])
def test_handshake_sends_token_and_versions(token: str, sent: str | None) -> None:
    seen: list[Json] = []

    def script(accepted: socket.socket) -> None:
        seen.append(accept_handshake(accepted, ResponseStatusCode.Success))

    with server(script) as port:
        RawConnection.open("127.0.0.1", port, token).close()

    assert seen[0].get("authToken") == sent
    assert seen[0]["protocolVersion"] == "1.1.0"
    assert seen[0]["otherSupportedProtocolVersions"] == ["1.0.0"]
    assert seen[0]["sdkVersion"] == __version__
    assert seen[0]["penstockExtensions"] == 1


def test_refused_handshake_has_its_reason() -> None:
    def script(accepted: socket.socket) -> None:
        accept_handshake(accepted, ResponseStatusCode.FailedToConnect, "no room")

    with (
        server(script) as port,
        pytest.raises(ConnectFailedException, match="no room") as caught,
    ):
        RawConnection.open("127.0.0.1", port)

    assert caught.value.status is ResponseStatusCode.FailedToConnect


def test_server_with_another_protocol_is_rejected() -> None:
    with (
        server(lambda accepted: accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port,
        pytest.raises(ConnectFailedException, match="another protocol"),
    ):
        RawConnection.open("127.0.0.1", port)


def test_truncated_answer_is_a_lost_connection() -> None:
    def script(accepted: socket.socket) -> None:
        accept_handshake(accepted, ResponseStatusCode.Success)
        receive_request(accepted)
        accepted.sendall(b"\x00\x00\x00\x10\x0c\xa3")

    with (
        server(script) as port,
        RawConnection.open("127.0.0.1", port) as client,
        pytest.raises(ConnectionError, match="closed the connection"),
    ):
        client.call(Operation.ListStreams)


def test_handshake_times_out() -> None:
    over = threading.Event()
    with server(lambda _: over.wait(10)) as port:
        with pytest.raises(TimeoutError):
            RawConnection.open("127.0.0.1", port, timeout=0.05)
        over.set()
