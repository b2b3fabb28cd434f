"""How much space the disk has, and whether appends may take it.

`left` is the budget of appends: the bytes that were free above the minimum when the disk was last
sampled, less the bytes that were appended since. An append compares its size with the budget, and
samples the disk only when it exceeds it. A background thread samples it as well, since other
programs take and free space.
"""

from __future__ import annotations

import errno
import logging
import math
from pathlib import Path

from penstock.store.files import Disk

logger = logging.getLogger(__name__)

# With less, a write that failed for want of space failed for want of bytes, not of inodes or quota.
_FULL_BYTES = 1024 * 1024


class NoSpaceError(Exception):
    """An append that was refused: the disk is full, or has to keep what is free."""


def is_no_space(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class SpaceBudget:
    """The bytes that appends may still take."""

    left = math.inf


class Space(SpaceBudget):
    """The space of one store. Appends use it in the event loop, `sample` runs in any thread."""

    def __init__(self, disk: Disk, root: Path, min_free: int) -> None:
        """With a `min_free` of 0 appends are never refused before the disk is full."""
        self._disk = disk
        self._root = root
        self.min_free = min_free
        self.free = 0
        # Less than `min_free` is free: appends are refused.
        self.is_low = False
        # A write found no space.
        self.is_full = False
        self.refused_messages = 0
        # The append that was refused for its size while less would have fitted; 0 if none was.
        self._refused_size = 0
        self.sample()

    def sample(self) -> None:
        try:
            self.free = self._disk.free_bytes(self._root)
        except OSError as error:
            logger.error("the free space of %s cannot be read: %s", self._root, error)
            return
        if self.is_full and self.free >= _FULL_BYTES:
            self.is_full = False
            logger.info("the disk has space again: %d bytes are free", self.free)
        if not self.min_free:
            return
        # A margin, so that appends are not refused and taken in turns.
        needed = self.min_free + self.min_free // 4 if self.is_low else self.min_free
        is_low = self.free < needed
        self.left = self.free - needed
        if self._refused_size <= self.left:
            self._refused_size = 0
        if is_low != self.is_low:
            self.is_low = is_low
            self._log_change()

    def _log_change(self) -> None:
        if self.is_low:
            logger.error(
                "the disk has %d bytes free, less than min_free_disk (%d): appends to streams in "
                "files are refused until there are more, except to streams that overwrite their "
                "oldest data and are near their maximum size",
                self.free,
                self.min_free,
            )
        else:
            logger.info("the disk has %d bytes free: appends are taken again", self.free)

    def note_full(self, needed: int) -> bool:
        """A write of `needed` bytes found no space; whether bytes are what it lacked.

        That the disk is full is logged once.
        """
        self.sample()
        if self.free < _FULL_BYTES and not self.is_full:
            self.is_full = True
            logger.error("the disk is full: %d bytes are free", self.free)
        return self.free < _FULL_BYTES + needed

    def refuse(self, messages: int, size: int = 0) -> NoSpaceError:
        """The error for an append; with the size that exceeds the budget, if that is why."""
        self.refused_messages += messages
        if self.is_low:
            return NoSpaceError(
                f"the disk of the server has {max(self.free, 0)} bytes free, less than "
                f"min_free_disk ({self.min_free})"
            )
        if not size:
            return NoSpaceError("the disk of the server is full")
        if not self._refused_size:
            logger.warning(
                "the disk has %d bytes free: an append of %d bytes was refused, because it would "
                "leave less than min_free_disk (%d)",
                self.free,
                size,
                self.min_free,
            )
        self._refused_size = max(self._refused_size, size)
        return NoSpaceError(
            f"the disk of the server has {self.free} bytes free, and an append of {size} bytes "
            f"would leave less than min_free_disk ({self.min_free})"
        )
