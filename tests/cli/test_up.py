"""`penstock up`: a broker and what belongs to it, with one command and one end.

The pipeline is left out where it is not needed: it takes Spark seconds to start.
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
def _hears_hangups() -> Iterator[None]:
    """Whoever runs the tests with nohup has made all that they start deaf to SIGHUP."""
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
    """Starts the command, on an own PYTHONPATH, and ends what a failed test leaves behind."""
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


def is_gone(pid: int) -> bool:
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
def test_demo_devices_append_until_a_signal_ends_them_and_the_broker(
    demo: Up, number: signal.Signals
) -> None:
    shown = demo.read_until("Ctrl-C")
    assert f'env --root {shlex.quote(str(demo.root))})"' in shown
    assert "turbine-1, turbine-2, turbine-3, weather-mast" in shown
    wait_until(lambda: appended_to(demo, "turbine-1") >= 3)
    with demo.connect() as client:
        (message,) = read(client, "turbine-1")
        assert b'"windSpeed": ' in message["payload"]
        assert len(client.call(Operation.ListStreams)["streams"]) == len(STREAMS)
    broker = demo.broker_pid
    assert not is_gone(broker)

    demo.process.send_signal(number)
    code, said = demo.end()

    assert code == 0
    assert "Traceback" not in said
    assert "stopped" in said.splitlines()[-1]
    assert is_gone(broker)


def test_with_nohup_it_outlives_its_terminal(start: Callable[..., Up]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    up = start("--no-pipeline", "--demo")
    up.read_until("Ctrl-C")

    up.process.send_signal(signal.SIGHUP)

    before = appended_to(up, "turbine-1")
    # That takes it longer than to notice a signal.
    wait_until(lambda: appended_to(up, "turbine-1") >= before + 3)
    up.process.terminate()
    assert up.end()[0] == 0


def test_a_signal_ends_it_also_while_it_begins_to_wait_for_one(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    now = tmp_path / "now"
    # A condition is locked by whoever waits for it: here a handler that locks it would get stuck.
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
    # Then all threads are started, which it waits for as well.
    wait_until(lambda: appended_to(up, "turbine-1"))

    now.touch()

    assert up.end()[0] == 0


def test_what_it_says_can_be_evaluated(demo: Up) -> None:
    shown = demo.read_until("Ctrl-C")
    command = re.search(r'eval "\$\((.*)\)"', shown)
    assert command is not None

    variables = subprocess.run(
        ["/bin/sh", "-c", command[1]], check=True, capture_output=True, text=True
    ).stdout

    assert f"export STREAM_MANAGER_SERVER_PORT={demo.port}" in variables
    demo.process.terminate()
    assert demo.end()[0] == 0


def test_a_broker_that_is_killed_is_started_again_where_it_was(demo: Up) -> None:
    demo.read_until("Ctrl-C")
    before = wait_until(lambda: appended_to(demo, "turbine-1"))
    with StreamManagerClient(root=demo.root, reconnect_timeout=TIMEOUT_S) as client:
        (first,) = client.read_messages("turbine-1")

        os.kill(demo.broker_pid, signal.SIGKILL)

        # The devices of the demo come back as well as a client does.
        assert client.read_messages("turbine-1") == [first]
        wait_until(lambda: appended_to(demo, "turbine-1") > before)
    shown = demo.read_until("penstock ready")
    assert shown.splitlines()[-1] == f"penstock ready 127.0.0.1:{demo.port}"
    demo.process.terminate()
    code, said = demo.end()
    assert code == 0
    assert "the broker ended (SIGKILL); it starts again in 0." in said
    assert "Traceback" not in said


def test_a_second_run_appends_to_the_streams_of_the_first(root: Path) -> None:
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


def test_without_the_demo_there_are_no_streams(root: Path) -> None:
    up = Up(root, "--no-pipeline", "--port", "0")
    shown = up.read_until("Ctrl-C")

    assert "turbine" not in shown
    with up.connect() as client:
        assert client.call(Operation.ListStreams)["streams"] == []
    up.process.send_signal(signal.SIGINT)
    assert up.end()[0] == 0


def test_a_broker_that_does_not_start_is_told_with_its_reason(root: Path) -> None:
    first = Up(root, "--no-pipeline", "--port", "0")
    first.read_until("Ctrl-C")

    second = Up(root, "--no-pipeline", "--port", "0")
    code, said = second.end()

    assert code == 1
    assert [line for line in said.splitlines() if "another broker" in line]
    assert said.splitlines()[-1] == "penstock: the broker did not start (exit code 1)"
    assert second.lines.get(timeout=TIMEOUT_S) == ""
    first.process.terminate()
    assert first.end()[0] == 0


def test_programs_get_the_variables_in_a_line_of_json(root: Path) -> None:
    up = Up(root, "--no-pipeline", "--json", "--port", "0")
    shown = up.read_until("}")

    variables = json.loads(shown.splitlines()[-1])

    assert variables["STREAM_MANAGER_SERVER_PORT"] == str(up.port)
    assert variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] == (root / "token").read_text().strip()
    up.process.terminate()
    code, said = up.end()
    assert code == 0
    assert all(json.loads(line) for line in said.splitlines() if line.startswith("{"))


def test_a_port_that_is_taken_is_told(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = Up(root, "--no-pipeline", "--port", port).end()

    assert code == 1
    assert [line for line in said.splitlines() if port in line]
    assert said.splitlines()[-1] == "penstock: the broker did not start (exit code 1)"


def test_a_sandbox_that_is_killed_is_started_again_where_it_was(start: Callable[..., Up]) -> None:
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


def test_when_it_is_killed_what_it_runs_ends_cleanly(start: Callable[..., Up], root: Path) -> None:
    up = start("--sandbox", "--no-pipeline")
    up.read_until("Ctrl-C")
    children = up.children()
    assert len(children) == 2

    up.process.kill()

    wait_until(lambda: not any(it.is_running() for it in children))
    assert not (root / "broker.json").exists()


def test_it_goes_on_when_nobody_listens_any_more(root: Path) -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        [str(PENSTOCK), "up", "--root", str(root), "--port", "0", "--no-pipeline"],
        env=clean_environment(),
        stdout=writer,
        stderr=writer,
    ) as up:
        os.close(writer)
        with os.fdopen(reader) as said:
            assert any(line.startswith("penstock ready") for line in said)
        broker = int((root / "lock").read_text())

        os.kill(broker, signal.SIGKILL)

        # A broker that starts empties the file before it writes its own id.
        others = ("", str(broker))
        wait_until(lambda: is_served(root) and (root / "lock").read_text().strip() not in others)
        up.terminate()
        assert up.wait(TIMEOUT_S) == 0


def test_a_sandbox_that_cannot_be_is_told_with_its_reason(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    hide_module(tmp_path, "moto")

    code, said = start("--sandbox", "--no-pipeline").end()

    assert code == 1
    reason, last = said.splitlines()
    assert "pip install 'penstock[sandbox]'" in reason
    assert last == "penstock: the sandbox did not start (exit code 1)"


def test_a_signal_ends_it_also_while_something_does_not_get_ready(
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

    code, said = up.end()
    assert code == 0
    assert "Traceback" not in said
    wait_until(lambda: not any(it.is_running() for it in children))


def test_without_spark_it_runs_and_says_that_nothing_is_exported(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    hide_module(tmp_path, "pyspark")
    up = start()

    assert "exports go to" not in up.read_until("Ctrl-C")

    up.process.terminate()
    code, said = up.end()
    assert code == 0
    assert said.splitlines()[0].endswith(
        " WARN  cli.up: nothing is exported: that needs Spark, pip install 'penstock[spark]'"
    )


def test_a_pipeline_that_dies_is_started_again_while_the_broker_stays(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('this one is broken')\n")
    up = start()
    up.read_until("Ctrl-C")
    broker = up.broker_pid

    said = ""
    while said.count("the pipeline ended (exit code 1); it starts again in") < 2:
        said += up.errors.get(timeout=TIMEOUT_S)

    assert said.count("this one is broken") == 2
    assert up.broker_pid == broker
    with up.connect() as client:
        assert client.call(Operation.ListStreams)["streams"] == []
    up.process.terminate()
    assert up.end()[0] == 0


def test_it_says_where_exports_go(start: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('this one is broken')\n")
    up = start("--sandbox")

    assert "exports go to          http://127.0.0.1:" in up.read_until("Ctrl-C")

    up.process.terminate()
    assert up.end()[0] == 0


def test_a_signal_ends_it_also_while_spark_starts(start: Callable[..., Up]) -> None:
    up = start()
    up.read_until("Ctrl-C")
    wait_until(lambda: up.children_of("java"))
    children = up.children()

    up.process.send_signal(signal.SIGINT)

    code, said = up.end()
    assert code == 0
    assert "Traceback" not in said
    wait_until(lambda: not any(it.is_running() for it in children))
