"""`penstock doctor`: whether this machine is fit for a broker, and how to mend what is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from penstock.cli.checks import broker, listeners, machine, stored_data, uploads
from penstock.cli.checks.check import Check, Finding, State, run
from penstock.cli.checks.context import CheckContext
from penstock.cli.checks.destinations import check_destinations
from penstock.cli.main import FAILED, json_option
from penstock.cli.output import echo_json, uses_colour
from penstock.cli.target import Target, target_options

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
def doctor(target: Target, as_json: bool) -> None:
    """Check this machine, the settings and the broker, and say how to mend what is wrong.

    The exit code is 1 if something fails; what is only worth a warning does not count.
    """
    findings = list(_examine(CheckContext(target)))
    if as_json:
        echo_json([finding._asdict() for finding in findings])
    else:
        _print(findings)
    if any(finding.state is State.fail for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _examine(context: CheckContext) -> Iterator[Finding]:
    for name, check in CHECKS.items():
        yield run(name, check, context)
    yield from check_destinations(context)


def _print(findings: Sequence[Finding]) -> None:
    is_coloured = uses_colour()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = f"{finding.state:<4}"
        if is_coloured:
            mark = click.style(mark, **_STYLES[finding.state])
        click.echo(f"{mark}  {finding.name:<{width}}  {finding.found}")
        if finding.mend:
            click.echo(f"      {'':<{width}}  -> {finding.mend}")
