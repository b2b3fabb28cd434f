"""Where a pipeline and its Spark keep what is of no use after them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_PREFIX = "penstock-pipeline-"
# Behind it stands the id of the process whose it is.
_NAME = re.compile(rf"{_PREFIX}(\d+)-.*")


def make_scratch() -> tempfile.TemporaryDirectory[str]:
    """A new directory. Those that killed pipelines have left behind are removed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        named = _NAME.fullmatch(directory.name)
        if named is not None and not _is_alive(int(named[1])):
            shutil.rmtree(directory, ignore_errors=True)
    return tempfile.TemporaryDirectory(
        prefix=f"{_PREFIX}{os.getpid()}-",
        # What Spark leaves running for a moment may still write to it.
        ignore_cleanup_errors=True,
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True
