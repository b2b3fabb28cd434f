"""The wheel in an empty environment, as a user installs it: with and without extras.

pip installs the dependencies from its configured package index.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock import __version__
from penstock.distribution import requirement
from penstock.sandbox.client import SandboxClient
from penstock.wire.operations import Operation
from tests.cli.up_process import Up
from tests.packaging.conftest import Archives
from tests.raw_connection import RawConnection
from tests.support import TIMEOUT_S, append, bare_environment, create, read, wait_until

pytestmark = pytest.mark.full

# Includes the download of Spark and Java.
INSTALL_S = 1800
EXTRAS = "fast,web,spark,sandbox,java"


class Installation:
    """A virtual environment without access to this project's packages."""

    def __init__(self, directory: Path) -> None:
        venv.create(directory, with_pip=True)
        self._directory = directory
        self._environment = bare_environment(PYTHONUNBUFFERED="1")
        self._environment.pop("PYTHONPATH", None)

    @property
    def penstock(self) -> Path:
        return self._directory / "bin" / "penstock"

    def install(self, requirement: str) -> None:
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self._run("python", *pip, requirement, seconds=INSTALL_S)

    def run_python(self, code: str) -> str:
        return self._run("python", "-c", code)

    def run_penstock(self, *words: str) -> str:
        return self._run("penstock", *words)

    def start_penstock(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.penstock), *words],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _run(self, program: str, *words: str, seconds: float = TIMEOUT_S) -> str:
        finished = subprocess.run(
            [str(self._directory / "bin" / program), *words],
            cwd=self._directory,
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    directory = tmp_path / "venv"
    yield Installation(directory)
    # Spark and Java are too large for pytest to keep.
    shutil.rmtree(directory)


@pytest.mark.timeout(INSTALL_S + 900)
def test_demo_exports_from_the_wheel(
    archives: Archives,
    installation: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installation.install(f"{archives.wheel}[{EXTRAS}]")
    assert installation.run_penstock("--version") == f"penstock, version {__version__}\n"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    flags = ("--sandbox", "--demo", "--port", "0")

    up = Up(tmp_path / "root", *flags, program=installation.penstock)
    children = []
    try:
        shown = up.read_until("Ctrl-C")
        assert "penstock ready 127.0.0.1:" in shown
        exported_to = re.search(r"exports go to +(\S+)", shown)
        assert exported_to is not None
        cloud = SandboxClient(exported_to[1])
        wait_until(lambda: "wind-farm" in cloud.names("kinesis"))
        wait_until(lambda: cloud.payloads("kinesis", "wind-farm"))
        children = up.children()
        up.process.send_signal(signal.SIGINT)
        code, output = up.end()
    finally:
        for child in [*children, *up.children()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if up.process.poll() is None:
            up.process.kill()

    assert code == 0
    assert "Traceback" not in output


@pytest.mark.timeout(INSTALL_S + 900)
def test_wheel_without_extras_serves(
    archives: Archives, installation: Installation, tmp_path: Path
) -> None:
    installation.install(str(archives.wheel))
    for missing in ("pyspark", "pyarrow", "boto3", "starlette", "moto"):
        with pytest.raises(AssertionError, match="ModuleNotFoundError"):
            installation.run_python(f"import {missing}")
    installation.run_python("import penstock; penstock.StreamManagerClient")

    root = tmp_path / "root"
    with installation.start_penstock("serve", "--root", str(root), "--port", "0") as broker:
        try:
            assert broker.stdout is not None
            ready = next(line for line in broker.stdout if line.startswith("penstock ready"))
            port = int(ready.rpartition(":")[2])
            with RawConnection.open(
                "127.0.0.1", port, (root / "token").read_text().strip()
            ) as client:
                append(client, create(client, "room-4"), b"21.5")
                (message,) = read(client, "room-4")
                assert message["payload"] == b"21.5"
                assert client.call(Operation.ListStreams)["streams"] == ["room-4"]
        finally:
            broker.terminate()
            code = broker.wait(TIMEOUT_S)
    assert code == 0


@pytest.mark.timeout(INSTALL_S + 900)
def test_extra_is_installed_with_the_suggested_requirement(
    archives: Archives, installation: Installation
) -> None:
    installation.install(str(archives.wheel))

    # pip needs no index for the installed distribution, only for the missing packages.
    installation.install(requirement("web"))

    installation.run_python("import starlette, penstock.web.web_server")
