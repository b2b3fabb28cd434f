"""A fixture that closes the segment files that a test leaves open."""

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
    """Closes the segment files of stores that a test has killed.

    Otherwise the descriptors add up, and Python's `select` fails for the sockets of Spark, whose
    numbers become too large.
    """
    before = set(os.listdir(_DESCRIPTORS))  # noqa: PTH208 - only the names are needed
    yield
    for name in set(os.listdir(_DESCRIPTORS)) - before:  # noqa: PTH208
        with suppress(OSError):
            if _SEGMENT_FILE.search((_DESCRIPTORS / name).readlink().name):
                os.close(int(name))
