"""Writes docs/metrics.md: `python -m penstock.web.metrics_reference`."""

from __future__ import annotations

import click

from penstock.web.metrics import DECLARED, TELEMETRY

_HEAD = """# Metrics

`make docs` generates this page from the code. The broker serves the metrics at `/metrics` on its
HTTP port, in the text format of Prometheus. Counters start at 0 when the broker starts, except
those described as "since the export was created". [monitoring.md](monitoring.md) describes what to
watch, with alert rules and a dashboard for Grafana.

| name | kind | labels | description |
|---|---|---|---|
"""
_TELEMETRY_HEAD = """
The usual metrics of a process are served too, such as `process_resident_memory_bytes` and
`process_cpu_seconds_total`.

## Equivalents of Stream Manager's telemetry

Stream Manager sends these metrics to AWS once a day, as sums. `increase(…[1d])` gives these sums.

| telemetry of Stream Manager | metric of Penstock |
|---|---|
"""


def metrics_page() -> str:
    rows = (
        f"| `{each.shown_name}` | {each.kind} | "
        f"{', '.join(f'`{label}`' for label in each.labels)} | {each.help} |\n"
        for each in DECLARED
    )
    telemetry = (f"| `{theirs}` | `{ours}` |\n" for theirs, ours in TELEMETRY.items())
    return "".join((_HEAD, *rows, _TELEMETRY_HEAD, *telemetry))


if __name__ == "__main__":
    click.echo(metrics_page(), nl=False)
