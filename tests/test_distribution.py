"""The name of the distribution in messages equals that in pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from penstock import __version__
from penstock.distribution import DISTRIBUTION, how_to_install, requirement

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "src" / "penstock"
NAMED_EXTRA = re.compile(r"(?:how_to_install|requirement)\([\"'](\w+)[\"']\)")
CONFIGURATION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]


def test_distribution_has_the_name_in_pyproject() -> None:
    assert CONFIGURATION["name"] == DISTRIBUTION


def test_install_commands_name_the_distribution_and_the_extra() -> None:
    assert requirement() == "penstock-streams"
    assert how_to_install("spark") == "pip install 'penstock-streams[spark]'"


def test_only_one_module_contains_the_name_of_the_distribution() -> None:
    named = {path.name for path in SOURCE.rglob("*.py") if DISTRIBUTION in path.read_text()}

    assert named == {"distribution.py"}


def test_every_mentioned_extra_exists() -> None:
    extras = set()
    for path in SOURCE.rglob("*.py"):
        extras |= set(NAMED_EXTRA.findall(path.read_text()))
    for page in [PROJECT / "README.md", *PROJECT.glob("docs/**/*.md")]:
        for group in re.findall(rf"{DISTRIBUTION}\[([\w,]+)\]", page.read_text()):
            extras |= set(group.split(","))

    assert "spark" in extras
    assert extras <= set(CONFIGURATION["optional-dependencies"])


def test_changelog_has_a_dated_section_for_this_version() -> None:
    changelog = (PROJECT / "CHANGELOG.md").read_text()

    assert re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M)
