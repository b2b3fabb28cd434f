"""`penstock verify` on the root of an arena, against the damage that was done to it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from soak.checks import Fault, Finding
from soak.report import Tally
from tests.support import PENSTOCK, clean_environment

_TIMEOUT_SECONDS = 600.0
# The exit codes of a command that checked everything.
_INTACT, _DAMAGED = 0, 6


def verify_store(root: Path, damaged: Mapping[str, AbstractSet[int]], tally: Tally) -> None:
    """The broker is stopped. `damaged`: by stream, the numbers that were damaged."""
    done = subprocess.run(
        [str(PENSTOCK), "verify", "--root", str(root), "--json"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode not in (_INTACT, _DAMAGED):
        detail = f"exit code {done.returncode}: {done.stderr[-500:]}"
        tally.find([Finding(Fault.WRONG, "penstock verify", detail)])
        return
    report = json.loads(done.stdout)
    tally.count("messages that penstock verify found intact", report["intactMessages"])
    tally.count("messages that penstock verify found damaged", report["damagedMessages"])
    tally.find(compare_verification(report, damaged))


def compare_verification(
    report: Mapping[str, Any], damaged: Mapping[str, AbstractSet[int]]
) -> list[Finding]:
    """Only streams that were damaged are reported as damaged."""
    findings = []
    for stream in report["streams"]:
        if stream["damage"] and not damaged.get(stream["name"]):
            detail = f"penstock verify reports {json.dumps(stream['damage'])[:300]}"
            findings.append(Finding(Fault.WRONG, stream["name"], detail))
    return findings
