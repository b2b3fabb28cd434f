"""Definition changes while the catalog cannot commit: which requests wait, and which do not.

Another connection to the catalog holds SQLite's write lock, so that a commit of the broker waits
until the test releases it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.waiting import DefinitionCommits
from penstock.errors import (
    InvalidRequestException,
    ResourceNotFoundException,
    ResponseStatusCode,
)
from penstock.store.stored_stream import DefinitionChange
from penstock.wire.operations import Operation
from tests.raw_connection import RawConnection, raise_for_status
from tests.support import TIMEOUT_S, LocalBroker, wait_until

_names = count()


@pytest.fixture
def name() -> str:
    return f"stream {next(_names)}"


@contextmanager
def held_commits(broker: LocalBroker) -> Iterator[Callable[[], None]]:
    """Blocks commits of the broker until the yielded function is called, or until the end."""
    # On a busy machine the broker waits as long as the test.
    wait = f"PRAGMA busy_timeout = {int(TIMEOUT_S * 1000)}"
    broker.run(lambda: broker.broker._store.catalog._connection.execute(wait))
    with closing(sqlite3.connect(broker.root / "catalog.sqlite", timeout=TIMEOUT_S)) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")

        def release() -> None:
            if other.in_transaction:
                other.execute("ROLLBACK")

        try:
            yield release
        finally:
            release()


def define(name: str, **fields: Any) -> dict[str, Any]:
    return {"definition": {"name": name, "strategyOnFull": 0, **fields}}


def create(client: RawConnection, name: str, **fields: Any) -> None:
    client.call(Operation.CreateMessageStream, **define(name, **fields))


def append(client: RawConnection, name: str, payload: bytes = b"x") -> int:
    answer = client.call(Operation.AppendMessage, name=name, payload=payload)
    return int(answer["sequenceNumber"])


def names(client: RawConnection) -> list[str]:
    return list(client.call(Operation.ListStreams)["streams"])


def take(client: RawConnection) -> dict[str, Any]:
    _, answer = client.receive()
    raise_for_status(answer)
    return answer


def wait_for_pending(broker: LocalBroker, number: int) -> None:
    """Waits until the broker has received this number of changes."""
    pending = broker.broker.streams._pending_changes
    wait_until(lambda: broker.run(lambda: len(pending)) == number)


def test_other_requests_are_answered_while_a_creation_is_stored(
    broker: LocalBroker, client: RawConnection, other: RawConnection, name: str
) -> None:
    create(other, f"{name} before")
    create(other, f"{name} in memory", persistence=1)
    create(other, f"{name} on disk", flushOnWrite=True)
    with held_commits(broker) as release:
        client.send(Operation.CreateMessageStream, **define(name))
        wait_for_pending(broker, 1)

        for which in ("before", "in memory", "on disk"):
            assert append(other, f"{name} {which}") == 0
            assert append(other, f"{name} {which}") == 1
        # A handshake looks up a token.
        with broker.connect() as third:
            assert name not in names(third)
        with pytest.raises(ResourceNotFoundException):
            append(other, name)

        release()
        take(client)
    assert name in names(other)
    assert append(other, name) == 0


def test_old_definition_is_served_while_an_update_is_stored(
    broker: LocalBroker, client: RawConnection, other: RawConnection, name: str
) -> None:
    create(client, name, maxSize=4096, streamSegmentSize=1024)
    append(client, name, bytes(1000))
    wanted = define(name, maxSize=2048, streamSegmentSize=1024)
    with held_commits(broker) as release:
        client.send(Operation.UpdateMessageStream, **wanted)
        wait_for_pending(broker, 1)

        append(other, name, bytes(1000))
        # The smaller maxSize is enforced already.
        with pytest.raises(InvalidRequestException, match="is full"):
            append(other, name, bytes(1000))
        described = other.call(Operation.DescribeMessageStream, name=name)
        assert described["messageStreamInfo"]["definition"]["maxSize"] == 4096

        release()
        take(client)
    described = other.call(Operation.DescribeMessageStream, name=name)
    assert described["messageStreamInfo"]["definition"]["maxSize"] == 2048


def test_append_during_a_deletion_is_stored_or_not_found(
    broker: LocalBroker, client: RawConnection, other: RawConnection, name: str
) -> None:
    create(client, name)
    with held_commits(broker) as release:
        client.send(Operation.DeleteMessageStream, name=name)
        wait_for_pending(broker, 1)

        assert append(other, name) == 0
        other.call(Operation.ReadMessages, streamName=name)

        release()
        take(client)
    with pytest.raises(ResourceNotFoundException):
        append(other, name)


def test_of_two_creations_of_one_name_one_succeeds(
    broker: LocalBroker, client: RawConnection, other: RawConnection, name: str
) -> None:
    with held_commits(broker) as release:
        client.send(Operation.CreateMessageStream, **define(name))
        other.send(Operation.CreateMessageStream, **define(name))
        wait_for_pending(broker, 2)
        release()
        answers = [client.receive()[1], other.receive()[1]]
    assert sorted(answer["status"] for answer in answers) == [0, ResponseStatusCode.InvalidRequest]
    (error,) = [answer["errorMessage"] for answer in answers if answer["status"]]
    assert error == "the message stream already exists"


def test_requests_behind_a_change_wait_for_it(client: RawConnection, name: str) -> None:
    client.send(Operation.CreateMessageStream, **define(name))
    client.send(Operation.AppendMessage, name=name, payload=b"x")
    client.send(Operation.AppendMessage, name=name, payload=b"y")
    client.send(Operation.DeleteMessageStream, name=name)
    client.send(Operation.AppendMessage, name=name, payload=b"z")
    client.send(Operation.CreateMessageStream, **define(name))
    client.send(Operation.AppendMessage, name=name, payload=b"x")

    take(client)
    assert [take(client)["sequenceNumber"] for _ in range(2)] == [0, 1]
    take(client)
    with pytest.raises(ResourceNotFoundException):
        take(client)
    take(client)
    assert take(client)["sequenceNumber"] == 0


def test_rejected_change_does_not_hold_later_requests(client: RawConnection, name: str) -> None:
    client.send(Operation.DeleteMessageStream, name=name)
    client.send(Operation.ListStreams)
    with pytest.raises(ResourceNotFoundException):
        take(client)
    assert name not in take(client)["streams"]


def test_change_is_made_after_its_connection_is_lost(
    broker: LocalBroker, client: RawConnection, name: str
) -> None:
    with held_commits(broker) as release:
        with broker.connect() as leaving:
            leaving.send(Operation.CreateMessageStream, **define(name))
            wait_for_pending(broker, 1)
        release()
        wait_for_pending(broker, 0)
    assert append(client, name) == 0


def test_stop_waits_for_pending_changes(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path, stop_timeout_ms=1) as broker,
        broker.connect() as client,
        ThreadPoolExecutor(1) as executor,
        held_commits(broker) as release,
    ):
        client.send(Operation.CreateMessageStream, **define("s"))
        wait_for_pending(broker, 1)
        stopping = executor.submit(broker.stop)
        # The client is disconnected, but the change is made.
        wait_until(lambda: broker.run(lambda: not broker.broker._sessions))
        assert not stopping.done()
        release()
        stopping.result(TIMEOUT_S)
    with LocalBroker(tmp_path) as broker, broker.connect() as client:
        assert names(client) == ["s"]
        assert append(client, "s") == 0


class _NoChange(DefinitionChange):
    def record(self) -> None: ...
    def apply(self) -> None: ...


def test_changes_that_arrive_during_a_commit_share_the_next_one() -> None:
    batches: list[int] = []
    began, may_end = threading.Event(), threading.Event()

    def store(changes: Sequence[DefinitionChange]) -> list[Exception | None]:
        batches.append(len(changes))
        began.set()
        assert may_end.wait(TIMEOUT_S)
        return [OSError("no") if number == 1 else None for number in range(len(changes))]

    async def change(executor: ThreadPoolExecutor) -> list[BaseException | None]:
        commits = DefinitionCommits(executor, store)
        first = asyncio.ensure_future(commits.store(_NoChange()))
        assert await asyncio.to_thread(began.wait, TIMEOUT_S)
        others = [asyncio.ensure_future(commits.store(_NoChange())) for _ in range(3)]
        await asyncio.sleep(0)
        may_end.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    with ThreadPoolExecutor(1) as executor:
        results = asyncio.run(change(executor))
    assert batches == [1, 3]
    assert [type(result) for result in results] == [type(None), type(None), OSError, type(None)]
