"""The systemd unit: its command, directories and timeouts match the code."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from penstock.cli.supervision import _STOP_SECONDS
from tests.deploy.project import DEPLOY, parse
from tests.support import PENSTOCK

UNIT = DEPLOY / "systemd" / "penstock.service"


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment] # keeps the case of keys
    unit.read_string(UNIT.read_text())
    return dict(unit["Service"])


def test_command_runs_broker_and_exports_in_the_state_directory(service: dict[str, str]) -> None:
    program, *words = shlex.split(service["ExecStart"])

    assert Path(program).name == "penstock"
    assert words[0] == "up"
    options = parse(words)
    assert options.pop("root") == f"/var/lib/{service['StateDirectory']}"
    # A flag would override the environment.
    assert not any(options.values())


def test_stop_timeout_covers_the_stop_of_all_programs(service: dict[str, str]) -> None:
    # Pipeline and broker stop one after the other.
    assert int(service["TimeoutStopSec"]) > 2 * _STOP_SECONDS
    assert service["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    # systemd-analyze checks that the program and the user exist.
    copy.write_text(
        UNIT.read_text()
        .replace("/opt/penstock/bin/penstock", str(PENSTOCK))
        .replace("User=penstock", "User=root")
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
