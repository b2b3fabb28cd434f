"""Compares the report of `penstock verify` with the damage that reads have found."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from soak.checks import Defect, Finding
from soak.report import Tally
from tests.support import PENSTOCK, clean_environment

_TIMEOUT_SECONDS = 600.0
# Exit codes of a complete verification.
_INTACT, _DAMAGED = 0, 6


def verify_store(root: Path, damaged: Mapping[str, Sequence[range]], tally: Tally) -> None:
    """Verifies a store of a stopped broker. `damaged` has the unreadable numbers by stream."""
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
        tally.add_findings([Finding(Defect.WRONG, "penstock verify", detail)])
        return
    report = json.loads(done.stdout)
    tally.count("messages that penstock verify found intact", report["intactMessages"])
    tally.count("messages that penstock verify found damaged", report["damagedMessages"])
    tally.add_findings(compare_verification(report, damaged))


def compare_verification(
    report: Mapping[str, Any], damaged: Mapping[str, Sequence[range]]
) -> list[Finding]:
    """Checks that the reported numbers are the unreadable ones."""
    findings = []
    for stream in report["streams"]:
        name = stream["name"]
        reported = {
            number
            for each in stream["damage"]
            for number in range(each["firstSequenceNumber"], each["lastSequenceNumber"] + 1)
        }
        unreadable = {number for each in damaged.get(name, ()) for number in each}
        if unread := sorted(reported ^ unreadable):
            detail = (
                f"penstock verify and reads differ in {len(unread)} numbers: {unread[:10]} "
                f"(reported {len(reported)}, unreadable {len(unreadable)})"
            )
            findings.append(Finding(Defect.WRONG, name, detail))
    return findings
