"""Permissions in tests that may run as the superuser, to whom they do not apply."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65_534


@contextmanager
def as_anybody() -> Iterator[None]:
    """This process as a user to whom permissions apply; the same one, if they do already."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@contextmanager
def public_directory() -> Iterator[Path]:
    """One that everybody may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
