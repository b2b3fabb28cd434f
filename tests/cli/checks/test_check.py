"""Checks always end in a finding, even after errors."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.checks.check import CheckFinding, Outcome, State, ok, run, warn
from penstock.cli.checks.context import CheckContext

from .examination import context


def test_finding_has_the_name_of_its_check(tmp_path: Path) -> None:
    with context(tmp_path) as examined:
        assert run("memory", lambda _: ok("80"), examined) == CheckFinding("memory", State.ok, "80")
        assert run("memory", lambda _: warn("180", "add some"), examined) == CheckFinding(
            "memory", State.warn, "180", "add some"
        )


def test_os_error_fails_the_check(tmp_path: Path) -> None:
    def look(_: CheckContext) -> Outcome:
        return ok((tmp_path / "missing").read_text())

    with context(tmp_path) as examined:
        finding = run("file", look, examined)

    assert finding.state is State.fail
    assert str(tmp_path / "missing") in finding.found
    assert finding.mend == "run this as the user that runs the broker"


def test_invalid_settings_skip_the_check(tmp_path: Path) -> None:
    with context(tmp_path, PENSTOCK_MAX_CONNECTIONS="many") as examined:
        finding = run("port", lambda context: ok(str(context.settings.port)), examined)

    assert finding == CheckFinding("port", State.skip, "not checked: the settings are wrong")
