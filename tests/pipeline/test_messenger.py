"""What a task tells the broker at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock import (
    ExportDefinition,
    MessageStreamDefinition,
    S3ExportTaskExecutorConfig,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.model.exporting import ExportReport, ExportSlice, Lane, Upload
from penstock.pipeline.messenger import Messenger
from penstock.spark.options import BrokerOptions
from penstock.spark.place import Place
from tests.support import LocalBroker

UPLOAD = Upload(
    sequence_number=0, bucket="images", key="k", began=0, fingerprint="f", size=9, part_size=9
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "root") as running:
        yield running


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(root=broker.root) as connected:
        yield connected


def plan(client: StreamManagerClient) -> ExportSlice:
    (found,) = client.plan_exports(
        "p", Lane.files, max_bytes=1000, lease_millis=60_000, wait_millis=0
    ).slices
    return found


def report_of(found: ExportSlice) -> ExportReport:
    return ExportReport(
        lease=found.lease,
        stream=found.stream,
        stream_id=found.stream_id,
        identifier="to-s3",
        first=found.first,
        settled_end=found.first,
        uploads=[UPLOAD],
        is_interim=True,
    )


def test_it_tells_until_the_slice_is_somebody_elses(
    broker: LocalBroker, client: StreamManagerClient
) -> None:
    client.create_message_stream(
        MessageStreamDefinition(
            "s",
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(
                s3_task_executor=[S3ExportTaskExecutorConfig("to-s3")]
            ),
        )
    )
    client.append_message("s", b"a task")
    first = report_of(plan(client))
    with Messenger(Place.find(BrokerOptions(root=str(broker.root)))) as messenger:
        assert messenger.tell(first)
        assert messenger.tell(msgspec.structs.replace(first, uploads=[]))
        assert messenger.tell(first)
        second = plan(client)
        # What was told is known to whoever goes on with it.
        assert second.uploads == [UPLOAD]
        assert not messenger.tell(first)
        assert messenger.tell(report_of(second))


def test_one_that_has_nothing_to_tell_does_not_connect(broker: LocalBroker) -> None:
    place = Place.find(BrokerOptions(root=str(broker.root)))
    broker.stop()
    with Messenger(place):
        pass
