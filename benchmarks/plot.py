"""Bar charts as SVG, readable on light and dark pages."""

from __future__ import annotations

from html import escape
from pathlib import Path

from benchmarks.report import OURS, Comparison, Unit, format_figure

DOCS = Path(__file__).resolve().parents[1] / "docs"

_RATES = (
    "benchmarks.svg",
    "Messages a second: Penstock beside Redis Streams, NATS JetStream, and Parquet read and "
    "written by Spark",
)
_EXPORTS = (
    "benchmarks-exports.svg",
    "Rates, processor time and memory of exports: Penstock beside loops around boto3",
)

_WIDTH = 760
_LABEL_WIDTH = 205
_VALUE_WIDTH = 140
_BAR = 16
_ROW = 22
_TITLE = 30
_GROUP_GAP = 16
_TOP = 16

_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
         fill: #24292f; }
  .title { font-weight: 600; }
  .name { text-anchor: end; }
  .quiet { fill: #656d76; }
  .ours { fill: #0d74c4; }
  .peer { fill: #a8b3be; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .quiet { fill: #9198a1; }
    .ours { fill: #3fa2f7; }
    .peer { fill: #57606a; }
  }
"""


def write(comparisons: list[Comparison], directory: Path = DOCS) -> list[Path]:
    """Writes a chart of exports and one of other rates, if there are such comparisons."""
    exports = [each for each in comparisons if each.name.startswith(("exports", "edge-cost"))]
    rates = [each for each in comparisons if each.unit is Unit.RATE and each not in exports]
    compared = [each for each in exports if _has_peer(each) and each.unit is not Unit.SECONDS]
    written = []
    for (name, label), chosen in ((_RATES, rates), (_EXPORTS, compared)):
        if chosen:
            (directory / name).write_text(draw(chosen, label))
            written.append(directory / name)
    return written


def _has_peer(comparison: Comparison) -> bool:
    return not all(name.startswith(OURS) for name in comparison.figures)


def draw(comparisons: list[Comparison], label: str) -> str:
    """Draws bars whose lengths are relative to the largest figure of their group."""
    parts: list[str] = []
    y = _TOP
    for comparison in comparisons:
        y = _draw_group(comparison, y, parts) + _GROUP_GAP
    height = y
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
            f' width="{_WIDTH}" height="{height}" role="img" aria-label="{escape(label)}">',
            f"<style>{_STYLE}</style>",
            *parts,
            "</svg>\n",
        )
    )


def _draw_group(comparison: Comparison, y: int, parts: list[str]) -> int:
    parts.append(
        f'<text class="title" x="0" y="{y + 13}">{escape(comparison.title)}'
        f'<tspan class="quiet" font-weight="400" dx="8">{comparison.unit}</tspan></text>'
    )
    y += _TITLE
    largest = max(figure.median for figure in comparison.figures.values())
    ours = next(iter(comparison.figures.values())).median
    room = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    for name, figure in comparison.figures.items():
        is_ours = name.startswith(OURS)
        width = max(2.0, room * figure.median / largest)
        value = format_figure(figure.median, comparison.unit)
        ratio = ""
        if not is_ours and figure.median:
            ratio = f'<tspan class="quiet" dx="8">{ours / figure.median:.1f} x</tspan>'
        parts += (
            f'<text class="name" x="{_LABEL_WIDTH - 10}" y="{y + 13}">{escape(name)}</text>',
            f'<rect class="{"ours" if is_ours else "peer"}" x="{_LABEL_WIDTH}" y="{y}"'
            f' width="{width:.1f}" height="{_BAR}" rx="2"/>',
            f'<text x="{_LABEL_WIDTH + width + 8:.1f}" y="{y + 13}">{value}{ratio}</text>',
        )
        y += _ROW
    return y
