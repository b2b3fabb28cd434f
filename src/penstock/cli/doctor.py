"""`penstock doctor`: checks this machine and the broker, and suggests fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from penstock.cli.checks import broker, listeners, machine, stored_data, uploads
from penstock.cli.checks.check import Check, CheckFinding, State, run
from penstock.cli.checks.context import CheckContext
from penstock.cli.checks.destinations import check_destinations
from penstock.cli.main import FAILED, json_option
from penstock.cli.output import echo_json, uses_color
from penstock.cli.target import BrokerTarget, target_options

CHECKS: dict[str, Check] = {
    **machine.CHECKS,
    **broker.CHECKS,
    **stored_data.CHECKS,
    **listeners.CHECKS,
    **uploads.CHECKS,
}

_STYLES: dict[State, dict[str, Any]] = {
    State.ok: {"fg": "green"},
    State.warn: {"fg": "yellow"},
    State.fail: {"fg": "red", "bold": True},
    State.skip: {"dim": True},
}


@click.command()
@json_option
@target_options
def doctor(target: BrokerTarget, as_json: bool) -> None:
    """Check this machine and the broker, and suggest fixes.

    It also checks the settings, the store, and the destinations of exports. The exit code is 1 if
    a check fails. A warning does not change it.
    """
    findings = list(_examine(CheckContext(target)))
    if as_json:
        echo_json([finding._asdict() for finding in findings])
    else:
        _print(findings)
    if any(finding.state is State.fail for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _examine(context: CheckContext) -> Iterator[CheckFinding]:
    for name, check in CHECKS.items():
        yield run(name, check, context)
    yield from check_destinations(context)


def _print(findings: Sequence[CheckFinding]) -> None:
    is_colored = uses_color()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = f"{finding.state:<4}"
        if is_colored:
            mark = click.style(mark, **_STYLES[finding.state])
        click.echo(f"{mark}  {finding.name:<{width}}  {finding.found}")
        if finding.mend:
            click.echo(f"      {'':<{width}}  -> {finding.mend}")
