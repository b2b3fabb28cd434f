"""Variables, commands and files in docs/deployment.md and deploy exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from penstock.settings import Settings, variables_of
from tests.deploy.project import DEPLOY, PROJECT, parse

PAGE = PROJECT / "docs" / "deployment.md"
FILES = [PAGE, *sorted(path for path in DEPLOY.rglob("*") if path.is_file())]
# Variables of clients and commands.
OTHER_VARIABLES = {"PENSTOCK_TLS_CA", "PENSTOCK_CONFIG", "STREAM_MANAGER_SERVER_HOST"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_variables_exist(path: Path) -> None:
    known = {variable for name in Settings.__struct_fields__ for variable in variables_of(name)}
    named = set(re.findall(r"\b(?:STREAM_MANAGER|PENSTOCK)_[A-Z0-9_]+\b", path.read_text()))

    assert named <= known | OTHER_VARIABLES


def test_commands_of_the_page_are_valid() -> None:
    page = PAGE.read_text()
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    commands = [
        *re.findall(r"(?:^|exec penstock )penstock ([a-z].*)$", "\n".join(blocks), re.MULTILINE),
        *re.findall(r"`penstock ([a-z][^`]*)`", page),
    ]
    assert len(commands) > 8
    for command in commands:
        parse(shlex.split(command))


def test_files_of_the_page_exist() -> None:
    names = set(re.findall(r"\bdeploy/[\w./-]*\w", PAGE.read_text()))
    assert len(names) > 3
    for name in names:
        # The user creates files with settings.
        assert (PROJECT / name).exists() or name.endswith(".env"), name
