"""spark.readStream with a real broker: limits, restarts and lost messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import (
    MessageStreamDefinition,
    Persistence,
    StrategyOnFull,
    StreamManagerClient,
)
from tests.spark.queries import Batches, running, start, wait_for_failure, wait_until_watched
from tests.spark.rows import messages_of
from tests.support import BrokerProcess, wait_until

Create = Callable[..., str]
ReadStream = Callable[..., DataFrame]

EARLIEST = {"startingPosition": "earliest"}


def numbered(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def test_query_adds_no_variables_to_the_source(
    create: Create, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    """An added variable breaks a query that serializes the source's variables meanwhile."""

    def names_of_variables() -> set[str]:
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        return set(sources.lookupDataSource("penstock").dataSourceCls().envVars())

    names = names_of_variables()
    with running(
        read_stream(create()), tmp_path / "checkpoint", Batches(), availableNow=True
    ) as query:
        wait_until(lambda: not query.isActive)
    assert names_of_variables() == names
    # Other functions do not get the variables.
    assert "SPARK_LOCAL_DIRS" not in spark.sparkContext.environment


def test_query_starts_at_latest_by_default(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream, batches = create(), Batches()
    client.append_messages(stream, numbered(0, 5))
    with running(read_stream(stream), tmp_path / "checkpoint", batches):
        wait_until_watched(client, stream)
        client.append_messages(stream, numbered(5, 8))
        batches.wait_for(3)
    assert batches.rows == messages_of(client, stream)[5:]


@pytest.mark.parametrize("options", [{"via": "auto"}, {"via": "wire"}])
def test_query_reads_existing_and_new_messages(
    options: dict[str, str],
    create: Create,
    read_stream: ReadStream,
    client: StreamManagerClient,
    tmp_path: Path,
) -> None:
    stream, batches = create(stream_segment_size=1024), Batches()
    client.append_messages(stream, numbered(0, 500))
    frame = read_stream(stream, **EARLIEST, **options)
    with running(frame, tmp_path / "checkpoint", batches):
        batches.wait_for(500)
        client.append_messages(stream, numbered(500, 600))
        batches.wait_for(600)
    assert batches.rows == messages_of(client, stream)


def test_query_reads_a_memory_stream(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream, batches = create(persistence=Persistence.Memory), Batches()
    client.append_messages(stream, numbered(0, 10))
    with running(read_stream(stream, **EARLIEST), tmp_path / "checkpoint", batches):
        batches.wait_for(10)
        client.append_messages(stream, numbered(10, 20))
        batches.wait_for(20)
    assert batches.rows == messages_of(client, stream)


# Limits


def test_trigger_is_limited_by_messages(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    busy, quiet, batches = create("busy"), create("quiet"), Batches()
    client.append_messages(busy, numbered(0, 20))
    client.append_messages(quiet, numbered(0, 4))
    frame = read_stream(f"{busy},{quiet}", maxMessagesPerTrigger=6, **EARLIEST)
    with running(frame, tmp_path / "checkpoint", batches, availableNow=True) as query:
        query.awaitTermination()
    assert [len(batch) for batch in batches.batches] == [6, 6, 6, 6]
    # The quiet stream has a share of the first batch.
    assert {row.stream for row in batches.batches[0]} == {busy, quiet}
    for stream, count in ((busy, 20), (quiet, 4)):
        found = [row.sequence_number for row in batches.rows if row.stream == stream]
        assert found == list(range(count))


def test_trigger_is_limited_by_bytes(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream, batches = create(stream_segment_size=1024), Batches()
    payloads = [bytes((65 + number,)) * (100 + 50 * (number % 4)) for number in range(24)]
    client.append_messages(stream, [*payloads, b"x" * 5000])
    frame = read_stream(stream, maxBytesPerTrigger=600, **EARLIEST)
    with running(frame, tmp_path / "checkpoint", batches, availableNow=True) as query:
        query.awaitTermination()
    sizes = [sum(len(row.payload) for row in batch) for batch in batches.batches]
    # A message above the limit is a separate batch.
    assert sizes[-1] == 5000
    assert all(400 < size <= 600 for size in sizes[:-2])
    assert batches.rows == messages_of(client, stream)


def test_query_with_available_now_ends(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream, batches = create(), Batches()
    client.append_messages(stream, numbered(0, 7))
    batches.may_go_on.clear()
    frame = read_stream(stream, maxMessagesPerTrigger=3, **EARLIEST)
    with running(frame, tmp_path / "checkpoint", batches, availableNow=True) as query:
        batches.wait_for(3)
        # Messages that are appended later belong to the next query.
        client.append_messages(stream, numbered(7, 9))
        batches.may_go_on.set()
        query.awaitTermination()
        assert batches.numbers == list(range(7))
    with running(frame, tmp_path / "checkpoint", batches, availableNow=True) as query:
        query.awaitTermination()
    assert batches.numbers == list(range(9))


# Restarts


def test_initial_offset_survives_a_restart_before_the_first_batch(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream, batches = create(), Batches()
    client.append_messages(stream, numbered(0, 3))
    with running(read_stream(stream), tmp_path / "checkpoint", batches):
        wait_until_watched(client, stream)
    client.append_messages(stream, numbered(3, 5))
    with running(read_stream(stream), tmp_path / "checkpoint", batches):
        batches.wait_for(2)
    assert batches.numbers == [3, 4]


def test_query_continues_from_its_checkpoint(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream, batches = create(), Batches()
    client.append_messages(stream, numbered(0, 10))
    frame = read_stream(stream, **EARLIEST)
    with running(frame, tmp_path / "checkpoint", batches):
        batches.wait_for(10)
        wait_until_watched(client, stream)
    client.append_messages(stream, numbered(10, 15))
    with running(frame, tmp_path / "checkpoint", batches):
        batches.wait_for(15)
    assert batches.numbers == list(range(15))


@pytest.mark.parametrize("via", ["auto", "wire"])
def test_query_survives_a_killed_broker(via: str, spark: SparkSession, tmp_path: Path) -> None:
    batches = Batches()
    with (
        BrokerProcess(tmp_path / "root") as broker,
        StreamManagerClient(root=broker.root) as client,
    ):
        client.create_message_stream(
            MessageStreamDefinition(name="lasting", strategy_on_full=StrategyOnFull.RejectNewData)
        )
        client.append_messages("lasting", numbered(0, 5))
        reader = spark.readStream.format("penstock").options(root=str(broker.root), via=via)
        frame = reader.options(stream="lasting", **EARLIEST).load()
        with running(frame, tmp_path / "checkpoint", batches):
            batches.wait_for(5)
            broker.kill()
            broker.start()
            client.append_messages("lasting", numbered(5, 9))
            batches.wait_for(9)
            wait_until_watched(client, "lasting")
        broker.stop()
        # A restart between two runs of the query.
        broker.start()
        client.append_messages("lasting", numbered(9, 12))
        with running(frame, tmp_path / "checkpoint", batches):
            batches.wait_for(12)
    assert batches.numbers == list(range(12))


# Created and deleted streams


def test_stream_created_later_is_read_from_its_start(
    create: Create,
    read_stream: ReadStream,
    client: StreamManagerClient,
    tmp_path: Path,
    unique_name: str,
) -> None:
    first, batches = create(unique_name), Batches()
    client.append_message(first, b"0")
    with running(read_stream(f"{unique_name}-*", **EARLIEST), tmp_path / "checkpoint", batches):
        batches.wait_for(1)
        second = create(unique_name)
        client.append_messages(second, numbered(0, 3))
        batches.wait_for(4)
        client.append_messages(second, numbered(3, 5))
        batches.wait_for(6)
    assert [row.sequence_number for row in batches.rows if row.stream == second] == [0, 1, 2, 3, 4]


def test_recreated_stream_is_reported(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream, batches = create(), Batches()
    definition = client.describe_message_stream(stream).definition
    client.append_messages(stream, numbered(0, 3))
    with running(read_stream(stream, **EARLIEST), tmp_path / "checkpoint", batches):
        batches.wait_for(3)
        wait_until_watched(client, stream)
    client.delete_message_stream(stream)
    client.create_message_stream(definition)
    # The same count as before, so that sequence numbers do not differ.
    client.append_messages(stream, [b"new", b"newer", b"newest"])
    query = start(read_stream(stream, **EARLIEST), tmp_path / "checkpoint", batches)
    assert "deleted after message 2 was read, and created again" in wait_for_failure(query)
    assert len(batches.rows) == 3
    frame = read_stream(stream, failOnDataLoss="false", **EARLIEST)
    with running(frame, tmp_path / "checkpoint", batches):
        batches.wait_for(6)
    assert [row.payload for row in batches.rows[3:]] == [b"new", b"newer", b"newest"]


def test_stream_deleted_during_a_query_fails_it(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream, batches = create(), Batches()
    client.append_messages(stream, numbered(0, 3))
    query = start(read_stream(stream, **EARLIEST), tmp_path / "checkpoint", batches)
    batches.wait_for(3)
    client.delete_message_stream(stream)
    assert "it was deleted after message 2 was read" in wait_for_failure(query)


def test_stream_removed_from_the_option_is_not_reported_as_deleted(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    kept, left_out, batches = create(), create(), Batches()
    for stream in (kept, left_out):
        client.append_message(stream, b"0")
    frame = read_stream(f"{kept},{left_out}", **EARLIEST)
    with running(frame, tmp_path / "checkpoint", batches, availableNow=True) as query:
        query.awaitTermination()
    query = start(read_stream(kept, **EARLIEST), tmp_path / "checkpoint", batches)
    assert "option stream no longer includes it" in wait_for_failure(query)


# Retention


def _overwrite(client: StreamManagerClient, stream: str) -> int:
    """Appends until all previous messages are evicted; returns the oldest sequence number."""
    end = client.describe_message_stream(stream).storage_status.newest_sequence_number + 1

    def oldest() -> int:
        client.append_messages(stream, [b"x" * 500] * 20)
        return client.describe_message_stream(stream).storage_status.oldest_sequence_number

    wait_until(lambda: oldest() > end, "the stream overwrites")
    return client.describe_message_stream(stream).storage_status.oldest_sequence_number


@pytest.fixture
def small(create: Create, client: StreamManagerClient) -> str:
    """A stream with a small maximum size and ten messages."""
    stream = create("small", max_size=16 * 1024, stream_segment_size=2048)
    client.append_messages(stream, numbered(0, 10))
    return stream


def test_retention_during_a_query_fails_it(
    small: str, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    batches = Batches()
    batches.may_go_on.clear()
    frame = read_stream(small, maxMessagesPerTrigger=4, **EARLIEST)
    query = start(frame, tmp_path / "checkpoint", batches)
    batches.wait_for(4)
    oldest = _overwrite(client, small)
    batches.may_go_on.set()
    failure = wait_for_failure(query)
    assert f"messages 4 to {oldest - 1} were removed before they were read" in failure
    assert "failOnDataLoss" in failure
    assert batches.numbers == [0, 1, 2, 3]


def test_retention_during_a_query_leaves_an_allowed_gap(
    small: str, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    batches = Batches()
    batches.may_go_on.clear()
    frame = read_stream(small, maxMessagesPerTrigger=4, failOnDataLoss="false", **EARLIEST)
    with running(frame, tmp_path / "checkpoint", batches):
        batches.wait_for(4)
        oldest = _overwrite(client, small)
        left = messages_of(client, small)
        batches.may_go_on.set()
        batches.wait_for(4 + len(left))
    assert batches.numbers[:4] == [0, 1, 2, 3]
    assert batches.rows[4:] == left
    assert left[0].sequence_number == oldest


# Errors


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"stream": "*", "endingPosition": "5"}, "option endingPosition is for spark.read, not"),
        ({"stream": "nowhere"}, "the message stream 'nowhere' does not exist"),
        ({"stream": "*", "maxBytesPerTrigger": "none"}, "option maxBytesPerTrigger is 'none'"),
        ({"stream": "*", "startingPosition": json.dumps({"missing": 1})}, "names 'missing'"),
    ],
)
def test_wrong_option_is_named(
    options: dict[str, str],
    problem: str,
    spark: SparkSession,
    broker: BrokerProcess,
    tmp_path: Path,
) -> None:
    reader = spark.readStream.format("penstock").options(root=str(broker.root), **options)
    try:
        failure = wait_for_failure(start(reader.load(), tmp_path / "checkpoint", Batches()))
    except PySparkException as error:
        failure = str(error)
    assert problem in failure


def test_start_after_the_end_is_refused(
    create: Create, read_stream: ReadStream, client: StreamManagerClient, tmp_path: Path
) -> None:
    stream = create()
    client.append_message(stream, b"0")
    frame = read_stream(stream, startingPosition=5)
    failure = wait_for_failure(start(frame, tmp_path / "checkpoint", Batches()))
    assert "option startingPosition is 5" in failure
    assert "expected at most 1, the end of stream" in failure
