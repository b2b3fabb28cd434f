"""A listener with TLS that limits connections with unfinished handshakes.

The listeners of asyncio report a connection only after its handshake: a silent client would hold
a descriptor that no limit counts. This listener counts these connections, and cancels the oldest
handshakes when there are too many. A normal handshake takes milliseconds, so clients can connect
while others open connections and send nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from penstock.broker.listener import Listener

logger = logging.getLogger(__name__)

# An idle client does not answer the end of TLS, and must not delay a stop.
_SHUTDOWN_TIMEOUT_SECONDS = 0.5
# Connections above the limit that may finish their handshake, to receive an error message.
_SPARE_CONNECTIONS = 16


class TlsListener(Listener):
    """Accepts connections on sockets, does the handshake, and connects each to a new protocol.

    `connections` has the connected protocols. A protocol is added before its `connection_made`
    returns. Connections and handshakes are limited to `max_connections` and a few spare ones.
    """

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        connections: Collection[object],
        max_connections: int,
        handshake_seconds: float,
        on_refusal: Callable[[str], None],
        on_shortage: Callable[[OSError], object],
    ) -> None:
        super().__init__(sockets, make_protocol, on_shortage)
        self._context = context
        self._connections = connections
        self._max_connections = max_connections + _SPARE_CONNECTIONS
        self._handshake_seconds = handshake_seconds
        self._on_refusal = on_refusal
        # The oldest first.
        self._handshakes: dict[asyncio.Protocol, asyncio.Task[object]] = {}

    def make_room(self) -> None:
        """Cancels the oldest handshakes while there are too many connections."""
        excess = len(self._connections) + len(self._handshakes) - self._max_connections
        for protocol in tuple(itertools.islice(self._handshakes, max(excess, 0))):
            handshake = self._handshakes.pop(protocol)
            # Canceled in the next turn: a task that has not begun does not close its socket.
            self._loop.call_soon(self._refuse, protocol, handshake)

    async def close(self) -> None:
        """Stops accepting, and cancels unfinished handshakes."""
        await super().close()
        # After this turn, every handshake has begun and can be canceled.
        await asyncio.sleep(0)
        handshakes = [
            handshake
            for protocol, handshake in self._handshakes.items()
            if protocol not in self._connections
        ]
        for handshake in handshakes:
            handshake.cancel()
        if handshakes:
            await asyncio.wait(handshakes)

    def _connect(self, connection: socket.socket, address: Any) -> None:
        protocol = self._make_protocol()
        handshake = self._loop.create_task(
            self._handshake(connection, protocol), name=f"{address[0]}:{address[1]}"
        )
        self._handshakes[protocol] = handshake
        handshake.add_done_callback(partial(self._finish_handshake, protocol))
        self.make_room()

    async def _handshake(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        await self._loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=self._handshake_seconds,
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_SECONDS,
        )

    def _refuse(self, protocol: asyncio.Protocol, handshake: asyncio.Task[object]) -> None:
        # The handshake may have finished in the meantime.
        if protocol not in self._connections and not handshake.done():
            handshake.cancel()
            self._on_refusal(handshake.get_name())

    def _finish_handshake(
        self, protocol: asyncio.Protocol, handshake: asyncio.Task[object]
    ) -> None:
        self._handshakes.pop(protocol, None)
        if not handshake.cancelled() and (error := handshake.exception()) is not None:
            logger.debug("%s: TLS handshake failed: %s", handshake.get_name(), error)
