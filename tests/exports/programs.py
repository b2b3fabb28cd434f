"""The pipeline as a process, and how tests look at what it does."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Self

import psutil
import pytest

from penstock import StreamManagerClient
from penstock.model import ExportStatus
from tests.support import PATIENCE_S, PENSTOCK, QUICK_JAVA, bare_environment, drain

# A Spark that starts on a busy machine takes its time.
START_S = 90.0


class PipelineProcess:
    """`penstock pipeline` for the broker of a root."""

    def __init__(self, root: Path, *flags: str, **environment: str) -> None:
        self._command = [str(PENSTOCK), "pipeline", "--root", str(root), *flags]
        self._environment = bare_environment(**environment, SPARK_SUBMIT_OPTS=QUICK_JAVA)
        self._log = root.with_name(f"{root.name}-pipeline.log")
        self._starts = 0
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def temporary(self) -> Path:
        """Where it puts what it needs while it runs; each start has its own."""
        return self._log.with_name(f"{self._log.stem}-{self._starts}")

    def start(self) -> None:
        self._starts += 1
        self.temporary.mkdir()
        self._environment["TMPDIR"] = str(self.temporary)
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        assert self.process.stdout is not None
        line = drain(self.process.stdout).get(timeout=START_S)
        if line != "penstock pipeline ready\n":
            self.kill()
            pytest.fail(f"the pipeline did not get ready:\n{self.log}")

    def children(self, *words: str) -> list[psutil.Process]:
        """The processes that it started in whose command lines these words are."""
        assert self.process is not None
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if _has_words(child, words)]

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9 of the driver; Java and the workers end when they notice."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def wait_for_end(self) -> int:
        """Its exit code, when it ended by itself."""
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code

    def stop(self) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert code == 0, f"the pipeline ended with {code}:\n{self.log}"
        assert "Traceback" not in self.log, self.log


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
