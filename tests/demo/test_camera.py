"""The camera: files come, are asked to be uploaded, and go. The test tells their statuses."""

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
from tests.demo.beside import Lines, beside, newest
from tests.support import TIMEOUT_S, LocalBroker, wait_until

OFTEN = 0.01
# Only the one that is taken at the start.
SELDOM = 1000.0


@pytest.fixture(scope="module")
def cloud() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    # What is in a URL by another spelling.
    return tmp_path / "a root"


@pytest.fixture
def client(root: Path) -> Iterator[StreamManagerClient]:
    with LocalBroker(root), StreamManagerClient(root=root) as client:
        yield client


@pytest.fixture
def told() -> Lines:
    return queue.SimpleQueue()


def camera(
    root: Path, cloud: Sandbox, told: Lines, seconds_between: float
) -> Callable[[threading.Event], None]:
    return lambda is_over: run_camera(root, is_over, cloud, told.put, seconds_between, OFTEN)


def tasks(client: StreamManagerClient) -> list[S3ExportTaskDefinition]:
    if TASKS not in client.list_streams():
        return []
    return [
        Util.deserialize_json_bytes_to_obj(message.payload, S3ExportTaskDefinition)
        for message in client.read_all(TASKS)
    ]


def tell(client: StreamManagerClient, task: S3ExportTaskDefinition, status: Status) -> None:
    message = StatusMessage(
        event_type=EventType.S3Task,
        status=status,
        status_context=StatusContext(s3_export_task_definition=task),
        message="because",
    )
    client.append_message(STATUSES, Util.validate_and_serialize_to_json_bytes(message))


def files(root: Path) -> set[str]:
    return {path.name for path in camera_directory(root).glob("*")}


def test_a_picture_is_there_until_it_is_uploaded(
    root: Path, client: StreamManagerClient, cloud: Sandbox, told: Lines
) -> None:
    with beside(camera(root, cloud, told, SELDOM)):
        (task,) = wait_until(lambda: tasks(client))
        (path,) = camera_directory(root).iterdir()
        assert task.input_url == path.as_uri()
        assert ET.parse(path).getroot().tag.endswith("svg")
        assert task.bucket == BUCKET
        assert "!{timestamp:" in task.key
        assert task.user_metadata == {"camera": "turbine-1", "file": path.name}

        tell(client, task, Status.Warning)
        client.append_message(STATUSES, b"something else")
        tell(client, task, Status.Success)
        wait_until(lambda: not files(root))

    assert not camera_directory(root).exists()
    assert told.empty()


def test_files_wait_in_no_great_number_and_some_of_them_are_large(
    root: Path, client: StreamManagerClient, cloud: Sandbox, told: Lines
) -> None:
    with beside(camera(root, cloud, told, OFTEN)):
        wait_until(lambda: newest(client, TASKS) == 19)
        found = camera_directory(root).glob("video-*.bin")
        assert {path.stat().st_size for path in found} == {6 * 1024 * 1024}
        tell(client, tasks(client)[0], Status.Canceled)
        wait_until(lambda: newest(client, TASKS) == 20)

    assert len(files(root)) == 20


def test_what_cannot_be_uploaded_is_told_once_and_it_rests(
    root: Path, client: StreamManagerClient, cloud: Sandbox, told: Lines
) -> None:
    with beside(camera(root, cloud, told, OFTEN)):
        wait_until(lambda: newest(client, TASKS) >= 3)
        for task in tasks(client)[:3]:
            tell(client, task, Status.Failure)

        assert told.get(timeout=TIMEOUT_S) == "no pictures for 600 s: because"
    assert told.empty()


def test_the_next_run_keeps_what_waits_and_clears_away_the_rest(
    root: Path, client: StreamManagerClient, cloud: Sandbox, told: Lines
) -> None:
    with beside(camera(root, cloud, told, SELDOM)):
        wait_until(lambda: tasks(client))
    (waits,) = files(root)
    for name in ("picture-1.svg", "video-1.bin", "picture-2.svg.part", "of-somebody-else.svg"):
        (camera_directory(root) / name).touch()

    with beside(camera(root, cloud, told, SELDOM)):
        wait_until(lambda: len(tasks(client)) == 2)
        assert len(files(root)) == 3
        assert files(root) > {waits, "of-somebody-else.svg"}
        tell(client, tasks(client)[0], Status.Success)
        wait_until(lambda: waits not in files(root))

    assert client.list_streams() == sorted(CAMERA_STREAMS)


def test_a_bucket_that_is_gone_is_made_again(
    root: Path, client: StreamManagerClient, cloud: Sandbox, told: Lines
) -> None:
    cloud.create_bucket(BUCKET)
    delete = urllib.request.Request(f"{cloud.url}/{BUCKET}", method="DELETE")
    urllib.request.urlopen(delete, timeout=TIMEOUT_S).close()
    cloud.reset_calls()

    with beside(camera(root, cloud, told, SELDOM)):
        wait_until(lambda: tasks(client))

    (call,) = cloud.calls("s3", BUCKET)
    assert (call["operation"], call["outcome"]) == ("CreateBucket", "ok")


def test_pictures_are_taken_while_the_cloud_is_out_of_reach(
    root: Path, client: StreamManagerClient, cloud: Sandbox, told: Lines
) -> None:
    cloud.set_fault("s3", status=503)
    with beside(camera(root, cloud, told, OFTEN)):
        wait_until(lambda: len(tasks(client)) >= 2)
        cloud.set_fault("s3", down=True)
        before = len(tasks(client))
        wait_until(lambda: len(tasks(client)) > before)
    cloud.clear_faults()


def test_without_a_directory_there_are_no_pictures(
    root: Path, client: StreamManagerClient, cloud: Sandbox, told: Lines
) -> None:
    camera_directory(root).touch()

    run_camera(root, threading.Event(), cloud, told.put)

    assert told.get_nowait() == (f"no pictures are taken: {camera_directory(root)}: File exists")
