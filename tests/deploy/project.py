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
    # Each command inside its group, as the program does it: click keeps what a command was first
    # asked with, `-h` for help among it, for all that ask it later in this process.
    context = click.Context(main, info_name="penstock", **main.context_settings)
    command: click.Command | None = main
    arguments = list(words)
    while isinstance(command, click.Group):
        name, *arguments = arguments
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name}"
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=context)
    assert command is not None
    return dict(command.make_context(name, arguments, parent=context).params)


def extras() -> set[str]:
    """Those that the package can be installed with."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])
