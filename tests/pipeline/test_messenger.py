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
from penstock.model.exporting import ExportReport, ExportSlice, Lane, SliceHeader, Upload
from penstock.pipeline.messenger import Messenger
from penstock.root import ADDRESS_FILE
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


def create(client: StreamManagerClient, name: str) -> None:
    """A stream with a task."""
    client.create_message_stream(
        MessageStreamDefinition(
            name,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(
                s3_task_executor=[S3ExportTaskExecutorConfig("to-s3")]
            ),
        )
    )
    client.append_message(name, b"a task")


def plan(client: StreamManagerClient) -> ExportSlice:
    return plan_header(client).slice


def plan_header(client: StreamManagerClient) -> SliceHeader:
    found = client.plan_exports("p", Lane.files, max_bytes=1000, lease_millis=60_000, wait_millis=0)
    return SliceHeader(found.slices[0], found.root, found.instance)


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


def was_taken(messenger: Messenger, report: ExportReport) -> bool:
    return messenger.tell(report).is_taken


def test_it_tells_until_the_slice_is_somebody_elses(
    broker: LocalBroker, client: StreamManagerClient
) -> None:
    create(client, "s")
    first = report_of(plan(client))
    with Messenger(Place.find(BrokerOptions(root=str(broker.root)))) as messenger:
        assert was_taken(messenger, first)
        created = msgspec.structs.replace(UPLOAD, upload_id="u")
        assert was_taken(messenger, msgspec.structs.replace(first, uploads=[created]))
        second = plan(client)
        # What was told is known to whoever goes on with it.
        assert second.uploads == [created]
        assert not was_taken(messenger, first)
        assert was_taken(messenger, report_of(second))


def test_it_hears_whether_others_wait(broker: LocalBroker, client: StreamManagerClient) -> None:
    create(client, "s")
    first = report_of(plan(client))
    with Messenger(Place.find(BrokerOptions(root=str(broker.root)))) as messenger:
        assert not messenger.tell(first).is_awaited
        create(client, "other")
        assert messenger.tell(msgspec.structs.replace(first, uploads=[])).is_awaited


def test_one_that_has_nothing_to_tell_does_not_connect(broker: LocalBroker) -> None:
    place = Place.find(BrokerOptions(root=str(broker.root)))
    broker.stop()
    with Messenger(place):
        pass


def test_root_is_found_after_a_restart_of_the_broker(
    broker: LocalBroker, client: StreamManagerClient
) -> None:
    create(client, "s")
    header = plan_header(client)
    place = Place.find(BrokerOptions(root=str(broker.root)))
    broker.stop()
    with LocalBroker(broker.root), Messenger(place) as messenger:
        assert messenger.find_root(header) == str(broker.root)


def test_root_of_a_broker_on_another_machine_is_not_found(
    broker: LocalBroker, client: StreamManagerClient
) -> None:
    create(client, "s")
    header = plan_header(client)
    place = Place.find(BrokerOptions(root=str(broker.root)))
    with Messenger(place) as messenger:
        assert messenger.find_root(header) == str(broker.root)
        assert messenger.tell(report_of(header.slice)).is_taken
        # As on a machine that has another root of the same path.
        (broker.root / ADDRESS_FILE).unlink()
        assert messenger.find_root(header) is None
