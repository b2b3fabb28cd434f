"""Results of a soak: counters and findings, printed as a table or JSON. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from soak.checks import CheckResult, Defect, Finding

# Further findings are counted, but not printed.
_MAX_FINDINGS = 40

# Prefixes of the rows of the table, in order. Other rows follow.
_ROW_ORDER = (
    "appends answered",
    "of these by",
    "appends refused",
    "messages read",
    "checks of intact messages",
    "definition changes",
    "rounds",
    "kill -9",
    "SIGTERM",
    "power cuts",
    "disk writes",
    "sectors",
    "unsynced",
    "full",
    "appends to an overwriting",
    "streams deleted",
    "damaged places",
    "damage:",
    "checks of damaged messages",
    "messages that penstock verify",
    "hostile connections",
    "hostile:",
    "longest answer",
    "largest memory",
    "outage of",
    "outage:",
    "exports",
    "arrivals:",
    "repeated arrivals",
    "S3 tasks",
)


class Tally:
    """Counters by row of the table, findings and notes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._notes: list[str] = []
        self._defects = dict.fromkeys(Defect, 0)
        self._findings: list[Finding] = []

    def count(self, row: str, number: int = 1) -> None:
        with self._lock:
            self._rows[row] = self._rows.get(row, 0) + number

    def record_max(self, row: str, number: int) -> None:
        """Sets a row to the max of its value and this number."""
        with self._lock:
            self._rows[row] = max(self._rows.get(row, 0), number)

    def add_note(self, text: str) -> None:
        with self._lock:
            self._notes.append(text)

    def add_findings(self, findings: Iterable[Finding]) -> None:
        with self._lock:
            for finding in findings:
                self._defects[finding.defect] += 1
                if len(self._findings) < _MAX_FINDINGS:
                    self._findings.append(finding)

    def add_result(self, result: CheckResult) -> None:
        self.add_findings(result.findings)
        self.count("checks of intact messages, byte for byte", result.intact)
        if result.damaged:
            self.count("checks of damaged messages that read as damaged", result.damaged)

    @property
    def is_clean(self) -> bool:
        return not any(self._defects.values())

    @property
    def findings(self) -> list[Finding]:
        with self._lock:
            return list(self._findings)

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            return {
                "tried": dict(sorted(_with_others(self._rows), key=lambda row: _rank(row[0]))),
                "found": {str(defect): count for defect, count in self._defects.items()},
                "findings": [str(finding) for finding in self._findings],
                "notes": list(self._notes),
            }


def _with_others(rows: Mapping[str, int]) -> list[tuple[str, int]]:
    """Adds a row for appends that no producer has counted, if producers have counted appends."""
    counted = [count for row, count in rows.items() if row.startswith("of these by")]
    others = rows.get("appends answered", 0) - sum(counted)
    return [*rows.items(), *([("of these by others", others)] if counted and others > 0 else ())]


def _rank(row: str) -> int:
    places = (place for place, start in enumerate(_ROW_ORDER) if row.startswith(start))
    return next(places, len(_ROW_ORDER))


def render(result: dict[str, Any]) -> str:
    """Renders the result of a soak as a Markdown table."""
    minutes = result["seconds"] / 60
    lines = [
        f"| tried in {minutes:.1f} minutes, seed {result['seed']} | |",
        "|---|---:|",
        *(f"| {row} | {count:,} |" for row, count in result["tried"].items()),
        *(f"| **{defect}** | **{count:,}** |" for defect, count in result["found"].items()),
    ]
    lines += ["", *(f"- {note}" for note in result["notes"])] if result["notes"] else []
    lines += ["", *(f"{finding}" for finding in result["findings"])] if result["findings"] else []
    return "\n".join(lines)
