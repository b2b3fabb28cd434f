"""`penstock pipeline` that fails or is stopped at start."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from penstock.cli.main import FAILED, NOT_ALLOWED, WRONG_USAGE
from tests.cli.command import hide_module, penstock, penstock_process
from tests.exports.programs import PipelineProcess
from tests.support import (
    PENSTOCK,
    TIMEOUT_S,
    BrokerProcess,
    clean_environment,
    drain,
    wait_until,
)


def test_help_shows_the_ready_line_and_options() -> None:
    finished = penstock("pipeline", "--help")

    assert finished.code == 0
    assert "penstock pipeline ready" in finished.output
    for option in ("--broker HOST:PORT", "--master", "--conf KEY=VALUE", "--root DIR"):
        assert option in finished.output


@pytest.mark.parametrize("broker", ["localhost", ":8088", "localhost:", "localhost:port", "[::1]"])
def test_malformed_broker_address_is_rejected(broker: str) -> None:
    finished = penstock("pipeline", "--broker", broker)

    assert finished.code == WRONG_USAGE
    assert finished.error_lines == [f"penstock: --broker is {broker!r}: expected HOST:PORT"]


@pytest.mark.parametrize("setting", ["spark.executor.memory", "=1g", "executor.memory=1g"])
def test_malformed_spark_setting_is_rejected(setting: str) -> None:
    finished = penstock("pipeline", "--conf", setting)

    assert finished.code == WRONG_USAGE
    assert finished.error_lines == [f"penstock: --conf is {setting!r}: expected spark.NAME=VALUE"]


def test_port_out_of_range_is_rejected() -> None:
    finished = penstock_process(
        "pipeline", "--broker", "localhost:65536", AWS_CONTAINER_AUTHORIZATION_TOKEN="t"
    )

    assert finished.code == WRONG_USAGE
    (line,) = finished.error_lines
    assert "65536" in line


def test_missing_spark_fails_with_a_hint(tmp_path: Path) -> None:
    hide_module(tmp_path, "pyspark")

    finished = penstock_process("pipeline", PYTHONPATH=str(tmp_path))

    assert finished.code == FAILED
    (line,) = finished.error_lines
    assert line.startswith("penstock: exports need Spark: pip install 'penstock-streams[spark]' (")


def test_wrong_token_fails_before_spark_starts(broker: BrokerProcess) -> None:
    finished = penstock_process(
        "pipeline",
        *("--broker", f"127.0.0.1:{broker.port}"),
        AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong",
    )

    assert finished.code == NOT_ALLOWED
    assert len(finished.error_lines) == 1


def test_role_without_export_fails_before_spark_starts(
    broker: BrokerProcess,
) -> None:
    token = penstock("tokens", "create", "reads", "--role", "consumer", "--root", str(broker.root))
    assert token.code == 0, token.error

    finished = penstock_process(
        "pipeline",
        *("--broker", f"127.0.0.1:{broker.port}"),
        AWS_CONTAINER_AUTHORIZATION_TOKEN=token.output.strip(),
    )

    assert finished.code == NOT_ALLOWED
    (line,) = finished.error_lines
    assert "CommitExports" in line


def test_unreachable_broker_is_retried_until_a_signal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    process = subprocess.Popen(
        [str(PENSTOCK), "pipeline", "--broker", address],
        env=clean_environment(AWS_CONTAINER_AUTHORIZATION_TOKEN="t"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None

    line = drain(process.stderr).get(timeout=TIMEOUT_S)

    assert address in line
    assert "retrying for 60 s" in line
    process.terminate()
    assert process.wait(TIMEOUT_S) == -signal.SIGTERM


def test_signal_while_spark_starts_leaves_no_process_and_no_file(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    pipeline = PipelineProcess(broker.root, name=tmp_path.name)
    pipeline.launch()
    started = wait_until(lambda: pipeline.children("java", "SparkSubmit"))

    pipeline.send_signal(signal.SIGTERM)

    assert pipeline.wait_for_end() == 0
    wait_until(lambda: not any(process.is_running() for process in started))
    assert list(pipeline.temporary.iterdir()) == []
    assert pipeline.log == ""


def is_mapped(file: str, pid: int) -> bool:
    """Whether a child of the process has mapped the file into memory."""
    with contextlib.suppress(psutil.NoSuchProcess, OSError):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(OSError):
                if file in Path(f"/proc/{child.pid}/maps").read_text():
                    return True
    return False


@pytest.mark.full
def test_archived_classes_are_used_by_the_next_pipeline(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    finished = penstock_process("pipeline", "--archive-classes", XDG_CACHE_HOME=str(tmp_path))
    if "this Java cannot archive classes" in finished.error:
        pytest.skip(finished.error)
    assert finished.code == 0, finished.error
    archive = finished.output.strip().removeprefix("penstock classes ")
    assert [str(path) for path in tmp_path.rglob("classes/*")] == [archive]
    process = subprocess.Popen(
        [str(PENSTOCK), "pipeline", "--root", str(broker.root)],
        env=clean_environment(XDG_CACHE_HOME=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: is_mapped(archive, process.pid))
    process.terminate()
    assert process.wait(TIMEOUT_S) == 0
