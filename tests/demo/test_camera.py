"""The camera: it writes files, appends tasks, and deletes files. The tests append statuses."""

from __future__ import annotations

import queue
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from penstock import StreamManagerClient
from penstock.demo.camera import (
    BUCKET,
    CAMERA_STREAMS,
    STATUSES,
    TASKS,
    camera_directory,
    run_camera,
)
from penstock.model import (
    EventType,
    S3ExportTaskDefinition,
    Status,
    StatusContext,
    StatusMessage,
)
from penstock.model.json_bytes import Util
from penstock.sandbox.local_sandbox import Sandbox
from tests.demo.background import Lines, in_background, newest
from tests.support import TIMEOUT_S, LocalBroker, wait_until

OFTEN = 0.01
# Only the first picture is taken.
SELDOM = 1000.0


@pytest.fixture(scope="module")
def cloud() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    # A URL escapes the space.
    return tmp_path / "a root"


@pytest.fixture
def client(root: Path) -> Iterator[StreamManagerClient]:
    with LocalBroker(root), StreamManagerClient(root=root) as client:
        yield client


@pytest.fixture
def lines() -> Lines:
    return queue.SimpleQueue()


def camera(
    root: Path, cloud: Sandbox, lines: Lines, seconds_between: float
) -> Callable[[threading.Event], None]:
    return lambda stopping: run_camera(root, stopping, cloud, lines.put, seconds_between, OFTEN)


def tasks(client: StreamManagerClient) -> list[S3ExportTaskDefinition]:
    if TASKS not in client.list_streams():
        return []
    return [
        Util.deserialize_json_bytes_to_obj(message.payload, S3ExportTaskDefinition)
        for message in client.read_all(TASKS)
    ]


def append_status(
    client: StreamManagerClient, task: S3ExportTaskDefinition, status: Status
) -> None:
    message = StatusMessage(
        event_type=EventType.S3Task,
        status=status,
        status_context=StatusContext(s3_export_task_definition=task),
        message="because",
    )
    client.append_message(STATUSES, Util.validate_and_serialize_to_json_bytes(message))


def files(root: Path) -> set[str]:
    return {path.name for path in camera_directory(root).glob("*")}


def test_picture_is_deleted_after_its_upload(
    root: Path, client: StreamManagerClient, cloud: Sandbox, lines: Lines
) -> None:
    with in_background(camera(root, cloud, lines, SELDOM)):
        (task,) = wait_until(lambda: tasks(client))
        (path,) = camera_directory(root).iterdir()
        assert task.input_url == path.as_uri()
        assert ET.parse(path).getroot().tag.endswith("svg")
        assert task.bucket == BUCKET
        assert "!{timestamp:" in task.key
        assert task.user_metadata == {"camera": "turbine-1", "file": path.name}

        append_status(client, task, Status.Warning)
        client.append_message(STATUSES, b"something else")
        append_status(client, task, Status.Success)
        wait_until(lambda: not files(root))

    assert not camera_directory(root).exists()
    assert lines.empty()


def test_pending_files_are_limited_and_some_are_large(
    root: Path, client: StreamManagerClient, cloud: Sandbox, lines: Lines
) -> None:
    with in_background(camera(root, cloud, lines, OFTEN)):
        wait_until(lambda: newest(client, TASKS) == 19)
        found = camera_directory(root).glob("video-*.bin")
        assert {path.stat().st_size for path in found} == {6 * 1024 * 1024}
        append_status(client, tasks(client)[0], Status.Canceled)
        wait_until(lambda: newest(client, TASKS) == 20)

    assert len(files(root)) == 20


def test_camera_pauses_after_failed_uploads(
    root: Path, client: StreamManagerClient, cloud: Sandbox, lines: Lines
) -> None:
    with in_background(camera(root, cloud, lines, OFTEN)):
        wait_until(lambda: newest(client, TASKS) >= 3)
        for task in tasks(client)[:3]:
            append_status(client, task, Status.Failure)

        assert lines.get(timeout=TIMEOUT_S) == (
            "the camera pauses for 600 s after failed uploads: because"
        )
    assert lines.empty()


def test_next_run_keeps_pending_files_and_deletes_others(
    root: Path, client: StreamManagerClient, cloud: Sandbox, lines: Lines
) -> None:
    with in_background(camera(root, cloud, lines, SELDOM)):
        wait_until(lambda: tasks(client))
    (pending,) = files(root)
    for name in ("picture-1.svg", "video-1.bin", "picture-2.svg.part", "of-another-program.svg"):
        (camera_directory(root) / name).touch()

    with in_background(camera(root, cloud, lines, SELDOM)):
        wait_until(lambda: len(tasks(client)) == 2)
        assert len(files(root)) == 3
        assert files(root) > {pending, "of-another-program.svg"}
        append_status(client, tasks(client)[0], Status.Success)
        wait_until(lambda: pending not in files(root))

    assert client.list_streams() == sorted(CAMERA_STREAMS)


def test_deleted_bucket_is_created_again(
    root: Path, client: StreamManagerClient, cloud: Sandbox, lines: Lines
) -> None:
    cloud.create_bucket(BUCKET)
    delete = urllib.request.Request(f"{cloud.url}/{BUCKET}", method="DELETE")
    urllib.request.urlopen(delete, timeout=TIMEOUT_S).close()
    cloud.reset_calls()

    with in_background(camera(root, cloud, lines, SELDOM)):
        wait_until(lambda: tasks(client))

    (call,) = cloud.calls("s3", BUCKET)
    assert (call["operation"], call["outcome"]) == ("CreateBucket", "ok")


def test_pictures_are_taken_while_the_cloud_is_unavailable(
    root: Path, client: StreamManagerClient, cloud: Sandbox, lines: Lines
) -> None:
    cloud.set_fault("s3", status=503)
    with in_background(camera(root, cloud, lines, OFTEN)):
        wait_until(lambda: len(tasks(client)) >= 2)
        cloud.set_fault("s3", down=True)
        before = len(tasks(client))
        wait_until(lambda: len(tasks(client)) > before)
    cloud.clear_faults()


def test_missing_directory_is_reported(
    root: Path, client: StreamManagerClient, cloud: Sandbox, lines: Lines
) -> None:
    camera_directory(root).touch()

    run_camera(root, threading.Event(), cloud, lines.put)

    assert lines.get_nowait() == (f"the camera cannot create {camera_directory(root)}: File exists")
