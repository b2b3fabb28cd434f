"""Exports from a broker to destinations: real Spark, real boto3, a sandboxed cloud."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import psutil
import pyarrow.parquet as pq
import pytest
from mypy_boto3_kinesis.client import KinesisClient

from penstock import (
    ExportDefinition,
    ExportFormat,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    Persistence,
    ReadMessagesOptions,
    S3ExportTaskDefinition,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
    StreamManagerClient,
    Util,
)
from penstock.sandbox.local_sandbox import Sandbox
from tests.exports.backlog import Backlog
from tests.exports.programs import (
    PipelineProcess,
    end_amid_deliveries,
    has_exported,
    state_of,
    status_of,
)
from tests.support import MEBIBYTE, BrokerProcess, wait_until

Create = Callable[..., str]
Shard = Callable[[], str]

INTERVAL_MILLIS = 60_000


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [f"message {number}".encode() for number in range(start, start + count)]


def firsts(payloads: list[bytes]) -> list[bytes]:
    """Each payload once, at the place where it occurs first."""
    return list(dict.fromkeys(payloads))


# Once for the package, since tests of other files may run before the late test.
@pytest.fixture(scope="package", autouse=True)
def slow_batch(client: StreamManagerClient, cloud: Sandbox) -> tuple[str, float]:
    """A stream with an incomplete batch, and the time when the batch began."""
    config = HTTPConfig(
        "h",
        uri=cloud.http_url("interval"),
        batch_size=4,
        batch_interval_millis=INTERVAL_MILLIS,
        export_format=ExportFormat.JSON_BATCHED,
    )
    client.create_message_stream(
        MessageStreamDefinition(
            name="interval",
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(http=[config]),
        )
    )
    began = time.time()
    client.append_messages("interval", numbered(6))
    # Before a test kills a process: the batch would then arrive twice.
    wait_until(lambda: has_exported(client, "interval", "h", 3))
    (record,) = cloud.records("http", "interval")
    assert len(json.loads(base64.b64decode(record["data"]))) == 4
    return "interval", began


# Late, because other tests run during the interval, which is at least a minute.
@pytest.mark.late
def test_whole_batches_leave_at_once_and_the_rest_after_the_interval(
    slow_batch: tuple[str, float], client: StreamManagerClient, cloud: Sandbox
) -> None:
    stream, began = slow_batch
    wait_until(lambda: has_exported(client, stream, "h", 5))
    _, *later = cloud.records("http", "interval")
    assert later
    # Another test may have killed a process during the delivery, so that it was repeated.
    for record in later:
        assert len(json.loads(base64.b64decode(record["data"]))) == 2
        assert record["time"] / 1000 >= began + INTERVAL_MILLIS / 1000


# Destinations


def test_messages_reach_kinesis_in_order_and_are_counted_in_the_status(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    target = shard()
    stream = create(kinesis=[KinesisConfig("k", kinesis_stream_name=target)])
    assert status_of(client, stream, "k").last_exported_sequence_number == -1
    began = time.time_ns() // 1_000_000
    messages = numbered(1200)

    client.append_messages(stream, messages)

    wait_until(lambda: has_exported(client, stream, "k", 1199))
    assert cloud.payloads("kinesis", target) == messages
    status = status_of(client, stream, "k")
    assert status.exported_messages_count == 1200
    assert status.exported_bytes_from_stream == sum(map(len, messages))
    assert status.error_message == ""
    assert status.last_export_time is not None
    assert status.last_export_time >= began
    calls = cloud.calls("kinesis", target)
    assert max(call["records"] for call in calls if call["operation"] == "PutRecords") == 500
    keys = {record["partitionKey"] for record in cloud.records("kinesis", target)}
    assert len(keys) == 1200


def entry(number: int, **fields: Any) -> bytes:
    value = {"value": {"integerValue": number}, "timestamp": {"timeInSeconds": int(time.time())}}
    return json.dumps(
        {
            "entryId": f"entry-{number}",
            "propertyAlias": f"/farm/{number}",
            "propertyValues": [value],
            **fields,
        }
    ).encode()


def test_entries_reach_sitewise_and_malformed_entries_the_dead_letter_stream(
    create: Create, client: StreamManagerClient, cloud: Sandbox
) -> None:
    stream = create(iot_sitewise=[IoTSiteWiseConfig("s")])
    good = [entry(number, propertyAlias="/farm/turbine") for number in range(3)]

    client.append_messages(stream, [good[0], b"no JSON", good[1], b'{"entryId": "x"}', good[2]])

    wait_until(lambda: has_exported(client, stream, "s", 4))
    arrived = cloud.records("iotsitewise", "/farm/turbine")
    assert [record["entryId"] for record in arrived] == ["entry-0", "entry-1", "entry-2"]
    status = status_of(client, stream, "s")
    assert status.exported_messages_count == 5
    assert status.exported_bytes_from_stream == sum(map(len, good))
    export = next(found.exports[0] for found in client.statistics().streams if found.name == stream)
    assert export.skipped_messages == 2

    def letters() -> list[dict[str, Any]]:
        found = [json.loads(message.payload) for message in _read_all(client, "dead-letters")]
        return [letter for letter in found if letter["streamName"] == stream]

    wait_until(lambda: len(letters()) == 2)
    first = letters()[0]
    assert first["sequenceNumber"] == 1
    assert first["exportIdentifier"] == "s"
    assert base64.b64decode(first["payload"]) == b"no JSON"
    assert first["reason"]


def _read_all(client: StreamManagerClient, stream: str) -> list[Any]:
    if stream not in client.list_streams():
        return []
    return client.read_messages(
        stream, ReadMessagesOptions(min_message_count=1, max_message_count=1000)
    )


def test_messages_reach_an_http_server_one_by_one_or_as_json(
    create: Create, client: StreamManagerClient, cloud: Sandbox
) -> None:
    stream = create(
        http=[
            HTTPConfig("raw", uri=cloud.http_url("raw")),
            HTTPConfig(
                "batched",
                uri=cloud.http_url("batched"),
                batch_size=10,
                export_format=ExportFormat.JSON_BATCHED,
            ),
        ]
    )

    client.append_messages(stream, numbered(25))

    for identifier in ("raw", "batched"):
        wait_until(lambda name=identifier: has_exported(client, stream, name, 24))  # type: ignore[misc]
    assert cloud.payloads("http", "raw") == numbered(25)
    batches = [json.loads(payload) for payload in cloud.payloads("http", "batched")]
    assert [len(batch) for batch in batches] == [10, 10, 5]
    messages = [message for batch in batches for message in batch]
    assert [message["sequenceNumber"] for message in messages] == list(range(25))
    assert base64.b64decode(messages[7]["payload"]) == b"message 7"
    assert messages[7]["streamName"] == stream
    assert messages[7]["ingestTime"] > 0


def test_messages_reach_a_channel_as_parquet_files(
    create: Create, client: StreamManagerClient, broker: BrokerProcess
) -> None:
    config = IoTAnalyticsConfig("c", iot_channel="turbines", iot_msg_id_prefix="id-")
    stream = create(iot_analytics=[config])

    client.append_messages(stream, numbered(300))
    wait_until(lambda: has_exported(client, stream, "c", 299))
    client.append_messages(stream, numbered(100, 300))
    wait_until(lambda: has_exported(client, stream, "c", 399))

    table = pq.read_table(broker.root / "channels" / "turbines").sort_by("sequence_number")
    rows = table.to_pylist()
    assert [row["payload"] for row in rows] == numbered(400)
    assert rows[7]["message_id"] == f"id-{stream}-7"
    assert rows[7]["stream"] == stream
    assert str(rows[7]["ingest_time"].date()) == rows[7]["date"]


def test_long_upload_delays_neither_other_files_nor_messages(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox, tmp_path: Path
) -> None:
    s3 = boto3.Session("key", "secret", region_name="us-east-1").client(
        "s3", endpoint_url=cloud.url
    )
    s3.create_bucket(Bucket="files")
    long_one, short_one = (
        create(s3_task_executor=[S3ExportTaskExecutorConfig("s")]) for _ in range(2)
    )
    target = shard()
    stream = create(kinesis=[KinesisConfig("k", kinesis_stream_name=target)])
    # It hangs until the other exports are checked.
    cloud.set_fault("s3", operation="UploadPart", hang=True)
    content = os.urandom(50 * MEBIBYTE)
    append_task(client, long_one, tmp_path, "long", content)
    wait_until(lambda: any(fault["callsMet"] for fault in cloud.faults()))

    append_task(client, short_one, tmp_path, "short", b"x")
    client.append_message(stream, b"x")
    wait_until(lambda: has_exported(client, short_one, "s", 0))
    wait_until(lambda: has_exported(client, stream, "k", 0))

    assert status_of(client, long_one, "s").last_exported_sequence_number == -1
    cloud.clear_faults()
    wait_until(lambda: has_exported(client, long_one, "s", 0))
    assert s3.get_object(Bucket="files", Key="long")["Body"].read() == content


def append_task(
    client: StreamManagerClient, stream: str, directory: Path, name: str, content: bytes
) -> None:
    (directory / name).write_bytes(content)
    task = S3ExportTaskDefinition(str(directory / name), "files", name)
    client.append_message(stream, Util.validate_and_serialize_to_json_bytes(task))


def test_two_exports_of_one_type_each_have_their_own_progress(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    works, fails = shard(), "not-there"
    stream = create(
        kinesis=[
            KinesisConfig("works", kinesis_stream_name=works),
            KinesisConfig("fails", kinesis_stream_name=fails),
            KinesisConfig("late", kinesis_stream_name=works, start_sequence_number=15),
        ]
    )

    client.append_messages(stream, numbered(20))

    wait_until(lambda: has_exported(client, stream, "works", 19))
    wait_until(lambda: has_exported(client, stream, "late", 19))
    wait_until(lambda: status_of(client, stream, "fails").error_message)
    assert sorted(cloud.payloads("kinesis", works)) == sorted(numbered(20) + numbered(5, 15))
    failing = status_of(client, stream, "fails")
    assert failing.last_exported_sequence_number == -1
    assert "ResourceNotFoundException" in failing.error_message


def test_memory_stream_is_exported(
    shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    target = shard()
    client.create_message_stream(
        MessageStreamDefinition(
            name="in-memory",
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            persistence=Persistence.Memory,
            export_definition=ExportDefinition(
                kinesis=[KinesisConfig("k", kinesis_stream_name=target)]
            ),
        )
    )

    client.append_messages("in-memory", numbered(50))

    wait_until(lambda: has_exported(client, "in-memory", "k", 49))
    assert cloud.payloads("kinesis", target) == numbered(50)


# Changes of a definition


def test_paused_export_keeps_its_position_until_it_is_resumed(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    target, control = shard(), shard()
    stream = create(
        kinesis=[
            KinesisConfig("k", kinesis_stream_name=target),
            KinesisConfig("control", kinesis_stream_name=control),
        ]
    )
    client.append_messages(stream, numbered(3))
    wait_until(lambda: has_exported(client, stream, "k", 2))

    _set_disabled(client, stream, True)
    client.append_messages(stream, numbered(3, 3))
    wait_until(lambda: has_exported(client, stream, "control", 5))
    assert has_exported(client, stream, "k", 2)
    _set_disabled(client, stream, False)

    wait_until(lambda: has_exported(client, stream, "k", 5))
    assert cloud.payloads("kinesis", target) == numbered(6)


def _set_disabled(client: StreamManagerClient, stream: str, disabled: bool) -> None:
    definition = client.describe_message_stream(stream).definition
    (definition.export_definition.kinesis or [])[0].disabled = disabled
    client.update_message_stream(definition)


def test_removed_export_stops_and_added_export_starts(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    old, new = shard(), shard()
    stream = create(kinesis=[KinesisConfig("old", kinesis_stream_name=old)])
    client.append_messages(stream, numbered(3))
    wait_until(lambda: has_exported(client, stream, "old", 2))

    definition = client.describe_message_stream(stream).definition
    definition.export_definition = ExportDefinition(
        kinesis=[KinesisConfig("new", kinesis_stream_name=new)]
    )
    client.update_message_stream(definition)
    client.append_messages(stream, numbered(3, 3))

    wait_until(lambda: has_exported(client, stream, "new", 5))
    assert cloud.payloads("kinesis", new) == numbered(6)
    assert cloud.payloads("kinesis", old) == numbered(3)


def test_deleting_a_stream_ends_its_exports(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    target = shard()
    stream = create(kinesis=[KinesisConfig("k", kinesis_stream_name=target)])
    cloud.set_fault("kinesis", name=target, throttle=True)
    client.append_messages(stream, numbered(3))
    wait_until(lambda: status_of(client, stream, "k").error_message)

    client.delete_message_stream(stream)
    cloud.clear_faults()

    # After a later stream is exported, no message of the deleted one has arrived.
    other = shard()
    successor = create(kinesis=[KinesisConfig("k", kinesis_stream_name=other)])
    client.append_messages(successor, numbered(3))
    wait_until(lambda: has_exported(client, successor, "k", 2))
    assert cloud.payloads("kinesis", target) == []


# Urgency


def test_urgent_message_does_not_wait_for_a_backlog(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    bulk, alarm = shard(), shard()
    backlog = create(kinesis=[KinesisConfig("k", kinesis_stream_name=bulk, priority=10)])
    urgent = create(kinesis=[KinesisConfig("k", kinesis_stream_name=alarm, priority=1)])
    messages = [bytes(64)] * 150_000
    # Its 300 calls take at least a minute.
    cloud.set_fault("kinesis", name=bulk, delay_millis=200)
    client.append_messages(backlog, messages)
    wait_until(lambda: cloud.payloads("kinesis", bulk))

    client.append_message(urgent, b"alarm")

    wait_until(lambda: cloud.payloads("kinesis", alarm))
    assert status_of(client, backlog, "k").last_exported_sequence_number < len(messages) - 1
    cloud.clear_faults()
    wait_until(lambda: has_exported(client, backlog, "k", len(messages) - 1))


# Failures


def test_only_refused_records_are_retried(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    target = shard()
    stream = create(kinesis=[KinesisConfig("k", kinesis_stream_name=target)])
    cloud.set_fault("kinesis", name=target, refuse_every=7)
    messages = numbered(1000)

    client.append_messages(stream, messages)

    wait_until(lambda: has_exported(client, stream, "k", 999))
    arrived = cloud.payloads("kinesis", target)
    assert sorted(arrived) == sorted(messages)
    # Refused records arrive before those of later calls.
    assert set(arrived[:500]) == set(messages[:500])


def test_outage_delays_messages_and_loses_none(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    target = shard()
    stream = create(kinesis=[KinesisConfig("k", kinesis_stream_name=target)])
    client.append_messages(stream, numbered(10))
    wait_until(lambda: has_exported(client, stream, "k", 9))

    cloud.set_fault("kinesis", name=target, down=True)
    for start in range(10, 60, 10):
        client.append_messages(stream, numbered(10, start))
    wait_until(lambda: status_of(client, stream, "k").error_message)
    assert has_exported(client, stream, "k", 9)
    cloud.clear_faults()
    client.append_messages(stream, numbered(10, 60))

    wait_until(lambda: has_exported(client, stream, "k", 69))
    assert firsts(cloud.payloads("kinesis", target)) == numbered(70)
    assert status_of(client, stream, "k").error_message == ""


def test_hanging_destination_delays_no_other(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    stuck, well = shard(), shard()
    hanging = create(kinesis=[KinesisConfig("k", kinesis_stream_name=stuck)])
    healthy = create(kinesis=[KinesisConfig("k", kinesis_stream_name=well)])
    cloud.set_fault("kinesis", name=stuck, hang=True)
    client.append_message(hanging, b"first")
    wait_until(lambda: state_of(client, hanging, "k") == "exporting")
    for number in range(5):
        client.append_message(healthy, b"%d" % number)
        wait_until(lambda last=number: has_exported(client, healthy, "k", last))  # type: ignore[misc]
    assert not has_exported(client, hanging, "k", 0)
    assert cloud.payloads("kinesis", stuck) == []
    cloud.clear_faults()
    wait_until(lambda: has_exported(client, hanging, "k", 0))
    client.append_message(hanging, b"second")
    wait_until(lambda: has_exported(client, hanging, "k", 1))
    assert firsts(cloud.payloads("kinesis", stuck)) == [b"first", b"second"]


def test_oversized_message_is_skipped_and_the_next_arrives(
    create: Create, shard: Shard, client: StreamManagerClient, cloud: Sandbox
) -> None:
    target = shard()
    stream = create(kinesis=[KinesisConfig("k", kinesis_stream_name=target)])

    client.append_messages(stream, [b"before", bytes(2 * 1024 * 1024), b"after"])

    wait_until(lambda: has_exported(client, stream, "k", 2))
    assert cloud.payloads("kinesis", target) == [b"before", b"after"]
    status = status_of(client, stream, "k")
    assert status.exported_messages_count == 3
    assert status.exported_bytes_from_stream == len(b"before" + b"after")


def test_retry_waits_for_retry_after(
    create: Create, client: StreamManagerClient, cloud: Sandbox
) -> None:
    cloud.set_fault("http", name="busy", status=503, retry_after=2, for_calls=1)
    stream = create(http=[HTTPConfig("h", uri=cloud.http_url("busy"))])

    client.append_message(stream, b"retried")

    wait_until(lambda: has_exported(client, stream, "h", 0))
    first, second = cloud.calls("http", "busy")
    assert second["time"] - first["time"] >= 2000
    assert cloud.payloads("http", "busy") == [b"retried"]


def test_messages_of_a_killed_python_worker_are_delivered_again(
    create: Create,
    shard: Shard,
    client: StreamManagerClient,
    cloud: Sandbox,
    pipeline: PipelineProcess,
) -> None:
    target = shard()
    stream = create(kinesis=[KinesisConfig("k", kinesis_stream_name=target)])
    cloud.set_fault("kinesis", name=target, delay_millis=200)
    messages = numbered(6_000)
    client.append_messages(stream, messages)
    wait_until(lambda: cloud.payloads("kinesis", target))

    for worker in pipeline.children("pyspark.daemon", "pyspark.worker"):
        # Workers end with their daemon, so some may have ended already.
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    cloud.clear_faults()

    wait_until(lambda: has_exported(client, stream, "k", len(messages) - 1))
    assert firsts(cloud.payloads("kinesis", target)) == messages


# Kills


@pytest.fixture
def backlog(
    broker: BrokerProcess, pipeline: PipelineProcess, cloud: Sandbox, kinesis: KinesisClient
) -> Backlog:
    return Backlog(broker, cloud, kinesis)


def test_no_message_is_lost_when_the_broker_is_killed(
    backlog: Backlog, broker: BrokerProcess
) -> None:
    exported = backlog.last_exported
    broker.kill()
    broker.start()
    backlog.check_all_arrive(exported)


def test_no_message_is_lost_when_the_driver_is_killed(
    backlog: Backlog, pipeline: PipelineProcess
) -> None:
    exported = backlog.last_exported
    pipeline.kill()
    pipeline.start()
    backlog.check_all_arrive(exported)


def test_no_message_is_lost_when_java_and_the_broker_are_killed_at_once(
    backlog: Backlog, pipeline: PipelineProcess, broker: BrokerProcess
) -> None:
    exported = backlog.last_exported
    (java,) = pipeline.children("java", "SparkSubmit")
    java.kill()
    broker.kill()
    assert pipeline.wait_for_end() == 1
    assert pipeline.log.splitlines()[-1] == "penstock: Spark ended: its Java process has ended"
    broker.start()
    pipeline.start()
    backlog.check_all_arrive(exported)


KILOBITS = 800


@pytest.fixture
def limited(broker: BrokerProcess, pipeline: PipelineProcess) -> Iterator[BrokerProcess]:
    """The same broker, with a bandwidth limit."""
    limit = "STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH"
    broker.stop()
    broker.set_variable(limit, str(KILOBITS))
    broker.start()
    yield broker
    broker.stop()
    broker.unset_variable(limit)


def test_bandwidth_limit_holds_on_average_and_urgent_messages_leave_first(
    limited: BrokerProcess, cloud: Sandbox, kinesis: KinesisClient
) -> None:
    with StreamManagerClient(root=limited.root) as client:
        for name, priority in (("later", 9), ("sooner", 1)):
            kinesis.create_stream(StreamName=name, ShardCount=1)
            config = KinesisConfig("k", kinesis_stream_name=name, priority=priority, disabled=True)
            client.create_message_stream(
                MessageStreamDefinition(
                    name=name,
                    strategy_on_full=StrategyOnFull.OverwriteOldestData,
                    export_definition=ExportDefinition(kinesis=[config]),
                )
            )
            client.append_messages(name, [bytes(1000)] * 250)
        for name in ("later", "sooner"):
            definition = client.describe_message_stream(name).definition
            (definition.export_definition.kinesis or [])[0].disabled = False
            client.update_message_stream(definition)
        for name in ("later", "sooner"):
            wait_until(lambda name=name: has_exported(client, name, "k", 249))  # type: ignore[misc]
    puts = [call for call in cloud.calls("kinesis") if call["name"] in ("later", "sooner")]
    puts = [call for call in puts if call["operation"] == "PutRecords"]
    seconds = (puts[-1]["time"] - puts[0]["time"]) / 1000
    # The first calls use the burst. One of them may arrive late on a busy machine.
    total = sum(call["bodyBytes"] for call in puts[1:])
    burst = 3 * KILOBITS * 125
    assert total <= KILOBITS * 125 * seconds * 1.1 + burst
    assert puts[-1]["name"] == "later"


def test_clean_stop_leaves_no_processes_or_files_and_repeats_no_message(
    create: Create,
    client: StreamManagerClient,
    cloud: Sandbox,
    pipeline: PipelineProcess,
) -> None:
    stream = create(http=[HTTPConfig("h", uri=cloud.http_url("the-end"))])
    assert pipeline.children("pyspark.worker")
    # Ctrl-C, which Spark would handle itself.
    end_amid_deliveries(pipeline, signal.SIGINT, client, cloud, stream, "the-end")
