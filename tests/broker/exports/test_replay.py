"""Replay: exports that are moved by an update or by a rewind, in a broker process."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from penstock.broker.access import Role, new_secret
from penstock.client.internal import InternalClient
from penstock.errors import (
    InvalidRequestException,
    ResourceNotFoundException,
    UnauthorizedException,
)
from penstock.model import (
    ExportConfig,
    ExportDefinition,
    HTTPConfig,
    MessageStreamDefinition,
    Persistence,
    S3ExportTaskExecutorConfig,
    StatusConfig,
    StrategyOnFull,
)
from penstock.model.exporting import (
    DeliveryReport,
    ExportState,
    MessageSlice,
    TaskSlice,
    Upload,
    UploadAbort,
)
from penstock.model.json_bytes import Util
from penstock.model.s3_task import S3ExportTaskDefinition
from penstock.model.statistics import ExportStatistics
from penstock.model.status_message import Status, StatusLevel, StatusMessage
from penstock.store.catalog import Catalog
from penstock.store.rows import TokenRow
from tests.support import BrokerProcess, LocalBroker, running, wait_until

LEASE_MILLIS = 60_000

numbers = count()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("replay") / "root") as process:
        yield process


@pytest.fixture
def client(process: BrokerProcess) -> Iterator[InternalClient]:
    with InternalClient(root=process.root) as client:
        yield client
        for name in client.list_streams():
            client.delete_message_stream(name)


def define(
    *http: HTTPConfig, executors: tuple[S3ExportTaskExecutorConfig, ...] = ()
) -> MessageStreamDefinition:
    return MessageStreamDefinition(
        name=f"s{next(numbers)}",
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        export_definition=ExportDefinition(http=list(http), s3_task_executor=list(executors)),
    )


def to_http(start: int | None = None, identifier: str = "e", **fields: object) -> HTTPConfig:
    # Urgent: nothing is gathered.
    config = HTTPConfig(identifier, "http://127.0.0.1/", priority=1, start_sequence_number=start)
    return msgspec.structs.replace(config, **fields)


class Replay:
    """A stream and a task of a pipeline that exports it."""

    def __init__(
        self, client: InternalClient, definition: MessageStreamDefinition, messages: int = 10
    ) -> None:
        self.client = client
        self.definition = definition
        self.name = definition.name
        client.create_message_stream(definition)
        if messages:
            client.append_messages(self.name, [b"x"] * messages)

    def lease(self, *, task: str = "t", wait_millis: int = 0) -> list[MessageSlice]:
        plan = self.client.plan_exports(
            self.name, task, lease_millis=LEASE_MILLIS, wait_millis=wait_millis
        )
        work = [each for each in plan.work if each.stream == self.name]
        assert all(isinstance(each, MessageSlice) for each in work)
        return [each for each in work if isinstance(each, MessageSlice)]

    def hold(self, *leases: str) -> list[str]:
        """Requests no work, and renews these leases; returns the lost ones."""
        plan = self.client.plan_exports(
            self.name, "t", lease_millis=LEASE_MILLIS, holding=leases, max_slices=0
        )
        return plan.lost

    def lease_one(self) -> MessageSlice:
        (found,) = self.lease()
        return found

    def export_all(self) -> None:
        for found in self.lease():
            assert self.commit(report(found))

    def commit(self, given: DeliveryReport) -> bool:
        return given.lease in self.client.commit_exports([given]).accepted

    def update(self, *http: HTTPConfig) -> None:
        exports = ExportDefinition(http=list(http))
        self.client.update_message_stream(
            msgspec.structs.replace(self.definition, export_definition=exports)
        )

    def rewind(self, number: int, identifier: str = "e") -> None:
        self.client.rewind_export(self.name, identifier, number)

    def statistics(self, identifier: str = "e") -> ExportStatistics:
        for stream in self.client.statistics().streams:
            for export in stream.exports:
                if (stream.name, export.identifier) == (self.name, identifier):
                    return export
        raise AssertionError(identifier)

    @property
    def config(self) -> ExportConfig:
        (config,) = self.client.describe_message_stream(self.name).definition.exports()
        return config


def report(found: MessageSlice, **fields: object) -> DeliveryReport:
    plain = DeliveryReport(
        lease=found.lease,
        stream=found.stream,
        stream_id=found.stream_id,
        identifier=found.identifier,
        first=found.first,
        settled_end=found.end,
        exported_messages=found.end - found.first,
        exported_bytes=found.end - found.first,
    )
    return msgspec.structs.replace(plain, **fields)


# Updates


@pytest.mark.parametrize(("before", "after", "first"), [(None, 4, 4), (6, 2, 2), (6, None, 0)])
def test_update_with_another_start_moves_the_export_back(
    client: InternalClient, before: int | None, after: int | None, first: int
) -> None:
    replay = Replay(client, define(to_http(before)))
    replay.export_all()
    assert replay.lease() == []
    replay.update(to_http(after))
    assert replay.statistics().messages_behind == 10 - first
    found = replay.lease_one()
    assert (found.first, found.end) == (first, 10)


def test_update_with_another_start_moves_the_export_forward(client: InternalClient) -> None:
    replay = Replay(client, define(to_http()))
    found = replay.lease_one()
    assert replay.commit(report(found, settled_end=2, exported_messages=2))
    replay.update(to_http(7))
    assert replay.lease_one().first == 7


@pytest.mark.parametrize(("before", "after"), [(3, 3), (None, 0), (0, None)])
def test_update_that_repeats_the_start_does_not_move_the_export(
    client: InternalClient, before: int | None, after: int | None
) -> None:
    replay = Replay(client, define(to_http(before)))
    replay.export_all()
    replay.update(to_http(after, batch_size=2))
    assert replay.lease() == []
    assert replay.statistics().last_exported_sequence_number == 9


def test_moved_start_is_not_applied_twice(client: InternalClient) -> None:
    replay = Replay(client, define(to_http()))
    replay.export_all()
    replay.update(to_http(4))
    replay.export_all()
    replay.update(to_http(4, batch_size=2))
    assert replay.lease() == []


def test_other_exports_of_the_stream_are_not_moved(client: InternalClient) -> None:
    other = to_http(identifier="other")
    replay = Replay(client, define(to_http(), other))
    replay.export_all()
    replay.update(to_http(4), other)
    assert [(each.identifier, each.first) for each in replay.lease()] == [("e", 4)]
    replay.rewind(0)
    assert [(each.identifier, each.first) for each in replay.lease()] == [("e", 0)]
    assert replay.statistics("other").last_exported_sequence_number == 9


def test_lease_of_another_export_survives_a_move(client: InternalClient) -> None:
    replay = Replay(client, define(to_http(), to_http(identifier="other")))
    leases = {each.identifier: each for each in replay.lease()}
    replay.rewind(2)
    assert replay.commit(report(leases["other"]))
    assert not replay.commit(report(leases["e"]))


# Rewinds


@pytest.mark.parametrize("number", [0, 3, 10])
@pytest.mark.parametrize("start", [None, 5])
def test_rewind_moves_the_export(client: InternalClient, number: int, start: int | None) -> None:
    replay = Replay(client, define(to_http(start)))
    replay.export_all()
    replay.rewind(number)
    export = replay.statistics()
    assert export.last_exported_sequence_number == number - 1
    assert export.messages_behind == 10 - number
    assert [each.first for each in replay.lease()] == ([number] if number < 10 else [])


def test_rewind_to_the_same_number_resends_messages(client: InternalClient) -> None:
    replay = Replay(client, define(to_http()))
    for _ in range(3):
        replay.rewind(6)
        found = replay.lease_one()
        assert (found.first, found.end) == (6, 10)
        assert replay.commit(report(found))


def test_definition_can_be_repeated_after_a_rewind(client: InternalClient) -> None:
    replay = Replay(client, define(to_http(3)))
    replay.export_all()
    replay.rewind(6)
    replay.export_all()
    # The program that created the stream restarts, and repeats its definition.
    replay.update(to_http(3))
    assert replay.lease() == []


def test_rewind_before_the_start_lowers_it(client: InternalClient) -> None:
    replay = Replay(client, define(to_http(8)))
    replay.rewind(2)
    assert getattr(replay.config, "start_sequence_number") == 2  # noqa: B009 - not of all kinds
    assert replay.lease_one().first == 2


def test_rewind_below_the_oldest_message_begins_with_the_oldest(
    client: InternalClient,
) -> None:
    definition = msgspec.structs.replace(define(to_http()), max_size=4096, stream_segment_size=1024)
    replay = Replay(client, definition, messages=0)
    for _ in range(20):
        client.append_message(replay.name, b"x" * 500)
    info = client.describe_message_stream(replay.name).storage_status
    oldest, end = info.oldest_sequence_number, info.newest_sequence_number + 1
    assert oldest > 0
    replay.export_all()
    lost = replay.statistics().lost_messages
    assert lost == oldest
    replay.rewind(0)
    export = replay.statistics()
    assert (export.messages_behind, export.lost_messages) == (end - oldest, lost)
    assert replay.lease_one().first == oldest


def test_rewind_of_an_export_whose_start_is_not_reached(client: InternalClient) -> None:
    replay = Replay(client, define(to_http(1000)))
    assert replay.lease() == []
    replay.rewind(10)
    client.append_message(replay.name, b"x")
    assert replay.lease_one().first == 10


def test_rewind_to_an_impossible_number_is_refused(client: InternalClient) -> None:
    replay = Replay(client, define(to_http()))
    replay.export_all()
    with pytest.raises(InvalidRequestException, match="sequenceNumber is 11: expected 0 to 10"):
        replay.rewind(11)
    with pytest.raises(InvalidRequestException, match="sequenceNumber"):
        replay.rewind(-1)
    with pytest.raises(ResourceNotFoundException, match="has no export 'f': it has 'e'"):
        replay.rewind(0, "f")
    with pytest.raises(ResourceNotFoundException, match="'nowhere' does not exist"):
        client.rewind_export("nowhere", "e", 0)
    assert replay.lease() == []


def test_counters_continue_after_a_rewind(client: InternalClient) -> None:
    replay = Replay(client, define(to_http()))
    replay.export_all()
    replay.rewind(4)
    export = replay.statistics()
    assert (export.exported_messages, export.exported_bytes) == (10, 10)
    replay.export_all()
    export = replay.statistics()
    assert (export.exported_messages, export.exported_bytes) == (16, 16)
    assert (export.last_exported_sequence_number, export.messages_behind) == (9, 0)


def test_rewind_ends_the_pause_after_a_failure(client: InternalClient) -> None:
    replay = Replay(client, define(to_http()))
    found = replay.lease_one()
    failed = report(
        found, settled_end=2, exported_messages=2, arrived=[5], error="no", pause_millis=60_000
    )
    assert replay.commit(failed)
    assert replay.statistics().state == ExportState.failing
    replay.rewind(1)
    export = replay.statistics()
    assert (export.state, export.failures, export.error_message) == (ExportState.due, 0, "")
    # Message 5 had arrived before, and is sent again as well.
    found = replay.lease_one()
    assert (found.first, found.arrived) == (1, [])


def test_paused_export_is_moved_and_stays_paused(client: InternalClient) -> None:
    replay = Replay(client, define(to_http()))
    replay.export_all()
    replay.update(to_http(disabled=True))
    replay.rewind(3)
    assert replay.lease() == []
    assert replay.statistics().state == ExportState.paused
    replay.update(to_http(disabled=False))
    assert replay.lease_one().first == 3


def test_memory_stream_is_rewound(client: InternalClient) -> None:
    definition = msgspec.structs.replace(define(to_http()), persistence=Persistence.Memory)
    replay = Replay(client, definition)
    replay.export_all()
    replay.rewind(4)
    assert replay.lease_one().first == 4


def test_rewind_wakes_pending_plans(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path / "root") as broker,
        InternalClient(root=broker.root) as client,
        InternalClient(root=broker.root) as admin,
    ):
        replay = Replay(client, define(to_http()))
        replay.export_all()

        def rewind() -> None:
            # A pending plan waits for changes of streams.
            wait_until(lambda: broker.run(lambda: len(broker.broker.streams.change_waiters)))
            admin.rewind_export(replay.name, "e", 5)

        with running(rewind):
            # Without the rewind it would be empty after this time.
            (found,) = replay.lease(wait_millis=20_000)
        assert found.first == 5


# Slices in flight


@pytest.mark.parametrize("number", [0, 3, 6, 10])
def test_report_of_a_slice_in_flight_is_refused_after_a_rewind(
    client: InternalClient, number: int
) -> None:
    replay = Replay(client, define(to_http()))
    found = replay.lease_one()
    assert replay.commit(report(found, settled_end=3, exported_messages=3, is_final=False))
    replay.rewind(number)
    late = report(found, first=3, exported_messages=7)
    assert not replay.commit(late)
    assert replay.statistics().last_exported_sequence_number == number - 1
    # When the delivery has ended, another task has the new slice, and the late report is repeated.
    assert replay.hold() == []
    again = replay.lease(task="other")
    assert [each.first for each in again] == ([number] if number < 10 else [])
    assert not replay.commit(late)
    assert all(replay.commit(report(each)) for each in again)
    assert replay.statistics().last_exported_sequence_number == 9


def test_plan_lists_the_lost_lease_after_a_rewind(client: InternalClient) -> None:
    replay = Replay(client, define(to_http()))
    found = replay.lease_one()
    replay.rewind(0)
    assert replay.hold(found.lease) == [found.lease]
    assert not client.reserve_bandwidth(found.lease, 1).is_held


def test_moved_export_does_not_wait_for_a_disconnected_task(process: BrokerProcess) -> None:
    with InternalClient(root=process.root) as client:
        replay = Replay(client, define(to_http()))
        with InternalClient(root=process.root) as gone:
            replay.client = gone
            replay.lease_one()
            replay.rewind(4)
        replay.client = client
        # The task may reconnect for some seconds.
        (again,) = replay.lease(task="other", wait_millis=20_000)
        assert again.first == 4
        client.delete_message_stream(replay.name)


def test_report_that_was_accepted_before_a_rewind_is_refused_after_it(
    client: InternalClient,
) -> None:
    replay = Replay(client, define(to_http()))
    found = replay.lease_one()
    assert replay.commit(report(found))
    replay.rewind(0)
    assert not replay.commit(report(found))
    assert replay.statistics().exported_messages == 10


def test_rewind_survives_kill_9(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as process:
        with InternalClient(root=process.root) as client:
            replay = Replay(client, define(to_http(4)))
            found = replay.lease_one()
            assert replay.commit(report(found, settled_end=6, is_final=False))
            wait_until(lambda: _stored_messages(process.root) == 6)
            replay.rewind(6)
        process.kill()
        process.start()
        with InternalClient(root=process.root) as client:
            replay.client = client
            # A lease of the position before is not adopted, although its next message is the same.
            assert replay.hold(found.lease) == [found.lease]
            assert not replay.commit(report(found, first=6))
            assert replay.lease_one().first == 6
            replay.rewind(1)
        process.kill()
        process.start()
        with InternalClient(root=process.root) as client:
            replay.client = client
            assert replay.lease_one().first == 1
            assert replay.statistics().exported_messages == 6


def _stored_messages(root: Path) -> int:
    with contextlib.closing(sqlite3.connect(root / "catalog.sqlite")) as catalog:
        ((messages,),) = catalog.execute("SELECT processed_messages FROM export_progress")
    return int(messages)


def test_report_that_is_being_stored_does_not_undo_a_rewind(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path / "root") as broker,
        InternalClient(root=broker.root) as client,
        InternalClient(root=broker.root) as admin,
    ):
        replay = Replay(client, define(to_http()))
        catalog = broker.broker._store.catalog
        for number in range(10):
            found = replay.lease_one()
            # While the catalog is busy, both wait for it; either may be stored first.
            with catalog.transaction():
                assert replay.commit(report(found))
                rewinding = threading.Thread(
                    target=admin.rewind_export, args=(replay.name, "e", number)
                )
                rewinding.start()
            rewinding.join()
            wait_until(lambda: _is_stored(broker))
            stored = catalog.progress(found.stream_id)["e"].last_exported
            assert stored == replay.statistics().last_exported_sequence_number == number - 1


def _is_stored(broker: LocalBroker) -> bool:
    writer = broker.broker._export_handlers.progress
    return broker.run(lambda: not writer._waiting and not writer._storing)


# S3 tasks


def upload_of(number: int) -> Upload:
    return Upload(
        sequence_number=number,
        bucket="bucket",
        key=f"k{number}",
        upload_id=f"id{number}",
        began=1,
        fingerprint="f",
        size=10,
        part_size=5,
        parts=["a", ""],
    )


@pytest.fixture
def files(client: InternalClient) -> Replay:
    """Five tasks, and a status stream."""
    client.create_message_stream(
        MessageStreamDefinition(name="status", strategy_on_full=StrategyOnFull.OverwriteOldestData)
    )
    executor = S3ExportTaskExecutorConfig(
        "e",
        priority=1,
        status_config=StatusConfig(status_level=StatusLevel.INFO, status_stream_name="status"),
    )
    replay = Replay(client, define(executors=(executor,)), messages=0)
    for number in range(5):
        task = S3ExportTaskDefinition(
            input_url=f"file:/f{number}", bucket="bucket", key=f"k{number}"
        )
        client.append_message(replay.name, Util.validate_and_serialize_to_json_bytes(task))
    return replay


def canceled(files: Replay) -> list[str]:
    """The keys of the tasks whose status is Canceled."""
    keys = []
    for message in files.client.read_all("status"):
        status = Util.deserialize_json_bytes_to_obj(message.payload, StatusMessage)
        if status.status is Status.Canceled:
            assert status.status_context is not None
            task = status.status_context.s3_export_task_definition
            assert task is not None
            keys.append(task.key)
    return keys


def aborts(files: Replay) -> list[UploadAbort]:
    plan = files.client.plan_exports(files.name, "aborting", lease_millis=LEASE_MILLIS)
    return [
        each for each in plan.work if isinstance(each, UploadAbort) and each.stream == files.name
    ]


def test_rewound_executor_repeats_tasks(files: Replay) -> None:
    files.export_all()
    files.rewind(2)
    found = files.lease_one()
    assert isinstance(found, TaskSlice)
    assert (found.first, found.end, found.uploads) == (2, 5, [])
    assert canceled(files) == []


def test_uploads_of_a_rewound_executor_are_aborted(files: Replay) -> None:
    found = files.lease_one()
    uploads = [upload_of(1), upload_of(3)]
    begun = report(found, settled_end=1, uploads=uploads, exported_messages=1, is_final=False)
    assert files.commit(begun)
    files.rewind(0)
    files.hold()
    plan = files.client.plan_exports(files.name, "other", lease_millis=LEASE_MILLIS)
    (again,) = [each for each in plan.work if isinstance(each, TaskSlice)]
    assert (again.first, again.uploads) == (0, [])
    aborted = [each.upload for each in plan.work if isinstance(each, UploadAbort)]
    assert sorted(aborted, key=lambda each: each.key) == uploads
    # The task that had the lease may begin no further upload.
    late = msgspec.structs.replace(begun, first=1, uploads=[*uploads, upload_of(4)])
    assert not files.commit(late)


def test_uploads_of_a_rewound_executor_are_aborted_after_kill_9(
    process: BrokerProcess, files: Replay
) -> None:
    found = files.lease_one()
    begun = report(
        found, settled_end=0, uploads=[upload_of(1)], exported_messages=0, is_final=False
    )
    assert files.commit(begun)
    files.rewind(0)
    process.kill()
    process.start()
    assert [each.upload for each in aborts(files)] == [upload_of(1)]


def test_tasks_that_a_move_skips_are_canceled(files: Replay) -> None:
    found = files.lease_one()
    assert files.commit(report(found, settled_end=1, exported_messages=1, is_final=False))
    files.rewind(4)
    assert canceled(files) == ["k1", "k2", "k3"]
    again = files.lease_one()
    assert again.first == 4


# Access


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.admin])
def test_rewind_requires_the_admin_role(
    process: BrokerProcess, client: InternalClient, role: Role
) -> None:
    replay = Replay(client, define(to_http()))
    replay.export_all()
    token = new_secret()
    catalog = Catalog(process.root / "catalog.sqlite")
    catalog.add_token(TokenRow(role, role, ("*",), 0), token)
    catalog.close()
    with (
        InternalClient(port=process.port, token=token) as other,
        pytest.raises(UnauthorizedException, match="does not allow RewindExport"),
    ):
        other.rewind_export(replay.name, "e", 0)
    assert replay.lease() == []
