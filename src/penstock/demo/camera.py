"""A camera at the first turbine that writes pictures and videos for S3.

The camera writes a file, appends an S3 task for it, and deletes it when the task has ended. So the
directory holds only pending files, and their number is limited.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path

from penstock.client.blocking import StreamManagerClient
from penstock.demo.demo_streams import ensure_stream, keep_connected
from penstock.demo.devices import rotor_angle_at
from penstock.model import (
    ExportDefinition,
    MessageStreamDefinition,
    S3ExportTaskDefinition,
    S3ExportTaskExecutorConfig,
    Status,
    StatusConfig,
    StatusLevel,
    StatusMessage,
    StrategyOnFull,
)
from penstock.model.json_bytes import Util
from penstock.sandbox.client import SandboxClient, SandboxError

TASKS, STATUSES = CAMERA_STREAMS = ("camera", "camera-status")
BUCKET = "wind-farm"
_EXPORT = "to-s3"

# The sandbox stores objects in memory, so keys repeat: pictures are replaced after an hour, videos
# after a week.
_PICTURE_KEY = "pictures/!{timestamp:mm}-!{timestamp:ss}.svg"
_VIDEO_KEY = "videos/!{timestamp:EEEE}.bin"
# Larger than 5 MiB, so that it is uploaded in parts.
_VIDEO_BYTES = 6 * 1024 * 1024
# Every ninth file is a video.
_VIDEO_EVERY = 9

_MAX_PENDING_FILES = 20
_MAX_FAILURES = 3
_PAUSE_SECONDS = 600.0
_PART = ".part"
_FILE_NAME = re.compile(rf"(?:picture-\d+\.svg|video-\d+\.bin)(?:{re.escape(_PART)})?")

_STREAM_SIZE = 1024 * 1024
_FINAL_STATUSES = (Status.Success, Status.Failure, Status.Canceled)


def camera_directory(root: Path) -> Path:
    """A directory next to the root: files in the root must not be uploaded."""
    root = root.resolve()
    return root.parent / f"{root.name}-camera"


def run_camera(
    root: Path,
    stopping: threading.Event,
    cloud: SandboxClient,
    report: Callable[[str], None],
    seconds_between: float = 20.0,
    poll_seconds: float = 1.0,
) -> None:
    """Takes pictures until the event is set. The next run uploads pending files."""
    directory = camera_directory(root)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        report(f"the camera cannot create {directory}: {error.strerror}")
        return
    camera = Camera(directory, cloud, report, seconds_between)
    keep_connected(root, stopping, partial(camera.run, stopping, poll_seconds))
    with contextlib.suppress(OSError):
        directory.rmdir()


class Camera:
    """The camera and its pending files. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        cloud: SandboxClient,
        report: Callable[[str], None],
        seconds_between: float,
    ) -> None:
        self._directory = directory
        self._cloud = cloud
        self._report = report
        self._seconds_between = seconds_between
        # By the URL in the task.
        self._pending: dict[str, Path] = {}
        self._next_status = 0
        self._due = time.monotonic()
        self._files_written = 0
        # Consecutive failed tasks.
        self._failures = 0

    def run(
        self, stopping: threading.Event, poll_seconds: float, client: StreamManagerClient
    ) -> None:
        """Polls for statuses, and takes a picture whenever one is due."""
        for definition in _define_streams():
            ensure_stream(client, definition)
        self._find_pending(client)
        while not stopping.is_set():
            self._handle_statuses(client)
            if time.monotonic() >= self._due:
                # Set first: after an error, the next attempt is at the next due time.
                self._due = time.monotonic() + self._seconds_between
                self._take_picture(client)
            stopping.wait(poll_seconds)

    def _find_pending(self, client: StreamManagerClient) -> None:
        """Finds the files of tasks that are not exported, and deletes all other files."""
        statuses = client.describe_message_stream(TASKS).export_statuses
        done = {it.export_config_identifier: it.last_exported_sequence_number for it in statuses}
        urls = set()
        for message in client.read_all(TASKS, done.get(_EXPORT, -1) + 1):
            with contextlib.suppress(ValueError):
                task = Util.deserialize_json_bytes_to_obj(message.payload, S3ExportTaskDefinition)
                urls.add(task.input_url)
        self._pending.clear()
        for path in self._directory.iterdir():
            if path.as_uri() in urls:
                self._pending[path.as_uri()] = path
            elif _FILE_NAME.fullmatch(path.name):
                path.unlink()
        self._next_status = 0

    def _handle_statuses(self, client: StreamManagerClient) -> None:
        for message in client.read_all(STATUSES, self._next_status):
            self._next_status = message.sequence_number + 1
            with contextlib.suppress(ValueError):
                self._handle_status(
                    Util.deserialize_json_bytes_to_obj(message.payload, StatusMessage)
                )

    def _handle_status(self, status: StatusMessage) -> None:
        context = status.status_context
        task = context.s3_export_task_definition if context is not None else None
        if task is None or status.status not in _FINAL_STATUSES:
            return
        path = self._pending.pop(task.input_url, None)
        if path is None:
            return
        path.unlink(missing_ok=True)
        if status.status is not Status.Failure:
            self._failures = 0
            return
        self._failures += 1
        if self._failures == _MAX_FAILURES:
            # The directory may not be allowed for uploads.
            self._failures = 0
            self._due = time.monotonic() + _PAUSE_SECONDS
            self._report(
                f"the camera pauses for {_PAUSE_SECONDS:g} s after failed uploads: {status.message}"
            )

    def _take_picture(self, client: StreamManagerClient) -> None:
        if len(self._pending) >= _MAX_PENDING_FILES:
            self._find_pending(client)
        if len(self._pending) >= _MAX_PENDING_FILES:
            return
        # Before each picture, because a restarted sandbox has no buckets. The camera also takes
        # pictures while the cloud is unavailable.
        with contextlib.suppress(OSError, HTTPException, SandboxError):
            self._cloud.create_bucket(BUCKET)
        self._files_written += 1
        is_video = self._files_written % _VIDEO_EVERY == 0
        path = self._write_file(is_video)
        task = S3ExportTaskDefinition(
            input_url=path.as_uri(),
            bucket=BUCKET,
            key=_VIDEO_KEY if is_video else _PICTURE_KEY,
            user_metadata={"camera": "turbine-1", "file": path.name},
        )
        client.append_message(TASKS, Util.validate_and_serialize_to_json_bytes(task))
        self._pending[task.input_url] = path

    def _write_file(self, is_video: bool) -> Path:
        now = time.time()
        name = f"video-{now * 1000:.0f}.bin" if is_video else f"picture-{now * 1000:.0f}.svg"
        content = random.randbytes(_VIDEO_BYTES) if is_video else _draw_turbine(now)
        path = self._directory / name
        # Renamed when complete: a file must not change after its task was appended.
        part = path.with_name(name + _PART)
        part.write_bytes(content)
        return part.rename(path)


def _draw_turbine(now: float) -> bytes:
    """An SVG image of the turbine at this time."""
    degrees = math.degrees(rotor_angle_at(now))
    blades = "".join(
        f'<path d="M60 50V8" transform="rotate({degrees + turn:.0f} 60 50)"/>'
        for turn in (0, 120, 240)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 120" stroke="#555">'
        f'<path d="M60 50V115"/>{blades}</svg>\n'
    ).encode()


def _define_streams() -> tuple[MessageStreamDefinition, MessageStreamDefinition]:
    """Defines the status stream first, because the task stream refers to it."""
    config = StatusConfig(status_level=StatusLevel.INFO, status_stream_name=STATUSES)
    exports = [S3ExportTaskExecutorConfig(_EXPORT, status_config=config)]
    return (
        _define_stream(STATUSES, ExportDefinition()),
        _define_stream(TASKS, ExportDefinition(s3_task_executor=exports)),
    )


def _define_stream(name: str, exports: ExportDefinition) -> MessageStreamDefinition:
    return MessageStreamDefinition(
        name=name,
        max_size=_STREAM_SIZE,
        stream_segment_size=_STREAM_SIZE // 8,
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        export_definition=exports,
    )
