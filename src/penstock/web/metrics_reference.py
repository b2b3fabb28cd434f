"""The metrics as documentation: `python -m penstock.web.metrics_reference` writes the page."""

from __future__ import annotations

import click

from penstock.web.metrics import DECLARED, TELEMETRY

_HEAD = """# Metrics

Made from the code by `make docs`. They are at `/metrics` on the HTTP port, in the text format of
Prometheus. Counters begin at 0 when the broker is started, but for those of single exports, which
go on where they were. [monitoring.md](monitoring.md) says what to watch: it has alert rules and a
dashboard for Grafana.

| name | kind | labels | what it is |
|---|---|---|---|
"""
_TELEMETRY_HEAD = """
Beside these are the usual ones of a process, such as `process_resident_memory_bytes` and
`process_cpu_seconds_total`.

## Where the original's telemetry is

Stream Manager sends these to AWS once a day, as sums. Here `increase(…[1d])` gives the same.

| telemetry of Stream Manager | here |
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
