"""Small directories of ours in the user's cache: made once, used by every session."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str]) -> Path:
    """RuntimeError if the user has no home."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache.absolute() / "penstock"


def cached_directory(
    name: str, program: str, fill: Callable[[Path], None], environment: Mapping[str, str]
) -> Path:
    """A directory of this name, filled when it is not there yet.

    `program` is a file in it that has to be executable. Where the cache cannot be written, or
    holds no programs, the directory is for this process only.
    """
    try:
        directory = cache_directory(environment) / name
        if not directory.is_dir():
            directory.parent.mkdir(parents=True, exist_ok=True)
            _create(directory, fill)
        if os.access(directory / program, os.X_OK):
            return directory
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        pass
    parent = Path(tempfile.mkdtemp(prefix="penstock-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    directory = parent / Path(name).name
    _create(directory, fill)
    return directory


def _create(directory: Path, fill: Callable[[Path], None]) -> None:
    """Makes it under another name first: it is there as a whole, also for who does the same now."""
    beginning = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    try:
        fill(beginning)
        beginning.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise
    finally:
        shutil.rmtree(beginning, ignore_errors=True)


def write_program(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
