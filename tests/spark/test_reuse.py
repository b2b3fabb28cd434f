"""Several queries of one DataFrame. Each query returns exactly its own rows.

Spark keeps one plan of a Python data source for all queries of one load(), so a query must not
change that plan.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from penstock import StreamManagerClient
from tests.spark.channel_files import fill
from tests.spark.queries import Batches, running
from tests.spark.rows import Row, messages_of, rows_of

Create = Callable[..., str]
Read = Callable[..., DataFrame]

COUNT = 100
FEW = "sequence_number < 10"
LAST = "sequence_number >= 95"
NUMBER = "sequence_number"


@pytest.fixture
def stream(create: Create, client: StreamManagerClient) -> str:
    """A hundred messages in several segments."""
    name = create("reused", stream_segment_size=1024)
    for start in range(0, COUNT, 10):
        client.append_messages(name, [b"%02d" % n * 20 for n in range(start, start + 10)])
    return name


@pytest.fixture
def messages(stream: str, client: StreamManagerClient) -> list[Row]:
    """The expected rows."""
    return messages_of(client, stream)


@pytest.fixture
def frame(stream: str, read: Read) -> DataFrame:
    """The result of one load()."""
    return read(stream)


def test_filter_does_not_affect_later_queries(frame: DataFrame, messages: list[Row]) -> None:
    few = frame.where(FEW)
    assert frame.count() == COUNT
    assert few.count() == 10
    assert frame.count() == COUNT
    assert rows_of(few.where("sequence_number > 5")) == messages[6:10]
    assert rows_of(few) == messages[:10]
    assert rows_of(frame.where(LAST)) == messages[95:]
    assert rows_of(frame) == messages


def test_filter_does_not_affect_later_queries_with_pushdown(
    spark: SparkSession, frame: DataFrame, messages: list[Row]
) -> None:
    """Another data source of the session may require pushdown."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert rows_of(frame.where(FEW)) == messages[:10]
    assert rows_of(frame) == messages
    assert sorted(rows_of(frame.where(FEW).union(frame))) == sorted(messages + messages[:10])


def test_explain_changes_no_rows(frame: DataFrame, messages: list[Row]) -> None:
    frame.where(FEW).explain()
    assert rows_of(frame) == messages


def test_filters_on_every_column_do_not_affect_later_queries(
    frame: DataFrame, messages: list[Row]
) -> None:
    middle = messages[50].ingest_time
    by_time = frame.where(f"ingest_time >= timestamp_millis({middle})")
    assert rows_of(by_time) == [row for row in messages if row.ingest_time >= middle]
    assert frame.where("stream = 'another'").count() == 0
    assert frame.where(f"payload = X'{messages[7].payload.hex()}'").count() == 1
    assert frame.where(F.col("sequence_number").isin(3, 90)).count() == 2
    assert rows_of(frame) == messages


def test_several_filtered_scans_in_a_query_are_independent(
    spark: SparkSession, frame: DataFrame, messages: list[Row]
) -> None:
    few, last = frame.where(FEW), frame.where(LAST)
    assert sorted(rows_of(few.union(last))) == messages[:10] + messages[95:]
    assert sorted(rows_of(frame.exceptAll(few))) == messages[10:]

    keys = ["stream", "sequence_number"]
    pairs = few.alias("a").join(frame.where("sequence_number >= 5").alias("b"), keys)
    assert pairs.count() == 5
    assert few.crossJoin(last.select(F.col("sequence_number").alias("other"))).count() == 50
    assert frame.join(few.select(*keys), keys, "left_anti").count() == 90

    frame.createOrReplaceTempView("reused")
    (counts,) = spark.sql(
        f"SELECT (SELECT count(*) FROM reused WHERE {FEW}), (SELECT count(*) FROM reused),"
        f" (SELECT count(*) FROM reused WHERE {LAST})"
    ).collect()
    assert tuple(counts) == (10, COUNT, 5)
    assert spark.sql(f"SELECT * FROM reused WHERE {LAST}").count() == 5
    assert spark.table("reused").count() == COUNT


def test_cached_frames_keep_their_own_rows(frame: DataFrame, messages: list[Row]) -> None:
    few = frame.where(FEW).cache()
    assert few.count() == 10
    assert rows_of(frame) == messages
    frame.cache()
    assert rows_of(frame.where(LAST)) == messages[95:]
    assert rows_of(frame) == messages
    frame.unpersist()
    assert rows_of(few) == messages[:10]


def test_threads_share_a_frame(frame: DataFrame, messages: list[Row]) -> None:
    bounds = [(0, 10), (40, 60), (0, COUNT), (99, COUNT)]

    def query(first: int, end: int) -> list[Row]:
        return rows_of(frame.where(f"sequence_number >= {first} AND sequence_number < {end}"))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(query, *zip(*bounds, strict=True)))
    assert found == [messages[first:end] for first, end in bounds]


def test_frame_keeps_the_messages_of_its_first_query(
    stream: str, read: Read, client: StreamManagerClient, messages: list[Row]
) -> None:
    frame = read(stream)
    assert rows_of(frame) == messages
    client.append_message(stream, b"later")
    assert rows_of(frame) == messages
    assert frame.where(LAST).count() == 5
    assert rows_of(read(stream)) == messages_of(client, stream)


def test_messages_removed_before_a_later_query_are_a_loss(
    create: Create, read: Read, client: StreamManagerClient
) -> None:
    stream = create("small", stream_segment_size=1024, max_size=4096)

    def overwrite() -> None:
        for number in range(16):
            client.append_message(stream, b"%02d" % number * 250)

    overwrite()
    frame = read(stream)
    assert rows_of(frame) == messages_of(client, stream)
    overwrite()
    with pytest.raises(PySparkException, match="were removed before they were read"):
        frame.count()
    assert rows_of(read(stream)) == messages_of(client, stream)


def test_streaming_queries_share_frames(
    stream: str, read: Read, read_stream: Read, messages: list[Row], tmp_path: Path
) -> None:
    followed, static = read_stream(stream, startingPosition="earliest"), read(stream)
    parts = followed.where(FEW).union(followed.where(LAST))
    joined = parts.join(static.where("sequence_number >= 5").select("sequence_number"), NUMBER)
    found, everything = Batches(), Batches()
    with running(joined, tmp_path / "joined", found, availableNow=True) as query:
        query.awaitTermination()
    assert sorted(found.rows) == messages[5:10] + messages[95:]
    assert rows_of(static) == messages

    def take(batch: DataFrame, number: int) -> None:
        assert batch.where(FEW).count() == 10
        assert batch.where(FEW).union(batch.where(LAST)).count() == 15
        everything.take(batch, number)

    writer = followed.writeStream.option("checkpointLocation", str(tmp_path / "all"))
    query = writer.trigger(availableNow=True).foreachBatch(take).start()
    query.awaitTermination()
    assert everything.rows == messages


def test_queries_share_a_frame_of_a_channel(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, "farm", 0, 30)
    frame = spark.read.format("penstock").options(channel="farm", root=str(tmp_path)).load()
    few = frame.where(FEW)
    assert [frame.count(), few.count(), frame.count()] == [30, 10, 30]
    assert few.union(frame.where("sequence_number >= 28")).count() == 12
