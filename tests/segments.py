"""Files that a test leaves open are closed behind it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

_DESCRIPTORS = Path("/proc/self/fd")
_SEGMENT_FILE = re.compile(r"\.(data|index)( \(deleted\))?")


@pytest.fixture(autouse=True)
def leave_no_segments_open() -> Iterator[None]:
    """A store that a test kills keeps its files, as a process that is killed would not.

    After a thousand of them the sockets of a Spark in the same process have numbers that Python's
    `select` does not know, and nothing moves any more.
    """
    before = set(os.listdir(_DESCRIPTORS))  # noqa: PTH208 - names are what is compared
    yield
    for name in set(os.listdir(_DESCRIPTORS)) - before:  # noqa: PTH208
        with suppress(OSError):
            if _SEGMENT_FILE.search((_DESCRIPTORS / name).readlink().name):
                os.close(int(name))
