"""`penstock up`: starts, restarts and stops its programs.

Most tests run without the pipeline, because Spark takes seconds to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from penstock import StreamManagerClient
from penstock.demo.devices import STREAMS
from penstock.discovery import is_served
from penstock.sandbox.client import SandboxClient
from penstock.wire.operations import Operation
from tests.cli.command import hide_module
from tests.cli.up_process import Up
from tests.support import (
    PENSTOCK,
    TIMEOUT_S,
    clean_environment,
    read,
    wait_until,
)


@pytest.fixture(autouse=True)
def _default_sighup() -> Iterator[None]:
    """Restores the default of SIGHUP: under nohup, children of the tests would ignore it."""
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, handler)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a root"


@pytest.fixture
def demo(root: Path) -> Iterator[Up]:
    up = Up(root, "--no-pipeline", "--demo", "--port", "0")
    yield up
    if up.process.poll() is None:
        up.process.kill()
        os.kill(up.broker_pid, signal.SIGKILL)


@pytest.fixture
def start(root: Path, tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts the command with its own PYTHONPATH, and kills processes that a failed test left."""
    started: list[Up] = []

    def begin(*flags: str) -> Up:
        started.append(Up(root, "--port", "0", *flags, PYTHONPATH=str(tmp_path)))
        return started[-1]

    yield begin
    for up in started:
        for process in up.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if up.process.poll() is None:
            up.process.kill()


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def appended_to(up: Up, name: str) -> int:
    with up.connect() as client:
        streams = client.call(Operation.Statistics)["statistics"]["streams"]
    return sum(stream["newestSequenceNumber"] + 1 for stream in streams if stream["name"] == name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_demo_devices_and_broker(demo: Up, number: signal.Signals) -> None:
    shown = demo.read_until("Ctrl-C")
    assert f'env --root {shlex.quote(str(demo.root))})"' in shown
    assert "turbine-1, turbine-2, turbine-3, weather-mast" in shown
    wait_until(lambda: appended_to(demo, "turbine-1") >= 3)
    with demo.connect() as client:
        (message,) = read(client, "turbine-1")
        assert b'"windSpeed": ' in message["payload"]
        assert len(client.call(Operation.ListStreams)["streams"]) == len(STREAMS)
    broker = demo.broker_pid
    assert not has_ended(broker)

    demo.process.send_signal(number)
    code, errors = demo.end()

    assert code == 0
    assert "Traceback" not in errors
    assert "stopped" in errors.splitlines()[-1]
    assert has_ended(broker)


def test_nohup_survives_sighup(start: Callable[..., Up]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    up = start("--no-pipeline", "--demo")
    up.read_until("Ctrl-C")

    up.process.send_signal(signal.SIGHUP)

    before = appended_to(up, "turbine-1")
    # This takes longer than the handling of a signal.
    wait_until(lambda: appended_to(up, "turbine-1") >= before + 3)
    up.process.terminate()
    assert up.end()[0] == 0


def test_signal_at_the_start_of_a_wait_stops_it(start: Callable[..., Up], tmp_path: Path) -> None:
    now = tmp_path / "now"
    # A waiting thread holds the lock of the condition: a handler that needs it would deadlock.
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, signal, sys, threading\n"
        "wait = threading.Condition.wait\n"
        "def signal_and_wait(self, timeout=None):\n"
        "    is_main = threading.current_thread() is threading.main_thread()\n"
        f"    if is_main and pathlib.Path({str(now)!r}).exists():\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    return wait(self, timeout)\n"
        "if 'up' in sys.orig_argv:\n"
        "    threading.Condition.wait = signal_and_wait\n"
    )
    up = start("--no-pipeline", "--demo")
    up.read_until("Ctrl-C")
    # All threads have started then: starting a thread waits on a condition too.
    wait_until(lambda: appended_to(up, "turbine-1"))

    now.touch()

    assert up.end()[0] == 0


def test_printed_env_command_can_be_evaluated(demo: Up) -> None:
    shown = demo.read_until("Ctrl-C")
    command = re.search(r'eval "\$\((.*)\)"', shown)
    assert command is not None

    variables = subprocess.run(
        ["/bin/sh", "-c", command[1]], check=True, capture_output=True, text=True
    ).stdout

    assert f"export STREAM_MANAGER_SERVER_PORT={demo.port}" in variables
    demo.process.terminate()
    assert demo.end()[0] == 0


def test_killed_broker_is_restarted_on_the_same_port(demo: Up) -> None:
    demo.read_until("Ctrl-C")
    before = wait_until(lambda: appended_to(demo, "turbine-1"))
    with StreamManagerClient(root=demo.root, reconnect_timeout=TIMEOUT_S) as client:
        (first,) = client.read_messages("turbine-1")

        os.kill(demo.broker_pid, signal.SIGKILL)

        # Clients and the devices of the demo reconnect.
        assert client.read_messages("turbine-1") == [first]
        wait_until(lambda: appended_to(demo, "turbine-1") > before)
    shown = demo.read_until("penstock ready")
    assert shown.splitlines()[-1] == f"penstock ready 127.0.0.1:{demo.port}"
    demo.process.terminate()
    code, errors = demo.end()
    assert code == 0
    assert "the broker ended (SIGKILL); restarting it in 0." in errors
    assert "Traceback" not in errors


def test_second_run_appends_to_the_same_streams(root: Path) -> None:
    counts = []
    for _ in range(2):
        up = Up(root, "--no-pipeline", "--demo", "--port", "0")
        up.read_until("Ctrl-C")
        before = appended_to(up, "turbine-1")
        wait_until(lambda up=up, before=before: appended_to(up, "turbine-1") > before)  # type: ignore[misc]
        counts.append(before)
        up.process.terminate()
        assert up.end()[0] == 0

    assert counts[1] > counts[0]


def test_no_streams_without_demo(root: Path) -> None:
    up = Up(root, "--no-pipeline", "--port", "0")
    shown = up.read_until("Ctrl-C")

    assert "turbine" not in shown
    with up.connect() as client:
        assert client.call(Operation.ListStreams)["streams"] == []
    up.process.send_signal(signal.SIGINT)
    assert up.end()[0] == 0


def test_broker_that_does_not_start_fails_with_the_reason(root: Path) -> None:
    first = Up(root, "--no-pipeline", "--port", "0")
    first.read_until("Ctrl-C")

    second = Up(root, "--no-pipeline", "--port", "0")
    code, errors = second.end()

    assert code == 1
    assert [line for line in errors.splitlines() if "another broker" in line]
    assert errors.splitlines()[-1] == "penstock: the broker did not start (exit code 1)"
    assert second.lines.get(timeout=TIMEOUT_S) == ""
    first.process.terminate()
    assert first.end()[0] == 0


def test_json_prints_the_variables_on_one_line(root: Path) -> None:
    up = Up(root, "--no-pipeline", "--json", "--port", "0")
    shown = up.read_until("}")

    variables = json.loads(shown.splitlines()[-1])

    assert variables["STREAM_MANAGER_SERVER_PORT"] == str(up.port)
    assert variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] == (root / "token").read_text().strip()
    up.process.terminate()
    code, errors = up.end()
    assert code == 0
    assert all(json.loads(line) for line in errors.splitlines() if line.startswith("{"))


def test_taken_port_fails(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, errors = Up(root, "--no-pipeline", "--port", port).end()

    assert code == 1
    assert [line for line in errors.splitlines() if port in line]
    assert errors.splitlines()[-1] == "penstock: the broker did not start (exit code 1)"


def test_killed_sandbox_is_restarted_on_the_same_port(start: Callable[..., Up]) -> None:
    up = start("--sandbox", "--no-pipeline")
    up.read_until("Ctrl-C")
    (sandbox,) = up.children_of("sandbox")
    (port,) = {it.laddr.port for it in sandbox.net_connections() if it.status == "LISTEN"}
    cloud = SandboxClient(f"http://127.0.0.1:{port}")
    assert cloud.is_healthy()

    sandbox.kill()

    shown = up.read_until("sandbox ready")
    assert shown.splitlines()[-1] == f"penstock sandbox ready {cloud.url}"
    assert cloud.is_healthy()
    children = up.children()
    up.process.terminate()
    assert up.end()[0] == 0
    wait_until(lambda: not any(it.is_running() for it in children))


def test_children_end_cleanly_when_up_is_killed(start: Callable[..., Up], root: Path) -> None:
    up = start("--sandbox", "--no-pipeline")
    up.read_until("Ctrl-C")
    children = up.children()
    assert len(children) == 2

    up.process.kill()

    wait_until(lambda: not any(it.is_running() for it in children))
    assert not (root / "broker.json").exists()


def test_closed_output_pipe_does_not_stop_it(root: Path) -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        [str(PENSTOCK), "up", "--root", str(root), "--port", "0", "--no-pipeline"],
        env=clean_environment(),
        stdout=writer,
        stderr=writer,
    ) as up:
        os.close(writer)
        with os.fdopen(reader) as output:
            assert any(line.startswith("penstock ready") for line in output)
        broker = int((root / "lock").read_text())

        os.kill(broker, signal.SIGKILL)

        # A starting broker truncates the file before it writes its id.
        others = ("", str(broker))
        wait_until(lambda: is_served(root) and (root / "lock").read_text().strip() not in others)
        up.terminate()
        assert up.wait(TIMEOUT_S) == 0


def test_broker_killed_as_soon_as_it_is_ready_is_restarted(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib, signal, sys\n"
        f"killed = pathlib.Path({str(killed)!r})\n"
        "class Output:\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(sys.__stdout__, name)\n"
        "    def write(self, text):\n"
        "        sys.__stdout__.write(text)\n"
        "        sys.__stdout__.flush()\n"
        "        if text.startswith('penstock ready'):\n"
        "            killed.touch()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "if 'serve' in sys.orig_argv and not killed.exists():\n"
        "    sys.stdout = Output()\n"
    )
    up = start("--no-pipeline")

    up.read_until("Ctrl-C")

    assert killed.exists()
    with up.connect() as client:
        client.call(Operation.Statistics)
    up.process.terminate()
    code, errors = up.end()
    assert code == 0
    assert "the broker ended (SIGKILL); restarting it in" in errors


def test_sandbox_that_does_not_start_fails_with_the_reason(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    hide_module(tmp_path, "moto")

    code, errors = start("--sandbox", "--no-pipeline").end()

    assert code == 1
    # The broker may have logged its start meanwhile.
    assert [line for line in errors.splitlines() if "'penstock-streams[sandbox]'" in line]
    assert errors.splitlines()[-1] == "penstock: the sandbox did not start (exit code 1)"


def test_signal_stops_it_while_a_program_is_not_ready(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    begins = tmp_path / "begins"
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if 'sandbox' in sys.orig_argv:\n"
        f"    pathlib.Path({str(begins)!r}).touch()\n"
        "    time.sleep(1000)\n"
    )
    up = start("--sandbox", "--no-pipeline")
    wait_until(begins.exists)
    children = up.children()

    up.process.terminate()

    code, errors = up.end()
    assert code == 0
    assert "Traceback" not in errors
    wait_until(lambda: not any(it.is_running() for it in children))


def test_missing_spark_runs_without_exports(start: Callable[..., Up], tmp_path: Path) -> None:
    hide_module(tmp_path, "pyspark")
    up = start()

    assert "exports go to" not in up.read_until("Ctrl-C")

    up.process.terminate()
    code, errors = up.end()
    assert code == 0
    assert errors.splitlines()[0].endswith(
        " WARN  cli.up: no exports: Spark is missing, pip install 'penstock-streams[spark]'"
    )


def test_dead_pipeline_is_restarted_while_the_broker_keeps_running(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('broken on purpose')\n")
    up = start()
    up.read_until("Ctrl-C")
    broker = up.broker_pid

    errors = ""
    while errors.count("the pipeline ended (exit code 1); restarting it in") < 2:
        errors += up.errors.get(timeout=TIMEOUT_S)

    assert errors.count("broken on purpose") == 2
    assert up.broker_pid == broker
    with up.connect() as client:
        assert client.call(Operation.ListStreams)["streams"] == []
    up.process.terminate()
    assert up.end()[0] == 0


def test_summary_shows_the_destination_of_exports(start: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('broken on purpose')\n")
    up = start("--sandbox")

    assert "exports go to          http://127.0.0.1:" in up.read_until("Ctrl-C")

    up.process.terminate()
    assert up.end()[0] == 0


def test_signal_stops_it_while_spark_starts(start: Callable[..., Up]) -> None:
    up = start()
    up.read_until("Ctrl-C")
    wait_until(lambda: up.children_of("java"))
    children = up.children()

    up.process.send_signal(signal.SIGINT)

    code, errors = up.end()
    assert code == 0
    assert "Traceback" not in errors
    wait_until(lambda: not any(it.is_running() for it in children))
