"""Jobs: their reports to a real broker, and deliveries to the sandbox."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pytest

from penstock import (
    ExportFormat,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    S3ExportTaskExecutorConfig,
)
from penstock.client.internal import InternalClient
from penstock.model.exporting import (
    AnyWork,
    DeliveryReport,
    Upload,
    UploadAbort,
)
from penstock.pipeline import job as job_module
from penstock.pipeline.delivery import DeliveryTotals, MessageDelivery
from penstock.pipeline.destinations.destination import CallResult, DestinationSettings
from penstock.pipeline.destinations.http import HttpDestination
from penstock.pipeline.job import _REPORT_SECONDS, Job
from penstock.sandbox.local_sandbox import Sandbox
from penstock.store.record import data_path
from tests.pipeline.slices import (
    NO_PAUSE,
    PIPELINE,
    RecordingClient,
    create,
    create_http,
    error_of,
    last_exported,
    lost_messages,
    new_name,
    plan,
    plan_slice,
    plan_tasks,
)
from tests.pipeline.uploads.conftest import use_variables
from tests.support import MEBIBYTE, LocalBroker, running, wait_until


@pytest.fixture(autouse=True)
def _variables(cloud: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    use_variables(cloud.variables, monkeypatch)


@pytest.fixture(autouse=True)
def _only_final_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interim reports, which a delivery on a busy machine would send."""
    monkeypatch.setattr(job_module, "_REPORT_SECONDS", math.inf)


@pytest.fixture
def reports_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default interval of interim reports."""
    monkeypatch.setattr(job_module, "_REPORT_SECONDS", _REPORT_SECONDS)


@pytest.fixture
def reports_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of a delivery is followed by a report."""
    monkeypatch.setattr(job_module, "_REPORT_SECONDS", 0.0)


def make(
    work: AnyWork,
    client: InternalClient,
    root: Path | None = None,
    settings: DestinationSettings = NO_PAUSE,
) -> Job:
    where = None if root is None else str(root)

    def commit(report: DeliveryReport) -> bool:
        return report.lease in client.commit_exports([report]).accepted

    return Job(work, where, client, commit, settings)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# Reports


def test_delivery_is_reported_with_its_lease(
    cloud: Sandbox, broker: LocalBroker, client: RecordingClient
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), numbered(3))
    work = plan_slice(client)
    assert make(work, client).lease == work.lease
    make(work, client, broker.root).run()

    assert cloud.payloads("http", sink) == [b"0", b"1", b"2"]
    (report,) = client.reports
    assert (report.lease, report.stream, report.identifier) == (work.lease, name, "to-http")
    assert (report.first, report.settled_end, report.arrived) == (0, 3, [])
    assert (report.exported_messages, report.exported_bytes, report.sent_bytes) == (3, 3, 3)
    assert (report.error, report.skipped, report.missing, report.is_final) == ("", [], 0, True)
    assert last_exported(client, name) == 2
    assert plan(client) == []


def test_report_contains_the_progress_since_the_last_one(
    cloud: Sandbox, client: RecordingClient, reports_at_once: None
) -> None:
    name = create_http(client, cloud.http_url(new_name()), numbered(5))
    make(plan_slice(client), client).run()

    assert [report.is_final for report in client.reports] == [False] * 5 + [True]
    for earlier, later in pairwise(client.reports):
        assert later.first == earlier.settled_end
    assert [report.exported_messages for report in client.reports] == [1] * 5 + [0]
    assert sum(report.exported_bytes for report in client.reports) == 5
    assert sum(report.sent_bytes for report in client.reports) == 5
    (status,) = client.describe_message_stream(name).export_statuses
    assert status.last_exported_sequence_number == 4
    assert (status.exported_messages_count, status.exported_bytes_from_stream) == (5, 5)


def test_progress_is_reported_about_once_a_second(
    cloud: Sandbox, client: RecordingClient, reports_each_second: None
) -> None:
    sink = new_name()
    create_http(client, cloud.http_url(sink), numbered(10))
    cloud.set_fault("http", name=sink, delay_millis=300)
    times: list[float] = []
    client.on_report = lambda _: times.append(time.monotonic())
    make(plan_slice(client), client).run()
    # The final report follows at once.
    *interim, _ = times
    assert interim
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(interim))


def test_message_skipped_after_later_ones_arrived_is_reported_once(
    cloud: Sandbox, client: RecordingClient, reports_at_once: None
) -> None:
    def entry(number: int) -> bytes:
        moment = {"timeInSeconds": int(time.time()) - 100 + number}
        value = {"value": {"integerValue": number}, "timestamp": moment}
        alias = {"entryId": f"e{number}", "propertyAlias": "/a"}
        return json.dumps({**alias, "propertyValues": [value]}).encode()

    name = create(client, IoTSiteWiseConfig("to-sitewise"))
    # Messages 2 and 6 fail in the first call, and are refused in the second one.
    client.append_messages(name, [entry(0), entry(1), entry(2), entry(3), b"?", entry(5), entry(6)])
    cloud.set_fault("iotsitewise", refuse_every=3, for_calls=1)

    def refuse(_: DeliveryReport) -> None:
        cloud.set_fault("iotsitewise", refuse_every=1, refuse_with="InvalidRequestException")

    client.on_report = refuse
    make(plan_slice(client), client).run()
    numbers = [[each.sequence_number for each in report.skipped] for report in client.reports]
    assert [each for each in numbers if each] == [[4], [2, 6]]
    assert last_exported(client, name) == 6


def test_error_reaches_the_broker(cloud: Sandbox, client: RecordingClient) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), numbered(2))
    cloud.set_fault("http", name=sink, status=503, retry_after=60)
    make(plan_slice(client), client).run()
    (report,) = client.reports
    assert (report.settled_end, report.pause_millis) == (0, 60_000)
    assert "503" in error_of(client, name)
    assert plan(client) == []


def test_refused_message_is_reported_with_its_reason(
    cloud: Sandbox, client: RecordingClient
) -> None:
    sink = new_name()
    create_http(client, cloud.http_url(sink), numbered(2))
    cloud.set_fault("http", name=sink, status=400, for_calls=1)
    make(plan_slice(client), client).run()
    (report,) = client.reports
    (skipped,) = report.skipped
    assert (skipped.sequence_number, report.settled_end) == (0, 2)
    assert "400" in skipped.reason


@pytest.mark.parametrize("change", [{"kind": "no-such-kind"}, {"config": {"uri": 1}}])
def test_unexpected_error_is_logged_and_reported(
    client: RecordingClient, caplog: pytest.LogCaptureFixture, change: dict[str, Any]
) -> None:
    name = create_http(client, "http://127.0.0.1:1", numbered(2))
    make(msgspec.structs.replace(plan_slice(client), **change), client).run()
    (report,) = client.reports
    assert report.error == error_of(client, name) != ""
    assert (report.first, report.settled_end) == (0, 0)
    assert f"an export of stream {name!r} failed" in caplog.text


@pytest.fixture
def invalid_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report can be made from the totals of a delivery."""
    totals = MessageDelivery.totals

    def describe(self: MessageDelivery) -> DeliveryTotals:
        return msgspec.structs.replace(totals(self), pause=math.nan)

    monkeypatch.setattr(MessageDelivery, "totals", describe)


def test_report_that_cannot_be_made_is_replaced_by_a_failure(
    cloud: Sandbox, client: RecordingClient, invalid_totals: None
) -> None:
    name = create_http(client, cloud.http_url(new_name()), numbered(2))
    make(plan_slice(client), client).run()
    (report,) = client.reports
    assert (report.settled_end, report.is_final) == (0, True)
    assert error_of(client, name).startswith("cannot report: ValueError")


def test_results_before_an_unexpected_error_are_reported(
    cloud: Sandbox,
    client: RecordingClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = create_http(client, cloud.http_url(new_name()), numbered(3))
    answers: Iterator[CallResult | Exception] = iter([CallResult(), RuntimeError("no idea")])

    def send(*_: object) -> CallResult:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(HttpDestination, "send", send)
    make(plan_slice(client), client).run()
    (report,) = client.reports
    assert (report.settled_end, report.error) == (1, "RuntimeError: no idea")
    assert report.exported_messages == 1
    assert f"an export of stream {name!r} failed" in caplog.text


def test_arrived_messages_stay_in_reports_until_earlier_ones_arrive(
    cloud: Sandbox, client: RecordingClient
) -> None:
    sink = new_name()
    create_http(client, cloud.http_url(sink), numbered(5))
    work = msgspec.structs.replace(plan_slice(client), arrived=[2, 4])
    cloud.set_fault("http", name=sink, status=503, for_calls=1)
    make(work, client).run()
    assert (client.reports[0].settled_end, client.reports[0].arrived) == (0, [2, 4])
    wait_until(lambda: not client.reports[1:] and run_next(client))
    assert cloud.payloads("http", sink) == [b"0", b"1", b"3"]
    report = client.reports[1]
    assert (report.settled_end, report.arrived, report.missing) == (5, [], 0)


def run_next(client: RecordingClient) -> bool:
    """Runs the work that is due, if there is any."""
    found = plan(client)
    for work in found:
        make(work, client).run()
    return bool(found)


def test_missing_messages_are_counted_when_later_ones_are_done(
    cloud: Sandbox, broker: LocalBroker, client: RecordingClient, reports_at_once: None
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), [b"%04d" % number for number in range(6)])
    work = plan_slice(client)
    path = data_path(broker.root / "streams" / work.stream_id, 0)
    with path.open("r+b") as file:
        for number in (1, 5):
            file.seek(4 * number)
            file.write(b"????")
    make(work, client, broker.root).run()
    assert cloud.payloads("http", sink) == [b"0000", b"0002", b"0003", b"0004"]
    assert [report.settled_end for report in client.reports] == [2, 3, 4, 6, 6]
    assert [report.missing for report in client.reports] == [1, 0, 0, 1, 0]
    assert lost_messages(client, name) == 2
    assert last_exported(client, name) == 5


# Stopping


def test_stopped_job_finishes_its_call_and_reports(cloud: Sandbox, client: RecordingClient) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), numbered(100))
    cloud.set_fault("http", name=sink, hang=True, for_calls=1)
    job = make(plan_slice(client), client)
    with running(job.run):
        wait_until(lambda: cloud.faults()[0]["callsMet"])
        job.stop()
        # The call gets no answer, and fails.
        cloud.clear_faults()
    (report,) = client.reports
    assert len(cloud.payloads("http", sink)) <= 1
    assert report.is_final
    assert last_exported(client, name) < 1


def test_job_with_a_lost_lease_reports_nothing(
    cloud: Sandbox, client: RecordingClient, reports_at_once: None
) -> None:
    sink = new_name()
    create_http(client, cloud.http_url(sink), numbered(100))
    cloud.set_fault("http", name=sink, hang=True, for_calls=1)
    job = make(plan_slice(client), client)
    with running(job.run):
        wait_until(lambda: cloud.faults()[0]["callsMet"])
        job.stop(is_lost=True)
        cloud.clear_faults()
    assert len(cloud.payloads("http", sink)) <= 1
    assert client.reports == []


def test_refused_report_stops_the_delivery(
    cloud: Sandbox, client: RecordingClient, reports_at_once: None
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), numbered(100))
    first = plan_slice(client)
    # The task holds no lease: the same messages are leased again.
    second = plan_slice(client)
    make(first, client).run()
    assert cloud.payloads("http", sink) == [b"0"]
    assert [report.is_final for report in client.reports] == [False]
    assert last_exported(client, name) == -1
    make(second, client).run()
    assert last_exported(client, name) == 99


# The broker


def test_unavailable_broker_is_logged_without_a_traceback(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with InternalClient(root=broker.root, reconnect_timeout=0) as client:
        name = create_http(client, "http://127.0.0.1:1", numbered(2))
        work = plan_slice(client)
        broker.stop()
        make(work, client).run()
    assert f"cannot report a delivery of stream {name!r}" in caplog.text
    assert "Traceback" not in caplog.text


def test_job_ends_if_neither_a_report_nor_its_replacement_arrives(
    broker: LocalBroker,
    cloud: Sandbox,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    invalid_totals: None,
) -> None:
    run = MessageDelivery.run

    def run_and_stop_the_broker(self: MessageDelivery) -> None:
        run(self)
        broker.stop()

    monkeypatch.setattr(MessageDelivery, "run", run_and_stop_the_broker)
    with InternalClient(root=broker.root, reconnect_timeout=0) as client:
        name = create_http(client, cloud.http_url(new_name()), numbered(2))
        make(plan_slice(client), client).run()
    last = caplog.records[-1]
    assert last.levelname == "WARNING"
    assert last.getMessage().startswith(f"cannot report a delivery of stream {name!r}: ")


def test_delivery_continues_while_the_broker_restarts(
    cloud: Sandbox, broker: LocalBroker, client: RecordingClient, reports_at_once: None
) -> None:
    sink = new_name()
    name = create_http(client, cloud.http_url(sink), numbered(20))
    job = make(plan_slice(client), client)
    cloud.set_fault("http", name=sink, delay_millis=50)
    with running(job.run):
        wait_until(lambda: client.reports)
        broker.stop()
        with LocalBroker(broker.root):
            wait_until(lambda: last_exported(client, name) == 19)
            wait_until(lambda: client.reports[-1].is_final)
    assert cloud.payloads("http", sink) == numbered(20)
    assert {report.error for report in client.reports} == {""}


def test_lease_of_a_report_after_a_restart_can_be_renewed(
    cloud: Sandbox, broker: LocalBroker, client: RecordingClient
) -> None:
    name = create_http(client, cloud.http_url(new_name()), numbered(3))
    work = plan_slice(client)
    broker.stop()
    with LocalBroker(broker.root):
        report = DeliveryReport(
            lease=work.lease,
            stream=name,
            stream_id=work.stream_id,
            identifier="to-http",
            first=0,
            settled_end=1,
            exported_messages=1,
            is_final=False,
        )
        assert client.commit_exports([report]).accepted == {work.lease}
        renewed = client.plan_exports(PIPELINE, "1", lease_millis=60_000, holding=[work.lease])
        assert (renewed.lost, renewed.work) == ([], [])
        assert client.reserve_bandwidth(work.lease, 0).is_held
        assert plan(client, "2") == []


# Channels


def channel_numbers(root: Path, channel: str) -> list[int]:
    directory = root / "channels" / channel
    if not directory.is_dir():
        return []
    table = ds.dataset(directory, partitioning="hive").to_table(columns=["sequence_number"])
    numbers: list[int] = table["sequence_number"].to_pylist()  # type: ignore[assignment]
    return sorted(numbers)


def test_channel_is_written_only_with_the_lease(
    broker: LocalBroker, client: RecordingClient
) -> None:
    name = create(client, IoTAnalyticsConfig("to-channel", "farm"))
    client.append_messages(name, numbered(3))
    first = plan_slice(client)
    client.append_messages(name, numbered(3))
    second = plan_slice(client)
    assert second.end == 6
    make(second, client, broker.root).run()
    # The first task hung in the meantime.
    make(first, client, broker.root).run()
    assert channel_numbers(broker.root, "farm") == list(range(6))
    assert [report.settled_end for report in client.reports] == [6]


def test_lease_is_confirmed_by_a_restarted_broker(
    broker: LocalBroker, client: RecordingClient
) -> None:
    name = create(client, IoTAnalyticsConfig("to-channel", "farm"))
    client.append_messages(name, numbered(3))
    work = plan_slice(client)
    broker.stop()
    with LocalBroker(broker.root):
        make(work, client, broker.root).run()
        assert channel_numbers(broker.root, "farm") == [0, 1, 2]
        assert last_exported(client, name) == 2


# S3 tasks


def create_tasks(client: InternalClient, bucket: str, paths: Sequence[Path]) -> str:
    name = create(client, S3ExportTaskExecutorConfig("to-s3"))
    for path in paths:
        task = {"inputUrl": path.as_uri(), "bucket": bucket, "key": path.name}
        client.append_message(name, json.dumps(task).encode())
    return name


def write_files(directory: Path, count: int, size: int = 3) -> list[Path]:
    directory.mkdir()
    paths = [directory / f"f{number}" for number in range(count)]
    for path in paths:
        path.write_bytes(os.urandom(size))
    return paths


DELETING = DestinationSettings(s3_delete_uploaded_files=True)


def test_files_are_deleted_once_their_tasks_are_reported(
    cloud: Sandbox,
    broker: LocalBroker,
    client: RecordingClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    reports_at_once: None,
) -> None:
    cloud.create_bucket("deleting")
    paths = write_files(tmp_path / "files", 3)
    name = create_tasks(client, "deleting", paths)
    left: list[list[bool]] = []
    client.on_report = lambda _: left.append([path.exists() for path in paths])
    make(plan_tasks(client), client, broker.root, DELETING).run()
    # A file is deleted after the report of its task was accepted.
    assert left[0] == [True, True, True]
    assert left[1] == [False, True, True]
    assert not any(path.exists() for path in paths)
    assert last_exported(client, name) == 2
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_files_of_a_refused_report_are_kept(
    cloud: Sandbox, broker: LocalBroker, client: RecordingClient, tmp_path: Path
) -> None:
    cloud.create_bucket("refused")
    paths = write_files(tmp_path / "files", 1)
    create_tasks(client, "refused", paths)
    first = plan_tasks(client)
    plan_tasks(client)
    make(first, client, broker.root, DELETING).run()
    assert [report.settled_end for report in client.reports] == [1]
    assert paths[0].exists()


def test_long_upload_reports_its_parts(
    cloud: Sandbox,
    broker: LocalBroker,
    client: RecordingClient,
    tmp_path: Path,
    reports_each_second: None,
) -> None:
    cloud.create_bucket("parts")
    cloud.set_fault("s3", operation="UploadPart", delay_millis=1100)
    name = create_tasks(client, "parts", write_files(tmp_path / "files", 1, 12 * MEBIBYTE))
    settings = DestinationSettings(s3_parts_at_once=1)
    make(plan_tasks(client), client, broker.root, settings).run()
    parts = [upload.arrived_parts for report in client.reports for upload in report.uploads]
    assert parts[:2] == [0, 0]
    assert {1, 2, 3} <= set(parts)
    assert (client.reports[-1].uploads, client.reports[-1].settled_end) == ([], 1)
    assert last_exported(client, name) == 0


def test_upload_continues_after_a_crash(
    cloud: Sandbox,
    broker: LocalBroker,
    client: RecordingClient,
    tmp_path: Path,
    reports_each_second: None,
) -> None:
    cloud.create_bucket("crash")
    name = create_tasks(client, "crash", write_files(tmp_path / "files", 1, 12 * MEBIBYTE))
    settings = DestinationSettings(s3_parts_at_once=1)
    job = make(plan_tasks(client), client, broker.root, settings)
    cloud.set_fault("s3", operation="UploadPart", delay_millis=1100)

    def lose(report: DeliveryReport) -> None:
        if report.uploads and report.uploads[0].arrived_parts == 1:
            job.stop(is_lost=True)
            cloud.clear_faults()

    client.on_report = lose
    job.run()
    found = plan_tasks(client)
    (upload,) = found.uploads
    assert upload.arrived_parts >= 1
    cloud.reset_calls()
    make(found, client, broker.root, settings).run()
    operations = [call["operation"] for call in cloud.calls("s3")]
    assert operations.count("CreateMultipartUpload") == 0
    assert operations.count("UploadPart") == 3 - upload.arrived_parts
    assert last_exported(client, name) == 0


def test_abandoned_upload_is_aborted(cloud: Sandbox, client: RecordingClient) -> None:
    cloud.create_bucket("abandoned")
    name = create_tasks(client, "abandoned", [Path("/no/such/file")])
    found = plan_tasks(client)
    upload = Upload(
        sequence_number=0,
        bucket="abandoned",
        key="k",
        upload_id="u",
        began=0,
        fingerprint="f",
        size=9,
        part_size=9,
    )
    report = DeliveryReport(
        lease=found.lease,
        stream=name,
        stream_id=found.stream_id,
        identifier="to-s3",
        uploads=[upload],
        is_final=False,
    )
    assert client.commit_exports([report]).accepted
    client.delete_message_stream(name)
    (work,) = wait_until(lambda: plan(client))
    assert isinstance(work, UploadAbort)
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=503, for_calls=1)
    job = make(work, client)
    assert job.size == 0
    job.run()
    assert "SlowDown" in client.reports[-1].error
    (work,) = wait_until(lambda: plan(client))
    make(work, client).run()
    assert (client.reports[-1].error, client.reports[-1].is_final) == ("", True)
    assert plan(client) == []


# Limited bandwidth


@pytest.fixture
def slow_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    # 100,000 bytes a second.
    with LocalBroker(tmp_path / "slow", exporter_max_bandwidth=800) as running_broker:
        yield running_broker


def test_files_wait_for_bandwidth(cloud: Sandbox, slow_broker: LocalBroker, tmp_path: Path) -> None:
    cloud.create_bucket("limited")
    with RecordingClient(root=slow_broker.root) as client:
        name = create_tasks(client, "limited", write_files(tmp_path / "files", 3, 100_000))
        work = plan_tasks(client)
        assert work.is_metered
        began = time.monotonic()
        make(work, client, slow_broker.root).run()
        # The first file empties the bucket.
        assert time.monotonic() - began > 1.0
        assert last_exported(client, name) == 2
        assert sum(report.sent_bytes for report in client.reports) == 300_000


def test_lost_lease_ends_the_wait_for_bandwidth(cloud: Sandbox, tmp_path: Path) -> None:
    cloud.create_bucket("waiting")
    with (
        # 1,000 bytes a second: the files would take hours.
        LocalBroker(tmp_path / "slow", exporter_max_bandwidth=8) as broker,
        RecordingClient(root=broker.root) as client,
    ):
        create_tasks(client, "waiting", write_files(tmp_path / "files", 2, 10_000_000))
        job = make(plan_tasks(client), client, broker.root)
        with running(job.run):
            wait_until(lambda: client.reports and client.reports[-1].uploads)
            plan_tasks(client)
        assert not client.reports[-1].is_final


# Threads


def test_only_one_thread_reports_at_a_time(
    cloud: Sandbox,
    broker: LocalBroker,
    client: RecordingClient,
    tmp_path: Path,
    reports_at_once: None,
) -> None:
    cloud.create_bucket("threads")
    name = create_tasks(client, "threads", write_files(tmp_path / "files", 40))
    settings = DestinationSettings(s3_tasks_at_once=8)
    reporting: set[int] = set()
    client.on_report = lambda _: reporting.add(threading.get_ident())
    make(plan_tasks(client), client, broker.root, settings).run()
    assert len(reporting) > 1
    for earlier, later in pairwise(client.reports):
        assert later.first == earlier.settled_end
    assert sum(report.exported_messages for report in client.reports) == 40
    assert last_exported(client, name) == 39


def test_batched_slice_is_sent_in_few_calls(
    cloud: Sandbox, broker: LocalBroker, client: RecordingClient
) -> None:
    sink = new_name()
    config = HTTPConfig("to-http", cloud.http_url(sink), export_format=ExportFormat.JSON_BATCHED)
    name = create(client, config)
    client.append_messages(name, numbered(1200))
    work = plan_slice(client)
    job = make(work, client, broker.root)
    assert job.size == work.size == sum(map(len, numbered(1200)))
    job.run()
    assert len(cloud.calls("http", sink)) == 3
    assert last_exported(client, name) == 1199
