"""A file of zeros that the store keeps on its disk, to be removed when the disk is full.

A broker cannot start without writing a little, and while it does not run nothing can be read,
exported or deleted to make room. While it runs, a change of the catalog that frees space (a stream
is deleted, messages expire) may need a little space first.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from penstock.store.files import Disk

logger = logging.getLogger(__name__)

RESERVE_FILE = "reserve"
_RESERVE_BYTES = 1024 * 1024
# With less a start may fail, or the catalog cannot take space in advance.
_NEEDED_BYTES = 512 * 1024
# With less free, the store takes no space in advance. It is less than the default of
# `min_free_disk`, because a broker that starts on a nearly full disk needs the reserve as well.
_AMPLE_BYTES = 4 * 1024 * 1024


def is_full(disk: Disk, root: Path) -> bool:
    return disk.free_bytes(root) < _NEEDED_BYTES


def release_reserve_if_full(disk: Disk, root: Path) -> bool:
    """Before the store is opened: makes room if there is none, and says whether it did."""
    path = root / RESERVE_FILE
    if not is_full(disk, root) or not path.exists():
        return False
    logger.warning("the disk is full: what was kept in reserve for that is given up")
    disk.remove(path)
    return True


def release_reserve(disk: Disk, root: Path) -> bool:
    """For a change that found no space and frees some; False if there is no reserve."""
    path = root / RESERVE_FILE
    if not path.exists():
        return False
    logger.warning("the disk is full: the reserve is released for a change that frees space")
    disk.remove(path)
    return True


def is_ample(free_bytes: int) -> bool:
    """Whether there is so much space that the store may take some in advance."""
    return free_bytes >= _AMPLE_BYTES


def keep_reserve(disk: Disk, root: Path) -> None:
    """Once the store is open: keeps room for the next time, if there is plenty."""
    path = root / RESERVE_FILE
    if path.exists():
        return
    try:
        if not is_ample(disk.free_bytes(root)):
            return
        descriptor = disk.create(path)
        try:
            disk.write(descriptor, bytes(_RESERVE_BYTES), 0)
        finally:
            disk.close(descriptor)
    except OSError:
        # Half of it would be taken for one.
        with contextlib.suppress(OSError):
            disk.remove(path)
