"""What is exported while things are killed: all arrives, and only what was under way twice."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from mypy_boto3_kinesis.client import KinesisClient

from penstock import (
    ExportDefinition,
    KinesisConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.sandbox.server import Sandbox
from tests.exports.programs import PipelineProcess, has_exported, status_of
from tests.support import BrokerProcess, wait_until

COUNT = 30_000
_numbers = count()


class Backlog:
    """A stream whose messages leave slowly enough for something to happen meanwhile."""

    def __init__(self, broker: BrokerProcess, cloud: Sandbox, kinesis: KinesisClient) -> None:
        self.name = f"backlog-{next(_numbers)}"
        self._cloud = cloud
        kinesis.create_stream(StreamName=self.name, ShardCount=1)
        cloud.set_fault("kinesis", name=self.name, operation="PutRecords", delay_millis=150)
        self.client = StreamManagerClient(root=broker.root)
        self.client.create_message_stream(
            MessageStreamDefinition(
                name=self.name,
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                export_definition=ExportDefinition(
                    kinesis=[KinesisConfig("k", kinesis_stream_name=self.name)]
                ),
            )
        )
        self.messages = [b"%d" % number for number in range(COUNT)]
        self.client.append_messages(self.name, self.messages)
        # Some of it is confirmed, some is under way.
        wait_until(lambda: self.last_exported >= 0, "a first export", seconds=60)
        reached = self.last_exported
        wait_until(lambda: len(self.arrived()) > reached + 1)

    @property
    def last_exported(self) -> int:
        return status_of(self.client, self.name, "k").last_exported_sequence_number

    def arrived(self) -> list[int]:
        return [int(payload) for payload in self._cloud.payloads("kinesis", self.name)]

    def check_all_arrive(self, exported_before: int) -> None:
        self._cloud.clear_faults()
        wait_until(
            lambda: has_exported(self.client, self.name, "k", COUNT - 1), "all of it", seconds=90
        )
        arrived = self.arrived()
        assert list(dict.fromkeys(arrived)) == list(range(COUNT))
        twice = [number for number, times in Counter(arrived).items() if times > 1]
        # What was confirmed is not sent again.
        assert all(number > exported_before for number in twice)
        assert max(Counter(arrived).values()) <= 2
        status = status_of(self.client, self.name, "k")
        assert status.exported_messages_count == COUNT
        self.client.close()


@pytest.fixture
def backlog(
    broker: BrokerProcess, pipeline: PipelineProcess, cloud: Sandbox, kinesis: KinesisClient
) -> Backlog:
    return Backlog(broker, cloud, kinesis)


def test_nothing_is_lost_when_the_broker_is_killed(backlog: Backlog, broker: BrokerProcess) -> None:
    exported = backlog.last_exported
    broker.kill()
    broker.start()
    backlog.check_all_arrive(exported)


def test_nothing_is_lost_when_the_driver_is_killed(
    backlog: Backlog, pipeline: PipelineProcess
) -> None:
    exported = backlog.last_exported
    pipeline.kill()
    pipeline.start()
    backlog.check_all_arrive(exported)


def test_nothing_is_lost_when_java_and_the_broker_are_killed_at_once(
    backlog: Backlog, pipeline: PipelineProcess, broker: BrokerProcess
) -> None:
    exported = backlog.last_exported
    (java,) = pipeline.children("java", "SparkSubmit")
    java.kill()
    broker.kill()
    assert pipeline.wait_for_end() == 1
    assert pipeline.log.splitlines()[-1] == "penstock: Spark ended: its Java is gone"
    broker.start()
    pipeline.start()
    backlog.check_all_arrive(exported)


KILOBITS = 800


@pytest.fixture
def limited(broker: BrokerProcess, pipeline: PipelineProcess) -> BrokerProcess:
    """The same broker, with a bandwidth limit."""
    broker.stop()
    broker.set_variable("STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH", str(KILOBITS))
    broker.start()
    return broker


def test_the_bandwidth_limit_holds_on_average_and_the_urgent_leave_first(
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
            wait_until(lambda name=name: has_exported(client, name, "k", 249), seconds=60)  # type: ignore[misc]
    puts = [call for call in cloud.calls("kinesis") if call["name"] in ("later", "sooner")]
    puts = [call for call in puts if call["operation"] == "PutRecords"]
    seconds = (puts[-1]["time"] - puts[0]["time"]) / 1000
    # The first calls are what had accumulated.
    total = sum(call["bodyBytes"] for call in puts[1:])
    burst = KILOBITS * 125
    assert total <= KILOBITS * 125 * seconds * 1.1 + burst
    assert puts[-1]["name"] == "later"
