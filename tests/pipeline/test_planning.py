"""The source of a lane, without Spark: what it asks a real broker for, and reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    ExportDefinition,
    MessageStreamDefinition,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.model.exporting import Lane
from penstock.model.storage import SegmentSummary
from penstock.pipeline import planning
from penstock.pipeline.planning import (
    DeliveryTask,
    LaneReader,
    PlannedSlice,
    share_out,
)
from penstock.pipeline.rows import slices_in
from penstock.pipeline.signals import Signals
from penstock.spark.planning import Piece
from penstock.spark.times import ALL_TIMES
from tests.pipeline.slices import create, header_for, new_name, nothing_large, options_for
from tests.support import PATIENCE_S, BrokerProcess, LocalBroker, wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("planning") / "root") as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: LocalBroker) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(root=broker.root) as connected:
        yield connected


@pytest.fixture
def stream(client: StreamManagerClient) -> Iterator[str]:
    """A stream with an export; it is gone with the test, so that nothing more of it is due."""
    name = create_one(client)
    yield name
    client.delete_message_stream(name)


def create_one(client: StreamManagerClient, **fields: Any) -> str:
    """Nobody has to be there: nothing is delivered."""
    return create(client, new_name(), "http://127.0.0.1:9/", **fields)


@pytest.fixture
def make_reader(broker: LocalBroker, tmp_path: Path) -> Iterator[Callable[..., LaneReader]]:
    made: list[LaneReader] = []

    def make(lane: Lane = Lane.steady, root: Path = broker.root, warm: bool = True) -> LaneReader:
        reader = LaneReader(options_for(lane, tmp_path, root=str(root)))
        made.append(reader)
        if warm and lane is Lane.steady:
            # The first batch of a lane is there to get Python workers started.
            assert reader.latestOffset({"plan": 0}, None) == {"plan": 1}
        return reader

    yield make
    for reader in made:
        reader.stop()


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_WAIT_MILLIS", 1)


def tasks_of(reader: LaneReader, start: int, end: int) -> list[DeliveryTask]:
    tasks = reader.partitions({"plan": start}, {"plan": end})
    assert all(isinstance(task, DeliveryTask) for task in tasks)
    return tasks  # type: ignore[return-value]


def payloads_in(reader: LaneReader, tasks: list[DeliveryTask]) -> dict[str, list[bytes]]:
    """What the tasks of a plan read, by stream."""
    return {
        header.slice.stream: list(messages.payloads)
        for task in tasks
        for header, messages in slices_in(reader.read(task), nothing_large)
    }


Make = Callable[..., LaneReader]


def test_what_is_due_is_planned_and_read(
    client: StreamManagerClient, stream: str, make_reader: Make
) -> None:
    reader = make_reader()
    client.append_messages(stream, [b"one", b"two", b"three"])

    assert reader.latestOffset({"plan": 1}, None) == {"plan": 2}

    (task,) = tasks_of(reader, 1, 2)
    ((header, messages),) = slices_in(reader.read(task), nothing_large)
    assert (header.slice.stream, header.slice.first, header.slice.end) == (stream, 0, 3)
    assert (messages.numbers, messages.payloads) == ([0, 1, 2], [b"one", b"two", b"three"])


def test_a_lane_waits_until_something_is_due(
    client: StreamManagerClient, stream: str, make_reader: Make
) -> None:
    reader = make_reader()
    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(reader.latestOffset, {"plan": 1}, None)
        client.append_message(stream, b"x")

        assert answer.result(PATIENCE_S) == {"plan": 2}


def test_an_idle_lane_stays_where_it_is(make_reader: Make, no_wait: None) -> None:
    reader = make_reader()

    assert reader.latestOffset({"plan": 5}, None) == {"plan": 5}
    assert reader.latestOffset({"plan": 5}, None) == {"plan": 5}


def test_plans_are_counted_on_from_where_spark_stands(
    client: StreamManagerClient, stream: str, make_reader: Make
) -> None:
    client.append_message(stream, b"x")

    assert make_reader(warm=False).latestOffset({"plan": 41}, None) == {"plan": 42}


def test_a_plan_that_is_repeated_after_a_crash_has_no_tasks(
    client: StreamManagerClient, stream: str, make_reader: Make
) -> None:
    client.append_message(stream, b"x")
    before = make_reader()
    assert before.latestOffset({"plan": 1}, None) == {"plan": 2}

    after = make_reader(warm=False)

    assert tasks_of(after, 1, 2) == []
    # And what it was to deliver is planned anew.
    assert after.latestOffset({"plan": 2}, None) == {"plan": 3}
    assert payloads_in(after, tasks_of(after, 2, 3)) == {stream: [b"x"]}


def test_a_plan_has_tasks_once(client: StreamManagerClient, stream: str, make_reader: Make) -> None:
    reader = make_reader()
    client.append_message(stream, b"x")
    reader.latestOffset({"plan": 1}, None)

    assert len(tasks_of(reader, 1, 2)) == 1
    assert tasks_of(reader, 1, 2) == []


def test_the_first_plan_and_one_after_a_long_pause_wake_all_workers(
    make_reader: Make, monkeypatch: pytest.MonkeyPatch, no_wait: None
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    reader = make_reader()

    tasks = tasks_of(reader, 0, 1)
    assert [task.slices for task in tasks] == [[], [], []]
    assert payloads_in(reader, tasks) == {}

    assert reader.latestOffset({"plan": 1}, None) == {"plan": 1}
    monkeypatch.setattr(planning, "_IDLE_SECONDS", 0.0)
    assert reader.latestOffset({"plan": 1}, None) == {"plan": 2}
    assert len(tasks_of(reader, 1, 2)) == 3


def test_a_lane_for_those_that_hang_is_not_kept_warm(make_reader: Make, no_wait: None) -> None:
    assert make_reader(Lane.recovering).latestOffset({"plan": 0}, None) == {"plan": 0}


def test_a_lane_that_is_told_to_stop_plans_nothing_more_and_says_so(
    client: StreamManagerClient, stream: str, make_reader: Make, tmp_path: Path
) -> None:
    reader = make_reader()
    client.append_message(stream, b"x")
    signals = Signals(tmp_path)
    signals.ask_to_stop()

    assert reader.latestOffset({"plan": 1}, None) == {"plan": 1}

    assert signals.has_stopped(Lane.steady)
    assert not signals.has_stopped(Lane.recovering)


def test_a_lane_tells_which_lanes_have_exports(
    client: StreamManagerClient, stream: str, make_reader: Make, tmp_path: Path
) -> None:
    signals = Signals(tmp_path)
    make_reader().latestOffset({"plan": 0}, None)
    assert signals.is_wanted(Lane.steady)
    assert not signals.is_wanted(Lane.files)
    client.create_message_stream(
        MessageStreamDefinition(
            new_name(),
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(
                s3_task_executor=[S3ExportTaskExecutorConfig("to-s3")]
            ),
        )
    )
    make_reader().latestOffset({"plan": 0}, None)
    assert signals.is_wanted(Lane.files)


def test_messages_that_are_dropped_between_plan_and_read_are_left_out(
    client: StreamManagerClient, make_reader: Make
) -> None:
    name = create_one(client)
    client.append_message(name, b"x")
    reader = make_reader(warm=False)
    reader.latestOffset({"plan": 0}, None)
    tasks = tasks_of(reader, 0, 1)

    client.delete_message_stream(name)

    # Mapped or asked for over the wire: either way the slice is there, with what is left of it.
    assert payloads_in(reader, tasks) in ({name: []}, {name: [b"x"]})


def test_the_most_urgent_comes_first_in_its_task(
    client: StreamManagerClient, make_reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    names = [create_one(client, priority=priority) for priority in (9, 1, 5)]
    for name in names:
        client.append_message(name, b"x")
    reader = make_reader(warm=False)
    reader.latestOffset({"plan": 0}, None)

    (task,) = tasks_of(reader, 0, 1)

    assert list(payloads_in(reader, [task])) == [names[1], names[2], names[0]]
    for name in names:
        client.delete_message_stream(name)


def test_a_broker_that_was_killed_and_comes_back_elsewhere_is_found_again(
    make_reader: Make, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "root") as process:
        with StreamManagerClient(root=process.root) as client:
            name = create_one(client)
            client.append_message(name, b"kept")
        reader = make_reader(root=process.root)
        process.kill()
        process.port = 0
        process.start()

        wait_until(lambda: reader.latestOffset({"plan": 1}, None)["plan"] == 2)

        assert payloads_in(reader, tasks_of(reader, 1, 2)) == {name: [b"kept"]}


def planned(number: int, size: int) -> PlannedSlice:
    name = f"stream-{number}"
    segment = SegmentSummary(0, 1, size, 0, 0, 0, 0)
    piece = Piece(name, "id", segment, 0, 1, None, "", ALL_TIMES)
    return PlannedSlice(header_for("http://a", name), [piece])


@given(st.lists(st.integers(1, 100), max_size=20), st.integers(1, 5))
def test_each_slice_is_in_one_share_and_no_share_is_much_larger(
    sizes: list[int], tasks: int
) -> None:
    slices = [planned(number, size) for number, size in enumerate(sizes)]

    shares = share_out(slices, tasks)

    assert len(shares) == tasks
    order = {planned.header.slice.stream: place for place, planned in enumerate(slices)}
    places = [[order[it.header.slice.stream] for it in share] for share in shares]
    assert sorted(itertools.chain(*places)) == list(range(len(slices)))
    assert all(share == sorted(share) for share in places)
    costs = [sum(it.cost for it in share) for share in shares]
    assert max(costs) - min(costs) <= max((it.cost for it in slices), default=0)
