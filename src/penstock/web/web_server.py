"""The HTTP server of the broker, in its event loop: dashboard, API, metrics and health."""

from __future__ import annotations

import logging
import socket
import ssl
from email.utils import formatdate
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.broker.listener import Listener
from penstock.broker.server import Broker, tls_context
from penstock.broker.tls import TlsListener
from penstock.discovery import connectable_host
from penstock.errors import SettingError
from penstock.settings import is_loopback
from penstock.web.api import Api, json_response
from penstock.web.authorization import Authorizer
from penstock.web.events import Events
from penstock.web.presentation import measure_disk
from penstock.web.sampler import Sampler
from penstock.web.uvicorn_adapter import HttpServer

logger = logging.getLogger(__name__)

PAGE = Path(__file__).with_name("page")

# Starlette's message for an unknown path.
_NOT_FOUND = "Not Found"
_MAX_CONNECTIONS = 256
# From the start of a connection, or the previous response, to the end of a request's head.
_REQUEST_TIMEOUT_SECONDS = 15
_STOP_TIMEOUT_SECONDS = 2

# The page loads nothing from other hosts, and other pages must not embed it.
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
# Browsers revalidate the page on each use, and do not store data.
_PAGE_CACHING = (b"cache-control", b"no-cache")
_DATA_CACHING = (b"cache-control", b"no-store")


class WebServer:
    """A service of the broker that serves HTTP."""

    def __init__(self) -> None:
        self._url = ""
        self._listener: Listener | None = None
        self._events = Events()
        # Installed at once, to include the events of the broker's start.
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
        self._server = HttpServer(
            application,
            # Fewer where the system allows few descriptors.
            max_connections=min(_MAX_CONNECTIONS, broker.budget.http_connections),
            request_timeout=_REQUEST_TIMEOUT_SECONDS,
            unsent_response_timeout=broker.unsent_response_timeout,
        )
        context = tls_context(settings) if uses_tls else None
        self._listener = self._accept_on(listener, context, broker)
        broker.http_url = self._url
        broker.publish()
        logger.info("the dashboard is on %s", self._url)

    def _accept_on(
        self, listening: socket.socket, context: ssl.SSLContext | None, broker: Broker
    ) -> Listener:
        server = self._server
        if context is None:
            return Listener([listening], server.make_connection, broker.note_shortage)
        return TlsListener(
            [listening],
            context,
            server.make_connection,
            connections=server.connections,
            max_connections=server.max_connections,
            handshake_seconds=broker.handshake_timeout,
            on_refusal=lambda peer: logger.debug("%s: closed to make room for others", peer),
            on_shortage=broker.note_shortage,
        )

    async def stop(self) -> None:
        self._sampler.stop()
        if self._listener is not None:
            await self._listener.close()
        await self._server.stop(_STOP_TIMEOUT_SECONDS)
        logging.getLogger().removeHandler(self._events)


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
        exception_handlers={
            HTTPException: _answer_http_exception,
            Exception: _answer_unexpected_error,
        },
    )
    # A path with an additional slash is unknown, not a redirect.
    application.router.redirect_slashes = False
    return _with_headers(application)


def _why_not_ready(broker: Broker) -> str | None:
    if broker.is_stopping:
        return "stopping"
    try:
        free, _ = measure_disk(broker.settings.root_path)
    except OSError as error:
        return f"the root directory cannot be read: {error.strerror}"
    if not free:
        return "the disk is full"
    disk = broker.statistics_of_disk()
    if disk.is_low:
        return f"the disk has less than min_free_disk ({disk.min_free_bytes} bytes) free"
    return None


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code == 404 and detail == _NOT_FOUND:
        detail = f"the path {request.url.path} does not exist"
    response = json_response({"error": detail}, error.status_code)
    response.headers.update(error.headers or {})
    if error.status_code == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="penstock"'
    return response


async def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed: %r", request.method, request.url.path, error)
    return json_response({"error": "internal error; see the log of the server"}, 500)


def _with_headers(application: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["path"] == "/" or scope["path"].startswith("/page/")
        caching = _PAGE_CACHING if is_page else _DATA_CACHING

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = (b"date", formatdate(usegmt=True).encode())
                message["headers"] = [date, *message["headers"], *_HEADERS, caching]
            await send(message)

        await application(scope, receive, send_with_headers)

    return serve
