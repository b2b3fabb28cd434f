"""The pipeline as a process, and the progress of its exports."""

from __future__ import annotations

import itertools
import queue
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from penstock import StreamManagerClient
from penstock.model import ExportStatus
from penstock.sandbox.local_sandbox import Sandbox
from tests.support import (
    QUICK_JAVA,
    TIMEOUT_S,
    PenstockProcess,
    bare_environment,
    running,
    wait_until,
)


class PipelineProcess(PenstockProcess):
    """`penstock pipeline` for the broker of a root."""

    what = "pipeline"

    def __init__(self, root: Path, *flags: str, name: str = "pipeline", **environment: str) -> None:
        # Spark's own page takes a second to start.
        usual = {"SPARK_SUBMIT_OPTS": QUICK_JAVA, "PENSTOCK_SPARK_PAGE": "false"}
        variables = bare_environment(**usual, **environment)
        super().__init__(root.with_name(f"{root.name}-{name}.log"), variables)
        self._words = ("pipeline", "--root", str(root), *flags)
        self._starts = 0

    @property
    def temporary(self) -> Path:
        """The temporary directory of the process. Each start has its own."""
        return self._log.with_name(f"{self._log.stem}-{self._starts}")

    def launch(self) -> queue.SimpleQueue[str]:
        """Starts the process without waiting until it is ready."""
        self._starts += 1
        self.temporary.mkdir()
        self.set_variable("TMPDIR", str(self.temporary))
        return self._spawn(*self._words)

    def start(self) -> None:
        try:
            line = self.launch().get(timeout=TIMEOUT_S)
        except queue.Empty:
            self._fail()
        if line != "penstock pipeline ready\n":
            self._fail()

    def children(self, *words: str) -> list[psutil.Process]:
        """Child processes whose command lines contain these words."""
        assert self.process is not None
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if _has_words(child, words)]


def _has_words(process: psutil.Process, words: tuple[str, ...]) -> bool:
    try:
        command = " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    return all(word in command for word in words)


def status_of(client: StreamManagerClient, stream: str, identifier: str) -> ExportStatus:
    statuses = client.describe_message_stream(stream).export_statuses
    return next(it for it in statuses if it.export_config_identifier == identifier)


def has_exported(client: StreamManagerClient, stream: str, identifier: str, last: int) -> bool:
    return status_of(client, stream, identifier).last_exported_sequence_number == last


def state_of(client: StreamManagerClient, stream: str, identifier: str) -> str:
    found = next(it for it in client.statistics().streams if it.name == stream)
    return next(it.state for it in found.exports if it.identifier == identifier)


def end_amid_deliveries(
    pipeline: PipelineProcess,
    number: signal.Signals,
    client: StreamManagerClient,
    cloud: Sandbox,
    stream: str,
    sink: str,
    other_processes: Callable[[], list[psutil.Process]] = list,
) -> None:
    """Ends a pipeline by a signal while the export "h" of a stream delivers to an HTTP sink.

    Checks that messages in flight arrive once and are reported, and that no process and no file is
    left. `other_processes` are processes of the pipeline that are not its children.
    """
    is_over = threading.Event()

    def append() -> None:
        for count in itertools.takewhile(lambda _: not is_over.is_set(), itertools.count()):
            client.append_message(stream, b"%d" % count)

    with running(append):
        try:
            wait_until(lambda: len(cloud.payloads("http", sink)) >= 10)
            started = [*pipeline.children(), *other_processes()]
            pipeline.send_signal(number)
            assert pipeline.wait_for_end() == 0
        finally:
            is_over.set()

    wait_until(lambda: not any(process.is_running() for process in started))
    assert list(pipeline.temporary.iterdir()) == []
    assert "Traceback" not in pipeline.log
    arrived = cloud.payloads("http", sink)
    assert arrived == [b"%d" % count for count in range(len(arrived))]
    assert has_exported(client, stream, "h", len(arrived) - 1)
