"""The temporary directory of a pipeline and its Spark."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

# Followed by the id of the pipeline's process, and a "-".
_PREFIX = "penstock-pipeline-"


def make_scratch() -> tempfile.TemporaryDirectory[str]:
    """Creates a directory, and removes the directories of killed pipelines."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = directory.name.removeprefix(_PREFIX).partition("-")[0]
        # ValueError: not a process id. PermissionError: a running process of another user.
        with suppress(ValueError, PermissionError):
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                shutil.rmtree(directory, ignore_errors=True)
    return tempfile.TemporaryDirectory(
        prefix=f"{_PREFIX}{os.getpid()}-",
        # Processes of Spark may still write to it.
        ignore_cleanup_errors=True,
    )
