"""Deliveries of S3 tasks: real files, two S3 servers, failures and crashes."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from penstock.errors import ConnectFailedException
from penstock.model.exporting import Upload
from penstock.model.status_message import Status
from penstock.pipeline.delivery import DeliveryTotals
from penstock.pipeline.uploads.input_files import InputFile
from penstock.pipeline.uploads.task_delivery import UploadAbortion
from penstock.sandbox.local_sandbox import Sandbox
from tests.object_store import ObjectStore
from tests.pipeline.uploads.conftest import use_variables
from tests.pipeline.uploads.workbench import FIRST, MEBIBYTE, Workbench, statuses
from tests.support import TIMEOUT_S, running, wait_until

LARGE = 12 * MEBIBYTE + 17


def only_upload(delivery: DeliveryTotals) -> Upload:
    (upload,) = delivery.uploads
    return upload


def reason_of(delivery: DeliveryTotals) -> str:
    (skipped,) = delivery.skipped
    return skipped[1]


# Uploads


@pytest.mark.parametrize("size", [0, 1, 5 * MEBIBYTE])
def test_small_file_is_sent_in_one_call(bench: Workbench, size: int) -> None:
    content = os.urandom(size)
    number = bench.add(bench.write("a", content), "k/a.bin", userMetadata={"Camera": "North 1"})
    delivery = bench.run()
    assert bench.content("k/a.bin") == content
    head = bench.client.head_object(Bucket=bench.bucket, Key="k/a.bin")
    assert head["Metadata"] == {"camera": "North 1"}
    assert "-" not in head["ETag"]
    assert statuses(delivery.events) == [(number, "InProgress"), (number, "Success")]
    assert f"{size} bytes were uploaded to s3://{bench.bucket}/k/a.bin" in (
        delivery.events[-1].message
    )
    assert (delivery.settled_end, delivery.error, delivery.uploads) == (FIRST + 1, "", [])
    assert (delivery.exported_messages, delivery.exported_bytes) == (1, len(bench.tasks[0]))
    assert delivery.sent_bytes == size
    assert not bench.reported


def test_large_file_is_sent_in_parts(bench: Workbench) -> None:
    content = os.urandom(LARGE)
    number = bench.add(bench.write("a", content), "a", userMetadata={"x": "y"})
    delivery = bench.run()
    assert bench.content("a") == content
    head = bench.client.head_object(Bucket=bench.bucket, Key="a")
    assert head["Metadata"] == {"x": "y"}
    assert head["ETag"].endswith('-3"')
    assert bench.unfinished() == []
    assert (delivery.settled_end, delivery.uploads) == (FIRST + 1, [])
    # Before the upload is created, and with its id before the first part.
    assert [only_upload(each).upload_id != "" for each in bench.reported] == [False, True]
    assert statuses(bench.reported[0].events) == [(number, "InProgress")]
    assert statuses(delivery.events) == [(number, "InProgress"), (number, "Success")]
    # After each part, and after the task.
    assert bench.parts in ([1, 2, 3, 0], [1, 3, 3, 0])


def test_number_of_arrived_parts_never_falls(in_sandbox: Workbench) -> None:
    in_sandbox.settings = {"s3_parts_at_once": 8}
    in_sandbox.add(in_sandbox.write("a", os.urandom(60 * MEBIBYTE)), "a")
    assert in_sandbox.run().settled_end == FIRST + 1
    assert in_sandbox.parts[:-1] == sorted(in_sandbox.parts[:-1])
    assert in_sandbox.parts[-2:] == [12, 0]


def test_file_of_the_threshold_size_is_sent_in_one_call(in_store: Workbench) -> None:
    in_store.threshold = 8 * MEBIBYTE
    in_store.add(in_store.write("b", bytes(8 * MEBIBYTE + 1)), "b")
    in_store.add(in_store.write("a", bytes(8 * MEBIBYTE)), "a")
    assert in_store.run().settled_end == FIRST + 2
    etags = [
        in_store.client.head_object(Bucket=in_store.bucket, Key=key)["ETag"] for key in ("a", "b")
    ]
    assert ["-" in etag for etag in etags] == [False, True]


def test_large_file_in_one_call_is_read_while_it_is_sent(in_store: Workbench) -> None:
    in_store.threshold = 64 * MEBIBYTE
    content = os.urandom(17 * MEBIBYTE)
    in_store.add(in_store.write("a", content), "a")
    assert in_store.run().settled_end == FIRST + 1
    assert in_store.content("a") == content


def test_tasks_are_carried_out_in_their_order(in_store: Workbench) -> None:
    for number in range(5):
        in_store.add(in_store.write(f"f{number}", str(number).encode()), "same")
    delivery = in_store.run()
    assert in_store.content("same") == b"4"
    assert [number for number, status in statuses(delivery.events) if status == "Success"] == [
        FIRST + number for number in range(5)
    ]


def test_several_tasks_run_at_once_if_configured(cloud: Sandbox, in_sandbox: Workbench) -> None:
    in_sandbox.settings = {"s3_tasks_at_once": 4}
    for number in range(5):
        in_sandbox.add(in_sandbox.write(f"f{number}", b"x"), f"k{number}")
    cloud.set_fault("s3", operation="PutObject", hang=True)
    delivering = in_sandbox.begin()
    with running(delivering.run):
        wait_until(lambda: delivering.totals().sent_bytes == 4)
        cloud.clear_faults()
    assert delivering.totals().settled_end == FIRST + 5
    assert len(in_sandbox.list_keys()) == 5


def test_end_of_a_task_is_reported_before_the_next_upload_is_created(in_store: Workbench) -> None:
    small = in_store.add(in_store.write("a", b"x"), "a")
    large = in_store.add(in_store.write("b", bytes(LARGE)), "b")
    delivery = in_store.run()
    assert delivery.settled_end == FIRST + 2
    first = in_store.reported[0]
    assert first.settled_end == FIRST + 1
    assert statuses(first.events) == [
        (small, "InProgress"),
        (small, "Success"),
        (large, "InProgress"),
    ]


def test_end_of_a_task_and_its_event_are_visible_at_once(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    in_sandbox.settings = {"s3_tasks_at_once": 2}
    large = in_sandbox.add(in_sandbox.write("a", bytes(LARGE)), "a")
    small = in_sandbox.add(in_sandbox.write("b", b"x"), "b")
    cloud.set_fault("s3", operation="UploadPart", hang=True)
    running_delivery = in_sandbox.begin()
    with running(running_delivery.run):
        delivery = wait_until(
            lambda: found if (found := running_delivery.totals()).arrived else None
        )
        cloud.clear_faults()
    assert delivery is not None
    assert (delivery.settled_end, delivery.arrived) == (large, [small])
    assert (small, "Success") in statuses(delivery.events)
    assert [each.sequence_number for each in delivery.uploaded] == [small]


def test_keys_have_the_time_of_the_upload(in_store: Workbench) -> None:
    in_store.settings = {"s3_key_time_zone": "Asia/Kolkata"}
    in_store.add(in_store.write("a", b"x"), "!{timestamp:yyyy}/!{timestamp:VV}")
    in_store.run()
    assert in_store.list_keys() == [f"{time.strftime('%Y')}/Asia/Kolkata"]


# Failures


def test_invalid_tasks_fail_and_the_next_one_is_carried_out(
    in_store: Workbench, tmp_path: Path
) -> None:
    (tmp_path / "directory").mkdir()
    in_store.add(in_store.write("f", bytes(LARGE)), "f", bucket="there-is-no-such-bucket")
    in_store.add(tmp_path / "directory", "b")
    in_store.add_payload(b"not a task")
    in_store.add("relative/path", "d")
    in_store.add(in_store.write("e", b"x"), "!{date:yyyy}")
    in_store.add(tmp_path / "missing", "a")
    in_store.add(in_store.write("g", b"x"), "g")
    delivery = in_store.run()
    assert in_store.list_keys() == ["g"]
    events = delivery.events
    failures = [event for event in events if event.status is Status.Failure]
    expected = [
        "there-is-no-such-bucket",
        "directory",
        "not JSON",
        "relative/path",
        "date",
        "exist",
    ]
    assert [event.sequence_number for event in failures] == [FIRST + n for n in range(6)]
    for event, text in zip(failures, expected, strict=True):
        assert text in event.message
    assert failures[2].task is None
    assert failures[1].task == {
        "inputUrl": (tmp_path / "directory").as_uri(),
        "bucket": in_store.bucket,
        "key": "b",
    }
    assert (delivery.settled_end, delivery.error) == (FIRST + 7, "")
    assert len(delivery.skipped) == 6
    assert not any(event.status is Status.Warning for event in events)
    assert (delivery.uploads, delivery.abandoned) == ([], [])


def test_denied_access_is_a_failure(
    in_store: Workbench, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_variables(object_store.reader_variables, monkeypatch)
    in_store.add(in_store.write("b", bytes(LARGE)), "b")
    in_store.add(in_store.write("a", b"x"), "a")
    delivery = in_store.run()
    assert delivery.settled_end == FIRST + 2
    for _, reason in delivery.skipped:
        assert "denies access" in reason
        assert "s3:PutObject" in reason
    assert not any(event.status is Status.Warning for event in delivery.events)
    assert (delivery.uploads, delivery.abandoned) == ([], [])


def test_files_outside_of_the_directories_are_refused(in_store: Workbench, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    secret = in_store.write("secret", b"x")
    (allowed / "link").symlink_to(secret)
    (allowed / "fine").write_bytes(b"x")
    in_store.settings = {"read_only_directories": (str(allowed),)}
    for name in ("secret", "allowed/link", "allowed/fine"):
        in_store.add(tmp_path / name, name)
    delivery = in_store.run()
    assert in_store.list_keys() == ["allowed/fine"]
    assert [number for number, _ in delivery.skipped] == [FIRST, FIRST + 1]
    assert "STREAM_MANAGER_READ_ONLY_DIRS" in delivery.skipped[1][1]


def test_files_of_the_broker_are_refused(in_store: Workbench, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    in_store.add(in_store.write("root/token", b"secret"), "token")
    assert in_store.run().settled_end == FIRST + 1
    assert in_store.list_keys() == []


def test_expired_task_is_canceled(in_store: Workbench) -> None:
    number = in_store.add(in_store.write("a", b"x"), "a")
    delivery = in_store.run(time_to_live=500)
    assert statuses(delivery.events) == [(number, "Canceled")]
    assert "time to live" in delivery.events[0].message
    assert (delivery.settled_end, in_store.list_keys()) == (FIRST + 1, [])
    assert in_store.run(time_to_live=100_000).exported_messages == 1


def test_tasks_are_not_carried_out_on_another_machine(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", b"x"), "a")
    delivery = in_store.run(is_remote=True)
    assert "another" in delivery.error
    assert (delivery.settled_end, delivery.events) == (FIRST, [])


# Files that change


def test_small_file_that_changes_while_it_is_read_is_not_sent(
    in_store: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_store.write("a", b"one version")
    number = in_store.add(path, "a")
    read_at = InputFile.read_at

    def change_after(file: InputFile, start: int, length: int) -> bytes:
        content = read_at(file, start, length)
        path.write_bytes(b"two versions")
        return content

    monkeypatch.setattr(InputFile, "read_at", change_after)
    assert statuses(in_store.run().events)[-1] == (number, "Failure")
    assert in_store.list_keys() == []


@pytest.mark.parametrize("how", ["appended", "overwritten", "replaced", "deleted"])
def test_file_that_changes_during_its_upload_is_a_failure(in_store: Workbench, how: str) -> None:
    path = in_store.write("a", os.urandom(LARGE))
    number = in_store.add(path, "a")

    def take(delivery: DeliveryTotals) -> bool:
        if only_upload(delivery).upload_id:
            if how == "appended":
                with path.open("ab") as file:
                    file.write(b"more")
            elif how == "overwritten":
                with path.open("r+b") as file:
                    file.write(b"other")
            elif how == "replaced":
                in_store.write("new", os.urandom(LARGE)).replace(path)
            else:
                path.unlink()
        return True

    in_store.accepts = take
    delivery = in_store.run()
    assert statuses(delivery.events) == [(number, "InProgress"), (number, "Failure")]
    assert "a" in reason_of(delivery)
    assert (in_store.list_keys(), in_store.unfinished()) == ([], [])
    assert (delivery.settled_end, delivery.uploads) == (FIRST + 1, [])


def test_file_that_changed_between_two_deliveries_is_a_failure(in_store: Workbench) -> None:
    path = in_store.write("a", os.urandom(LARGE))
    in_store.add(path, "a")
    in_store.settings = {"s3_parts_at_once": 1}
    first = in_store.run(calls=1)
    assert in_store.unfinished() == ["a"]
    path.write_bytes(os.urandom(LARGE))
    delivery = in_store.run(uploads=first.uploads)
    assert "changed" in reason_of(delivery)
    assert (in_store.list_keys(), in_store.unfinished(), delivery.uploads) == ([], [], [])


def test_small_file_that_changes_while_it_is_sent_is_a_failure(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    path = in_sandbox.write("a", b"before")
    number = in_sandbox.add(path, "a")
    cloud.set_fault("s3", operation="PutObject", hang=True)
    delivering = in_sandbox.begin()
    thread = threading.Thread(target=delivering.run)
    thread.start()
    wait_until(lambda: bool(delivering.totals().sent_bytes))
    path.write_bytes(b"something else")
    cloud.clear_faults()
    thread.join()
    # The object is complete, but the file has changed since.
    assert statuses(delivering.totals().events)[-1] == (number, "Failure")


# Uploads that continue


def test_upload_continues_in_later_deliveries(bench: Workbench) -> None:
    content = os.urandom(LARGE)
    number = bench.add(bench.write("a", content), "a")
    bench.settings = {"s3_parts_at_once": 1}
    uploads: list[Upload] = []
    for parts in (1, 2):
        delivery = bench.run(calls=1, uploads=uploads)
        uploads = delivery.uploads
        assert len(only_upload(delivery).parts) == parts
        assert (delivery.settled_end, delivery.error) == (FIRST, "")
        assert delivery.sent_bytes == 5 * MEBIBYTE
    delivery = bench.run(uploads=uploads)
    assert bench.content("a") == content
    assert (delivery.sent_bytes, delivery.uploads) == (LARGE - 10 * MEBIBYTE, [])
    assert statuses(delivery.events) == [(number, "Success")]
    assert bench.unfinished() == []


def test_parts_that_have_arrived_are_kept_when_others_fail(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    in_sandbox.settings = {"s3_parts_at_once": 1}
    in_sandbox.add(in_sandbox.write("a", content := os.urandom(LARGE)), "a")
    first = in_sandbox.run(calls=1)
    cloud.set_fault("s3", operation="UploadPart", status=503, code="SlowDown")
    failed = in_sandbox.run(uploads=first.uploads)
    assert "SlowDown" in failed.error
    assert only_upload(failed).parts == only_upload(first).parts
    assert not any(event.status is Status.Failure for event in failed.events)
    cloud.clear_faults()
    done = in_sandbox.run(uploads=failed.uploads)
    assert in_sandbox.content("a") == content
    assert done.sent_bytes == LARGE - 5 * MEBIBYTE


def test_failed_part_is_retried(in_sandbox: Workbench, cloud: Sandbox) -> None:
    in_sandbox.add(in_sandbox.write("a", content := os.urandom(LARGE)), "a")
    cloud.set_fault("s3", operation="UploadPart", status=500, for_calls=2)
    delivery = in_sandbox.run()
    assert (delivery.error, delivery.settled_end) == ("", FIRST + 1)
    assert in_sandbox.content("a") == content
    assert delivery.sent_bytes > LARGE


def test_upload_that_s3_no_longer_has_is_restarted(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", content := os.urandom(LARGE)), "a")
    first = in_store.run(calls=1)
    upload = only_upload(first)
    in_store.client.abort_multipart_upload(
        Bucket=in_store.bucket, Key="a", UploadId=upload.upload_id
    )
    gone = in_store.run(uploads=[upload])
    assert "restarted" in gone.error
    assert gone.uploads == []
    assert in_store.run().settled_end == FIRST + 1
    assert in_store.content("a") == content


def test_upload_with_other_parts_is_restarted(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", content := os.urandom(LARGE)), "a")
    upload = only_upload(in_store.run(calls=1))
    wrong = f'"{"0" * 32}" AAAAAA=='
    gone = in_store.run(uploads=[msgspec.structs.replace(upload, parts=[wrong] * 3)])
    assert "restarted" in gone.error
    assert (gone.uploads, in_store.unfinished()) == ([], [])
    assert in_store.run().settled_end == FIRST + 1
    assert in_store.content("a") == content


def test_upload_without_a_known_id_is_found_and_aborted(
    in_store: Workbench,
) -> None:
    in_store.add(in_store.write("a", content := os.urandom(LARGE)), "a")
    in_store.run(calls=1)
    planned = only_upload(in_store.reported[0])
    assert planned.upload_id == ""
    # As after a crash before the answer of S3.
    assert in_store.unfinished() == ["a"]
    delivery = in_store.run(uploads=[planned])
    assert delivery.settled_end == FIRST + 1
    assert in_store.content("a") == content
    assert in_store.unfinished() == []


def test_denied_search_for_an_upload_is_a_warning(in_sandbox: Workbench, cloud: Sandbox) -> None:
    number = in_sandbox.add(in_sandbox.write("a", os.urandom(LARGE)), "a")
    in_sandbox.run(calls=1)
    planned = only_upload(in_sandbox.reported[0])
    cloud.set_fault("s3", operation="ListMultipartUploads", status=403, code="AccessDenied")
    delivery = in_sandbox.run(uploads=[planned])
    assert statuses(delivery.events) == [(number, "Warning"), (number, "Success")]


def test_older_uploads_of_the_same_key_are_not_aborted(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", os.urandom(LARGE)), "a")
    in_store.client.create_multipart_upload(Bucket=in_store.bucket, Key="a")
    in_store.run(calls=1)
    planned = msgspec.structs.replace(
        only_upload(in_store.reported[0]), began=int((time.time() - 3600) * 1000)
    )
    in_store.run(uploads=[planned])
    # Neither of the two is an hour old.
    assert in_store.unfinished() == ["a", "a"]


def test_upload_is_not_created_if_the_lease_is_lost(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", bytes(LARGE)), "a")
    in_store.accepts = lambda _: False
    assert in_store.run().settled_end == FIRST
    assert in_store.unfinished() == []


def test_created_upload_is_aborted_if_the_lease_is_lost(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", bytes(LARGE)), "a")
    in_store.accepts = lambda delivery: not only_upload(delivery).upload_id
    delivery = in_store.run()
    assert (in_store.unfinished(), delivery.settled_end) == ([], FIRST)


# Transient errors


@pytest.mark.parametrize(
    "fault",
    [
        {"down": True},
        {"throttle": True},
        {"status": 500},
        {"status": 400, "code": "RequestTimeout"},
        {"status": 403, "code": "SignatureDoesNotMatch"},
        {"status": 400, "code": "ExpiredToken"},
    ],
)
def test_transient_error_is_no_failure_of_the_task(
    in_sandbox: Workbench, cloud: Sandbox, fault: dict[str, object]
) -> None:
    number = in_sandbox.add(in_sandbox.write("a", b"x"), "a")
    in_sandbox.add(in_sandbox.write("b", b"x"), "b")
    cloud.set_fault("s3", operation="PutObject", **fault)
    delivery = in_sandbox.run()
    assert delivery.error
    assert (delivery.settled_end, delivery.skipped) == (FIRST, [])
    # The second task has not begun.
    assert statuses(delivery.events) == [(number, "InProgress")]
    cloud.clear_faults()
    assert in_sandbox.run().settled_end == FIRST + 2


def test_missing_credentials_are_no_failure_of_the_task(
    in_store: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    use_variables({"AWS_EC2_METADATA_DISABLED": "true"}, monkeypatch)
    in_store.add(in_store.write("a", b"x"), "a")
    delivery = in_store.run()
    assert "AWS_ACCESS_KEY_ID" in delivery.error
    assert delivery.settled_end == FIRST


def test_retry_after_of_s3_is_reported(in_sandbox: Workbench, cloud: Sandbox) -> None:
    in_sandbox.add(in_sandbox.write("a", b"x"), "a")
    cloud.set_fault("s3", operation="PutObject", status=503, retry_after=7)
    assert in_sandbox.run().pause == 7


def test_upload_that_cannot_be_aborted_is_reported(in_sandbox: Workbench, cloud: Sandbox) -> None:
    path = in_sandbox.write("a", os.urandom(LARGE))
    number = in_sandbox.add(path, "a")
    first = in_sandbox.run(calls=1)
    path.unlink()
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=500)
    delivery = in_sandbox.run(uploads=first.uploads)
    assert statuses(delivery.events) == [(number, "Warning"), (number, "Failure")]
    assert delivery.abandoned == first.uploads
    assert (delivery.uploads, delivery.settled_end) == ([], FIRST + 1)


def test_upload_of_a_canceled_task_is_aborted(in_store: Workbench) -> None:
    number = in_store.add(in_store.write("a", os.urandom(LARGE)), "a")
    first = in_store.run(calls=1)
    delivery = in_store.run(uploads=first.uploads, time_to_live=1)
    assert statuses(delivery.events) == [(number, "Canceled")]
    assert (in_store.unfinished(), delivery.uploads) == ([], [])


# Stopping


def test_stopped_delivery_begins_no_further_task(in_sandbox: Workbench, cloud: Sandbox) -> None:
    for name in ("a", "b"):
        in_sandbox.add(in_sandbox.write(name, b"x"), name)
    cloud.set_fault("s3", operation="PutObject", delay_millis=500)
    delivering = in_sandbox.begin()
    with running(delivering.run):
        wait_until(lambda: delivering.totals().sent_bytes)
        in_sandbox.stop.stop()
    # The call that had begun is finished.
    delivery = delivering.totals()
    assert (delivery.settled_end, delivery.error) == (FIRST + 1, "")
    assert in_sandbox.list_keys() == ["a"]


def test_stopped_upload_keeps_parts_that_have_arrived(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    in_sandbox.settings = {"s3_parts_at_once": 1}
    in_sandbox.add(in_sandbox.write("a", content := os.urandom(LARGE)), "a")
    cloud.set_fault("s3", operation="UploadPart", hang=True, for_calls=1)
    delivering = in_sandbox.begin()
    with running(delivering.run):
        wait_until(lambda: delivering.totals().sent_bytes)
        in_sandbox.stop.stop()
        cloud.clear_faults()
    stopped = delivering.totals()
    assert (stopped.settled_end, stopped.error) == (FIRST, "")
    assert only_upload(stopped).arrived_parts == 1
    assert in_sandbox.run(uploads=stopped.uploads).settled_end == FIRST + 1
    assert in_sandbox.content("a") == content


@pytest.mark.parametrize("parts_at_once", [1, 4])
def test_stopped_upload_begins_no_further_part_without_a_bandwidth_limit(
    in_sandbox: Workbench, cloud: Sandbox, parts_at_once: int
) -> None:
    in_sandbox.settings = {"s3_parts_at_once": parts_at_once}
    in_sandbox.add(in_sandbox.write("a", bytes(LARGE)), "a")
    cloud.set_fault("s3", operation="UploadPart", hang=True)
    delivering = in_sandbox.begin(reserve=lambda _: True)
    with running(delivering.run):
        wait_until(lambda: delivering.totals().sent_bytes)
        in_sandbox.stop.stop()
        cloud.clear_faults()
    stopped = delivering.totals()
    assert (stopped.settled_end, stopped.error) == (FIRST, "")
    assert stopped.sent_bytes == 5 * MEBIBYTE
    assert only_upload(stopped).arrived_parts == 1


def test_delivery_with_a_lost_lease_sends_no_further_part(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    in_sandbox.settings = {"s3_parts_at_once": 1}
    in_sandbox.add(in_sandbox.write("a", bytes(LARGE)), "a")
    cloud.set_fault("s3", operation="UploadPart", hang=True, for_calls=1)
    delivering = in_sandbox.begin()
    with running(delivering.run):
        wait_until(lambda: delivering.totals().sent_bytes)
        in_sandbox.stop.stop(is_lost=True)
        cloud.clear_faults()
    assert in_sandbox.list_keys() == []
    assert delivering.totals().sent_bytes == 5 * MEBIBYTE


# Limited bandwidth


def test_each_call_with_bytes_of_files_is_reserved(in_sandbox: Workbench, cloud: Sandbox) -> None:
    in_sandbox.settings = {"s3_parts_at_once": 1}
    in_sandbox.add(in_sandbox.write("a", b"small"), "a")
    in_sandbox.add(in_sandbox.write("b", bytes(LARGE)), "b")
    # The first part is sent twice.
    cloud.set_fault("s3", operation="UploadPart", status=500, for_calls=1)
    reserved: list[int] = []

    def reserve(size: int) -> bool:
        reserved.append(size)
        return True

    delivery = in_sandbox.run(reserve=reserve)
    part = 5 * MEBIBYTE
    assert reserved == [5, part, part, part, LARGE - 2 * part]
    assert delivery.sent_bytes == sum(reserved)


def test_nothing_is_sent_without_a_reservation(in_sandbox: Workbench) -> None:
    number = in_sandbox.add(in_sandbox.write("a", b"x"), "a")
    delivery = in_sandbox.run(reserve=lambda _: False)
    assert (delivery.settled_end, delivery.error, delivery.sent_bytes) == (FIRST, "", 0)
    assert statuses(delivery.events) == [(number, "InProgress")]
    assert in_sandbox.list_keys() == []


def test_error_of_an_unavailable_broker_is_raised(in_sandbox: Workbench) -> None:
    def fail(_: object) -> bool:
        raise ConnectFailedException("no broker listens")

    in_sandbox.add(in_sandbox.write("a", b"x"), "a")
    with pytest.raises(ConnectFailedException, match="no broker listens"):
        in_sandbox.run(reserve=fail)
    in_sandbox.tasks.clear()
    in_sandbox.add(in_sandbox.write("b", bytes(LARGE)), "b")
    in_sandbox.accepts = fail
    delivering = in_sandbox.begin()
    with pytest.raises(ConnectFailedException, match="no broker listens"):
        delivering.run()
    # The upload is not created before the broker has stored it.
    assert (delivering.totals().settled_end, in_sandbox.unfinished()) == (FIRST, [])


def test_unexpected_error_is_raised_and_ends_the_delivery(in_sandbox: Workbench) -> None:
    def fail(_: int) -> bool:
        raise RuntimeError("a bug")

    for name in ("a", "b"):
        in_sandbox.add(in_sandbox.write(name, b"x"), name)
    delivering = in_sandbox.begin(reserve=fail)
    with pytest.raises(RuntimeError, match="a bug"):
        delivering.run()
    assert statuses(delivering.totals().events) == [(FIRST, "InProgress")]


# Abandoned uploads


def abandon(bench: Workbench) -> Upload:
    bench.add(bench.write("a", os.urandom(LARGE)), "a")
    return only_upload(bench.run(calls=1))


def test_abandoned_upload_is_aborted(in_store: Workbench) -> None:
    abortion = UploadAbortion(abandon(in_store), TIMEOUT_S)
    abortion.run()
    delivery = abortion.totals()
    assert (delivery.error, delivery.settled_end, in_store.unfinished()) == ("", FIRST, [])


def test_error_and_pause_of_an_abort_are_reported(in_sandbox: Workbench, cloud: Sandbox) -> None:
    abortion = UploadAbortion(abandon(in_sandbox), TIMEOUT_S)
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=503, retry_after=3)
    abortion.run()
    delivery = abortion.totals()
    assert delivery.error
    assert (delivery.settled_end, delivery.pause) == (FIRST, 3)
    assert in_sandbox.unfinished() == ["a"]


def test_denied_access_to_abort_is_reported(in_sandbox: Workbench, cloud: Sandbox) -> None:
    abortion = UploadAbortion(abandon(in_sandbox), TIMEOUT_S)
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=403, code="AccessDenied")
    abortion.run()
    assert "denies access" in abortion.totals().error
