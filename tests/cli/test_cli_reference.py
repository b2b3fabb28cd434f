"""The generated page docs/cli.md."""

from __future__ import annotations

import pytest

from penstock.cli.cli_reference import cli_page


def test_every_command_has_a_section_with_its_options() -> None:
    page = cli_page()

    for command in ("serve", "streams create", "tokens revoke", "append", "tail", "doctor"):
        assert f"\n## penstock {command}\n" in page
    assert "--flush-on-write" in page


def test_page_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    page = cli_page()
    monkeypatch.setenv("COLUMNS", "40")

    assert cli_page() == page
