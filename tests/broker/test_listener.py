"""Plain connections, in the event loops of uvloop and asyncio."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, NoReturn, cast

import pytest
import uvloop

from penstock.broker import listener
from penstock.broker.listener import Listener, listen
from tests.support import TIMEOUT_S

Test = Callable[[], Coroutine[Any, Any, None]]


def in_both_loops(test: Test) -> Callable[[Callable[[], asyncio.AbstractEventLoop]], None]:
    @pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
    def run(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(asyncio.wait_for(test(), TIMEOUT_S))

    return run


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writable = cast(asyncio.WriteTransport, transport)
        writable.write(b"hello")
        writable.close()


class ExhaustedSocket(socket.socket):
    """Has no descriptor for the first connection."""

    refusals = 1

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def fail(error: OSError) -> NoReturn:
    pytest.fail(str(error))


async def greeting(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()


@in_both_loops
async def test_connections_are_accepted_until_the_listener_is_closed() -> None:
    plain = Listener(await listen("127.0.0.1", 0), Greeter, fail)
    port = plain.port
    assert await asyncio.gather(*(greeting(port) for _ in range(5))) == [b"hello"] * 5

    await plain.close()

    with pytest.raises(ConnectionRefusedError):
        await greeting(port)


@in_both_loops
async def test_shortage_of_descriptors_is_reported_and_accepting_continues() -> None:
    shortages: list[OSError] = []
    (listening,) = await listen("127.0.0.1", 0)
    exhausted = ExhaustedSocket(fileno=listening.detach())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "_PAUSE_SECONDS", 0.01)
        plain = Listener([exhausted], Greeter, shortages.append)

        assert await greeting(plain.port) == b"hello"

    assert [error.errno for error in shortages] == [errno.EMFILE]
    await plain.close()


@in_both_loops
async def test_burst_is_accepted_one_connection_at_a_time() -> None:
    open_at_once, most = 0, 0

    class Counted(asyncio.Protocol):
        def __init__(self) -> None:
            nonlocal open_at_once, most
            open_at_once += 1
            most = max(most, open_at_once)

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal open_at_once
            open_at_once -= 1
            transport.close()

    plain = Listener(await listen("127.0.0.1", 0), Counted, fail)
    with ExitStack() as clients:
        for _ in range(200):
            # They wait in the backlog, because this thread runs the loop as well.
            clients.enter_context(socket.create_connection(("127.0.0.1", plain.port)))
        assert await greeting(plain.port) == b""
    assert most < 20
    await plain.close()
