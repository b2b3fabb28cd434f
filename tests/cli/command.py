"""Runs the `penstock` command and returns its result."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from penstock.cli.main import main
from tests.support import PENSTOCK, TIMEOUT_S, clean_environment


class Finished(NamedTuple):
    code: int
    output: str
    error: str

    @property
    def error_lines(self) -> list[str]:
        return self.error.splitlines()


def penstock(*words: str, directory: Path = Path("/"), **environment: str) -> Finished:
    """Runs it in this process, without a penstock.toml, with only these variables."""
    with contextlib.chdir(directory), _replaced_environment(clean_environment(**environment)):
        result = CliRunner(catch_exceptions=False).invoke(main, words, prog_name="penstock")
    return Finished(result.exit_code, result.stdout, result.stderr)


def penstock_process(*words: str, directory: Path = Path("/"), **environment: str) -> Finished:
    """The same in a new process, for commands that could start a broker."""
    finished = subprocess.run(
        [str(PENSTOCK), *words],
        cwd=directory,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Finished(finished.returncode, finished.stdout, finished.stderr)


def hide_module(directory: Path, name: str) -> None:
    """Makes a module missing for programs with this directory in PYTHONPATH."""
    (directory / "sitecustomize.py").write_text(f"import sys; sys.modules[{name!r}] = None\n")


@contextlib.contextmanager
def _replaced_environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    yield
    os.environ.clear()
    os.environ.update(before)
