"""Small directories in the user's cache, created once and used by every session."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Returns Penstock's cache directory; RuntimeError if the user has no home."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache.absolute() / "penstock"


def cached_directory(
    name: str, program: str, fill: Callable[[Path], None], environment: Mapping[str, str]
) -> Path:
    """Returns the cached directory of this name, and creates and fills it if it is missing.

    `program` is a file in it that must be executable. If the cache is not writable, or is mounted
    with noexec, this process gets a temporary directory.
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
    """Creates and fills a directory atomically; another process may create it at the same time."""
    unfinished = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    try:
        fill(unfinished)
        unfinished.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_program(path: Path, lines: list[str]) -> None:
    """Writes an executable shell script."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
