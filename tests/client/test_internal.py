"""The operations of the Spark connector and the export pipeline, on real brokers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from penstock.client.internal import InternalClient
from penstock.errors import ResourceNotFoundException, UnknownOperationException
from penstock.model import ExportDefinition, HTTPConfig
from penstock.model.exporting import DeliveryReport, MessageSlice, ReservedBandwidth
from tests.support import MEBIBYTE, TIMEOUT_S, BrokerProcess, Reachable, wait_until

from .servers import Relay, make_stream


def connect(server: Reachable | Relay) -> InternalClient:
    # A restart takes longer than the default timeout when the machine is busy.
    return InternalClient(
        "127.0.0.1",
        server.port,
        token=server.token,
        connect_timeout=TIMEOUT_S,
        reconnect_timeout=TIMEOUT_S,
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("internal") / "root") as broker:
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[InternalClient]:
    with connect(broker) as client:
        yield client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def waiting_reads(client: InternalClient, stream: str) -> int:
    return sum(s.waiting_reads for s in client.statistics().streams if s.name == stream)


def test_streams_are_watched_located_and_read_in_the_stored_format(
    broker: BrokerProcess, client: InternalClient, pool: ThreadPoolExecutor
) -> None:
    name = make_stream(client)
    client.append_messages(name, numbered(5))

    (position,) = client.watch_streams([name])
    assert (position.name, position.oldest_sequence_number) == (name, 0)
    assert position.end_sequence_number == 5
    assert client.watch_streams(["nothing-*"]) == []

    stream_id = position.stream_id
    location = client.locate_messages(name, stream_id, 1, 5, max_bytes=2)
    assert (location.root, location.has_files) == (str(broker.root), True)
    assert location.limit_sequence_number == 3
    assert [(segment.first, segment.end) for segment in location.segments] == [(0, 5)]
    assert client.locate_messages(name, stream_id, 1, 5).limit_sequence_number == 5

    run = client.read_stored(name, stream_id, 1, 5, 3)
    assert (run.first_sequence_number, run.position, run.payloads) == (1, 1, b"123")
    directory = broker.root / "streams" / stream_id
    (index,) = directory.glob("*.index")
    assert run.entries == index.read_bytes()[16:64]

    watching = pool.submit(client.watch_streams, [name], {name: 5}, 30_000)
    wait_until(lambda: waiting_reads(client, name) == 1)
    client.append_message(name, b"5")
    assert [stream.end_sequence_number for stream in watching.result()] == [6]

    client.delete_message_stream(name)
    for use in (
        lambda: client.locate_messages(name, stream_id, 0, 1),
        lambda: client.read_stored(name, stream_id, 0, 1, 1),
    ):
        with pytest.raises(ResourceNotFoundException):
            use()


def test_exports_are_planned_reported_and_limited_in_bandwidth(
    client: InternalClient, pool: ThreadPoolExecutor
) -> None:
    name = make_stream(client)
    described = client.describe_message_stream(name).definition
    described.export_definition = ExportDefinition(http=[HTTPConfig("e", "http://127.0.0.1/")])
    client.update_message_stream(described)
    planning = pool.submit(
        client.plan_exports,
        "p",
        "t",
        lease_millis=10_000,
        wait_millis=30_000,
    )
    client.append_messages(name, numbered(5))
    (found,) = planning.result().work
    assert isinstance(found, MessageSlice)
    assert (found.stream, found.kind, found.first) == (name, "http", 0)

    report = DeliveryReport(
        lease=found.lease,
        stream=found.stream,
        stream_id=found.stream_id,
        identifier="e",
        first=0,
        settled_end=1,
        exported_messages=1,
        is_final=False,
    )
    assert client.commit_exports([report]).accepted == {found.lease}
    held = client.plan_exports("p", "t", lease_millis=10_000, holding=[found.lease])
    assert (held.work, held.lost, held.tasks, held.stops) == ([], [], 1, False)
    granted = ReservedBandwidth(is_granted=True, is_held=True)
    assert client.reserve_bandwidth(found.lease, 1000) == granted
    last = msgspec.structs.replace(
        report, first=1, settled_end=1, exported_messages=0, is_final=True
    )
    assert client.commit_exports([last]).accepted == {found.lease}
    lost = ReservedBandwidth(is_granted=False, is_held=False)
    assert client.reserve_bandwidth(found.lease, 1000) == lost
    stale = msgspec.structs.replace(report, lease="of another broker")
    assert client.commit_exports([stale]).accepted == frozenset()
    (status,) = client.describe_message_stream(name).export_statuses
    assert (status.last_exported_sequence_number, status.exported_messages_count) == (0, 1)
    (rest,) = client.plan_exports("p", "t", lease_millis=10_000, wait_millis=30_000).work
    assert isinstance(rest, MessageSlice)
    assert rest.first == 1
    look = client.plan_exports("p", "driver", lease_millis=10_000, max_slices=0, stops=True)
    assert (look.work, look.tasks, look.stops) == ([], 1, True)
    client.delete_message_stream(name)


def test_read_stored_is_limited_to_one_read_of_the_broker(client: InternalClient) -> None:
    name = make_stream(client)
    large = random.Random(5).randbytes(MEBIBYTE)
    client.append_messages(name, [large] * 6)
    (position,) = client.watch_streams([name])

    run = client.read_stored(name, position.stream_id, 1, 6, 1 << 29)

    # The broker reads 4 MiB at once at most.
    assert run.payloads == large * 4
    assert (run.first_sequence_number, run.position, len(run.entries)) == (1, MEBIBYTE, 64)


def test_watch_continues_after_a_broker_restart(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with (
        BrokerProcess(tmp_path / "root") as broker,
        connect(broker) as client,
        connect(broker) as other,
    ):
        name = make_stream(client)
        watching = pool.submit(client.watch_streams, [name], {name: 0}, 30_000)
        wait_until(lambda: waiting_reads(other, name) == 1)
        broker.kill()
        broker.start()
        wait_until(lambda: waiting_reads(other, name) == 1)
        other.append_message(name, b"at last")

        assert [stream.end_sequence_number for stream in watching.result()] == [1]


def test_server_without_extensions_rejects_internal_operations(broker: BrokerProcess) -> None:
    with Relay(broker, strip_extensions=True) as relay, connect(relay) as client:
        for use in (
            lambda: client.watch_streams(["*"]),
            lambda: client.locate_messages("s", "i", 0, 1),
            lambda: client.read_stored("s", "i", 0, 1, 1),
            lambda: client.plan_exports("p", "t", lease_millis=10_000),
            lambda: client.commit_exports([]),
            lambda: client.reserve_bandwidth("l", 1),
        ):
            with pytest.raises(UnknownOperationException):
                use()
