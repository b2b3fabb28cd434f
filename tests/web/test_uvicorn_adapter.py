"""The members of uvicorn that the adapter relies on, and the connections that it makes of them.

The first tests fail if the installed uvicorn has changed a member that is not documented. They name
it, so that an update of uvicorn does not show as a connection that hangs.
"""

from __future__ import annotations

import asyncio
import inspect
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import h11
import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.web.uvicorn_adapter import HttpServer
from tests.web.site import Site

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def make_protocol() -> H11Protocol:
    config = uvicorn.Config(answer_ok, log_config=None, lifespan="off", http="h11", ws="none")
    config.load()
    return H11Protocol(config, ServerState(), {})


async def answer_ok(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


# Members of uvicorn


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("__init__", ["self", "config", "server_state", "app_state"]),
        ("on_response_complete", ["self"]),
        ("send_400_response", ["self", "msg"]),
        ("shutdown", ["self"]),
    ],
)
def test_protocol_has_method_with_these_arguments(name: str, parameters: list[str]) -> None:
    method = getattr(H11Protocol, name, None)
    assert method is not None, f"uvicorn {uvicorn.__version__} has no H11Protocol.{name}"
    found = inspect.signature(method).parameters

    required = [name for name, each in found.items() if each.default is inspect.Parameter.empty]
    assert required == parameters


def test_protocol_is_an_asyncio_protocol() -> None:
    assert issubclass(H11Protocol, asyncio.Protocol)


def test_server_state_has_a_set_of_tasks() -> None:
    assert ServerState().tasks == set()


def connect_fake() -> tuple[H11Protocol, FakeTransport]:
    transport = FakeTransport()
    connection = make_protocol()
    connection.connection_made(transport)
    return connection, transport


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def test_connection_has_an_h11_state_and_no_cycle_at_first() -> None:
    async def check() -> None:
        connection, _ = connect_fake()

        assert isinstance(connection.conn, h11.Connection)
        assert connection.conn.our_state is h11.IDLE
        assert connection.cycle is None

    asyncio.run(check())


def test_request_sets_state_and_cycle_and_adds_a_task() -> None:
    async def check() -> None:
        connection, _ = connect_fake()
        connection.data_received(REQUEST)

        assert connection.conn.our_state is h11.SEND_RESPONSE
        assert connection.cycle.disconnected is False
        assert len(connection.server_state.tasks) == 1

    asyncio.run(check())


def test_response_calls_on_response_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(H11Protocol, "on_response_complete", lambda *args: called.append(args))

    async def check() -> None:
        connection, transport = connect_fake()
        connection.data_received(REQUEST)
        await asyncio.gather(*connection.server_state.tasks)

        assert transport.written.endswith(b"\r\n\r\nok")
        assert called == [(connection,)]

    asyncio.run(check())


def test_disconnected_cycle_discards_the_response() -> None:
    async def check() -> None:
        connection, transport = connect_fake()
        connection.data_received(REQUEST)
        connection.cycle.disconnected = True
        await asyncio.gather(*connection.server_state.tasks)

        assert transport.written == b""

    asyncio.run(check())


def test_malformed_request_calls_send_400_response(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(H11Protocol, "send_400_response", lambda *args: called.append(args))

    async def check() -> None:
        connection, _ = connect_fake()
        connection.data_received(b"no request\r\n\r\n")

        ((called_with, message),) = called
        assert called_with is connection
        assert isinstance(message, str)

    asyncio.run(check())


def test_shutdown_closes_a_connection_without_a_request() -> None:
    async def check() -> None:
        connection, transport = connect_fake()
        connection.shutdown()

        assert transport.is_closed

    asyncio.run(check())


# The adapter


def serve(application: ASGIApp, request_timeout: float = 60) -> HttpServer:
    return HttpServer(
        application,
        max_connections=4,
        request_timeout=request_timeout,
        unsent_response_timeout=60,
    )


async def connect(
    server: HttpServer,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Server]:
    listener = await asyncio.get_running_loop().create_server(
        server.make_connection, "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    return reader, writer, listener


def test_pipelined_requests_are_answered_and_then_the_request_timer_runs() -> None:
    async def check() -> None:
        server = serve(answer_ok, request_timeout=0.3)
        reader, writer, listener = await connect(server)
        writer.write(REQUEST * 3 + REQUEST[:10])

        answers = await reader.read()

        assert answers.count(b"HTTP/1.1 200 ") == 3
        assert server.is_idle
        writer.close()
        listener.close()

    asyncio.run(check())


def test_response_that_takes_longer_than_the_request_timeout_is_sent() -> None:
    async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)
        await answer_ok(scope, receive, send)

    async def check() -> None:
        server = serve(answer_late, request_timeout=0.1)
        reader, writer, listener = await connect(server)
        writer.write(REQUEST)

        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        listener.close()

    asyncio.run(check())


def test_stop_cancels_requests_after_the_timeout(caplog: pytest.LogCaptureFixture) -> None:
    async def never_answer(_scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.Event().wait()

    async def check() -> None:
        server = serve(never_answer)
        _, writer, listener = await connect(server)
        writer.write(REQUEST)
        while not server._state.tasks:
            await asyncio.sleep(0.01)
        tasks = tuple(server._state.tasks)

        await server.stop(0.1)

        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        writer.close()
        listener.close()

    asyncio.run(check())
    message = "canceling 1 HTTP requests that did not end within 0.1 seconds"
    assert message in [each.getMessage() for each in caplog.records]


def test_responses_have_a_date_and_no_server_header(tmp_path: Path) -> None:
    with Site(tmp_path / "root") as site:
        headers = site.get("/healthz").headers

    assert parsedate_to_datetime(headers["date"]).tzinfo is not None
    assert "server" not in headers
