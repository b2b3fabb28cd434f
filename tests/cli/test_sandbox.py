"""`penstock sandbox`: its output, its options and its end."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import urllib.parse
from collections.abc import Iterator

import pytest

from penstock.cli.main import WRONG_USAGE
from penstock.sandbox.client import SandboxClient
from tests.cli.command import penstock
from tests.support import PENSTOCK, TIMEOUT_S, clean_environment, drain


class Running:
    """A running `penstock sandbox`."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [str(PENSTOCK), "sandbox", "--port", "0", *flags],
            env=clean_environment(PYTHONUNBUFFERED="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines: queue.SimpleQueue[str] = drain(self.process.stdout)
        ready = re.fullmatch(r"penstock sandbox ready (http://127\.0\.0\.1:\d+)\n", self.line())
        assert ready is not None
        self.client = SandboxClient(ready[1])

    def line(self) -> str:
        return self.lines.get(timeout=TIMEOUT_S)

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, errors


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[Running]:
    sandbox = Running(*getattr(request, "param", ()))
    yield sandbox
    if sandbox.process.poll() is None:
        sandbox.process.kill()
    sandbox.process.wait()


@pytest.mark.parametrize(
    "sandbox",
    [("--kinesis-stream", "turbines:3", "--kinesis-stream", "mast", "--bucket", "windfarm")],
    indirect=True,
)
def test_sandbox_answers_once_ready_and_prints_variables(sandbox: Running) -> None:
    assert sandbox.client.is_healthy()
    assert sandbox.client.names("kinesis") == ["mast", "turbines"]
    shown = ""
    while "Ctrl-C" not in shown:
        shown += sandbox.line()
    assert f"export AWS_ENDPOINT_URL={sandbox.client.url}\n" in shown
    assert f"curl -X DELETE {sandbox.client.url}/_sandbox/faults" in shown

    assert sandbox.end(signal.SIGINT) == (0, "")
    assert not sandbox.client.is_healthy()


@pytest.mark.parametrize("sandbox", [("--json",)], indirect=True)
def test_json_is_one_line(sandbox: Running) -> None:
    printed = json.loads(sandbox.line())

    assert printed == {"url": sandbox.client.url, "variables": sandbox.client.variables}
    port = str(urllib.parse.urlsplit(sandbox.client.url).port)
    taken = penstock("sandbox", "--port", port)
    assert (taken.code, taken.output) == (1, "")
    assert taken.error_lines == [f"penstock: cannot listen on port {port}: Address already in use"]
    assert sandbox.end(signal.SIGTERM) == (0, "")


@pytest.mark.parametrize("text", ["turbines:0", "turbines:many", "a b", ":2"])
def test_malformed_stream_is_rejected(text: str) -> None:
    finished = penstock("sandbox", "--kinesis-stream", text)

    assert finished.code == WRONG_USAGE
    assert "is not NAME or NAME:SHARDS" in finished.error


def test_invalid_bucket_name_fails() -> None:
    finished = penstock("sandbox", "--port", "0", "--bucket", "x")

    assert finished.code == 1
    assert finished.error_lines == ["penstock: bucket 'x': InvalidBucketName"]
