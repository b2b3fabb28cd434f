"""Reads within ingest times, of streams whose clock was set back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import MessageStreamDefinition, Persistence, StrategyOnFull, StreamManagerClient
from penstock.client.internal import InternalClient
from penstock.errors import SettingError
from penstock.spark.batch import PenstockReader
from penstock.spark.losses import DataLossError
from penstock.spark.options import BatchReadOptions, StreamReadOptions
from penstock.spark.streaming import PenstockStreamReader
from penstock.store.store import Store
from tests.spark.queries import Batches, running
from tests.spark.rows import Row, count_scanned, messages_of, rows_of
from tests.support import BrokerProcess

BASE = 1_767_268_800_000
# Milliseconds from BASE, with a segment of four messages in each line. The clock is set back twice.
CLOCK = [
    [0, 1, 2, 3],
    [4, 4, 6, 7],
    [7, 8, 3, 4],
    [5, 6, 7, 8],
    [9, 10, 11, 12],
    [12, 5, 13, 14],
    [15, 16, 17, 18],
]
TIMES = [BASE + offset for segment in CLOCK for offset in segment]
AROUND = range(BASE - 1, max(TIMES) + 3)

ReadTimes = Callable[..., DataFrame]


@contextmanager
def running_clock_broker(root: Path) -> Iterator[BrokerProcess]:
    """Runs a broker with the streams `back` and `back-too`, stored at the times of CLOCK."""
    store = Store(root)
    for name in ("back", "back-too"):
        definition = MessageStreamDefinition(name=name, stream_segment_size=1024)
        log = store.create(definition).log
        for segment in CLOCK:
            for offset in segment:
                log.append([b"%03d" % offset * 85], BASE + offset)
    store.close()
    with BrokerProcess(root) as process:
        yield process


@pytest.fixture(scope="module")
def clock_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A shared broker, whose streams tests do not change."""
    with running_clock_broker(tmp_path_factory.mktemp("timestamps") / "root") as process:
        yield process


@pytest.fixture(scope="module")
def messages(clock_broker: BrokerProcess) -> list[Row]:
    with StreamManagerClient(root=clock_broker.root) as client:
        found = messages_of(client, "back")
    assert [row.ingest_time for row in found] == TIMES
    return found


def list_segment_files(broker: BrokerProcess) -> list[Path]:
    """Returns the data files of `back`, oldest first."""
    with InternalClient(root=broker.root) as client:
        (position,) = client.watch_streams(["back"])
    files = sorted((broker.root / "streams" / position.stream_id).glob("*.data"))
    assert [int(path.stem) for path in files] == list(range(0, len(TIMES), 4))
    return files


@pytest.fixture
def reader(clock_broker: BrokerProcess) -> Callable[..., PenstockReader]:
    def create(**options: Any) -> PenstockReader:
        options = {"stream": "back", "root": str(clock_broker.root)} | options
        return PenstockReader(BatchReadOptions(**options))

    return create


@pytest.fixture
def stream_reader(clock_broker: BrokerProcess) -> Iterator[Callable[..., PenstockStreamReader]]:
    created = []

    def create(now: int = AROUND[-1], **options: Any) -> PenstockStreamReader:
        options = {"stream": "back", "root": str(clock_broker.root)} | options
        created.append(PenstockStreamReader(StreamReadOptions(**options), lambda: now / 1000))
        return created[-1]

    yield create
    for each in created:
        each.stop()


def numbers_in(reader: PenstockReader) -> list[int]:
    return [
        number or 0  # no column is ever null, but the type allows it
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for number in batch.column("sequence_number").to_pylist()
    ]


# spark.read


def numbers_between(start: int, end: int) -> list[int]:
    return [number for number, time in enumerate(TIMES) if start <= time < end]


@pytest.mark.usefixtures("messages")
@pytest.mark.parametrize("via", ["files", "wire"])
def test_only_messages_within_times_are_read(
    via: str, reader: Callable[..., PenstockReader]
) -> None:
    for start in AROUND:
        found = numbers_in(reader(via=via, starting_timestamp=str(start)))
        assert found == numbers_between(start, AROUND[-1])
        found = numbers_in(reader(via=via, ending_timestamp=str(start)))
        assert found == numbers_between(0, start)
        for end in (start, start + 1, start + 4):
            bounds = {"starting_timestamp": str(start), "ending_timestamp": str(end)}
            assert numbers_in(reader(via=via, **bounds)) == numbers_between(start, end)


def test_time_and_position_bound_a_read_together(
    reader: Callable[..., PenstockReader],
) -> None:
    bounded = reader(starting_timestamp=str(BASE + 7), ending_position="17")
    assert numbers_in(bounded) == [n for n in numbers_between(BASE + 7, AROUND[-1]) if n < 17]
    bounded = reader(starting_position="8", ending_timestamp=str(BASE + 6))
    assert numbers_in(bounded) == [n for n in numbers_between(0, BASE + 6) if n >= 8]


def test_segments_of_other_times_are_not_opened(
    reader: Callable[..., PenstockReader], tmp_path: Path
) -> None:
    bounds = {"starting_timestamp": str(BASE + 9), "ending_timestamp": str(BASE + 13)}
    with running_clock_broker(tmp_path / "root") as broker:
        files = list_segment_files(broker)
        for path in (*files[:4], files[6]):
            path.write_bytes(b"rubbish")
        root = str(broker.root)
        assert numbers_in(reader(root=root, **bounds)) == numbers_between(BASE + 9, BASE + 13)
        with pytest.raises(DataLossError, match="cannot be read"):
            numbers_in(reader(root=root))


def test_times_apply_to_each_stream_of_a_query(
    spark: SparkSession, clock_broker: BrokerProcess, messages: list[Row]
) -> None:
    source = spark.read.format("penstock").options(root=str(clock_broker.root), stream="back*")
    start = datetime.fromtimestamp((BASE + 4) / 1000, UTC)
    frame = source.options(startingTimestamp=start.isoformat(), endingTimestamp=BASE + 8).load()
    wanted = [row for row in messages if BASE + 4 <= row.ingest_time < BASE + 8]
    both = wanted + [row._replace(stream="back-too") for row in wanted]
    frame.collect()
    assert count_scanned(frame) == len(both)
    assert sorted(rows_of(frame)) == sorted(both)
    # The bounds belong to this load(): filters narrow them for one query only.
    assert frame.where("sequence_number = 4").count() == 2
    assert sorted(rows_of(frame)) == sorted(both)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"starting_position": "5", "starting_timestamp": "5"},
            "options startingPosition and startingTimestamp are both set: expected one of them",
        ),
        (
            {"ending_position": "latest", "ending_timestamp": "5"},
            "options endingPosition and endingTimestamp are both set: expected one of them",
        ),
        (
            {"starting_timestamp": "6", "ending_timestamp": "5"},
            "option startingTimestamp is '6', and endingTimestamp is '5'",
        ),
        (
            {"starting_position": "6", "ending_position": "5"},
            "option startingPosition is 6 for stream 'back', and endingPosition is 5",
        ),
        ({"ending_timestamp": "soon"}, "option endingTimestamp is 'soon': expected milliseconds"),
    ],
)
def test_contradictory_bounds_are_refused(
    options: dict[str, str], problem: str, reader: Callable[..., PenstockReader]
) -> None:
    with pytest.raises(SettingError, match=f"^{problem}"):
        reader(**options).partitions()


# spark.readStream


def first_from(start: int) -> int:
    return next((number for number, time in enumerate(TIMES) if time >= start), len(TIMES))


@pytest.mark.parametrize("via", ["files", "wire"])
def test_query_starts_at_the_first_message_of_the_time(
    via: str, stream_reader: Callable[..., PenstockStreamReader]
) -> None:
    for start in AROUND:
        begun = stream_reader(via=via, starting_timestamp=str(start)).initialOffset()
        assert begun["streams"]["back"]["next"] == first_from(start)


def test_query_without_messages_of_the_time_starts_at_the_end(
    stream_reader: Callable[..., PenstockStreamReader],
) -> None:
    later = AROUND[-1] + 1000
    begun = stream_reader(now=later, starting_timestamp=str(later)).initialOffset()
    assert begun["streams"]["back"]["next"] == len(TIMES)
    with pytest.raises(SettingError, match=r"startingTimestamp is '\d+', which is in the future"):
        stream_reader(now=later, starting_timestamp=str(later + 1)).initialOffset()


def test_two_starting_bounds_are_refused(
    stream_reader: Callable[..., PenstockStreamReader],
) -> None:
    with pytest.raises(SettingError, match="options startingPosition and startingTimestamp"):
        stream_reader(starting_timestamp="5", starting_position="earliest")


def test_query_reads_from_the_time_across_runs(
    spark: SparkSession, clock_broker: BrokerProcess, messages: list[Row], tmp_path: Path
) -> None:
    source = spark.readStream.format("penstock").options(root=str(clock_broker.root))
    frame = source.options(stream="back", startingTimestamp=BASE + 8).load()
    batches = Batches()
    for _ in range(2):
        # The second run continues from the end of the first one.
        with running(frame, tmp_path, batches, availableNow=True) as query:
            query.awaitTermination()
        assert batches.rows == messages[first_from(BASE + 8) :]
    # Later messages are read even if the clock was set back.
    assert min(row.ingest_time for row in batches.rows) < BASE + 8


def test_times_bound_a_memory_stream(
    broker: BrokerProcess, reader: Callable[..., PenstockReader], unique_name: str
) -> None:
    root = str(broker.root)
    with StreamManagerClient(root=broker.root) as client:
        definition = MessageStreamDefinition(
            name=unique_name,
            persistence=Persistence.Memory,
            strategy_on_full=StrategyOnFull.RejectNewData,
        )
        client.create_message_stream(definition)
        client.append_messages(unique_name, [b"1", b"2"])
        (time, _) = (row.ingest_time for row in messages_of(client, unique_name))
    assert numbers_in(reader(root=root, stream=unique_name, starting_timestamp=str(time))) == [0, 1]
    assert numbers_in(reader(root=root, stream=unique_name, ending_timestamp=str(time))) == []
