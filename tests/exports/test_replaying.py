"""Replayed exports at their destinations: real Spark, and a sandboxed cloud."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import boto3
import pyarrow.parquet as pq
import pytest
from mypy_boto3_s3.client import S3Client

from penstock import (
    HTTPConfig,
    IoTAnalyticsConfig,
    KinesisConfig,
    S3ExportTaskDefinition,
    S3ExportTaskExecutorConfig,
    StreamManagerClient,
    Util,
)
from penstock.sandbox.local_sandbox import Sandbox
from tests.exports.programs import has_exported, status_of
from tests.support import MEBIBYTE, BrokerProcess, wait_until

Create = Callable[..., str]


def numbered(count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(count)]


def test_rewound_messages_arrive_again_in_order(
    create: Create, shard: Callable[[], str], client: StreamManagerClient, cloud: Sandbox
) -> None:
    target = shard()
    stream = create(
        kinesis=[KinesisConfig("k", kinesis_stream_name=target)],
        http=[HTTPConfig("h", uri=cloud.http_url("untouched"))],
    )
    messages = numbered(50)
    client.append_messages(stream, messages)
    wait_until(lambda: has_exported(client, stream, "k", 49))
    wait_until(lambda: has_exported(client, stream, "h", 49))
    client.rewind_export(stream, "k", 30)
    wait_until(lambda: status_of(client, stream, "k").exported_messages_count == 70)
    assert cloud.payloads("kinesis", target) == [*messages, *messages[30:]]
    assert status_of(client, stream, "h").exported_messages_count == 50

    # An update moves the export as well. Programs with an AWS SDK use that.
    definition = client.describe_message_stream(stream).definition
    (config,) = definition.export_definition.kinesis or []
    config.start_sequence_number = 45
    client.update_message_stream(definition)
    wait_until(lambda: status_of(client, stream, "k").exported_messages_count == 75)
    assert cloud.payloads("kinesis", target)[70:] == messages[45:]


@pytest.mark.parametrize("positions", [[0], [700, 20, 350], [900, 100, 1000, 0]])
def test_channel_has_each_message_once_after_moves_during_deliveries(
    create: Create, client: StreamManagerClient, broker: BrokerProcess, positions: list[int]
) -> None:
    channel = f"moved_{'_'.join(map(str, positions))}"
    config = IoTAnalyticsConfig("c", iot_channel=channel, batch_size=10, priority=1)
    stream = create(iot_analytics=[config])
    for batch in range(10):
        client.append_messages(stream, numbered(1000)[batch * 100 : batch * 100 + 100])
    for position in positions:
        client.rewind_export(stream, "c", position)
    # A later move exports the messages that a move forward skipped.
    client.rewind_export(stream, "c", 0)
    wait_until(lambda: has_exported(client, stream, "c", 999))
    table = pq.read_table(broker.root / "channels" / channel).sort_by("sequence_number")
    assert table.column("payload").to_pylist() == numbered(1000)


@pytest.fixture
def s3(cloud: Sandbox) -> S3Client:
    session = boto3.Session("key", "secret", region_name="us-east-1")
    return session.client("s3", endpoint_url=cloud.url)


def test_rewound_executor_uploads_again_and_leaves_no_unfinished_upload(
    create: Create, client: StreamManagerClient, s3: S3Client, tmp_path: Path
) -> None:
    s3.create_bucket(Bucket="replayed")
    executor = S3ExportTaskExecutorConfig(
        "s", size_threshold_for_multipart_upload_bytes=5 * MEBIBYTE
    )
    stream = create(s3_task_executor=[executor])
    paths = [tmp_path / f"{number}" for number in range(3)]
    for path in paths:
        path.write_bytes(os.urandom(40 * MEBIBYTE if path.name == "1" else 1000))
        task = S3ExportTaskDefinition(path.as_uri(), "replayed", path.name)
        client.append_message(stream, Util.validate_and_serialize_to_json_bytes(task))
    wait_until(lambda: status_of(client, stream, "s").last_exported_sequence_number >= 0)
    # The second upload has not ended.
    client.rewind_export(stream, "s", 0)
    wait_until(lambda: has_exported(client, stream, "s", 2))

    changed = os.urandom(2000)
    paths[0].write_bytes(changed)
    client.rewind_export(stream, "s", 0)
    wait_until(lambda: has_exported(client, stream, "s", 2))
    for path in paths:
        content = s3.get_object(Bucket="replayed", Key=path.name)["Body"].read()
        assert content == path.read_bytes()
    wait_until(lambda: not s3.list_multipart_uploads(Bucket="replayed").get("Uploads"))
