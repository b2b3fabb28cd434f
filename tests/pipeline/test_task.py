"""Resident tasks against a real broker and the sandbox, in threads instead of workers of Spark."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import ExportFormat, HTTPConfig, IoTAnalyticsConfig
from penstock.client.internal import InternalClient
from penstock.errors import UnknownFailureException
from penstock.model.exporting import (
    CommittedReports,
    DeliveryReport,
    ExportPlan,
    PipelineDescription,
)
from penstock.pipeline import destinations
from penstock.pipeline import job as job_module
from penstock.pipeline import task as task_module
from penstock.pipeline.delivery import DeliveryTotals, MessageDelivery
from penstock.pipeline.destinations.destination import DestinationSettings
from penstock.pipeline.task import ResidentTask, TaskSpec
from penstock.sandbox.local_sandbox import Sandbox
from penstock.spark.options import BrokerOptions
from penstock.spark.place import Place
from tests.pipeline.slices import (
    NO_PAUSE,
    PIPELINE,
    create,
    create_http,
    last_exported,
    new_name,
    plan,
)
from tests.support import TIMEOUT_S, BrokerProcess, LocalBroker, Reachable, wait_until


@pytest.fixture(autouse=True)
def _long_call_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long timeouts, so that no call of a slow test times out."""
    monkeypatch.setattr(job_module, "_CALL_TIMEOUT", 2 * TIMEOUT_S)


@pytest.fixture(autouse=True)
def _threads_end(cloud: Sandbox) -> Iterator[None]:
    yield
    cloud.clear_faults()
    wait_until(lambda: not job_threads())


def job_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "penstock-job"]


def make(broker: Reachable, name: str = "1", **fields: Any) -> ResidentTask:
    spec = TaskSpec(
        place=Place.find(BrokerOptions(root=str(broker.root))),
        pipeline=PIPELINE,
        task=name,
        about=PipelineDescription(started=0),
        settings=NO_PAUSE,
        threads=5,
        life_seconds=TIMEOUT_S,
        idle_seconds=None,
        finish_seconds=TIMEOUT_S,
        environment={},
    )
    return ResidentTask(spec._replace(**fields))


class Running:
    """A task that runs in a thread."""

    def __init__(self, task: ResidentTask) -> None:
        self.task = task
        self.count: int | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.count = self.task.run()
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            self._error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> int:
        """Waits for the end of the task; returns the number of its jobs."""
        self._thread.join(TIMEOUT_S)
        if self._error is not None:
            raise self._error
        assert self.count is not None, "it does not end"
        return self.count


def stop_pipeline(client: InternalClient, pipeline: str = PIPELINE) -> None:
    client.plan_exports(pipeline, "driver", lease_millis=1000, max_slices=0, stops=True)


@contextmanager
def serving(broker: Reachable, client: InternalClient, **fields: Any) -> Iterator[Running]:
    """A task that runs until the pipeline stops."""
    task = Running(make(broker, **fields))
    yield task
    stop_pipeline(client, fields.get("pipeline", PIPELINE))
    task.join()


def meets_fault(cloud: Sandbox, count: int = 1) -> bool:
    calls: list[int] = [fault["callsMet"] for fault in cloud.faults()]
    return sum(calls) >= count


def wait_for(client: InternalClient, name: str, last: int) -> None:
    """Waits until the export of a stream has exported this message."""
    wait_until(lambda: last_exported(client, name) == last)


# Deliveries


def test_task_delivers_messages_as_they_are_appended(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink))
    with serving(broker, client) as task:
        for number in range(3):
            client.append_message(name, b"%d" % number)
            wait_for(client, name, number)
    assert cloud.payloads("http", sink) == [b"0", b"1", b"2"]
    assert task.join() == 3


def test_files_are_read_only_on_the_machine_of_the_broker(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    name = create_http(client, cloud.http_url(new_name()), [b"x"])
    with serving(broker, client) as task:
        wait_for(client, name, 0)
        assert task.task._root == str(broker.root)


def test_quick_deliveries_are_reported_with_the_next_request(
    broker: LocalBroker,
    client: InternalClient,
    cloud: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_GATHER_SECONDS", TIMEOUT_S)
    commits = count_commits(monkeypatch)
    name = create_http(client, cloud.http_url(new_name()))
    with serving(broker, client):
        client.append_message(name, b"x")
        wait_for(client, name, 0)
    assert not commits


def test_long_deliveries_are_reported_while_a_request_is_pending(
    broker: LocalBroker,
    client: InternalClient,
    cloud: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_GATHER_SECONDS", 0.0)
    monkeypatch.setattr(task_module, "_WAIT_MILLIS", 60_000)
    commits = count_commits(monkeypatch)
    sink = new_name()
    cloud.set_fault("http", name=sink, hang=True)
    name = create_http(client, cloud.http_url(sink), [b"x"])
    with serving(broker, client) as running:
        wait_until(lambda: meets_fault(cloud))
        wait_until(lambda: not running.task._is_gathering)
        cloud.clear_faults()
        wait_for(client, name, 0)
        assert len(commits) == 1


def test_reports_are_kept_until_the_broker_answers(
    broker: LocalBroker,
    client: InternalClient,
    cloud: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_GATHER_SECONDS", TIMEOUT_S)
    monkeypatch.setattr(task_module, "_RETRY_SECONDS", 0.01)
    plan_exports = InternalClient.plan_exports
    failures: list[Sequence[DeliveryReport]] = []

    def fail_once(client: InternalClient, *names: str, **fields: Any) -> ExportPlan:
        if fields.get("reports") and not failures:
            failures.append(fields["reports"])
            raise UnknownFailureException("once")
        return plan_exports(client, *names, **fields)

    monkeypatch.setattr(InternalClient, "plan_exports", fail_once)
    sink = new_name()
    name = create_http(client, cloud.http_url(sink))
    with serving(broker, client):
        client.append_message(name, b"x")
        wait_for(client, name, 0)
    assert failures
    assert cloud.payloads("http", sink) == [b"x"]


def count_commits(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[DeliveryReport]]:
    """The reports of each CommitExports request from now on."""
    commits = []
    commit_exports = InternalClient.commit_exports

    def commit(client: InternalClient, reports: Sequence[DeliveryReport]) -> CommittedReports:
        commits.append(reports)
        return commit_exports(client, reports)

    monkeypatch.setattr(InternalClient, "commit_exports", commit)
    return commits


def test_hanging_destination_does_not_delay_others(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    hangs, works = new_name(), new_name()
    cloud.set_fault("http", name=hangs, hang=True)
    create_http(client, cloud.http_url(hangs), [b"x"])
    # The only thread of the pool is busy until the job counts as slow.
    with serving(broker, client, threads=1):
        wait_until(lambda: meets_fault(cloud))
        name = create_http(client, cloud.http_url(works))
        for number in range(3):
            client.append_message(name, b"%d" % number)
            wait_for(client, name, number)
        assert cloud.payloads("http", hangs) == []
        cloud.clear_faults()


def test_urgent_export_is_served_while_all_threads_are_busy(
    cloud: Sandbox,
    broker: LocalBroker,
    client: InternalClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_SLOW_SECONDS", 2 * TIMEOUT_S)
    hangs = new_name()
    cloud.set_fault("http", name=hangs, hang=True)
    create_http(client, cloud.http_url(hangs), [b"x"])
    with serving(broker, client, threads=1):
        wait_until(lambda: meets_fault(cloud))
        usual = create_http(client, cloud.http_url(new_name()), [b"x"], priority=4)
        urgent = create_http(client, cloud.http_url(new_name()), [b"x"], priority=3)
        wait_for(client, urgent, 0)
        assert last_exported(client, usual) == -1
        cloud.clear_faults()
        wait_for(client, usual, 0)


def test_more_urgent_exports_are_delivered_first(
    cloud: Sandbox,
    broker: LocalBroker,
    client: InternalClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_SLOW_SECONDS", 2 * TIMEOUT_S)
    sinks = {priority: new_name() for priority in (9, 5, 7, 10, 6)}
    names = [
        create_http(client, cloud.http_url(sink), [b"x"], priority=priority)
        for priority, sink in sinks.items()
    ]
    cloud.reset_calls()
    with serving(broker, client, threads=1):
        wait_until(lambda: all(last_exported(client, name) == 0 for name in names))
    called = [call["name"] for call in cloud.calls("http")]
    assert called == [sinks[priority] for priority in sorted(sinks)]


def test_jobs_have_a_limited_number_of_bytes(
    cloud: Sandbox,
    broker: LocalBroker,
    client: InternalClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_MAX_BYTES", 100_000)
    monkeypatch.setattr(task_module, "_MIN_ROOM", 10_000)
    sinks = [new_name() for _ in range(4)]
    names = []
    for sink in sinks:
        config = HTTPConfig(
            "to-http", cloud.http_url(sink), export_format=ExportFormat.JSON_BATCHED
        )
        cloud.set_fault("http", name=sink, hang=True)
        names.append(create(client, config))
        client.append_messages(names[-1], [bytes(1000)] * 80)
    with serving(broker, client) as task:
        # The first has 80,000 bytes, the second the rest, and the others the minimum.
        wait_until(lambda: meets_fault(cloud, 4))
        sizes = sorted(job.size for job in task.task._jobs.values())
        assert sizes == [10_000, 10_000, 20_000, 80_000]
        cloud.clear_faults()
        wait_until(lambda: all(last_exported(client, name) == 79 for name in names))


def test_job_of_a_deleted_stream_is_stopped(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), [b"%d" % number for number in range(1000)])
    cloud.set_fault("http", name=sink, delay_millis=50)
    with serving(broker, client):
        wait_until(lambda: cloud.payloads("http", sink))
        client.delete_message_stream(name)
        wait_until(lambda: not job_threads())
    assert len(cloud.payloads("http", sink)) < 1000


def test_job_of_a_paused_export_ends_after_its_call(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), [b"%d" % number for number in range(1000)])
    definition = client.describe_message_stream(name).definition
    (config,) = definition.export_definition.http or []
    cloud.set_fault("http", name=sink, delay_millis=50)
    with serving(broker, client):
        wait_until(lambda: cloud.payloads("http", sink))
        config.disabled = True
        client.update_message_stream(definition)
        wait_until(lambda: not job_threads())
        arrived = len(cloud.payloads("http", sink))
        assert arrived < 1000
        # All arrived messages are reported, so none is repeated.
        assert last_exported(client, name) == arrived - 1
        cloud.clear_faults()
        config.disabled = False
        client.update_message_stream(definition)
        wait_for(client, name, 999)
    assert cloud.payloads("http", sink) == [b"%d" % number for number in range(1000)]


def test_failed_import_of_a_destination_is_reported(
    cloud: Sandbox,
    broker: LocalBroker,
    client: InternalClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(destinations.DESTINATIONS, "http", ("no_such_module", "X"))
    name = create_http(client, "http://127.0.0.1:1", [b"x"])

    def error() -> str:
        (status,) = client.describe_message_stream(name).export_statuses
        return status.error_message

    with serving(broker, client):
        assert "no_such_module" in wait_until(error)


# The end of a task


def test_task_ends_after_its_life(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_WAIT_MILLIS", 100)
    assert Running(make(broker, life_seconds=0.1)).join() == 0


def test_task_with_a_long_job_ends_later(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), [b"x"])
    cloud.set_fault("http", name=sink, hang=True)
    task = Running(make(broker, life_seconds=3.0, idle_seconds=0.1))
    wait_until(lambda: meets_fault(cloud))
    began = time.monotonic()
    # Without the job, the task would have ended at its next request.
    wait_until(lambda: time.monotonic() - began > 3.0)
    assert not task.is_over
    cloud.set_fault("http", name=sink, delay_millis=1)
    assert task.join() >= 1
    assert last_exported(client, name) == 0


def test_idle_task_ends(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_WAIT_MILLIS", 100)
    assert Running(make(broker, idle_seconds=0.2)).join() == 0


def test_task_is_not_idle_while_work_waits(
    cloud: Sandbox,
    broker: LocalBroker,
    client: InternalClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_module, "_WAIT_MILLIS", 100)
    monkeypatch.setattr(task_module, "_SLOW_SECONDS", 2 * TIMEOUT_S)
    cloud.set_fault("http", hang=True, for_calls=1)
    sinks = [new_name() for _ in range(8)]
    for sink in sinks:
        create_http(client, cloud.http_url(sink), [b"x"] * 2)
    # Longer than one request, because the task measures from its beginning.
    idle_seconds = 5.0
    task = Running(make(broker, threads=1, idle_seconds=idle_seconds))
    wait_until(lambda: meets_fault(cloud))
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 1.5 * idle_seconds)
    cloud.clear_faults()
    wait_until(
        lambda: task.is_over or all(len(cloud.payloads("http", sink)) == 2 for sink in sinks)
    )
    stop_pipeline(client)
    assert task.join() >= 8
    assert all(len(cloud.payloads("http", sink)) == 2 for sink in sinks)


def test_calls_in_flight_finish_when_the_pipeline_stops(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), [b"%d" % number for number in range(100)])
    cloud.set_fault("http", name=sink, delay_millis=200)
    task = Running(make(broker))
    wait_until(lambda: meets_fault(cloud, 2))
    stop_pipeline(client)
    task.join()
    wait_until(lambda: not job_threads())
    arrived = len(cloud.payloads("http", sink))
    assert 1 <= arrived < 100
    # All arrived messages are reported, so none is repeated.
    assert last_exported(client, name) == arrived - 1
    cloud.clear_faults()
    with InternalClient(root=broker.root) as other, serving(broker, other, pipeline="another"):
        wait_for(client, name, 99)
    assert cloud.payloads("http", sink) == [b"%d" % number for number in range(100)]


def test_hanging_call_is_abandoned_at_the_end(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), [b"x"])
    cloud.set_fault("http", name=sink, hang=True)
    task = Running(make(broker, finish_seconds=0.5))
    wait_until(lambda: meets_fault(cloud))
    stop_pipeline(client)
    task.join()
    assert len(job_threads()) == 1
    # Another task gets its messages soon.
    cloud.clear_faults()
    wait_until(lambda: plan(client, pipeline="another"))
    assert last_exported(client, name) == -1


# The broker


def test_task_continues_after_the_broker_was_killed(
    cloud: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = new_name()
    payloads = [b"%d" % number for number in range(60)]
    caplog.set_level(logging.WARNING, "penstock.pipeline")
    with (
        BrokerProcess(tmp_path / "root") as broker,
        InternalClient(root=broker.root, reconnect_timeout=TIMEOUT_S) as client,
    ):
        name = create_http(client, cloud.http_url(sink), payloads, priority=1)
        cloud.set_fault("http", name=sink, delay_millis=30)
        task = Running(make(broker))
        for number in (5, 25):
            wait_until(lambda: b"%d" % number in cloud.payloads("http", sink))  # noqa: B023
            broker.kill()
            broker.start()
        wait_for(client, name, 59)
        stop_pipeline(client)
        task.join()
    # At least once, and in order except for repetitions.
    found = [int(payload) for payload in cloud.payloads("http", sink)]
    assert sorted(set(found)) == list(range(60))
    assert "Traceback" not in caplog.text


def test_unavailable_broker_is_logged_once(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_module, "_WAIT_MILLIS", 100)
    monkeypatch.setattr(task_module, "_RETRY_SECONDS", 0.01)
    place = Place.find(BrokerOptions(root=str(broker.root), reconnect_timeout=0.0))
    task = Running(make(broker, place=place))
    wait_until(lambda: task.task._instance)
    broker.stop()

    def messages() -> list[str]:
        return [each.message for each in caplog.records if each.name == task_module.__name__]

    wait_until(messages)
    began = time.monotonic()
    # Meanwhile the task sends about ten requests.
    wait_until(lambda: time.monotonic() - began > 0.3)
    with LocalBroker(broker.root), InternalClient(root=broker.root) as client:
        stop_pipeline(client)
        assert task.join() == 0
    assert len(messages()) == 1
    assert messages()[0].startswith("cannot get work from the broker: ")


def test_refused_report_blocks_no_other_export(
    broker: LocalBroker,
    client: InternalClient,
    cloud: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = create_http(client, cloud.http_url(new_name()), [b"x"])
    totals = MessageDelivery.totals

    def describe(self: MessageDelivery) -> DeliveryTotals:
        found = totals(self)
        is_refused = self._messages.stream == refused
        return msgspec.structs.replace(found, pause=1e20) if is_refused else found

    monkeypatch.setattr(MessageDelivery, "totals", describe)
    monkeypatch.setattr(job_module, "MAX_PAUSE_MILLIS", math.inf)
    with serving(broker, client):
        wait_until(lambda: f"refuses a report about stream {refused!r}" in caplog.text)
        name = create_http(client, cloud.http_url(new_name()), [b"y"])
        wait_for(client, name, 0)
        client.delete_message_stream(refused)


def test_several_tasks_share_the_work(
    cloud: Sandbox, broker: LocalBroker, client: InternalClient
) -> None:
    sinks = [new_name() for _ in range(6)]
    names = []
    for sink in sinks:
        cloud.set_fault("http", name=sink, delay_millis=100)
        names.append(create_http(client, cloud.http_url(sink), [b"x"] * 5))
    tasks = [Running(make(broker, name, threads=2)) for name in ("1", "2", "3")]
    wait_until(lambda: all(last_exported(client, name) == 4 for name in names))
    stop_pipeline(client)
    assert sum(task.join() for task in tasks) == 6
    # No message was sent twice.
    assert all(len(cloud.payloads("http", sink)) == 5 for sink in sinks)


def test_settings_reach_destinations(
    broker: LocalBroker, client: InternalClient, tmp_path: Path
) -> None:
    name = create(client, IoTAnalyticsConfig("to-channel", "farm"))
    client.append_message(name, b"x")
    settings = DestinationSettings(channels=str(tmp_path / "elsewhere"))
    with serving(broker, client, settings=settings):
        wait_for(client, name, 0)
    assert (tmp_path / "elsewhere" / "farm").is_dir()


def test_description_of_a_task_shows_no_secrets(broker: LocalBroker) -> None:
    spec = make(broker, environment={"AWS_SECRET_ACCESS_KEY": "hidden"})._spec
    assert "hidden" not in repr(spec)
