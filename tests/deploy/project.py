"""Paths and helpers for the tests of deployment files."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from penstock.cli.main import main

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Parses a `penstock` command and returns its options. Fails for an unknown command."""
    # Each command gets the context of its group, as in the program: click caches the context
    # settings of the first call, such as `-h` for help, for the whole process.
    context = click.Context(main, info_name="penstock", **main.context_settings)
    command: click.Command | None = main
    arguments = list(words)
    while isinstance(command, click.Group):
        name, *arguments = arguments
        command = command.get_command(context, name)
        assert command is not None, f"unknown command {name}"
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=context)
    assert command is not None
    return dict(command.make_context(name, arguments, parent=context).params)


def extras() -> set[str]:
    """The extras of the package."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])
