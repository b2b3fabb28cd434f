"""spark.read with a real broker, over files and over the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import penstock.spark
from penstock import Persistence, StreamManagerClient
from penstock.client.internal import InternalClient
from tests.spark.rows import count_scanned, messages_of, numbers_of, rows_of
from tests.support import MEBIBYTE, BrokerProcess

Create = Callable[..., str]
Read = Callable[..., DataFrame]

VIAS = ["auto", "wire"]
SEGMENT = 64 * 1024


@pytest.fixture
def sealed(create: Create, client: StreamManagerClient) -> str:
    """A stream of several segments with 1,000 messages of 1 KiB."""
    name = create("sealed", stream_segment_size=SEGMENT)
    for start in range(0, 1000, 50):
        client.append_messages(name, [b"%04d" % n * 256 for n in range(start, start + 50)])
    return name


def segment_files(broker: BrokerProcess, client: InternalClient, stream: str) -> list[Path]:
    """The data files of a stream, oldest first."""
    (position,) = client.watch_streams([stream])
    return sorted((broker.root / "streams" / position.stream_id).glob("*.data"))


@pytest.mark.parametrize("via", VIAS)
def test_rows_equal_the_messages_that_a_client_reads(
    via: str, sealed: str, read: Read, client: StreamManagerClient
) -> None:
    client.append_message(sealed, b"the newest")
    rows = rows_of(read(sealed, via=via))
    assert rows == messages_of(client, sealed)
    assert len(rows) == 1001


@pytest.mark.parametrize("via", VIAS)
def test_messages_of_any_size_are_read(
    via: str, create: Create, read: Read, client: StreamManagerClient
) -> None:
    stream = create("sizes", stream_segment_size=MEBIBYTE)
    sizes = (1, 255, 70_000, 3, MEBIBYTE + 5, 2)
    payloads = [bytes((n,)) * size for n, size in enumerate(sizes)]
    for payload in payloads:
        client.append_message(stream, payload)
    assert [row.payload for row in rows_of(read(stream, via=via))] == payloads


def test_frame_has_the_documented_columns(sealed: str, read: Read) -> None:
    assert read(sealed).dtypes == [
        ("stream", "string"),
        ("sequence_number", "bigint"),
        ("ingest_time", "timestamp"),
        ("payload", "binary"),
    ]


def test_memory_stream_is_read_over_the_wire_by_default(
    create: Create, read: Read, client: StreamManagerClient
) -> None:
    stream = create("memory", persistence=Persistence.Memory, stream_segment_size=SEGMENT)
    for _ in range(8):
        client.append_messages(stream, [bytes((n,)) * 1000 for n in range(40)])
    rows = rows_of(read(stream))
    assert rows == messages_of(client, stream)
    assert len(rows) == 320


def test_empty_stream_has_no_rows(create: Create, read: Read) -> None:
    assert rows_of(read(create("empty"))) == []


def test_files_are_read_without_the_broker(
    sealed: str, read: Read, client: StreamManagerClient
) -> None:
    before = client.statistics().messages_read
    assert read(sealed).count() == 1000
    assert client.statistics().messages_read == before
    assert read(sealed, via="wire").count() == 1000
    assert client.statistics().messages_read == before + 1000


def test_files_are_read_with_host_port_and_token(
    spark: SparkSession, sealed: str, broker: BrokerProcess, client: StreamManagerClient
) -> None:
    options = {"host": "127.0.0.1", "port": str(broker.port), "token": broker.token}
    frame = spark.read.format("penstock").options(stream=sealed, **options).load()
    before = client.statistics().messages_read
    assert frame.count() == 1000
    # The files of a broker on this machine are used without option root.
    assert client.statistics().messages_read == before


# Streams and positions


def test_streams_are_selected_by_commas_pattern_or_json(
    create: Create, read: Read, client: StreamManagerClient, unique_name: str
) -> None:
    first, second = create(f"{unique_name}-a"), create(f"{unique_name}-b")
    other = create("other")
    for stream in (first, second, other):
        client.append_messages(stream, [stream.encode(), b"2"])

    def streams_of(text: str) -> set[str]:
        return {row.stream for row in rows_of(read(text))}

    assert streams_of(f"{first}, {other}") == {first, other}
    assert streams_of(f"{unique_name}-?-*") == {first, second}
    assert streams_of(json.dumps([second, other])) == {second, other}


def test_name_with_a_comma_is_given_as_json(
    create: Create, read: Read, client: StreamManagerClient
) -> None:
    stream = create("north, south")
    client.append_message(stream, b"1")
    assert numbers_of(read(json.dumps([stream]))) == [0]


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ({"startingPosition": "990"}, range(990, 1000)),
        ({"endingPosition": "10"}, range(10)),
        ({"startingPosition": "100", "endingPosition": "200"}, range(100, 200)),
        ({"startingPosition": "earliest", "endingPosition": "latest"}, range(1000)),
        ({"startingPosition": "latest"}, range(0)),
        ({"startingPosition": "5000"}, range(0)),
    ],
)
def test_positions_bound_a_read(
    positions: dict[str, str], expected: range, sealed: str, read: Read
) -> None:
    assert numbers_of(read(sealed, **positions)) == list(expected)


def test_streams_have_separate_positions(
    sealed: str, create: Create, read: Read, client: StreamManagerClient
) -> None:
    other = create("other")
    client.append_messages(other, [b"0", b"1", b"2"])
    positions = json.dumps({sealed: 998, other: "earliest"})
    rows = rows_of(read(f"{sealed},{other}", startingPosition=positions))
    found = {(row.stream, row.sequence_number) for row in rows}
    assert found == {(sealed, 998), (sealed, 999), (other, 0), (other, 1), (other, 2)}


def test_min_partitions_is_honored_and_order_is_kept(sealed: str, read: Read) -> None:
    frame = read(sealed, minPartitions=7)
    assert frame.rdd.getNumPartitions() >= 7
    assert numbers_of(frame) == list(range(1000))


# Filters and bounds


@pytest.mark.parametrize("via", VIAS)
def test_messages_outside_the_positions_are_not_scanned(via: str, sealed: str, read: Read) -> None:
    frame = read(sealed, via=via, startingPosition=121, endingPosition=131)
    assert [row.sequence_number for row in frame.collect()] == list(range(121, 131))
    assert count_scanned(frame) == 10


def test_segments_outside_the_positions_are_not_opened(
    sealed: str, read: Read, broker: BrokerProcess, client: InternalClient
) -> None:
    files = segment_files(broker, client, sealed)
    for path in (*files[:2], *files[5:]):
        path.write_bytes(b"rubbish")
    first, end = int(files[2].stem), int(files[5].stem)
    frame = read(sealed, startingPosition=first, endingPosition=end)
    assert numbers_of(frame) == list(range(first, end))
    with pytest.raises(PySparkException, match="cannot be read"):
        read(sealed).count()


def test_filters_are_applied_by_spark(
    sealed: str, create: Create, read: Read, client: StreamManagerClient
) -> None:
    other = create("other")
    client.append_message(other, b"1")
    frame = read(f"{sealed},{other}")
    assert numbers_of(frame.where(F.col("stream") == other)) == [0]
    even = frame.where("sequence_number % 2 = 0 OR length(payload) = 3")
    assert sorted(numbers_of(even)) == sorted([0, *range(0, 1000, 2)])
    assert numbers_of(frame.where(F.col("sequence_number").isin(3, 900, 5))) == [3, 5, 900]


# Errors


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"streem": "x"}, "unknown option streem: did you mean stream?"),
        ({}, "option stream is missing"),
        ({"stream": "nowhere"}, "the message stream 'nowhere' does not exist"),
        ({"stream": "*", "maxMessagesPerTrigger": "5"}, "is for spark.readStream, not for"),
        ({"stream": "*", "minPartitions": "0"}, "option minPartitions is '0': expected int >= 1"),
        ({"stream": "*", "startingPosition": "-1"}, "expected earliest, latest, a sequence number"),
        ({"stream": "*", "endingPosition": '{"missing": 3}'}, "names 'missing'"),
        (
            {"stream": "*", "startingTimestamp": "yesterday"},
            "option startingTimestamp is 'yesterday': expected milliseconds since the epoch, or",
        ),
        ({"stream": "*", "createStream": "true"}, "option createStream is for a write"),
    ],
)
def test_wrong_option_is_named(
    options: dict[str, str], problem: str, spark: SparkSession, broker: BrokerProcess
) -> None:
    with pytest.raises(PySparkException) as raised:
        spark.read.format("penstock").options(root=str(broker.root), **options).load().count()
    assert problem in str(raised.value)


def test_unknown_token_is_refused(spark: SparkSession, broker: BrokerProcess) -> None:
    reader = spark.read.format("penstock").options(
        stream="*", host="127.0.0.1", port=str(broker.port), token="wrong"
    )
    with pytest.raises(PySparkException, match="token is not known"):
        reader.load().count()


def test_address_of_unavailable_broker_is_named(spark: SparkSession) -> None:
    reader = spark.read.format("penstock").options(stream="*", host="127.0.0.1", port="1")
    with pytest.raises(PySparkException, match=r"no stream manager answers on 127\.0\.0\.1:1"):
        reader.load().count()


@pytest.mark.parametrize(
    "schema",
    [
        "temperature DOUBLE",
        "stream STRING, sequence_number BIGINT, ingest_time TIMESTAMP, payload BINARY",
    ],
)
def test_user_schema_is_refused(
    schema: str, spark: SparkSession, sealed: str, broker: BrokerProcess
) -> None:
    reader = spark.read.format("penstock").options(root=str(broker.root), stream=sealed)
    with pytest.raises(PySparkException, match=r"remove \.schema\(…\), and parse payloads"):
        reader.schema(schema).load().count()


@pytest.mark.parametrize("via", VIAS)
def test_damaged_messages_fail_a_query_or_are_skipped(
    via: str, sealed: str, read: Read, broker: BrokerProcess, client: InternalClient
) -> None:
    path = segment_files(broker, client, sealed)[2]
    first = int(path.stem)
    data = bytearray(path.read_bytes())
    data[5 * 1024 + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(PySparkException, match=f"message {first + 5} cannot be read"):
        read(sealed, via=via).count()
    left = numbers_of(read(sealed, via=via, failOnDataLoss="false"))
    assert left == [number for number in range(1000) if number != first + 5]


# Concurrent changes


@pytest.mark.parametrize("via", VIAS)
def test_rows_are_correct_while_the_broker_appends_rolls_and_deletes(
    via: str, create: Create, read: Read, client: StreamManagerClient
) -> None:
    stream = create("busy", max_size=8 * MEBIBYTE, stream_segment_size=SEGMENT)
    numbers = count()

    def append(messages: int) -> None:
        batch = [b"%09d" % number * 40 for number in islice(numbers, messages)]
        client.append_messages(stream, batch)

    append(30_000)
    assert client.describe_message_stream(stream).storage_status.oldest_sequence_number > 0
    # A limited number of batches for each query, so that at most half of its messages are evicted.
    batches = threading.Semaphore(0)

    def append_batches() -> None:
        for _ in range(3 * 75):
            batches.acquire()
            append(150)

    writer = threading.Thread(target=append_batches)
    writer.start()
    for _ in range(3):
        batches.release(75)
        rows = rows_of(read(stream, via=via, failOnDataLoss="false"))
        found = [row.sequence_number for row in rows]
        assert all(row.payload == b"%09d" % row.sequence_number * 40 for row in rows)
        assert found == sorted(set(found))
        # Only messages that the broker has evicted may be missing, also in the middle.
        oldest = client.describe_message_stream(stream).storage_status.oldest_sequence_number
        assert set(range(oldest, found[-1] + 1)) <= set(found)
    writer.join()


def test_format_is_registered_in_another_session(
    spark: SparkSession, sealed: str, broker: BrokerProcess
) -> None:
    other = spark.newSession()
    for _ in range(2):
        penstock.spark.register(other)
    reader = other.read.format("penstock").options(root=str(broker.root), stream=sealed)
    assert reader.load().count() == 1000
