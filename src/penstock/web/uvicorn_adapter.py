"""Serves an ASGI application over HTTP/1.1 with uvicorn's protocol class.

`uvicorn.Server` does not fit into the broker: it handles signals, wakes up ten times a second and
does not count connections before their TLS handshake. So the broker accepts connections itself and
uses only uvicorn's protocol class for HTTP/1.1. The class is not documented. All code that depends
on it is in this module, which relies on these members:

- `uvicorn.server.ServerState()`, and its set `tasks` of running requests.
- `uvicorn.protocols.http.h11_impl.H11Protocol(config, server_state, app_state)`, an
  `asyncio.Protocol`.
- Its method `on_response_complete()`, which it calls when a response was written.
- Its method `send_400_response(msg)`, which it calls when a request is malformed.
- Its method `shutdown()`, which closes the connection after the current response.
- Its attribute `conn`, an `h11.Connection`.
- Its attribute `cycle`: None before the first request, then an object whose attribute
  `disconnected` makes it discard the rest of a response.

`tests/web/test_uvicorn_adapter.py` fails if the installed uvicorn lacks one of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import TimerHandle

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.broker.session import measure_unsent

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05


class HttpServer:
    """The HTTP connections of an application, and their limits. A listener accepts them."""

    def __init__(
        self,
        application: ASGIApp,
        *,
        max_connections: int,
        request_timeout: float,
        unsent_response_timeout: float,
    ) -> None:
        """Times are in seconds.

        `request_timeout` limits the time from the start of a connection, or from the previous
        response, to the end of a request's head. `unsent_response_timeout` limits the time in
        which a client takes no byte of a response.
        """
        self.max_connections = max_connections
        self.request_timeout = request_timeout
        self.unsent_response_timeout = unsent_response_timeout
        self.connections: set[HttpConnection] = set()
        self._state = ServerState()
        self._config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            # The client is the peer of the connection. Headers of a proxy are not trusted.
            proxy_headers=False,
            # Any byte stops this timer of uvicorn, so each connection has its own timer.
            timeout_keep_alive=math.ceil(request_timeout),
        )
        self._config.load()
        # uvicorn warns about malformed requests, which any client can send.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    @property
    def is_idle(self) -> bool:
        """Whether there is neither a connection nor a running request."""
        return not self.connections and not self._state.tasks

    def make_connection(self) -> HttpConnection:
        """Returns the protocol of a new connection."""
        return HttpConnection(self, self._config, self._state)

    def evict_oldest(self, newest: HttpConnection) -> bool:
        """Closes the connection that has been idle for longest.

        If none is idle, closes a connection whose client does not take its response. Returns False
        if all connections but the newest are busy.
        """
        others = [each for each in self.connections if each is not newest]
        candidates = [each for each in others if each.is_idle] or [
            each for each in others if each.is_writing_paused
        ]
        if not candidates:
            return False
        min(candidates, key=lambda each: each.idle_since).evict()
        return True

    async def stop(self, timeout: float) -> None:
        """Closes all connections; waits for running responses until the timeout."""
        for connection in tuple(self.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(timeout):
                while not self.is_idle:
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            tasks = tuple(self._state.tasks)
            logger.error(
                "canceling %d HTTP requests that did not end within %g seconds", len(tasks), timeout
            )
            for task in tasks:
                task.cancel()


class HttpConnection(H11Protocol):
    """A connection with a timeout for each request, and one for unsent bytes of a response."""

    def __init__(self, server: HttpServer, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._request_timer: TimerHandle | None = None
        self._unsent_timer: TimerHandle | None = None
        self.idle_since = self._loop.time()
        self.is_writing_paused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._transport = transport
        self.idle_since = self._loop.time()
        connections = self._server.connections
        connections.add(self)
        if len(connections) > self._server.max_connections and not self._server.evict_oldest(self):
            transport.abort()
            return
        if transport.get_extra_info("sslcontext") is None:
            # With a zero buffer, `pause_writing` is called for every unsent byte. With TLS the
            # transport limits the time of closing.
            transport.set_write_buffer_limits(high=0)
        self._start_request_timer()

    def evict(self) -> None:
        """Aborts the connection to make room for another one."""
        # `connection_lost` is called in the next turn of the loop; do not count it until then.
        self._server.connections.discard(self)
        self._transport.abort()
        peer = self._transport.get_extra_info("peername")
        logger.debug("%s: closed to make room for another connection", peer)

    @property
    def _is_answering(self) -> bool:
        """Whether the head of a request is complete, and its response is not."""
        return self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    @property
    def is_idle(self) -> bool:
        """Whether it has neither a complete request nor an unsent response."""
        return not self._is_answering and not self.is_writing_paused

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The end of a request's head stops the timer; single bytes do not.
        if self._is_answering:
            self._stop_request_timer()

    def on_response_complete(self) -> None:
        self.idle_since = self._loop.time()
        super().on_response_complete()
        # With pipelining, the next response may have begun.
        if not self._is_answering:
            self._start_request_timer()

    def _start_request_timer(self) -> None:
        self._stop_request_timer()
        self._request_timer = self._loop.call_later(
            self._server.request_timeout, self._transport.close
        )

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        # A malformed body may belong to a request whose response has begun or ended.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self._transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self.is_writing_paused = True
        self._check_unsent(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.is_writing_paused = False
        self._stop_unsent_timer()

    def _check_unsent(self, unsent_before: tuple[int, int] | None) -> None:
        """Aborts the connection if its client took no byte since the previous check."""
        unsent = measure_unsent(self._transport)
        if unsent == unsent_before:
            self._transport.abort()
            return
        self._unsent_timer = self._loop.call_later(
            self._server.unsent_response_timeout, self._check_unsent, unsent
        )

    def _stop_unsent_timer(self) -> None:
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.connections.discard(self)
        self._stop_request_timer()
        self._stop_unsent_timer()
