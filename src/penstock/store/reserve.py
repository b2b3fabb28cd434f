"""Room that the store keeps on its disk, for a start on one that is full.

A broker cannot start without writing a little, and while it does not run nothing can be read,
exported or deleted to make room.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from penstock.store.files import Disk

logger = logging.getLogger(__name__)

RESERVE_FILE = "reserve"
_RESERVE_BYTES = 256 * 1024
# With less a start may fail.
_NEEDED_BYTES = 128 * 1024
# Where there is so little it would be missed.
_AMPLE_BYTES = 64 * _RESERVE_BYTES


def is_full(disk: Disk, root: Path) -> bool:
    return disk.free_bytes(root) < _NEEDED_BYTES


def give_up_reserve(disk: Disk, root: Path) -> None:
    """Before the store is opened: makes room if there is none."""
    path = root / RESERVE_FILE
    if is_full(disk, root) and path.exists():
        logger.warning("the disk is full: what was kept in reserve for that is given up")
        disk.remove(path)


def keep_reserve(disk: Disk, root: Path) -> None:
    """Once the store is open: keeps room for the next time, if there is plenty."""
    path = root / RESERVE_FILE
    if path.exists():
        return
    try:
        if disk.free_bytes(root) < _AMPLE_BYTES:
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
