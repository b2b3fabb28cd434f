"""A listener that accepts one connection in each turn of the event loop.

The listeners of asyncio accept all pending connections in one turn, before the first one is
counted, so a burst of connections uses up all descriptors of the process. Without descriptors they
retry and log in every turn. This listener pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable

from penstock.store.pool import lacks_descriptors

logger = logging.getLogger(__name__)

BACKLOG = 1024
_PAUSE_SECONDS = 1.0


async def listen(host: str, port: int) -> list[socket.socket]:
    """Listens on every address of the host; OSError if one of them is not available."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    if not socket.has_dualstack_ipv6():
        # "localhost" may have an IPv6 address although the system has no IPv6.
        found = [each for each in found if each[0] == socket.AF_INET] or found
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_server(address, family=family, backlog=BACKLOG))
            for family, _, _, _, address in dict.fromkeys(found)
        ]
        opened.pop_all()
    return sockets


class Listener:
    """Accepts connections on sockets, and connects each to a new protocol."""

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        on_shortage: Callable[[OSError], object],
    ) -> None:
        """`on_shortage` is called when there is no descriptor for a connection."""
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._make_protocol = make_protocol
        self._on_shortage = on_shortage
        self._connecting: set[asyncio.Task[object]] = set()
        for listener in self._sockets:
            listener.setblocking(False)
            self._resume(listener)

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops accepting, and waits until accepted connections have a protocol."""
        for listener in self._sockets:
            self._loop.remove_reader(listener)
            listener.close()
        self._sockets.clear()
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accepts one connection per turn, so that excess ones are closed before the next."""
        try:
            connection, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if lacks_descriptors(error):
                self._on_shortage(error)
            else:
                logger.error("cannot accept connections: %s", os.strerror(error.errno or 0))
            self._loop.remove_reader(listener)
            self._loop.call_later(_PAUSE_SECONDS, self._resume, listener)
            return
        with contextlib.suppress(OSError):
            # asyncio sets TCP_NODELAY only if the socket's `proto` is TCP.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connect(connection, address)

    def _connect(self, connection: socket.socket, _address: object) -> None:
        task = self._loop.create_task(
            self._loop.connect_accepted_socket(self._make_protocol, connection)
        )
        self._connecting.add(task)
        task.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[object]) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a connection failed: %s", error)
