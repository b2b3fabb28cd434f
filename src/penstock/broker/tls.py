"""A listener with TLS that knows of the connections whose handshake is not done.

The event loop's own listeners tell nobody of a connection before its handshake is done: whoever
says nothing would hold a descriptor that no limit counts. Here such connections count, and where
there are too many, the oldest make room. A handshake takes a client milliseconds: it gets in also
while others open connections and leave it at that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from functools import partial

logger = logging.getLogger(__name__)

_BACKLOG = 1024
# An idle client does not answer that TLS ends, and is not to hold up a stop.
_END_SECONDS = 0.5
# So many above the limit shake hands, to be told in words that there is no room.
_SPARE = 16
# When the system has no descriptors left, it is asked again after this.
_PAUSE_SECONDS = 1.0


async def listen(host: str, port: int) -> list[socket.socket]:
    """Listens on every address of the host; OSError if one of them cannot be had."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    if not socket.has_dualstack_ipv6():
        # "localhost" may have an address of a kind that the system has not.
        found = [each for each in found if each[0] == socket.AF_INET] or found
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_server(address, family=family, backlog=_BACKLOG))
            for family, _, _, _, address in dict.fromkeys(found)
        ]
        opened.pop_all()
    return sockets


class TlsListener:
    """Accepts on sockets that listen, shakes hands, and connects the protocols it makes.

    `connections` holds the protocols that are connected: each is in it when its `connection_made`
    returns. With the handshakes there are no more than `most` of them, and a few.
    """

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        connections: Collection[object],
        most: int,
        handshake_seconds: float,
        on_refusal: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._context = context
        self._make_protocol = make_protocol
        self._connections = connections
        self._most = most + _SPARE
        self._handshake_seconds = handshake_seconds
        self._on_refusal = on_refusal
        # The oldest first.
        self._handshakes: dict[asyncio.Protocol, asyncio.Task[object]] = {}
        for listener in self._sockets:
            listener.setblocking(False)
            self._resume(listener)

    def make_room(self) -> None:
        """Ends the oldest handshakes, as long as there are too many connections."""
        excess = len(self._connections) + len(self._handshakes) - self._most
        for protocol in tuple(itertools.islice(self._handshakes, max(excess, 0))):
            handshake = self._handshakes.pop(protocol)
            # Not before it has begun: until then nobody would close its socket.
            self._loop.call_soon(self._refuse, protocol, handshake)

    async def close(self) -> None:
        """Accepts no more, and ends the handshakes that are under way."""
        for listener in self._sockets:
            self._loop.remove_reader(listener)
            listener.close()
        self._sockets.clear()
        # Each has begun after this, and can be cancelled.
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

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Takes one: what made room for it closes its own descriptor before the next."""
        try:
            connection, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.error("no connection can be accepted: %s", error)
            self._loop.remove_reader(listener)
            self._loop.call_later(_PAUSE_SECONDS, self._resume, listener)
            return
        with contextlib.suppress(OSError):
            # What asyncio does by itself only for sockets that are TCP by name.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = self._make_protocol()
        handshake = self._loop.create_task(
            self._shake_hands(connection, protocol), name=f"{address[0]}:{address[1]}"
        )
        self._handshakes[protocol] = handshake
        handshake.add_done_callback(partial(self._forget, protocol))
        self.make_room()

    async def _shake_hands(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        await self._loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=self._handshake_seconds,
            ssl_shutdown_timeout=_END_SECONDS,
        )

    def _refuse(self, protocol: asyncio.Protocol, handshake: asyncio.Task[object]) -> None:
        # It may have been done in the very last moment.
        if protocol not in self._connections and not handshake.done():
            handshake.cancel()
            self._on_refusal(handshake.get_name())

    def _forget(self, protocol: asyncio.Protocol, handshake: asyncio.Task[object]) -> None:
        self._handshakes.pop(protocol, None)
        if not handshake.cancelled() and (error := handshake.exception()) is not None:
            logger.debug("%s: its TLS handshake failed: %s", handshake.get_name(), error)
