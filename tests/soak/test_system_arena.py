"""The end of the system arena after an error."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from soak.plan import SoakLimits
from soak.processes import Program, SoakError
from soak.report import Tally
from soak.system_arena import SystemArena


def test_arena_reports_a_sandbox_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = []

    def start(program: Program, _wait: bool = True) -> None:
        raise SoakError(f"the {program.name} did not become ready")

    def kill(program: Program) -> None:
        killed.append(program.name)

    monkeypatch.setattr(Program, "start", start)
    monkeypatch.setattr(Program, "kill", kill)
    arena = SystemArena(tmp_path, 1, Tally(), SoakLimits(time.monotonic() + 60), None)

    with pytest.raises(SoakError, match="the sandbox did not become ready"):
        arena.run()

    assert killed == ["up", "sandbox"]
