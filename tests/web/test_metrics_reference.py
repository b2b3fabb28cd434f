"""The page of the documentation about metrics."""

from __future__ import annotations

from penstock.web.metrics import DECLARED, TELEMETRY
from penstock.web.metrics_reference import metrics_page


def test_every_metric_has_a_row_with_its_exported_name() -> None:
    rows = [line for line in metrics_page().splitlines() if line.startswith("| `")]

    assert len(rows) == len(DECLARED) + len(TELEMETRY)
    for declared in DECLARED:
        (row,) = [row for row in rows if row.startswith(f"| `{declared.shown_name}` |")]
        assert row.endswith(f"| {declared.help} |")
        assert all(f"`{label}`" in row for label in declared.labels)


def test_every_telemetry_metric_has_an_equivalent() -> None:
    shown = {declared.shown_name: declared for declared in DECLARED}
    for theirs, ours in TELEMETRY.items():
        name, _, labels = ours.partition("{")
        assert name in shown, theirs
        assert all(label in labels for label in shown[name].labels)
        assert f"| `{theirs}` | `{ours}` |" in metrics_page()


def test_every_row_has_four_cells() -> None:
    for line in metrics_page().splitlines():
        if line.startswith("| `penstock"):
            assert line.count("|") == 5, line
