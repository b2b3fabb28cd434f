"""What the tests of deployment files share: the files, and how to read a command in them."""

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
    """The options of a `penstock` command, by their names; an error if there is no such command."""
    name, *arguments = words
    with click.Context(main) as context:
        command = main.get_command(context, name)
        assert command is not None, f"there is no command {name}"
        while isinstance(command, click.Group):
            name, *arguments = arguments
            command = command.get_command(context, name)
            assert command is not None, f"there is no command {name}"
    return dict(command.make_context(name, list(arguments)).params)


def extras() -> set[str]:
    """Those that the package can be installed with."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])
