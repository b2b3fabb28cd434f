"""S3 tasks as they are carried out: real files, real S3s, and whatever may go wrong."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from penstock.model.exporting import Upload
from penstock.model.status import Status
from penstock.pipeline.settlements import Delivery
from penstock.pipeline.uploads.inputs import InputFile
from penstock.sandbox.server import Sandbox
from tests.object_store import ObjectStore
from tests.pipeline.uploads.conftest import use_variables
from tests.pipeline.uploads.workbench import FIRST, MEBIBYTE, Workbench, said
from tests.support import running, wait_until

LARGE = 12 * MEBIBYTE + 17


def only_upload(delivery: Delivery) -> Upload:
    (upload,) = delivery.uploads
    return upload


def reason_of(delivery: Delivery) -> str:
    (skipped,) = delivery.skipped
    return skipped[1]


# What arrives


@pytest.mark.parametrize("size", [0, 1, 5 * MEBIBYTE])
def test_a_small_file_goes_in_one_call(bench: Workbench, size: int) -> None:
    content = os.urandom(size)
    number = bench.add(bench.write("a", content), "k/a.bin", userMetadata={"Camera": "North 1"})
    delivery = bench.run()
    assert bench.content("k/a.bin") == content
    head = bench.client.head_object(Bucket=bench.bucket, Key="k/a.bin")
    assert head["Metadata"] == {"camera": "North 1"}
    assert "-" not in head["ETag"]
    assert said(delivery.events) == [(number, "InProgress"), (number, "Success")]
    assert f"{size} bytes were uploaded to s3://{bench.bucket}/k/a.bin" in (
        delivery.events[-1].message
    )
    assert (delivery.settled_end, delivery.error, delivery.uploads) == (FIRST + 1, "", [])
    assert (delivery.exported_messages, delivery.exported_bytes) == (1, len(bench.tasks[0]))
    assert delivery.sent_bytes == size
    assert not bench.told


def test_a_large_file_goes_in_parts(bench: Workbench) -> None:
    content = os.urandom(LARGE)
    number = bench.add(bench.write("a", content), "a", userMetadata={"x": "y"})
    delivery = bench.run()
    assert bench.content("a") == content
    head = bench.client.head_object(Bucket=bench.bucket, Key="a")
    assert head["Metadata"] == {"x": "y"}
    assert head["ETag"].endswith('-3"')
    assert bench.unfinished() == []
    assert (delivery.settled_end, delivery.uploads) == (FIRST + 1, [])
    # That it began was told at once, and is not told again.
    assert said(bench.told[0].events) == [(number, "InProgress")]
    assert said(delivery.events) == [(number, "Success")]


def test_a_file_of_just_the_threshold_goes_in_one_call(in_store: Workbench) -> None:
    in_store.threshold = 8 * MEBIBYTE
    in_store.add(in_store.write("b", bytes(8 * MEBIBYTE + 1)), "b")
    in_store.add(in_store.write("a", bytes(8 * MEBIBYTE)), "a")
    assert in_store.run().settled_end == FIRST + 2
    etags = [
        in_store.client.head_object(Bucket=in_store.bucket, Key=key)["ETag"] for key in ("a", "b")
    ]
    assert ["-" in etag for etag in etags] == [False, True]


def test_a_large_file_in_one_call_is_read_while_it_is_sent(in_store: Workbench) -> None:
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
    assert [number for number, status in said(delivery.events) if status == "Success"] == [
        FIRST + number for number in range(5)
    ]


def test_several_at_once_if_a_setting_asks_for_it(cloud: Sandbox, in_sandbox: Workbench) -> None:
    in_sandbox.settings = {"s3_tasks_at_once": 4}
    for number in range(5):
        in_sandbox.add(in_sandbox.write(f"f{number}", b"x"), f"k{number}")
    cloud.set_fault("s3", operation="PutObject", hang=True)
    attempt = in_sandbox.attempt()
    with running(attempt.run):
        wait_until(lambda: attempt.delivery().sent_bytes == 4)
        cloud.clear_faults()
    assert attempt.delivery().settled_end == FIRST + 5
    assert len(in_sandbox.list_keys()) == 5


def test_what_is_over_is_told_before_a_long_upload_begins(in_store: Workbench) -> None:
    small = in_store.add(in_store.write("a", b"x"), "a")
    in_store.add(in_store.write("b", bytes(LARGE)), "b")
    delivery = in_store.run()
    # Or whoever deletes the file now, and is killed with all others, would be told of a Failure.
    assert said(delivery.events) == [(small, "InProgress"), (small, "Success")]
    assert delivery.settled_end == FIRST + 1
    assert (in_store.told, in_store.unfinished()) == ([], [])


def test_how_a_task_ended_is_not_told_before_it_counts(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    in_sandbox.settings = {"s3_tasks_at_once": 2, "s3_parts_at_once": 1}
    large = in_sandbox.add(in_sandbox.write("a", bytes(LARGE)), "a")
    small = in_sandbox.add(in_sandbox.write("b", b"x"), "b")
    # The small one ends while the first part of the large one is on its way.
    cloud.set_fault("s3", operation="PutObject", delay_millis=1000)
    cloud.set_fault("s3", operation="UploadPart", delay_millis=2500)
    delivery = in_sandbox.run(seconds=1.0)
    told = [event for told in in_sandbox.told for event in said(told.events)]
    assert (large, "InProgress") in told
    assert (small, "Success") not in told
    assert (small, "Success") in said(delivery.events)
    assert (delivery.settled_end, delivery.arrived) == (large, [small])


def test_keys_have_the_time_of_the_upload(in_store: Workbench) -> None:
    in_store.settings = {"s3_key_time_zone": "Asia/Kolkata"}
    in_store.add(in_store.write("a", b"x"), "!{timestamp:yyyy}/!{timestamp:VV}")
    in_store.run()
    assert in_store.list_keys() == [f"{time.strftime('%Y')}/Asia/Kolkata"]


# What never arrives


def test_what_can_never_be_done_fails_and_the_next_goes_on(
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
    events = in_store.all_events(delivery)
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


def test_the_files_of_the_broker_itself_are_refused(in_store: Workbench, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    in_store.add(in_store.write("root/token", b"secret"), "token")
    assert in_store.run().settled_end == FIRST + 1
    assert in_store.list_keys() == []


def test_a_task_that_is_too_old_is_canceled(in_store: Workbench) -> None:
    number = in_store.add(in_store.write("a", b"x"), "a")
    delivery = in_store.run(time_to_live=500)
    assert said(delivery.events) == [(number, "Canceled")]
    assert "time to live" in delivery.events[0].message
    assert (delivery.settled_end, in_store.list_keys()) == (FIRST + 1, [])
    assert in_store.run(time_to_live=100_000).exported_messages == 1


def test_on_another_machine_nothing_is_tried(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", b"x"), "a")
    delivery = in_store.run(is_remote=True)
    assert "another" in delivery.error
    assert (delivery.settled_end, delivery.events) == (FIRST, [])


# What changes while it is uploaded


def test_a_small_file_that_changes_while_it_is_read_is_not_sent(
    in_store: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_store.write("a", b"one version")
    number = in_store.add(path, "a")
    read = InputFile.read

    def change_after(file: InputFile, start: int, length: int) -> bytes:
        content = read(file, start, length)
        path.write_bytes(b"two versions")
        return content

    monkeypatch.setattr(InputFile, "read", change_after)
    assert said(in_store.run().events)[-1] == (number, "Failure")
    assert in_store.list_keys() == []


@pytest.mark.parametrize("how", ["appended", "overwritten", "replaced", "deleted"])
def test_a_file_that_changes_during_its_upload_is_a_failure(in_store: Workbench, how: str) -> None:
    path = in_store.write("a", os.urandom(LARGE))
    number = in_store.add(path, "a")

    def take(delivery: Delivery) -> bool:
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

    in_store.wants_to_know = take
    delivery = in_store.run()
    assert said(delivery.events) == [(number, "Failure")]
    assert "a" in reason_of(delivery)
    assert (in_store.list_keys(), in_store.unfinished()) == ([], [])
    assert (delivery.settled_end, delivery.uploads) == (FIRST + 1, [])


def test_a_file_that_changed_between_two_batches_is_a_failure(in_store: Workbench) -> None:
    path = in_store.write("a", os.urandom(LARGE))
    in_store.add(path, "a")
    in_store.settings = {"s3_parts_at_once": 1}
    first = in_store.run(max_bytes=1)
    assert in_store.unfinished() == ["a"]
    path.write_bytes(os.urandom(LARGE))
    delivery = in_store.run(uploads=first.uploads)
    assert "changed" in reason_of(delivery)
    assert (in_store.list_keys(), in_store.unfinished(), delivery.uploads) == ([], [], [])


def test_a_small_file_that_changes_while_it_is_sent_is_a_failure(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    path = in_sandbox.write("a", b"before")
    number = in_sandbox.add(path, "a")
    cloud.set_fault("s3", operation="PutObject", hang=True)
    attempt = in_sandbox.attempt()
    thread = threading.Thread(target=attempt.run)
    thread.start()
    wait_until(lambda: bool(attempt.delivery().sent_bytes))
    path.write_bytes(b"something else")
    cloud.clear_faults()
    thread.join()
    # It is not mixed; but whoever deletes it now would lose what was added.
    assert said(attempt.delivery().events)[-1] == (number, "Failure")


# What goes on later


def test_an_upload_goes_on_over_many_batches(bench: Workbench) -> None:
    content = os.urandom(LARGE)
    number = bench.add(bench.write("a", content), "a")
    bench.settings = {"s3_parts_at_once": 1}
    uploads: list[Upload] = []
    for parts in (1, 2):
        delivery = bench.run(max_bytes=1, uploads=uploads)
        uploads = delivery.uploads
        assert len(only_upload(delivery).parts) == parts
        assert (delivery.settled_end, delivery.error) == (FIRST, "")
        assert delivery.sent_bytes == 5 * MEBIBYTE
    delivery = bench.run(uploads=uploads)
    assert bench.content("a") == content
    assert (delivery.sent_bytes, delivery.uploads) == (LARGE - 10 * MEBIBYTE, [])
    assert said(delivery.events) == [(number, "Success")]
    assert bench.unfinished() == []


def test_what_arrived_of_an_upload_is_kept_when_the_rest_fails(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    in_sandbox.settings = {"s3_parts_at_once": 1}
    in_sandbox.add(in_sandbox.write("a", content := os.urandom(LARGE)), "a")
    first = in_sandbox.run(max_bytes=1)
    cloud.set_fault("s3", operation="UploadPart", status=503, code="SlowDown")
    failed = in_sandbox.run(uploads=first.uploads, seconds=2.0)
    assert "SlowDown" in failed.error
    assert only_upload(failed).parts == only_upload(first).parts
    assert not any(event.status is Status.Failure for event in failed.events)
    cloud.clear_faults()
    done = in_sandbox.run(uploads=failed.uploads)
    assert in_sandbox.content("a") == content
    assert done.sent_bytes == LARGE - 5 * MEBIBYTE


def test_a_part_that_fails_is_sent_again_by_itself(in_sandbox: Workbench, cloud: Sandbox) -> None:
    in_sandbox.add(in_sandbox.write("a", content := os.urandom(LARGE)), "a")
    cloud.set_fault("s3", operation="UploadPart", status=500, for_calls=2)
    delivery = in_sandbox.run()
    assert (delivery.error, delivery.settled_end) == ("", FIRST + 1)
    assert in_sandbox.content("a") == content
    assert delivery.sent_bytes > LARGE


def test_an_upload_that_is_gone_begins_anew(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", content := os.urandom(LARGE)), "a")
    first = in_store.run(max_bytes=1)
    upload = only_upload(first)
    in_store.client.abort_multipart_upload(
        Bucket=in_store.bucket, Key="a", UploadId=upload.upload_id
    )
    gone = in_store.run(uploads=[upload])
    assert "begins anew" in gone.error
    assert gone.uploads == []
    assert in_store.run().settled_end == FIRST + 1
    assert in_store.content("a") == content


def test_an_upload_whose_parts_are_not_what_they_were_begins_anew(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", content := os.urandom(LARGE)), "a")
    upload = only_upload(in_store.run(max_bytes=1))
    wrong = f'"{"0" * 32}" AAAAAA=='
    gone = in_store.run(uploads=[msgspec.structs.replace(upload, parts=[wrong] * 3)])
    assert "begins anew" in gone.error
    assert (gone.uploads, in_store.unfinished()) == ([], [])
    assert in_store.run().settled_end == FIRST + 1
    assert in_store.content("a") == content


def test_an_upload_of_which_the_name_is_not_known_is_looked_for_and_aborted(
    in_store: Workbench,
) -> None:
    in_store.add(in_store.write("a", content := os.urandom(LARGE)), "a")
    in_store.run(max_bytes=1)
    planned = only_upload(in_store.told[0])
    assert planned.upload_id == ""
    # It was created, and whoever did so died before the answer came.
    assert in_store.unfinished() == ["a"]
    delivery = in_store.run(uploads=[planned])
    assert delivery.settled_end == FIRST + 1
    assert in_store.content("a") == content
    assert in_store.unfinished() == []


def test_uploads_of_others_to_the_same_key_are_left_alone(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", os.urandom(LARGE)), "a")
    in_store.client.create_multipart_upload(Bucket=in_store.bucket, Key="a")
    in_store.run(max_bytes=1)
    planned = msgspec.structs.replace(
        only_upload(in_store.told[0]), began=int((time.time() - 3600) * 1000)
    )
    in_store.run(uploads=[planned])
    # Neither of the two is an hour old.
    assert in_store.unfinished() == ["a", "a"]


def test_what_the_broker_does_not_want_is_not_begun(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", bytes(LARGE)), "a")
    in_store.wants_to_know = lambda _: False
    assert in_store.run().settled_end == FIRST
    assert in_store.unfinished() == []


def test_an_upload_that_the_broker_does_not_want_any_more_is_aborted(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", bytes(LARGE)), "a")
    in_store.wants_to_know = lambda delivery: not only_upload(delivery).upload_id
    delivery = in_store.run()
    assert (in_store.unfinished(), delivery.settled_end) == ([], FIRST)


# What fails for now


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
def test_what_may_pass_is_no_failure(
    in_sandbox: Workbench, cloud: Sandbox, fault: dict[str, object]
) -> None:
    number = in_sandbox.add(in_sandbox.write("a", b"x"), "a")
    in_sandbox.add(in_sandbox.write("b", b"x"), "b")
    cloud.set_fault("s3", operation="PutObject", **fault)
    delivery = in_sandbox.run()
    assert delivery.error
    assert (delivery.settled_end, delivery.skipped) == (FIRST, [])
    # The second waits for its turn.
    assert said(delivery.events) == [(number, "InProgress")]
    cloud.clear_faults()
    assert in_sandbox.run().settled_end == FIRST + 2


def test_no_credentials_are_no_failure(
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


def test_how_long_s3_asks_to_be_left_alone_is_told(in_sandbox: Workbench, cloud: Sandbox) -> None:
    in_sandbox.add(in_sandbox.write("a", b"x"), "a")
    cloud.set_fault("s3", operation="PutObject", status=503, retry_after=7)
    assert in_sandbox.run().retry_after == 7


def test_an_upload_that_cannot_be_aborted_is_told_of(in_sandbox: Workbench, cloud: Sandbox) -> None:
    path = in_sandbox.write("a", os.urandom(LARGE))
    number = in_sandbox.add(path, "a")
    first = in_sandbox.run(max_bytes=1)
    path.unlink()
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=500)
    delivery = in_sandbox.run(uploads=first.uploads)
    assert said(delivery.events) == [(number, "Warning"), (number, "Failure")]
    assert delivery.abandoned == first.uploads
    assert (delivery.uploads, delivery.settled_end) == ([], FIRST + 1)


def test_a_canceled_task_leaves_no_upload(in_store: Workbench) -> None:
    number = in_store.add(in_store.write("a", os.urandom(LARGE)), "a")
    first = in_store.run(max_bytes=1)
    delivery = in_store.run(uploads=first.uploads, time_to_live=1)
    assert said(delivery.events) == [(number, "Canceled")]
    assert (in_store.unfinished(), delivery.uploads) == ([], [])


# When the time is up


def test_nothing_is_begun_when_the_time_is_up_and_others_wait(in_store: Workbench) -> None:
    in_store.add(in_store.write("a", b"x"), "a")
    in_store.is_awaited = True
    delivery = in_store.run(seconds=0.0)
    assert (delivery.settled_end, delivery.error, delivery.events) == (FIRST, "", [])
    in_store.is_awaited = False
    assert in_store.run(seconds=0.0).settled_end == FIRST + 1


def test_an_upload_goes_on_for_as_long_as_nobody_waits(
    in_sandbox: Workbench, cloud: Sandbox
) -> None:
    in_sandbox.settings = {"s3_parts_at_once": 1}
    in_sandbox.add(in_sandbox.write("a", os.urandom(LARGE)), "a")
    cloud.set_fault("s3", operation="UploadPart", delay_millis=1100)
    in_sandbox.is_awaited = True
    awaited = in_sandbox.run(seconds=0.2)
    assert len(only_upload(awaited).parts) < 2
    in_sandbox.is_awaited = False
    delivery = in_sandbox.run(seconds=0.2, uploads=awaited.uploads)
    assert "a" in in_sandbox.list_keys()
    # Whoever goes on with it after a crash need not begin where this one did.
    assert 2 in [len(upload.parts) for told in in_sandbox.told for upload in told.uploads]
    assert delivery.settled_end == FIRST + 1


def test_what_is_left_behind_ends(in_sandbox: Workbench, cloud: Sandbox) -> None:
    for name in ("a", "b"):
        in_sandbox.add(in_sandbox.write(name, b"x"), name)
    cloud.set_fault("s3", operation="PutObject", hang=True, for_calls=1)
    attempt = in_sandbox.attempt()
    thread = threading.Thread(target=attempt.run)
    thread.start()
    wait_until(lambda: bool(attempt.delivery().sent_bytes))
    attempt.leave_behind()
    cloud.clear_faults()
    thread.join()
    assert "b" not in in_sandbox.list_keys()
