"""Results of benchmarks: printed as a table, stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.timing import Figure

RESULTS = Path(__file__).resolve().parent / "results"

OURS = "Penstock"  # prefix of the names of our own figures

_NAME_WIDTH = 34


class Unit(StrEnum):
    RATE = "messages a second"
    FILE_RATE = "files a second"
    BYTE_RATE = "MB a second"
    SECONDS = "seconds"
    MEGABYTES = "MB"
    CORE_SHARE = "% of a core"


# Units in which figures of peers are compared with the first figure, which is ours.
_COMPARED = (Unit.RATE, Unit.CORE_SHARE, Unit.MEGABYTES)


@dataclass(frozen=True)
class Target:
    """A minimum or maximum for a figure, as a ratio or in the unit of the figure."""

    wanted: float
    got: float
    is_maximum: bool = False
    is_ratio: bool = True

    @property
    def is_met(self) -> bool:
        return self.got <= self.wanted if self.is_maximum else self.got >= self.wanted


@dataclass(frozen=True)
class Comparison:
    """One measurement of several systems. Figures and targets have the same keys."""

    name: str
    title: str
    unit: Unit
    figures: Mapping[str, Figure]
    targets: Mapping[str, Target] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of_rates(
        cls,
        name: str,
        title: str,
        figures: Mapping[str, Figure],
        wanted_ratios: Mapping[str, float],
        notes: tuple[str, ...] = (),
        unit: Unit = Unit.RATE,
    ) -> Comparison:
        """Creates a comparison whose first figure is ours. Some peers have a target ratio."""
        ours = next(iter(figures.values())).median
        targets = {
            peer: Target(wanted, ours / figures[peer].median)
            for peer, wanted in wanted_ratios.items()
            if peer in figures
        }
        return cls(name, title, unit, figures, targets, notes)


def format_figure(value: float, unit: Unit) -> str:
    if unit in (Unit.RATE, Unit.FILE_RATE, Unit.BYTE_RATE):
        return f"{value:,.0f}"
    return f"{value:.3f}" if unit is Unit.SECONDS else f"{value:.1f}"


def print_comparison(comparison: Comparison) -> None:
    print(f"\n{comparison.title}, {comparison.unit}")
    ours = next(iter(comparison.figures.values())).median
    for name, figure in comparison.figures.items():
        line = f"  {name:{_NAME_WIDTH}}{format_figure(figure.median, comparison.unit):>11}"
        line += f"  ±{figure.spread:4.0%}" if len(figure.runs) > 1 else " " * 7
        target = comparison.targets.get(name)
        if target is not None:
            line += f"   {_describe(target)}"
        elif comparison.unit in _COMPARED and not name.startswith(OURS) and figure.median:
            line += f"   {ours / figure.median:5.2f} x"
        print(line)
    for note in comparison.notes:
        print(f"  {note}")


def _describe(target: Target) -> str:
    got = f"{target.got:5.2f} x   " if target.is_ratio else ""
    bound = "at most" if target.is_maximum else "at least"
    unit = " x" if target.is_ratio else ""
    verdict = "met" if target.is_met else "NOT MET"
    return f"{got}target: {bound} {target.wanted:g}{unit}: {verdict}"


def print_verdict(comparisons: list[Comparison]) -> None:
    targets = [
        (comparison, name, target)
        for comparison in comparisons
        for name, target in comparison.targets.items()
    ]
    missed = [item for item in targets if not item[2].is_met]
    print(f"\n{len(targets) - len(missed)} of {len(targets)} targets met")
    for comparison, name, target in missed:
        print(f"  {comparison.title}, {name}: {_describe(target).strip()}")


def save(machine: Mapping[str, str], comparisons: list[Comparison]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    path = RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    content = {
        "time": now.isoformat(timespec="seconds"),
        "machine": machine,
        "comparisons": [_to_json(comparison) for comparison in comparisons],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def load(path: Path | None = None) -> list[Comparison]:
    """Loads the comparisons of a results file, by default the newest."""
    if path is None:
        paths = sorted(RESULTS.glob("*.json"))
        if not paths:
            raise FileNotFoundError(f"no results in {RESULTS}: run the benchmarks first")
        path = paths[-1]
    return [_from_json(item) for item in json.loads(path.read_text())["comparisons"]]


def _to_json(comparison: Comparison) -> dict[str, Any]:
    value = asdict(comparison)
    for name, figure in comparison.figures.items():
        value["figures"][name]["median"] = figure.median
    for name, target in comparison.targets.items():
        value["targets"][name]["is_met"] = target.is_met
    return value


def _from_json(item: dict[str, Any]) -> Comparison:
    return Comparison(
        item["name"],
        item["title"],
        Unit(item["unit"]),
        {name: Figure(tuple(figure["runs"])) for name, figure in item["figures"].items()},
        {
            name: Target(target["wanted"], target["got"], target["is_maximum"], target["is_ratio"])
            for name, target in item["targets"].items()
        },
        tuple(item["notes"]),
    )
