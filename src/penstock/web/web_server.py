"""The HTTP server in the broker's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.broker.listener import Listener
from penstock.broker.server import Broker, tls_context
from penstock.broker.session import measure_unsent
from penstock.broker.tls import TlsListener
from penstock.discovery import connectable_host
from penstock.errors import SettingError
from penstock.settings import is_loopback
from penstock.web.api import Api, json_response
from penstock.web.authorization import Authorizer
from penstock.web.events import Events
from penstock.web.presentation import look_at_disk
from penstock.web.sampler import Sampler

logger = logging.getLogger(__name__)

PAGE = Path(__file__).with_name("page")

# What starlette says where no route leads.
_NOT_FOUND = "Not Found"
_MAX_CONNECTIONS = 256
# In so long a request is to be there, beginning with the connection or the last answer.
_KEEP_ALIVE_SECONDS = 15
_STOP_SECONDS = 2
_TICK_SECONDS = 1.0

# The page needs nothing from elsewhere, and nobody may put it into a page of his own.
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
# The page is asked for again each time, but not sent if it is the same; what it shows is not kept.
_OF_PAGE = (b"cache-control", b"no-cache")
_OF_DATA = (b"cache-control", b"no-store")


class WebServer:
    """A service of the broker."""

    def __init__(self) -> None:
        self._url = ""
        self._listener: Listener | None = None
        self._events = Events()
        # From now on: what the broker says while it starts is to be seen as well.
        logging.getLogger().addHandler(self._events)

    @property
    def ready_message(self) -> str | None:
        return f"penstock dashboard {self._url}"

    async def start(self, broker: Broker) -> None:
        settings = broker.settings
        listener = _listen(settings.http_host, settings.http_port or 0)
        host, port = listener.getsockname()[:2]
        host = connectable_host(host)
        uses_tls = not is_loopback(settings.http_host)
        shown = f"[{host}]" if ":" in host else host
        self._url = f"{'https' if uses_tls else 'http'}://{shown}:{port}/"
        self._sampler = Sampler(broker)
        authorizer = Authorizer(broker.authenticator, settings)
        self._api = Api(broker, self._sampler, self._events, authorizer)
        application = make_application(broker, self._api)
        config = _Config(
            application,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=_Connection,
            ws="none",
            server_header=False,
            # Who asks is who is connected: a proxy's word for it is not taken.
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        self._max_connections = min(_MAX_CONNECTIONS, broker.budget.http_connections)
        config.max_connections = self._max_connections
        config.unsent_response_timeout = broker.unsent_response_timeout
        config.load()
        context = tls_context(settings) if uses_tls else None
        self._server = _QuietServer(config)
        # Of what it does it tells nothing that people would want to know.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._serving = asyncio.create_task(self._server.serve(sockets=[]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.005)
        if self._serving.done():
            self._serving.result()
        self._listener = self._accept_on(listener, context, broker)
        broker.http_url = self._url
        broker.publish()
        logger.info("the dashboard is on %s", self._url)

    def _accept_on(
        self, listening: socket.socket, context: ssl.SSLContext | None, broker: Broker
    ) -> Listener:
        """In place of uvicorn, which does not count connections before their TLS handshake."""
        server = self._server

        def make_connection() -> _Connection:
            return _Connection(server.config, server.server_state, server.lifespan.state)

        if context is None:
            return Listener([listening], make_connection, broker.note_shortage)
        return TlsListener(
            [listening],
            context,
            make_connection,
            connections=server.server_state.connections,
            max_connections=self._max_connections,
            handshake_seconds=broker.handshake_timeout,
            on_refusal=lambda peer: logger.debug("%s: it makes room for others", peer),
            on_shortage=broker.note_shortage,
        )

    async def stop(self) -> None:
        self._sampler.stop()
        if self._listener is not None:
            await self._listener.close()
        self._server.end()
        await self._serving
        logging.getLogger().removeHandler(self._events)


class _QuietServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ends = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ends.set()

    async def main_loop(self) -> None:
        """Once a second, for the Date header. uvicorn looks ten times whether it is to end."""
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), _TICK_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the broker."""
        yield


class _Config(uvicorn.Config):
    # Fewer where the system allows few descriptors.
    max_connections = _MAX_CONNECTIONS
    # A connection is closed when its client takes nothing of an answer for so long.
    unsent_response_timeout = math.inf


class _Connection(H11Protocol):
    """There are only so many, and one that asks nothing, or takes nothing, is not waited for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unsent_timer: asyncio.TimerHandle | None = None
        self.idle_since = self.loop.time()
        assert isinstance(self.config, _Config)
        if len(self.connections) > self.config.max_connections and not self._evict_oldest():
            transport.abort()
            return
        if self.scheme == "http":
            # So that no byte is left of which nobody is told. With TLS there is a limit to an end.
            transport.set_write_buffer_limits(high=0)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _evict_oldest(self) -> bool:
        """Close the connection that has been without a whole request for longest.

        If there is none, close one whose client does not take its answer. False if all are busy.
        """
        others = [
            each for each in self.connections if isinstance(each, _Connection) and each is not self
        ]
        candidates = [each for each in others if each.is_idle] or [
            each for each in others if each.flow.write_paused
        ]
        if not candidates:
            return False
        oldest = min(candidates, key=lambda each: each.idle_since)
        # It is gone only in the next turn of the loop, and must not be counted until then.
        self.connections.discard(oldest)
        oldest.transport.abort()
        logger.debug("%s: closed to make room for another connection", oldest.client)
        return True

    @property
    def is_idle(self) -> bool:
        """Whether it has neither a whole request nor an unsent answer."""
        is_answering = self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)
        return not is_answering and not self.flow.write_paused

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        # Any byte would end the wait for a request; only the last one of its head is to.
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self.conn.our_state not in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self.timeout_keep_alive_task = timer
        elif timer is not None:
            timer.cancel()

    def send_400_response(self, msg: str) -> None:
        # It may be the body that is wrong, of a request that is being answered, or has been.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def _wait_for_reader(self, unsent_before: tuple[int, int] | None) -> None:
        """Closes the connection if its client takes nothing of an answer until the timeout."""
        assert isinstance(self.config, _Config)
        unsent = measure_unsent(self.transport)
        if unsent != unsent_before:
            self._unsent_timer = self.loop.call_later(
                self.config.unsent_response_timeout, self._wait_for_reader, unsent
            )
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise SettingError(
            f"cannot listen on {host}:{port} for the dashboard: "
            f"{error.strerror or error}; choose another port with --http-port (0 picks a free one)"
        ) from None
    return listener


def make_application(broker: Broker, api: Api) -> ASGIApp:
    async def page(_: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    async def health(_: Request) -> Response:
        return json_response({"status": "ok"})

    async def readiness(_: Request) -> Response:
        problem = _why_not_ready(broker)
        return json_response({"status": problem or "ready"}, 503 if problem else 200)

    application = Starlette(
        routes=[
            Route("/", page),
            Route("/healthz", health),
            Route("/readyz", readiness),
            *api.routes(),
            Mount("/page", StaticFiles(directory=PAGE)),
        ],
        exception_handlers={HTTPException: _refuse, Exception: _fail},
    )
    # There is one address for each thing.
    application.router.redirect_slashes = False
    return _with_headers(application)


def _why_not_ready(broker: Broker) -> str | None:
    if broker.is_stopping:
        return "stopping"
    try:
        free, _ = look_at_disk(broker.settings.root_path)
    except OSError as error:
        return f"the root cannot be looked at: {error.strerror}"
    if not free:
        return "the disk is full"
    disk = broker.statistics_of_disk()
    if disk.is_low:
        return f"the disk has less than min_free_disk ({disk.min_free_bytes} bytes) free"
    return None


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code == 404 and detail == _NOT_FOUND:
        detail = f"there is nothing at {request.url.path}"
    response = json_response({"error": detail}, error.status_code)
    response.headers.update(error.headers or {})
    if error.status_code == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="penstock"'
    return response


async def _fail(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed: %r", request.method, request.url.path, error)
    return json_response({"error": "internal error; see the log of the server"}, 500)


def _with_headers(application: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["path"] == "/" or scope["path"].startswith("/page/")
        keeping = _OF_PAGE if is_page else _OF_DATA

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS, keeping]
            await send(message)

        await application(scope, receive, send_with_headers)

    return serve
