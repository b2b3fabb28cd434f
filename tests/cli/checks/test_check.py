"""How a check is run: whatever it meets, something is found."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.checks.check import Finding, Outcome, State, ok, run, warn
from penstock.cli.checks.context import CheckContext

from .examination import context


def test_what_a_check_finds_gets_its_name(tmp_path: Path) -> None:
    with context(tmp_path) as examined:
        assert run("pulse", lambda _: ok("80"), examined) == Finding("pulse", State.ok, "80")
        assert run("pulse", lambda _: warn("180", "sit down"), examined) == Finding(
            "pulse", State.warn, "180", "sit down"
        )


def test_what_may_not_be_looked_at_fails(tmp_path: Path) -> None:
    def look(_: CheckContext) -> Outcome:
        return ok((tmp_path / "missing").read_text())

    with context(tmp_path) as examined:
        finding = run("file", look, examined)

    assert finding.state is State.fail
    assert str(tmp_path / "missing") in finding.found
    assert finding.mend == "run this as the user that runs the broker"


def test_a_check_that_needs_settings_is_left_out_where_they_are_wrong(tmp_path: Path) -> None:
    with context(tmp_path, PENSTOCK_MAX_CONNECTIONS="many") as examined:
        finding = run("port", lambda context: ok(str(context.settings.port)), examined)

    assert finding == Finding("port", State.skip, "the settings come first")
