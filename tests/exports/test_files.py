"""Uploads of files: real Spark, a real object store, and killed processes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from mypy_boto3_s3.client import S3Client

from penstock import (
    ExportDefinition,
    MessageStreamDefinition,
    ReadMessagesOptions,
    S3ExportTaskDefinition,
    S3ExportTaskExecutorConfig,
    Status,
    StatusConfig,
    StatusLevel,
    StatusMessage,
    StrategyOnFull,
    StreamManagerClient,
    Util,
)
from penstock.discovery import read_token
from tests.conformance.harness import SDKS
from tests.exports.programs import PipelineProcess, has_exported, status_of
from tests.object_store import ObjectStore
from tests.support import (
    TIMEOUT_S,
    BrokerProcess,
    clean_environment,
    run_program,
    wait_until,
)

MEBIBYTE = 1024 * 1024
LARGE = 40 * MEBIBYTE
# The upload takes more than a second, so that tests can act while it runs.
HUGE = 160 * MEBIBYTE
HERE = Path(__file__).resolve().parent

_numbers = count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(scope="module")
def s3(store: ObjectStore) -> S3Client:
    return store.client()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Another broker than that of the package, since its pipeline uses the object store."""
    with BrokerProcess(tmp_path_factory.mktemp("files") / "root") as process:
        yield process


@pytest.fixture(scope="module")
def pipeline(broker: BrokerProcess, store: ObjectStore) -> Iterator[PipelineProcess]:
    with PipelineProcess(broker.root, **store.variables) as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess, pipeline: PipelineProcess) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(root=broker.root) as stream_manager_client:
        yield stream_manager_client


class Files(NamedTuple):
    """A stream of S3 tasks, its status stream, and the bucket of the tasks."""

    client: StreamManagerClient
    s3: S3Client
    stream: str
    statuses: str
    bucket: str
    directory: Path

    def path_of(self, key: str) -> Path:
        return self.directory / f"{self.stream}-{key.replace('/', '-')}"

    def upload(self, content: bytes, key: str, **fields: Any) -> int:
        """Writes a file, appends its task, and returns the sequence number of the task."""
        path = self.path_of(key)
        path.write_bytes(content)
        task = S3ExportTaskDefinition(path.as_uri(), self.bucket, key, **fields)
        return self.client.append_message(
            self.stream, Util.validate_and_serialize_to_json_bytes(task)
        )

    def status_messages(self) -> list[StatusMessage]:
        newest = self.client.describe_message_stream(
            self.statuses
        ).storage_status.newest_sequence_number
        if newest < 0:
            return []
        messages = self.client.read_messages(
            self.statuses, ReadMessagesOptions(max_message_count=newest + 1)
        )
        return [Util.deserialize_json_bytes_to_obj(it.payload, StatusMessage) for it in messages]

    def wait_for(self, number: int, status: Status) -> StatusMessage:
        """Waits for a status message of a task, and returns it."""

        def find() -> StatusMessage | None:
            for message in self.status_messages():
                context = message.status_context
                assert context is not None
                place = context.stream_name, context.sequence_number
                if place == (self.stream, number) and message.status is status:
                    return message
            return None

        wait_until(lambda: find() is not None, f"there is no {status.name} of task {number}")
        found = find()
        assert found is not None
        return found

    def content(self, key: str) -> bytes:
        return self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def unfinished(self) -> list[str]:
        found = self.s3.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [each["Key"] for each in found]


@pytest.fixture
def files(client: StreamManagerClient, s3: S3Client, tmp_path: Path) -> Files:
    return make_files(client, s3, tmp_path)


def make_files(
    client: StreamManagerClient,
    s3: S3Client,
    directory: Path,
    level: StatusLevel = StatusLevel.DEBUG,
    statuses: str | None = None,
) -> Files:
    number = next(_numbers)
    statuses = statuses or f"statuses-{number}"
    made = Files(client, s3, f"tasks-{number}", statuses, f"bucket-{number}", directory)
    s3.create_bucket(Bucket=made.bucket)
    client.create_message_stream(
        MessageStreamDefinition(
            name=made.statuses,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
        )
    )
    config = S3ExportTaskExecutorConfig("to-s3", status_config=StatusConfig(level, statuses))
    client.create_message_stream(
        MessageStreamDefinition(
            name=made.stream,
            strategy_on_full=StrategyOnFull.RejectNewData,
            export_definition=ExportDefinition(s3_task_executor=[config]),
        )
    )
    return made


def test_files_arrive_byte_for_byte_and_in_order(files: Files) -> None:
    contents = [os.urandom(size) for size in (0, 20_000, 5 * MEBIBYTE, LARGE + 1, 3)]
    for number, content in enumerate(contents):
        files.upload(content, f"x/{number}", user_metadata={"Number": str(number)})
    files.wait_for(4, Status.Success)
    for number, content in enumerate(contents):
        assert files.content(f"x/{number}") == content
    assert files.s3.head_object(Bucket=files.bucket, Key="x/3")["Metadata"] == {"number": "3"}
    seen = [
        (message.status_context.sequence_number, message.status)
        for message in files.status_messages()
        if message.status_context is not None
    ]
    assert seen == [
        (number, status) for number in range(5) for status in (Status.InProgress, Status.Success)
    ]


def test_status_contains_the_task_definition(files: Files) -> None:
    number = files.upload(b"x", "!{timestamp:yyyy}.txt", user_metadata={"a": "b"})
    files.wait_for(number, Status.Success)
    (_, success) = files.client.read_messages(
        files.statuses, ReadMessagesOptions(min_message_count=2, max_message_count=2)
    )
    plain = json.loads(success.payload)
    message, timestamp = plain.pop("message"), plain.pop("timestampEpochMs")
    context = plain["statusContext"]
    assert context.pop("s3ExportTaskDefinition") == {
        "inputUrl": files.path_of("!{timestamp:yyyy}.txt").as_uri(),
        "bucket": files.bucket,
        "key": "!{timestamp:yyyy}.txt",
        "userMetadata": {"a": "b"},
    }
    assert plain == {
        "eventType": 0,
        "statusLevel": 2,
        "status": 0,
        "statusContext": {
            "exportIdentifier": "to-s3",
            "streamName": files.stream,
            "sequenceNumber": number,
        },
    }
    assert f"s3://{files.bucket}/20" in message
    assert abs(timestamp - success.ingest_time) < TIMEOUT_S * 1000


def test_failed_tasks_get_a_status_and_the_next_task_is_carried_out(files: Files) -> None:
    client = files.client
    client.append_message(files.stream, b"not a task")
    missing = S3ExportTaskDefinition("file:/there/is/none", files.bucket, "k")
    client.append_message(files.stream, Util.validate_and_serialize_to_json_bytes(missing))
    elsewhere = S3ExportTaskDefinition("file:/etc/hostname", "no-such-bucket-here", "k")
    client.append_message(files.stream, Util.validate_and_serialize_to_json_bytes(elsewhere))
    number = files.upload(b"fine", "fine")
    files.wait_for(number, Status.Success)
    failures = [message for message in files.status_messages() if message.status is Status.Failure]
    assert [failure.status_level for failure in failures] == [StatusLevel.ERROR] * 3
    texts = [str(failure.message) for failure in failures]
    assert "not JSON" in texts[0]
    assert "/there/is/none" in texts[1]
    assert "no-such-bucket-here" in texts[2]
    # Statuses are written before progress is stored, so that a crash loses none of them.
    wait_until(lambda: has_exported(client, files.stream, "to-s3", number))
    assert status_of(client, files.stream, "to-s3").exported_messages_count == 4


def test_aws_sample_programs_wait_for_an_upload(
    broker: BrokerProcess, client: StreamManagerClient, s3: S3Client, tmp_path: Path
) -> None:
    waiting = make_files(client, s3, tmp_path, level=StatusLevel.INFO, statuses="StatusStreamName")
    variables = clean_environment(
        STREAM_MANAGER_SERVER_PORT=str(broker.port),
        AWS_CONTAINER_AUTHORIZATION_TOKEN=read_token(broker.root),
    )
    python = [str(SDKS / "greengrasssdk-1.6.1/bin/python"), str(HERE / "monitor_uploads.py"), "u"]
    node = ["node", str(HERE / "monitor_uploads.js"), str(SDKS / "node"), "u"]
    with ThreadPoolExecutor() as pool:
        programs = [
            pool.submit(run_program, *command, cwd=tmp_path, env=variables, seconds=TIMEOUT_S)
            for command in (python, node)
        ]
        wait_until(lambda: is_read_by(client, waiting.statuses, 2), "the programs read no statuses")
        waiting.upload(b"x", "k")
        for program in programs:
            ended = program.result()
            printed = ended.stdout.splitlines(), ended.stderr
            assert "Successfully uploaded file at path u to S3." in printed[0], printed


def is_read_by(client: StreamManagerClient, stream: str, programs: int) -> bool:
    found = {each.name: each.waiting_reads for each in client.statistics().streams}
    return found[stream] == programs


def test_task_of_a_deleted_stream_is_canceled(files: Files) -> None:
    number = files.upload(bytes(HUGE), "huge")
    files.upload(b"behind", "behind")
    wait_until(lambda: bool(files.unfinished()))
    files.client.delete_message_stream(files.stream)
    assert files.wait_for(number, Status.Canceled).message == "the stream was deleted"
    files.wait_for(number + 1, Status.Canceled)
    wait_until(lambda: not files.unfinished())
    found = files.s3.list_objects_v2(Bucket=files.bucket).get("Contents", [])
    assert [each["Key"] for each in found] == []


def test_file_that_changes_between_two_parts_is_a_failure(files: Files) -> None:
    number = files.upload(bytes(HUGE), "huge")
    files.upload(b"behind", "behind")
    wait_until(lambda: bool(files.unfinished()))
    with files.path_of("huge").open("r+b") as file:
        file.write(b"x")
    assert "changed" in str(files.wait_for(number, Status.Failure).message)
    files.wait_for(number + 1, Status.Success)
    assert files.unfinished() == []


def test_upload_continues_after_the_pipeline_is_killed(
    files: Files, pipeline: PipelineProcess
) -> None:
    content = os.urandom(HUGE)
    number = files.upload(content, "huge")
    files.upload(b"behind", "behind")
    wait_until(lambda: bool(files.unfinished()))
    kill_with_children(pipeline)
    assert files.unfinished() == ["huge"]
    pipeline.start()
    files.wait_for(number + 1, Status.Success)
    assert files.content("huge") == content
    assert files.content("behind") == b"behind"
    assert files.unfinished() == []


def kill_with_children(pipeline: PipelineProcess) -> None:
    """Kills all processes of a pipeline with SIGKILL."""
    children = pipeline.children()
    pipeline.kill()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def test_upload_continues_after_the_broker_is_killed(files: Files, broker: BrokerProcess) -> None:
    content = os.urandom(HUGE)
    number = files.upload(content, "huge")
    wait_until(lambda: bool(files.unfinished()))
    broker.kill()
    assert files.unfinished() == ["huge"]
    broker.start()
    files.wait_for(number, Status.Success)
    assert files.content("huge") == content
    assert files.unfinished() == []
