"""Drives one of the AWS Python SDKs: reads a JSON command per line, writes a JSON answer per line.

    {"id": 1, "call": "connect", "client": "c1", "args": {"port": 8088, "token": "t"}}
    {"id": 2, "call": "append_message", "client": "c1", "args": {"name": "S", "data": BYTES}}

    {"id": 2, "result": 0}
    {"id": 2, "error": "ResourceNotFoundException", "message": "...", "status": "ResourceNotFound"}

BYTES is {"base64": "..."}. Each command runs in a thread of its own, so that a waiting call blocks
no others. Answers are in the order in which the calls end. The script runs in the environment of
the SDK, and imports only the SDK and the standard library.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import collections.abc
import importlib
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


def find_sdk() -> ModuleType:
    try:
        return importlib.import_module("stream_manager")
    except ModuleNotFoundError:
        return importlib.import_module("greengrasssdk.stream_manager")


def restore_apis_of_python_3_9() -> None:
    """Restores APIs that greengrasssdk 1.5.0 and its cbor2 need, and Python 3.10 removed.

    The SDK passes `loop=` to two asyncio functions. It is always the running loop, so that it can
    be ignored. Its cbor2 imports `Mapping` from `collections`.
    """

    def without_loop(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("loop", None)
            return function(*args, **kwargs)

        return call

    for name in ("open_connection", "wait_for"):
        setattr(asyncio, name, without_loop(getattr(asyncio, name)))
    for name in collections.abc.__all__:
        setattr(collections, name, getattr(collections.abc, name))


restore_apis_of_python_3_9()
sdk = find_sdk()
model = importlib.import_module(f"{sdk.__name__}.data")
cbor2 = importlib.import_module("cbor2")
try:
    internals = importlib.import_module(f"{sdk.__name__}.utilinternal").UtilInternal
except ModuleNotFoundError:  # greengrasssdk 1.5.0 has a single class
    internals = importlib.import_module(f"{sdk.__name__}.util").Util

TRACE = 5
numbers = itertools.count()
LOG_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


class Observer(logging.Handler):
    """Records received frames from the SDK's trace log, so that the SDK stays unmodified."""

    def __init__(self) -> None:
        super().__init__(TRACE)
        self.connect_response: Any = None
        self.frame: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        for argument in record.args or ():
            if isinstance(argument, model.ConnectResponse):
                self.connect_response = argument
            elif isinstance(argument, model.MessageFrame):
                self.frame = argument


class Session:
    """One SDK client and its observer."""

    def __init__(self, port: int, token: str | None) -> None:
        self.observer = Observer()
        # A logger of its own, so that the observer sees only this client.
        logger = logging.getLogger(f"StreamManagerClient.{next(numbers)}")
        logger.setLevel(TRACE)
        logger.propagate = False
        logger.addHandler(self.observer)
        to_stderr = logging.StreamHandler(sys.stderr)
        to_stderr.setLevel(logging.WARNING)
        to_stderr.setFormatter(LOG_FORMAT)
        logger.addHandler(to_stderr)
        os.environ["STREAM_MANAGER_SERVER_PORT"] = str(port)
        if token is None:
            os.environ.pop("AWS_CONTAINER_AUTHORIZATION_TOKEN", None)
        else:
            os.environ["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = token
        try:
            self.client = sdk.StreamManagerClient(logger=logger)
        except sdk.ConnectFailedException as error:
            # The SDK only logs the status.
            if self.observer.connect_response is not None:
                error.status = self.observer.connect_response.status
            raise

    def create_message_stream(self, definition: dict[str, Any]) -> None:
        self.client.create_message_stream(model.MessageStreamDefinition.from_dict(definition))

    def update_message_stream(self, definition: dict[str, Any]) -> None:
        self.client.update_message_stream(model.MessageStreamDefinition.from_dict(definition))

    def delete_message_stream(self, name: str) -> None:
        self.client.delete_message_stream(name)

    def append_message(self, name: str, data: bytes) -> Any:
        return self.client.append_message(name, data)

    def append_repeatedly(self, name: str, data: bytes, count: int) -> dict[str, Any]:
        numbers: list[int] = []
        millis: list[float] = []
        for _ in range(count):
            start = time.monotonic()
            numbers.append(self.client.append_message(name, data))
            millis.append((time.monotonic() - start) * 1000)
        return {"numbers": numbers, "millis": millis}

    def read_messages(self, name: str, options: dict[str, Any] | None = None) -> Any:
        if options is None:
            messages = self.client.read_messages(name)
        else:
            messages = self.client.read_messages(name, model.ReadMessagesOptions.from_dict(options))
        return [message.as_dict() for message in messages]

    def list_streams(self) -> Any:
        return self.client.list_streams()

    def describe_message_stream(self, name: str) -> Any:
        return self.client.describe_message_stream(name).as_dict()

    def send(self, operation: int, body: dict[str, Any]) -> Any:
        """Sends any operation number with any body, without the client's validation."""
        body = {"requestId": internals.get_request_id(), **body}
        # The SDK does not validate an object without a validations map.
        request = SimpleNamespace(request_id=body["requestId"], as_dict=lambda: body)
        send_and_receive = self.client._StreamManagerClient__send_and_receive
        response = internals.sync(
            send_and_receive(SimpleNamespace(value=operation), request),
            self.client._StreamManagerClient__loop,
        )
        internals.raise_on_error_response(response)
        return response.as_dict()

    def connect_response(self) -> Any:
        return self.observer.connect_response.as_dict()

    def last_response(self) -> Any:
        return cbor2.loads(self.observer.frame.payload)

    def close(self) -> None:
        self.client.close()


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"base64"}:
            return base64.b64decode(value["base64"])
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def bytes_to_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"{value!r} is not JSON")


class Driver:
    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.writing = threading.Lock()
        # The SDK reads port and token from the environment, which all clients share.
        self.connecting = threading.Lock()

    def run(self, client: str, call: str, args: dict[str, Any]) -> Any:
        if call == "connect":
            with self.connecting:
                self.sessions[client] = Session(**args)
            return None
        return getattr(self.sessions[client], call)(**args)

    def answer(self, command: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": command["id"]}
        try:
            args = from_json(command.get("args", {}))
            answer["result"] = self.run(command["client"], command["call"], args)
        except Exception as error:  # noqa: BLE001 - any error of the SDK is an answer
            status = getattr(error, "status", None)
            answer["error"] = type(error).__name__
            answer["message"] = str(error)
            answer["status"] = getattr(status, "name", status)
        line = json.dumps(answer, default=bytes_to_json)
        with self.writing:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def main() -> None:
    driver = Driver()
    for line in sys.stdin:
        threading.Thread(target=driver.answer, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
