"""File permissions in tests that may run as root, to which they do not apply."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNPRIVILEGED_USER_ID = 65_534


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Runs as an unprivileged user if this process is root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(_UNPRIVILEGED_USER_ID)
    try:
        yield
    finally:
        os.seteuid(user)


@contextmanager
def public_directory() -> Iterator[Path]:
    """Creates a directory that all users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
