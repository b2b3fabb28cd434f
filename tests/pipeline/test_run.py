"""The pipeline as a program, on Spark: how it lives, recovers and ends.

Spark takes long to start: there are two starts for all tests here, and the order counts.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock import StreamManagerClient
from penstock.pipeline.run import first_line
from penstock.sandbox.server import Sandbox
from tests.exports.programs import PipelineProcess, has_exported, status_of
from tests.pipeline.slices import create, new_name
from tests.support import BrokerProcess, running, wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("run") / "root") as process:
        yield process


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def pipeline(broker: BrokerProcess, temporary: Path) -> Iterator[PipelineProcess]:
    """For all tests in turn; the last two end it."""
    process = PipelineProcess(broker.root, TMPDIR=str(temporary))
    process.start()
    yield process
    if process.process is not None:
        process.kill()


@pytest.fixture(scope="module")
def client(broker: BrokerProcess, pipeline: PipelineProcess) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(root=broker.root) as connected:
        yield connected


@pytest.fixture
def stream(client: StreamManagerClient, cloud: Sandbox) -> str:
    name = new_name()
    return create(client, name, cloud.http_url(name))


def wait_until_gone(processes: list[psutil.Process]) -> None:
    assert processes
    wait_until(lambda: not any(it.is_running() for it in processes), f"still there: {processes}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Writing job failed.\nat org.apache.spark", "Writing job failed."),
        ("\n\nsomething", "something"),
        (
            "[FAILED] in latestOffset: Traceback (most recent call last):\n"
            '  File "planning.py", line 1, in latestOffset\n'
            "    plan = self._connected()\n"
            "ConnectionError: nobody is there\n"
            "\n"
            "at org.apache.spark",
            "ConnectionError: nobody is there",
        ),
        ("", "Exception('')"),
        ("x" * 1000, "x" * 500),
    ],
)
def test_of_what_spark_says_one_line_is_told(text: str, line: str) -> None:
    assert first_line(Exception(text)) == line


def test_what_is_appended_is_exported(
    client: StreamManagerClient, cloud: Sandbox, stream: str
) -> None:
    client.append_message(stream, b"one")
    wait_until(lambda: has_exported(client, stream, "to-http", 0))
    client.append_message(stream, b"two")
    wait_until(lambda: has_exported(client, stream, "to-http", 1))

    assert cloud.payloads("http", stream) == [b"one", b"two"]


@pytest.mark.parametrize(
    "what", ["python_streaming_source_runner", "pyspark.daemon pyspark.worker"]
)
def test_a_lane_whose_process_is_killed_goes_on_by_itself(
    pipeline: PipelineProcess, client: StreamManagerClient, cloud: Sandbox, stream: str, what: str
) -> None:
    # Those that do something have no children; there is one that only starts others.
    victims = [it for it in pipeline.children(what) if not it.children()]
    assert victims
    for victim in victims:
        victim.kill()

    client.append_message(stream, b"x")

    wait_until(lambda: has_exported(client, stream, "to-http", 0))
    assert set(cloud.payloads("http", stream)) == {b"x"}
    assert "Traceback" not in pipeline.log


def test_a_clean_end_leaves_nothing_behind_and_delivers_nothing_twice(
    pipeline: PipelineProcess,
    client: StreamManagerClient,
    cloud: Sandbox,
    stream: str,
    temporary: Path,
) -> None:
    is_over = threading.Event()
    last = -1

    def append() -> None:
        nonlocal last
        while not is_over.is_set():
            last = client.append_message(stream, b"%d" % (last + 1))

    with running(append):
        try:
            wait_until(lambda: len(cloud.payloads("http", stream)) >= 10)
            started = pipeline.children()
            assert pipeline.process is not None

            # Ctrl-C: Spark has other plans with it than we have.
            pipeline.process.send_signal(signal.SIGINT)
            assert pipeline.wait_for_end() == 0
        finally:
            is_over.set()

    wait_until_gone(started)
    assert list(temporary.iterdir()) == []
    assert "Traceback" not in pipeline.log
    arrived = cloud.payloads("http", stream)
    assert arrived == [b"%d" % number for number in range(len(arrived))]
    status = status_of(client, stream, "to-http")
    assert status.last_exported_sequence_number == len(arrived) - 1
