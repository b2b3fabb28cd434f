"""Responses with messages, and the memory limit for all large answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Scope

from penstock.broker.memory import AnswerMemory
from penstock.web import response
from penstock.web.response import RoomResponse, take_room
from penstock.wire.operations import Operation
from tests.support import TIMEOUT_S, append, create, wait_until
from tests.web.site import Site

# Larger than the socket buffers of a client that reads nothing.
LARGE = 16 * 1024 * 1024
LIMIT = LARGE + LARGE // 2


async def receive() -> Message:
    raise AssertionError("a response must not receive")


SCOPE: Scope = {"type": "http"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "root", max_unsent_response_bytes=LIMIT) as running:
        with running.connect() as client:
            create(client, "s", maxSize=1 << 30)
            append(client, "s", bytes(LARGE))
            append(client, "s", b"small")
            for _ in range(100):
                append(client, "s", bytes(4096))
        yield running


def request_large_message(site: Site) -> socket.socket:
    return send_request(site, "messages/0")


def send_request(site: Site, path: str) -> socket.socket:
    """Requests messages, and reads nothing yet."""
    host, _, port = site.netloc.partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(
        (
            f"GET /api/streams/s/{path} HTTP/1.1\r\nHost: {site.netloc}\r\n"
            f"Authorization: Bearer {site.token}\r\nConnection: close\r\n\r\n"
        ).encode()
    )
    return connection


def take_all(connection: socket.socket) -> int:
    size = 0
    while data := connection.recv(1 << 20):
        size += len(data)
    return size


def used(site: Site) -> int:
    return site.run(lambda: site.broker.answers.used)


def waiting(site: Site) -> int:
    return site.run(lambda: site.broker.answers.waiting)


def test_unsent_messages_are_bounded_and_all_clients_are_served(site: Site) -> None:
    connections = [request_large_message(site) for _ in range(4)]
    wait_until(lambda: waiting(site) == 3)
    assert used(site) == LARGE

    for connection in connections:
        assert take_all(connection) > LARGE
        connection.close()
    wait_until(lambda: used(site) == 0)
    assert waiting(site) == 0


def test_client_that_disconnects_releases_its_room(site: Site) -> None:
    with request_large_message(site):
        wait_until(lambda: used(site) == LARGE)
    wait_until(lambda: used(site) == 0)


def test_client_that_reads_nothing_is_closed_and_releases_its_room(tmp_path: Path) -> None:
    with Site(tmp_path / "root", unsent_response_timeout_ms=4000) as site:
        with site.connect() as client:
            create(client, "s", maxSize=1 << 30)
            append(client, "s", bytes(LARGE))
        with request_large_message(site) as connection:
            wait_until(lambda: used(site) == LARGE)
            wait_until(lambda: used(site) == 0)
            assert take_all(connection) < LARGE


def test_large_answers_are_rejected_after_a_timeout_and_small_ones_are_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "_WAIT_SECONDS", 0.1)
    with request_large_message(site):
        wait_until(lambda: used(site) == LARGE)
        site.run(lambda: site.broker.answers.hold(LIMIT - LARGE))
        for path in ("messages/0", "messages?from=2&count=100"):
            status, reason = site.request("GET", f"/api/streams/s/{path}", site.token).error
            assert status == 503
            assert "max_unsent_response_bytes" in reason
        assert site.request("GET", "/api/streams/s/messages/1", site.token).body == b"small"
        assert (
            site.request("GET", "/api/streams/s/messages?from=1&count=2", site.token).status == 200
        )
        assert waiting(site) == 0


def test_page_releases_its_room(site: Site) -> None:
    answer = site.request("GET", "/api/streams/s/messages?from=2&count=100", site.token)
    assert len(answer.json["messages"]) == 100
    wait_until(lambda: used(site) == 0)


def test_failed_read_releases_its_room(site: Site) -> None:
    with min(site.root.glob("streams/*/*.data")).open("r+b") as data:
        data.write(b"damaged")

    assert site.request("GET", "/api/streams/s/messages/0", site.token).status == 503
    assert used(site) == 0


def test_room_is_kept_until_the_last_chunk_is_taken() -> None:
    async def run() -> None:
        memory = AnswerMemory(LIMIT)
        taken: list[int] = []
        may_continue = asyncio.Event()

        async def send(message: Message) -> None:
            if not message.get("more_body", True):
                await may_continue.wait()
            taken.append(len(message.get("body", b"")))

        room = await take_room(memory, LARGE)
        answer = RoomResponse(bytes(LARGE // 2), room, "application/octet-stream")
        sending = asyncio.create_task(answer(SCOPE, receive, send))
        while sum(taken) < LARGE // 2:
            await asyncio.sleep(0)
        assert memory.used == LARGE // 2
        may_continue.set()
        await sending
        assert memory.used == 0

    asyncio.run(run())


def test_failed_send_releases_its_room() -> None:
    async def run() -> None:
        memory = AnswerMemory(LIMIT)

        async def send(message: Message) -> None:
            raise ConnectionResetError

        answer = RoomResponse(b"x", await take_room(memory, LARGE), "application/json")
        with pytest.raises(ConnectionResetError):
            await answer(SCOPE, receive, send)
        assert memory.used == 0

    asyncio.run(run())


@pytest.mark.parametrize("is_canceled", [True, False])
def test_canceled_or_expired_wait_leaves_the_queue(
    monkeypatch: pytest.MonkeyPatch, is_canceled: bool
) -> None:
    monkeypatch.setattr(response, "_WAIT_SECONDS", 100 if is_canceled else 0.01)

    async def run() -> None:
        memory = AnswerMemory(LIMIT)
        room = await take_room(memory, LARGE)
        wait = asyncio.create_task(take_room(memory, LARGE))
        while not memory.waiting:
            await asyncio.sleep(0)
        if is_canceled:
            wait.cancel()
        with pytest.raises(asyncio.CancelledError if is_canceled else HTTPException):
            await wait
        assert (memory.waiting, memory.used) == (0, LARGE)
        room.release()
        assert memory.used == 0

    asyncio.run(run())


@pytest.mark.parametrize("path", ["messages/0", "messages?from=0&count=100"])
def test_stream_deleted_during_the_wait_is_not_found(
    site: Site, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "_WAIT_SECONDS", TIMEOUT_S)
    site.run(lambda: site.broker.answers.hold(LIMIT))
    # A single large answer is always admitted.
    with request_large_message(site), send_request(site, path) as connection:
        wait_until(lambda: waiting(site) == 1)
        with site.connect() as client:
            client.call(Operation.DeleteMessageStream, name="s")
        site.run(lambda: site.broker.answers.hold(-LIMIT - LARGE))
        assert connection.recv(100).startswith(b"HTTP/1.1 404 ")
        site.run(lambda: site.broker.answers.hold(LARGE))
    wait_until(lambda: used(site) == 0)
