"""A file of zeros that the store removes when the disk is full.

A broker needs a little space to start, and only a running broker can export or delete messages to
free space. In a running broker, a change of the catalog that frees space (a deletion of a stream,
expired messages) may need a little space first.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from penstock.store.files import Disk

logger = logging.getLogger(__name__)

RESERVE_FILE = "reserve"
_RESERVE_BYTES = 1024 * 1024
# With less free space, a start may fail, or the catalog cannot preallocate.
_NEEDED_BYTES = 512 * 1024
# With less free space, the store does not preallocate. Less than the default of `min_free_disk`,
# because a broker that starts on a nearly full disk also needs the reserve.
_AMPLE_BYTES = 4 * 1024 * 1024


def is_full(disk: Disk, root: Path) -> bool:
    return disk.free_bytes(root) < _NEEDED_BYTES


def release_reserve_if_full(disk: Disk, root: Path) -> bool:
    """Removes the reserve before a start if the disk is full; returns whether it was removed."""
    path = root / RESERVE_FILE
    if not is_full(disk, root) or not path.exists():
        return False
    logger.warning("the disk is full: releasing the reserve")
    disk.remove(path)
    return True


def release_reserve(disk: Disk, root: Path) -> bool:
    """Removes the reserve for a change that frees space; returns False if there is none."""
    path = root / RESERVE_FILE
    if not path.exists():
        return False
    logger.warning("the disk is full: releasing the reserve for a change that frees space")
    disk.remove(path)
    return True


def is_ample(free_bytes: int) -> bool:
    """Whether there is enough space to preallocate."""
    return free_bytes >= _AMPLE_BYTES


def keep_reserve(disk: Disk, root: Path) -> None:
    """Creates the reserve if it is missing and there is enough space."""
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
        # A partial file must not count as a reserve.
        with contextlib.suppress(OSError):
            disk.remove(path)
