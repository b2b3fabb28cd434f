"""Appends of rows to streams: at least once, byte for byte, in order."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from penstock import MessageStreamDefinition, StrategyOnFull, StreamManagerClient
from penstock.errors import SettingError
from penstock.model import Persistence
from penstock.spark.options import WriteOptions
from penstock.spark.writing import AppendedRows, Layout, PenstockWriter
from tests.support import MEBIBYTE, TIMEOUT_S, BrokerProcess, running, wait_until

Create: TypeAlias = Callable[..., str]
Save: TypeAlias = Callable[..., None]


@pytest.fixture
def save(broker: BrokerProcess) -> Save:
    def append_rows(rows: DataFrame, mode: str = "append", **options: Any) -> None:
        options = {"root": str(broker.root), **options}
        rows.write.format("penstock").mode(mode).options(**options).save()

    return append_rows


def payloads(client: StreamManagerClient, stream: str) -> list[bytes]:
    return [message.payload for message in client.read_all(stream)]


def numbered(spark: SparkSession, count: int, tasks: int = 1) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id AS string) AS payload")


def texts(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def error_of(error: type[PySparkException], action: Callable[[], object]) -> str:
    """Returns the message of the expected error, with Spark's context."""
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


# Payloads


def test_bytes_are_stored_unchanged_and_in_order(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    stream = create()
    rows = [(bytes([number % 256]) * (number + 1),) for number in range(300)]

    save(spark.createDataFrame(rows, "payload binary").coalesce(1), stream=stream)

    assert payloads(client, stream) == [payload for (payload,) in rows]


def test_text_is_stored_as_utf_8(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    stream = create()

    save(spark.createDataFrame([("é € 😀",)], "Payload string"), stream=stream)

    assert payloads(client, stream) == ["é € 😀".encode()]


def test_each_task_keeps_the_order_of_its_rows(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    stream = create()

    save(numbered(spark, 50_000, tasks=2), stream=stream)

    stored = [int(payload) for payload in payloads(client, stream)]
    assert [number for number in stored if number < 25_000] == list(range(25_000))
    assert [number for number in stored if number >= 25_000] == list(range(25_000, 50_000))


def test_other_columns_are_ignored(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    stream = create()

    save(spark.sql("SELECT 1 AS a, 'x' AS payload, 'elsewhere' AS stream"), stream=stream)

    assert payloads(client, stream) == [b"x"]


def test_whole_rows_are_written_as_json(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    stream = create()

    save(spark.range(0, 3, 1, 1).selectExpr("id", "'x' AS s"), stream=stream, payload="json")

    assert [json.loads(payload) for payload in payloads(client, stream)] == [
        {"id": number, "s": "x"} for number in range(3)
    ]


def test_empty_frame_appends_no_messages(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    stream = create()

    save(numbered(spark, 10).where("false"), stream=stream)

    assert payloads(client, stream) == []


def test_row_may_exceed_the_size_of_a_request(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    stream = create()

    save(spark.sql("SELECT repeat('x', 5000000) AS payload"), stream=stream)

    assert payloads(client, stream) == [b"x" * 5_000_000]


def test_rows_may_exceed_the_size_of_a_stream(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    stream = create(max_size=16_384, stream_segment_size=4096)

    save(numbered(spark, 20_000), stream=stream)

    stored = payloads(client, stream)
    assert stored[-1] == b"19999"
    assert stored == texts(20_000)[-len(stored) :]


# Streams


def test_column_names_the_stream_of_a_row(
    spark: SparkSession, save: Save, create: Create, client: StreamManagerClient
) -> None:
    streams = [create("column"), create("column")]
    rows = spark.range(0, 1000, 1, 1).selectExpr(
        f"if(id % 3 = 0, '{streams[0]}', '{streams[1]}') AS stream", "cast(id AS string) AS payload"
    )

    save(rows)

    assert payloads(client, streams[0]) == texts(1000)[::3]
    assert payloads(client, streams[1]) == [
        text for number, text in enumerate(texts(1000)) if number % 3
    ]


def test_create_stream_creates_the_stream_once(
    spark: SparkSession, save: Save, client: StreamManagerClient, unique_name: str
) -> None:
    options = {
        "maxSize": 100_000,
        "streamSegmentSize": 10_000,
        "timeToLiveMillis": 600_000,
        "strategyOnFull": "RejectNewData",
        "persistence": "Memory",
    }
    for _ in range(2):  # the second time it is there
        save(numbered(spark, 3), stream=unique_name, createStream=True, **options)

    definition = client.describe_message_stream(unique_name).definition
    assert definition.max_size == 100_000
    assert definition.stream_segment_size == 10_000
    assert definition.time_to_live_millis == 600_000
    assert definition.strategy_on_full is StrategyOnFull.RejectNewData
    assert definition.persistence is Persistence.Memory
    assert payloads(client, unique_name) == texts(3) * 2


def test_created_stream_overwrites_oldest_messages_by_default(
    spark: SparkSession, save: Save, client: StreamManagerClient, unique_name: str
) -> None:
    save(numbered(spark, 1), stream=unique_name, createStream=True)

    definition = client.describe_message_stream(unique_name).definition
    assert definition.strategy_on_full is StrategyOnFull.OverwriteOldestData
    assert definition.max_size == 256 * MEBIBYTE


def test_concurrent_tasks_can_create_the_same_streams(
    spark: SparkSession, save: Save, client: StreamManagerClient, unique_name: str
) -> None:
    rows = spark.range(0, 80, 1, 2).selectExpr(
        f"concat('{unique_name} ', id % 40) AS stream", "cast(id AS string) AS payload"
    )

    save(rows, createStream=True)

    for number in range(40):
        stored = payloads(client, f"{unique_name} {number}")
        assert sorted(stored) == sorted(texts(80)[number::40])


def test_missing_stream_is_refused_without_create_stream(
    spark: SparkSession, save: Save, client: StreamManagerClient, unique_name: str
) -> None:
    rows = numbered(spark, 1).selectExpr("payload", f"'{unique_name}' AS stream")
    message = (
        f"the message stream {unique_name!r} does not exist: create it, or set option createStream"
    )

    assert message in error_of(AnalysisException, lambda: save(rows, stream=unique_name))
    assert message in error_of(PythonException, lambda: save(rows))
    assert unique_name not in client.list_streams()


# Errors before the first append


def check_layout(schema: StructType, **options: Any) -> str:
    with pytest.raises(SettingError) as caught:
        Layout(WriteOptions(**options), schema)
    return str(caught.value)


def test_rows_without_a_payload_column_are_refused() -> None:
    schema = StructType().add("id", LongType()).add("name", StringType())

    assert check_layout(schema, stream="s") == (
        "there is no column payload (columns: id, name): add one, such as "
        'to_json(struct("*")), or write each row as JSON with option payload=json'
    )


def test_payload_of_another_type_is_refused() -> None:
    assert check_layout(StructType().add("payload", LongType()), stream="s") == (
        "column payload is bigint: expected binary or string; add one, such as "
        'to_json(struct("*")), or write each row as JSON with option payload=json'
    )


def test_rows_without_a_stream_column_are_refused() -> None:
    advice = "set option stream, or name the stream of each row in this column"

    assert check_layout(StructType().add("payload", BinaryType())) == (
        f"there is no column stream (columns: payload): {advice}"
    )
    assert check_layout(StructType().add("stream", BinaryType()), payload="json") == (
        f"column stream is binary: expected string; {advice}"
    )


def test_column_without_json_form_is_refused() -> None:
    schema = StructType().add("v", "variant")

    assert "column v is variant" in check_layout(schema, stream="s", payload="json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is no column stream (columns: payload)"),
        ({"stream": "a/b"}, "stream_name is 'a/b': expected 1 to 255 letters"),
        ({"stream": "s", "maxSize": 10_000}, "option maxSize is for a stream that Spark creates"),
        ({"stream": "s", "flushOnWrite": True}, "it requires option createStream=true"),
        ({"stream": "s", "mode": "overwrite"}, 'streams are append-only: expected mode("append")'),
        ({"stream": "s", "root": "/nowhere"}, "no stream manager serves /nowhere"),
        ({"stream": "s", "port": 1}, "no stream manager answers on 127.0.0.1:1"),
        ({"stream": "s", "token": "unknown"}, "token"),
    ],
)
def test_mistake_is_reported_before_any_task_starts(
    spark: SparkSession, save: Save, options: dict[str, Any], message: str
) -> None:
    assert message in error_of(AnalysisException, lambda: save(numbered(spark, 1), **options))


# Errors in tasks


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("null AS payload", "column payload is null in a row: expected 1 byte or more"),
        ("X'' AS payload", "column payload is empty in a row: expected 1 byte or more"),
        ("X'00' AS payload, null AS stream", "column stream is null in a row"),
        ("X'00' AS payload, '' AS stream", "stream_name is '': expected 1 to 255 letters"),
    ],
)
def test_invalid_row_fails_its_batch(
    spark: SparkSession,
    save: Save,
    create: Create,
    client: StreamManagerClient,
    row: str,
    message: str,
) -> None:
    stream = create()
    good = spark.range(0, 10, 1, 1).selectExpr("X'ff' AS payload", f"'{stream}' AS stream")
    columns = row if "stream" in row else f"{row}, '{stream}' AS stream"
    bad = spark.sql(f"SELECT {columns}").selectExpr(
        "cast(payload AS binary) AS payload", "cast(stream AS string) AS stream"
    )

    assert message in error_of(PythonException, lambda: save(bad.union(good).coalesce(1)))
    assert payloads(client, stream) == []


def test_full_stream_that_rejects_new_data_fails_the_write(
    spark: SparkSession, save: Save, create: Create
) -> None:
    stream = create(
        max_size=1024, stream_segment_size=1024, strategy_on_full=StrategyOnFull.RejectNewData
    )

    message = error_of(PythonException, lambda: save(numbered(spark, 1000), stream=stream))

    assert f"the message stream {stream!r} is full and rejects new data" in message


# A single task


def make_writer(broker: BrokerProcess, **options: Any) -> PenstockWriter:
    """Creates a writer, and returns the copy that a task receives."""
    schema = StructType().add("payload", BinaryType())
    writer = PenstockWriter(WriteOptions(root=str(broker.root), **options), schema, False)
    copy: PenstockWriter = pickle.loads(pickle.dumps(writer))
    return copy


def test_task_returns_the_number_of_rows(broker: BrokerProcess, create: Create) -> None:
    batch = pa.record_batch({"payload": pa.array([b"a", b"b"])})

    assert make_writer(broker, stream=create()).write(iter([batch, batch])) == AppendedRows(4)


def test_task_without_rows_needs_no_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        writer = make_writer(broker, stream="s", create_stream=True, reconnect_timeout=0)

    assert writer.write(iter(())) == AppendedRows(0)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.binary()])
def test_all_arrow_types_of_a_payload_are_accepted(
    kind: pa.DataType, broker: BrokerProcess, create: Create, client: StreamManagerClient
) -> None:
    stream = create()
    column = pa.array([b"skipped", "é".encode(), b"a"]).cast(kind).slice(1)

    make_writer(broker, stream=stream).write(iter([pa.record_batch({"payload": column})]))

    assert payloads(client, stream) == ["é".encode(), b"a"]


# Streaming


class Inbox:
    """A directory of text files, whose lines a query writes to a stream."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._checkpoint = directory / "checkpoint"
        self._files = directory / "files"
        self._files.mkdir()
        self._count = 0

    def put(self, count: int) -> None:
        """Adds a file with the next numbers."""
        lines = "".join(f"{number}\n" for number in range(self._count, self._count + count))
        # A query reads a file as soon as it has this name.
        hidden = self._files / f".{self._count}"
        hidden.write_text(lines)
        hidden.rename(self._files / f"{self._count}.txt")
        self._count += count

    def start(
        self, is_endless: bool = False, mode: str = "append", **options: Any
    ) -> StreamingQuery:
        rows = self._spark.readStream.text(str(self._files)).withColumnRenamed("value", "payload")
        if mode == "complete":
            rows = rows.groupBy("payload").count()
        writer = rows.writeStream.format("penstock").outputMode(mode).options(**options)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return (writer if is_endless else writer.trigger(availableNow=True)).start()

    def write_all(self, **options: Any) -> None:
        """Writes all files to the stream."""
        self.start(**options).awaitTermination()


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    return Inbox(spark, tmp_path)


def test_streaming_write_continues_from_its_checkpoint(
    inbox: Inbox, create: Create, broker: BrokerProcess, client: StreamManagerClient
) -> None:
    stream = create()
    for _ in range(3):
        inbox.put(500)
        inbox.write_all(root=str(broker.root), stream=stream)

    assert payloads(client, stream) == texts(1500)


def test_streaming_write_creates_its_stream(
    inbox: Inbox, broker: BrokerProcess, client: StreamManagerClient, unique_name: str
) -> None:
    inbox.put(1)
    inbox.write_all(root=str(broker.root), stream=unique_name, createStream=True)

    assert payloads(client, unique_name) == [b"0"]


def test_failed_streaming_write_loses_no_rows(inbox: Inbox, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        options = {"port": broker.port, "token": broker.token, "stream": "s", "createStream": True}
        inbox.put(10)
        inbox.write_all(**options)
        broker.stop()
        inbox.put(10)
        message = error_of(PySparkException, lambda: inbox.write_all(**options, reconnectTimeout=0))
        broker.start()
        inbox.put(10)
        inbox.write_all(**options)

        with StreamManagerClient(root=broker.root) as client:
            assert payloads(client, "s") == texts(30)
    assert f"no stream manager answers on 127.0.0.1:{broker.port}" in message


def test_streaming_write_waits_for_a_restarting_broker(inbox: Inbox, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        inbox.put(10)
        query = inbox.start(True, root=str(broker.root), stream="s", createStream=True)
        query.processAllAvailable()
        broker.stop()
        inbox.put(10)
        wait_until(lambda: query.status["message"] == "Processing new data")
        broker.port = 0  # it restarts on another port
        broker.start()
        query.processAllAvailable()

        with StreamManagerClient(root=broker.root) as client:
            assert payloads(client, "s") == texts(20)


def test_complete_output_mode_is_refused(
    inbox: Inbox, create: Create, broker: BrokerProcess
) -> None:
    inbox.put(1)

    message = error_of(
        PySparkException,
        lambda: inbox.write_all(root=str(broker.root), stream=create(), mode="complete"),
    )

    assert 'streams are append-only: expected outputMode("append")' in message


# A killed broker


def test_each_row_is_stored_although_the_broker_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    # So many bytes that the write is still running when the broker is killed.
    count, size = 60_000, 1000
    broker = BrokerProcess(tmp_path / "root")
    done = threading.Event()

    def has_messages() -> bool:
        return client.describe_message_stream("s").storage_status.newest_sequence_number >= 0

    def kill_and_restart() -> None:
        wait_until(has_messages)
        broker.kill()
        assert not done.is_set()
        broker.start()

    with broker, StreamManagerClient(root=broker.root, reconnect_timeout=TIMEOUT_S) as client:
        client.create_message_stream(
            MessageStreamDefinition(name="s", strategy_on_full=StrategyOnFull.RejectNewData)
        )
        rows = numbered(spark, count, tasks=2).selectExpr(f"rpad(payload, {size}, '.') AS payload")
        writer = rows.write.format("penstock").mode("append")
        with running(kill_and_restart):
            writer.options(port=broker.port, token=broker.token, stream="s").save()
            done.set()
        stored = set(payloads(client, "s"))
    assert stored == {text.ljust(size, b".") for text in texts(count)}
