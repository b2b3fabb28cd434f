"""Runs the AWS SDKs as processes, and calls them.

A `Driver` is one SDK in its own environment; a `Client` is one client object of that SDK. The
methods of `Client` take and return wire names and plain values. Bytes are base64 only on the pipe
to the driver.

AWS publishes the Java SDK as a jar in its repository: `install_sdks.py` does not install it. Its
tests run when PENSTOCK_TEST_JAVA_SDK is the classpath of its jar, and are skipped otherwise. The
frames that this SDK sends are tested in any case: `tests/wire/golden/java.jsonl` has a recording.
"""

from __future__ import annotations

import base64
import enum
import json
import os
import subprocess
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.support import TIMEOUT_S, Json

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
SDKS = PROJECT / ".sdks"

REJECT_NEW_DATA, OVERWRITE_OLDEST_DATA = 0, 1
FILE, MEMORY = 0, 1

CREATE, APPEND, READ, DESCRIBE = 2, 4, 5, 13


JAVA_SDK_VARIABLE = "PENSTOCK_TEST_JAVA_SDK"
JAVA_SDK = os.environ.get(JAVA_SDK_VARIABLE, "")


class Language(enum.Enum):
    PYTHON = enum.auto()
    NODE = enum.auto()
    JAVA = enum.auto()


@dataclass(frozen=True)
class Sdk:
    """One AWS SDK: its language, its environment below `.sdks/`, and its protocol version."""

    name: str
    language: Language
    environment: str
    protocol: str
    # The exception of a connection whose token is rejected.
    unauthorized_error: str = "ConnectFailedException"

    def command(self) -> list[str]:
        if self.language is Language.JAVA:
            return ["java", "-cp", JAVA_SDK, str(HERE / "driver.java")]
        environment = SDKS / self.environment
        if not (environment / ".installed").is_file():
            pytest.fail(f"{self.name} is not installed: run {HERE / 'install_sdks.py'}")
        if self.language is Language.PYTHON:
            return [str(environment / "bin" / "python"), str(HERE / "driver.py")]
        return ["node", str(HERE / "driver.js"), str(environment)]

    @property
    def knows_1_1(self) -> bool:
        return self.protocol == "1.1.0"


STREAM_MANAGER = Sdk(
    "stream-manager-1.1.2", Language.PYTHON, environment="stream-manager-1.1.2", protocol="1.1.0"
)
GREENGRASSSDK_1_6 = Sdk(
    "greengrasssdk-1.6.1", Language.PYTHON, environment="greengrasssdk-1.6.1", protocol="1.1.0"
)
GREENGRASSSDK_1_5 = Sdk(
    "greengrasssdk-1.5.0", Language.PYTHON, environment="greengrasssdk-1.5.0", protocol="1.0.0"
)
NODE = Sdk("aws-greengrass-core-sdk-1.7.0", Language.NODE, environment="node", protocol="1.1.0")
JAVA = Sdk(
    "java",
    Language.JAVA,
    environment="",
    protocol="1.1.0",
    unauthorized_error="UnauthorizedException",
)
ALL_SDKS = [STREAM_MANAGER, GREENGRASSSDK_1_6, GREENGRASSSDK_1_5, NODE, JAVA]
OLDER_SDKS = {GREENGRASSSDK_1_6, GREENGRASSSDK_1_5}
AVAILABLE_SDKS = [sdk for sdk in ALL_SDKS if sdk is not JAVA or JAVA_SDK]


def for_sdks(*sdks: Sdk) -> pytest.MarkDecorator:
    """Narrows the `sdk` fixture, and with it `client`, to some of the SDKs."""
    return pytest.mark.parametrize("sdk", as_params(sdks), indirect=True)


def as_params(sdks: Iterable[Sdk]) -> list[ParameterSet]:
    """Parameters for SDKs. Only `make test-full` runs the versions that are not the newest."""
    return [
        pytest.param(sdk, id=sdk.name, marks=[pytest.mark.full] if sdk in OLDER_SDKS else [])
        for sdk in sdks
    ]


for_1_1_sdks = for_sdks(*(sdk for sdk in ALL_SDKS if sdk.knows_1_1))
for_1_0_sdks = for_sdks(*(sdk for sdk in ALL_SDKS if not sdk.knows_1_1))
for_sdks_except_node = for_sdks(*(sdk for sdk in ALL_SDKS if sdk is not NODE))
for_python_sdks = for_sdks(*(sdk for sdk in ALL_SDKS if sdk.language is Language.PYTHON))


class SdkError(Exception):
    """An exception of an SDK, with its class, message and status."""

    def __init__(self, error: str, message: str, status: str | None) -> None:
        super().__init__(f"{error}: {message} ({status})")
        self.error = error
        self.message = message
        self.status = status


@contextmanager
def refused(error: str, *texts: str) -> Iterator[None]:
    """Expects an SDK to raise this class, with all texts in the message."""
    with pytest.raises(SdkError) as caught:
        yield
    assert caught.value.error == error, str(caught.value)
    for text in texts:
        assert text in caught.value.message


def unique_name() -> str:
    return f"stream-{uuid.uuid4().hex}"


def definition(name: str, **fields: Any) -> Json:
    return {"name": name, "strategyOnFull": REJECT_NEW_DATA, **fields}


def contains(whole: Any, part: Any) -> bool:
    """Whether `whole` equals `part` except for additional keys."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and contains(whole[key], value) for key, value in part.items()
        )
    if isinstance(part, list):
        return (
            isinstance(whole, list)
            and len(whole) == len(part)
            and all(contains(a, b) for a, b in zip(whole, part, strict=True))
        )
    return bool(whole == part)


class Driver:
    """One SDK in a process of its own. Any thread may call it; calls run concurrently."""

    def __init__(self, sdk: Sdk) -> None:
        self.sdk = sdk
        self._process = subprocess.Popen(
            sdk.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._writing = threading.Lock()
        self._pending: dict[int, Future[Any]] = {}
        self._calls = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, client: str, call: str, **args: Any) -> Future[Any]:
        """Starts a call; the future gets the SDK's result, or an SdkError."""
        future: Future[Any] = Future()
        stdin = self._process.stdin
        assert stdin is not None
        with self._writing:
            self._calls += 1
            self._pending[self._calls] = future
            command = {"id": self._calls, "client": client, "call": call, "args": args}
            stdin.write(json.dumps(command, default=_bytes_to_json) + "\n")
            stdin.flush()
        return future

    def is_alive(self) -> bool:
        return self._process.poll() is None and self._reader.is_alive()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line, object_hook=_bytes_from_json)
            future = self._pending.pop(answer["id"])
            if "error" in answer:
                future.set_exception(SdkError(answer["error"], answer["message"], answer["status"]))
            else:
                future.set_result(answer["result"])
        for future in self._pending.values():
            future.set_exception(
                RuntimeError(f"the driver of {self.sdk.name} ended; stderr has its error")
            )


def _bytes_to_json(value: object) -> Json:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"{value!r} is not JSON")


def _bytes_from_json(value: Json) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


class Client:
    """One client object of an SDK, connected to a broker."""

    def __init__(self, driver: Driver, port: int, token: str | None) -> None:
        self.sdk = driver.sdk
        self._driver = driver
        self._name = uuid.uuid4().hex
        self._call("connect", port=port, token=token)

    def start(self, call: str, **args: Any) -> Future[Any]:
        return self._driver.start(self._name, call, **args)

    def _call(self, call: str, **args: Any) -> Any:
        return self.start(call, **args).result(TIMEOUT_S)

    def create(self, **fields: Any) -> str:
        """Creates a stream, by default with a unique name, and returns the name."""
        wanted = definition(**{"name": unique_name(), **fields})
        self._call("create_message_stream", definition=wanted)
        return str(wanted["name"])

    def update(self, name: str, **fields: Any) -> None:
        self._call("update_message_stream", definition=definition(name, **fields))

    def delete(self, name: str) -> None:
        self._call("delete_message_stream", name=name)

    def append(self, name: str, data: bytes) -> int:
        return int(self._call("append_message", name=name, data=data))

    def read(self, name: str, **options: int) -> list[Json]:
        """Reads with these options; without any, no options object is passed."""
        return list(self.start_read(name, **options).result(TIMEOUT_S))

    def start_read(self, name: str, **options: int) -> Future[Any]:
        if options:
            return self.start("read_messages", name=name, options=options)
        return self.start("read_messages", name=name)

    def list_streams(self) -> list[str]:
        return list(self._call("list_streams"))

    def describe(self, name: str) -> Json:
        return dict(self._call("describe_message_stream", name=name))

    def storage(self, name: str) -> tuple[int, int, int]:
        """Returns the oldest and the newest sequence number, and the total bytes."""
        status = self.describe(name)["storageStatus"]
        return (
            status["oldestSequenceNumber"],
            status["newestSequenceNumber"],
            status["totalBytes"],
        )

    def send(self, operation: int, **body: Any) -> Json:
        """Sends any operation with any body, without the SDK's validation."""
        return dict(self._call("send", operation=operation, body=body))

    def connect_response(self) -> Json:
        return dict(self._call("connect_response"))

    def last_response(self) -> Json:
        """Returns the body of the last response frame."""
        return dict(self._call("last_response"))

    def close(self) -> None:
        self._call("close")
