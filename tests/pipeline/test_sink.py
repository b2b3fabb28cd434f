"""The sink of a lane, without Spark: it delivers to a real sandbox and reports to a real broker."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import boto3
import msgspec
import pytest
from pyspark.sql.datasource import InputPartition

from penstock import (
    ExportDefinition,
    MessageStreamDefinition,
    S3ExportTaskDefinition,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
    StreamManagerClient,
    Util,
)
from penstock.model.exporting import Lane
from penstock.pipeline.destinations import aws
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.planning import DeliveryTask, LaneReader
from penstock.pipeline.sink import LaneWriter, Reports
from penstock.sandbox.server import Sandbox
from tests.pipeline.slices import create, new_name, options_for
from tests.support import LocalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("sink") / "root") as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: LocalBroker) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(root=broker.root) as connected:
        yield connected


class Batches:
    """The batches of a lane as Spark makes them: plan, read, write, commit."""

    def __init__(self, options: PipelineOptions) -> None:
        self.reader = LaneReader(options)
        self.writer = LaneWriter(options)
        self._number = 0

    def plan(self) -> Sequence[InputPartition]:
        """The tasks of the next batch."""
        start = {"plan": self._number}
        end = self.reader.latestOffset(start, None)
        self._number = end["plan"]
        return self.reader.partitions(start, end)

    def write(self, tasks: Sequence[InputPartition] | None = None) -> list[Reports]:
        """What the tasks of a batch say; of the next batch unless they are given."""
        said = []
        for task in self.plan() if tasks is None else tasks:
            assert isinstance(task, DeliveryTask)
            # As it travels: from the worker that wrote to another process, which commits.
            said.append(pickle.loads(pickle.dumps(self.writer.write(self.reader.read(task)))))
        return said


@pytest.fixture
def batches(broker: LocalBroker, tmp_path: Path) -> Iterator[Batches]:
    running = Batches(options_for(Lane.steady, tmp_path, root=str(broker.root)))
    yield running
    running.reader.stop()


@pytest.fixture
def stream(client: StreamManagerClient, cloud: Sandbox) -> Iterator[str]:
    """A stream whose messages go to a sink of the same name; it is gone with the test."""
    name = new_name()
    create(client, name, cloud.http_url(name))
    yield name
    client.delete_message_stream(name)


def last_exported(client: StreamManagerClient, stream: str) -> int:
    (status,) = client.describe_message_stream(stream).export_statuses
    return status.last_exported_sequence_number


def test_what_was_delivered_counts_once_it_is_committed(
    client: StreamManagerClient, stream: str, cloud: Sandbox, batches: Batches
) -> None:
    client.append_messages(stream, [b"one", b"two"])

    said = batches.write()

    assert cloud.payloads("http", stream) == [b"one", b"two"]
    assert last_exported(client, stream) == -1
    batches.writer.commit([*said], 0)
    assert last_exported(client, stream) == 1


def test_a_batch_whose_commit_was_lost_is_delivered_again(
    client: StreamManagerClient, stream: str, cloud: Sandbox, batches: Batches
) -> None:
    client.append_message(stream, b"x")
    batches.write()

    batches.writer.commit([*batches.write()], 1)

    assert cloud.payloads("http", stream) == [b"x", b"x"]
    assert last_exported(client, stream) == 0


def test_what_arrived_before_another_task_failed_has_arrived(
    client: StreamManagerClient, stream: str, batches: Batches
) -> None:
    client.append_message(stream, b"x")
    said = batches.write()

    # The task that failed has nothing to say.
    batches.writer.abort([*said, None], 0)

    assert last_exported(client, stream) == 0


def test_a_failure_is_told_to_the_broker_and_nothing_counts_as_exported(
    client: StreamManagerClient, stream: str, cloud: Sandbox, batches: Batches
) -> None:
    cloud.set_fault("http", name=stream, status=503)
    client.append_message(stream, b"x")

    batches.writer.commit([*batches.write()], 0)

    (status,) = client.describe_message_stream(stream).export_statuses
    assert status.last_exported_sequence_number == -1
    assert "503" in (status.error_message or "")


def test_a_batch_that_only_wakes_workers_is_not_reported(batches: Batches) -> None:
    said = batches.write()

    assert [reports.reports for reports in said] == [[] for _ in said]
    batches.writer.commit([*said], 0)


def test_a_large_message_arrives_whole_between_its_neighbours(
    client: StreamManagerClient, stream: str, cloud: Sandbox, batches: Batches
) -> None:
    sent = [b"before", bytes(range(256)) * 5 * 4096, b"behind"]
    for payload in sent:
        client.append_message(stream, payload)

    while last_exported(client, stream) < 2:
        batches.writer.commit([*batches.write()], 0)

    assert cloud.payloads("http", stream) == sent


def append_task(client: StreamManagerClient, stream: str, task: S3ExportTaskDefinition) -> None:
    """To a new stream of S3 tasks."""
    executor = S3ExportTaskExecutorConfig("to-s3")
    client.create_message_stream(
        MessageStreamDefinition(
            stream,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(s3_task_executor=[executor]),
        )
    )
    client.append_message(stream, Util.validate_and_serialize_to_json_bytes(task))


@pytest.mark.parametrize("deletes", [True, False])
def test_a_file_that_was_uploaded_is_deleted_once_that_is_known_if_a_setting_asks_for_it(
    client: StreamManagerClient,
    broker: LocalBroker,
    cloud: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deletes: bool,
) -> None:
    for name, value in cloud.variables.items():
        monkeypatch.setenv(name, value)
    aws.forget_clients()
    boto3.client("s3").create_bucket(Bucket="sink")
    options = options_for(Lane.files, tmp_path, root=str(broker.root))
    settings = msgspec.structs.replace(options.settings, s3_delete_uploaded_files=deletes)
    batches = Batches(msgspec.structs.replace(options, settings=settings))
    stream, path = new_name(), tmp_path / "file"
    path.write_bytes(b"x")
    append_task(client, stream, S3ExportTaskDefinition(path.as_uri(), "sink", stream))

    said = batches.write()

    assert [write["key"] for write in cloud.records("s3", "sink")][-1] == stream
    assert path.exists()
    batches.writer.commit([*said], 0)
    assert last_exported(client, stream) == 0
    assert path.exists() is not deletes
    batches.reader.stop()
    client.delete_message_stream(stream)
    aws.forget_clients()


def test_file_task_that_was_planned_before_a_restart_of_the_broker_is_carried_out(
    cloud: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud.variables.items():
        monkeypatch.setenv(name, value)
    aws.forget_clients()
    boto3.client("s3").create_bucket(Bucket="restarted")
    stream, path, root = new_name(), tmp_path / "file", tmp_path / "restarted"
    path.write_bytes(b"x")
    task = S3ExportTaskDefinition(path.as_uri(), "restarted", stream)
    with LocalBroker(root), StreamManagerClient(root=root) as client:
        append_task(client, stream, task)
        batches = Batches(options_for(Lane.files, tmp_path, root=str(root)))
        planned = batches.plan()
    with LocalBroker(root), StreamManagerClient(root=root) as client:
        batches.writer.commit([*batches.write(planned)], 0)
        assert last_exported(client, stream) == 0
        (status,) = client.describe_message_stream(stream).export_statuses
        assert not status.error_message
        batches.reader.stop()
    aws.forget_clients()
