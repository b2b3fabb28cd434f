"""The systemd unit: its command is one of ours, and the directories and times agree."""

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
    unit.optionxform = str  # type: ignore[assignment] # it is how a parser is told to keep case
    unit.read_string(UNIT.read_text())
    return dict(unit["Service"])


def test_its_command_runs_broker_and_exports_in_its_own_directory(service: dict[str, str]) -> None:
    program, *words = shlex.split(service["ExecStart"])

    assert Path(program).name == "penstock"
    assert words[0] == "up"
    options = parse(words)
    assert options.pop("root") == f"/var/lib/{service['StateDirectory']}"
    # A flag would override what its user sets in the environment.
    assert not any(options.values())


def test_a_stop_has_the_time_that_its_programs_may_take(service: dict[str, str]) -> None:
    # The pipeline and the broker, one after the other.
    assert int(service["TimeoutStopSec"]) > 2 * _STOP_SECONDS
    assert service["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    # It looks whether the program is there, and whether the user is.
    copy.write_text(
        UNIT.read_text()
        .replace("/opt/penstock/bin/penstock", str(PENSTOCK))
        .replace("User=penstock", "User=root")
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
