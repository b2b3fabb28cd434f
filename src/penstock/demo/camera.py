"""A camera at the first turbine: pictures, and now and then a video, as files for S3.

A file is written, a task to upload it is appended, and when its status says what became of it, it
is deleted. So what lies in the directory is what waits: never more than a few files, however long
nothing is uploaded.
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

# The sandbox keeps objects in memory. So the keys come back: a picture takes the place of one of
# an hour ago, a video that of a week ago.
_PICTURE_KEY = "pictures/!{timestamp:mm}-!{timestamp:ss}.svg"
_VIDEO_KEY = "videos/!{timestamp:EEEE}.bin"
# In parts: one call takes 5 MiB at most.
_VIDEO_BYTES = 6 * 1024 * 1024
# Every so many files.
_VIDEO_EVERY = 9

_MAX_WAITING = 20
_MAX_FAILURES = 3
_REST_SECONDS = 600.0
_PART = ".part"
_FILE_NAME = re.compile(rf"(?:picture-\d+\.svg|video-\d+\.bin)(?:{re.escape(_PART)})?")

_STREAM_SIZE = 1024 * 1024
_ENDS = (Status.Success, Status.Failure, Status.Canceled)


def camera_directory(root: Path) -> Path:
    """Beside the broker's directory: nothing below that one is uploaded but channels."""
    root = root.resolve()
    return root.parent / f"{root.name}-camera"


def run_camera(
    root: Path,
    is_over: threading.Event,
    cloud: SandboxClient,
    tell: Callable[[str], None],
    seconds_between: float = 20.0,
    look_seconds: float = 1.0,
) -> None:
    """Takes pictures until it is over; those that wait then are uploaded by the next run."""
    directory = camera_directory(root)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        tell(f"no pictures are taken: {directory}: {error.strerror}")
        return
    camera = Camera(directory, cloud, tell, seconds_between)
    keep_connected(root, is_over, partial(camera.run, is_over, look_seconds))
    with contextlib.suppress(OSError):
        directory.rmdir()


class Camera:
    """Its directory and the files in it, whose tasks wait. For one thread."""

    def __init__(
        self,
        directory: Path,
        cloud: SandboxClient,
        tell: Callable[[str], None],
        seconds_between: float,
    ) -> None:
        self._directory = directory
        self._cloud = cloud
        self._tell = tell
        self._seconds_between = seconds_between
        # By the URL in its task.
        self._waiting: dict[str, Path] = {}
        self._next_status = 0
        self._due = time.monotonic()
        self._taken = 0
        # How many tasks failed since one succeeded.
        self._failures = 0

    def run(
        self, is_over: threading.Event, look_seconds: float, client: StreamManagerClient
    ) -> None:
        """Looks for statuses so often, and takes a picture whenever one is due."""
        for definition in _define_streams():
            ensure_stream(client, definition)
        self._find_waiting(client)
        while not is_over.is_set():
            self._take_statuses(client)
            if time.monotonic() >= self._due:
                # First: what goes wrong is not tried again before the next one is due.
                self._due = time.monotonic() + self._seconds_between
                self._take_picture(client)
            is_over.wait(look_seconds)

    def _find_waiting(self, client: StreamManagerClient) -> None:
        """The files whose tasks are still to be carried out; the others have no use any more."""
        statuses = client.describe_message_stream(TASKS).export_statuses
        done = {it.export_config_identifier: it.last_exported_sequence_number for it in statuses}
        urls = set()
        for message in client.read_all(TASKS, done.get(_EXPORT, -1) + 1):
            with contextlib.suppress(ValueError):
                task = Util.deserialize_json_bytes_to_obj(message.payload, S3ExportTaskDefinition)
                urls.add(task.input_url)
        self._waiting.clear()
        for path in self._directory.iterdir():
            if path.as_uri() in urls:
                self._waiting[path.as_uri()] = path
            elif _FILE_NAME.fullmatch(path.name):
                path.unlink()
        self._next_status = 0

    def _take_statuses(self, client: StreamManagerClient) -> None:
        for message in client.read_all(STATUSES, self._next_status):
            self._next_status = message.sequence_number + 1
            with contextlib.suppress(ValueError):
                self._take_status(
                    Util.deserialize_json_bytes_to_obj(message.payload, StatusMessage)
                )

    def _take_status(self, status: StatusMessage) -> None:
        context = status.status_context
        task = context.s3_export_task_definition if context is not None else None
        if task is None or status.status not in _ENDS:
            return
        path = self._waiting.pop(task.input_url, None)
        if path is None:
            return
        path.unlink(missing_ok=True)
        if status.status is not Status.Failure:
            self._failures = 0
            return
        self._failures += 1
        if self._failures == _MAX_FAILURES:
            # The directory may be none that files may be uploaded from.
            self._failures = 0
            self._due = time.monotonic() + _REST_SECONDS
            self._tell(f"no pictures for {_REST_SECONDS:g} s: {status.message}")

    def _take_picture(self, client: StreamManagerClient) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._find_waiting(client)
        if len(self._waiting) >= _MAX_WAITING:
            return
        # Each time: a sandbox that was started again has forgotten it. What is out of reach is
        # no reason to take no picture.
        with contextlib.suppress(OSError, HTTPException, SandboxError):
            self._cloud.create_bucket(BUCKET)
        self._taken += 1
        is_video = self._taken % _VIDEO_EVERY == 0
        path = self._write_file(is_video)
        task = S3ExportTaskDefinition(
            input_url=path.as_uri(),
            bucket=BUCKET,
            key=_VIDEO_KEY if is_video else _PICTURE_KEY,
            user_metadata={"camera": "turbine-1", "file": path.name},
        )
        client.append_message(TASKS, Util.validate_and_serialize_to_json_bytes(task))
        self._waiting[task.input_url] = path

    def _write_file(self, is_video: bool) -> Path:
        now = time.time()
        name = f"video-{now * 1000:.0f}.bin" if is_video else f"picture-{now * 1000:.0f}.svg"
        content = random.randbytes(_VIDEO_BYTES) if is_video else _draw_turbine(now)
        path = self._directory / name
        # A file must not change any more once its task is there.
        part = path.with_name(name + _PART)
        part.write_bytes(content)
        return part.rename(path)


def _draw_turbine(now: float) -> bytes:
    """An SVG image of the turbine, with its rotor as it stands at this time."""
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
    """The one for statuses first: it has to be there when the other names it."""
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
