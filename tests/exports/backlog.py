"""A stream with a backlog that is exported slowly, for tests that kill processes meanwhile."""

from __future__ import annotations

from collections import Counter
from itertools import count

from mypy_boto3_kinesis.client import KinesisClient

from penstock import (
    ExportDefinition,
    KinesisConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.sandbox.local_sandbox import Sandbox
from tests.exports.programs import has_exported, status_of
from tests.support import BrokerProcess, wait_until

COUNT = 12_000
_numbers = count()


class Backlog:
    """A stream with a backlog that is exported slowly."""

    def __init__(self, broker: BrokerProcess, cloud: Sandbox, kinesis: KinesisClient) -> None:
        self.name = f"backlog-{next(_numbers)}"
        self._cloud = cloud
        kinesis.create_stream(StreamName=self.name, ShardCount=1)
        cloud.set_fault("kinesis", name=self.name, operation="PutRecords", delay_millis=300)
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
        # Some messages are exported, others are in flight.
        wait_until(lambda: self.last_exported >= 0, "a first export")
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
            lambda: has_exported(self.client, self.name, "k", COUNT - 1),
            "all messages are exported",
        )
        arrived = self.arrived()
        assert list(dict.fromkeys(arrived)) == list(range(COUNT))
        twice = [number for number, times in Counter(arrived).items() if times > 1]
        # Exported messages are not sent again.
        assert all(number > exported_before for number in twice)
        assert max(Counter(arrived).values()) <= 2
        status = status_of(self.client, self.name, "k")
        assert status.exported_messages_count == COUNT
        self.client.close()
