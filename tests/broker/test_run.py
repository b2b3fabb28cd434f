"""The broker as a process: output, logs and signals."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.discovery import read_address, read_token
from tests.raw_connection import RawConnection
from tests.support import (
    PENSTOCK,
    TIMEOUT_S,
    BrokerProcess,
    append,
    clean_environment,
    create,
    frame,
    wait_until,
)

READY = "Stream Manager reporting the state: RUNNING"


def test_log_has_the_readiness_line_of_the_original(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root", PENSTOCK_HTP_PORT="1") as broker:
        line = next(line for line in broker.log_lines if READY in line)

    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT[\d:.]+Z INFO  broker\.run: {READY}", line)
    assert broker.log_lines[-1].endswith("broker.server: stopped")
    assert "WARN  broker.run: PENSTOCK_HTP_PORT is not a setting" in broker.log_lines[0]


def test_json_log_has_one_object_in_each_line(tmp_path: Path) -> None:
    flags = ("--log-format", "json", "--log-level", "debug")
    with BrokerProcess(tmp_path / "root", *flags) as broker:
        with broker.meet(sdkVersion='a\n"b"\r\n{"level": "forged"}') as peer:
            peer.say(frame(99) + b"\x00\x00\x00\x00\x00")
            peer.take_rest()
        with broker.reach() as peer:
            peer.say(b"GET / HTTP/1.1\r\n\r\n")
            peer.take_rest()

    entries = [json.loads(line) for line in broker.log_lines]
    assert all(entry.keys() == {"time", "level", "logger", "message"} for entry in entries)
    assert {entry["level"] for entry in entries} == {"DEBUG", "INFO", "WARN"}
    assert READY in [entry["message"] for entry in entries]


@pytest.mark.parametrize(
    ("level", "seen", "unseen"),
    [
        ("TRACE", ["DEBUG", "INFO", "WARN"], []),
        ("DEBUG", ["DEBUG", "INFO", "WARN"], []),
        ("INFO", ["INFO", "WARN"], ["DEBUG"]),
        ("WARN", ["WARN"], ["DEBUG", "INFO"]),
        ("ERROR", [], ["DEBUG", "INFO", "WARN"]),
    ],
)
def test_log_level_comes_from_the_environment(
    tmp_path: Path, level: str, seen: list[str], unseen: list[str]
) -> None:
    with BrokerProcess(tmp_path / "root", LOG_LEVEL=level) as broker:
        with broker.connect() as client:
            create(client, "s")
        with broker.reach() as peer:
            peer.say(b"\x09")
            peer.take_rest()

    log = broker.log
    assert [name for name in seen if f" {name} " not in log] == []
    assert [name for name in unseen if f" {name} " in log] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_broker_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    broker = BrokerProcess(tmp_path / "root")
    with broker:
        assert broker.process is not None
        with broker.connect() as client:
            append(client, create(client, "s"), b"x")
        process = broker.process
        process.send_signal(number)

        assert process.wait(TIMEOUT_S) == 0
        broker.process = None

    assert "Traceback" not in broker.log
    assert broker.log_lines[-1].endswith("stopped")


def test_broker_runs_without_standard_streams(tmp_path: Path) -> None:
    root = tmp_path / "root"
    command = shlex.join([str(PENSTOCK), "serve", "--root", str(root), "--port", "0"])
    with subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command} <&- >&- 2>&-"], env=clean_environment()
    ) as broker:
        address = wait_until(lambda: read_address(root))
        assert address is not None
        with RawConnection.open("127.0.0.1", address.port, read_token(root)) as client:
            append(client, create(client, "s"), b"x")
        broker.terminate()
        assert broker.wait(TIMEOUT_S) == 0


def test_second_signal_is_ignored(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        with broker.connect() as client:
            create(client, "s")
        for _ in range(5):
            broker.signal_stop()
        assert broker.process is not None
        assert broker.process.wait(TIMEOUT_S) == 0
        broker.process = None
    wait_until(lambda: broker.log_lines[-1].endswith("stopped"))


# Services


# Services that print their calls. One named "fails" cannot start, "clumsy" cannot stop.
WITH_SERVICES = """
import os
import signal
import sys

from penstock.broker.run import serve
from penstock.settings import Settings
from penstock.errors import SettingError


class Loud:
    def __init__(self, name):
        self.name = name

    async def start(self, broker):
        print(f"{self.name} starts while the broker listens: {broker.port > 0}", flush=True)
        if self.name == "fails":
            raise SettingError("it cannot start")

    async def stop(self):
        print(f"{self.name} stops before the broker", flush=True)
        if self.name == "clumsy":
            raise ValueError("it cannot stop")

    @property
    def ready_message(self):
        if self.name == "quiet":
            return None
        os.kill(os.getpid(), signal.SIGTERM)
        return f"ready message of {self.name}"


root, *names = sys.argv[1:]
try:
    serve(Settings(root=root, port=0), [Loud(name) for name in names])
except SettingError as error:
    print(f"refused: {error}")
"""


def run_with_services(root: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITH_SERVICES, str(root), *names],
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_services_start_and_stop_with_the_broker(tmp_path: Path) -> None:
    finished = run_with_services(tmp_path / "root", "quiet", "loud")

    assert finished.returncode == 0
    first, second, ready, *rest = finished.stdout.splitlines()
    assert [first, second] == [
        "quiet starts while the broker listens: True",
        "loud starts while the broker listens: True",
    ]
    assert re.fullmatch(r"penstock ready 127\.0\.0\.1:\d+", ready)
    assert rest == [
        "ready message of loud",
        "loud stops before the broker",
        "quiet stops before the broker",
    ]
    assert finished.stderr.splitlines()[-1].endswith("broker.server: stopped")


def test_service_that_cannot_start_stops_the_broker(tmp_path: Path) -> None:
    finished = run_with_services(tmp_path / "root", "fails", "never")

    assert finished.stdout.splitlines() == [
        "fails starts while the broker listens: True",
        "refused: it cannot start",
    ]
    assert finished.stderr.splitlines()[-1].endswith("broker.server: stopped")
    assert "RUNNING" not in finished.stderr
    assert not (tmp_path / "root" / "broker.json").exists()


def test_failing_service_does_not_prevent_a_clean_stop(
    tmp_path: Path,
) -> None:
    finished = run_with_services(tmp_path / "root", "quiet", "clumsy", "fails")

    assert finished.stdout.splitlines()[-3:] == [
        "clumsy stops before the broker",
        "quiet stops before the broker",
        "refused: it cannot start",
    ]
    assert "cannot stop Loud" in finished.stderr
    assert finished.stderr.splitlines()[-1].endswith("broker.server: stopped")
