"""The free space of the disk, and the space that appends may use.

`left` is the budget of appends: the free bytes above the minimum at the last sample, minus the
bytes appended since then. An append samples the disk only if its size exceeds the budget. A
background thread also samples the disk, because other programs use and free space.
"""

from __future__ import annotations

import errno
import logging
import math
from pathlib import Path

from penstock.store.files import Disk

logger = logging.getLogger(__name__)

# With less free space, a write failed for lack of bytes, not of inodes or quota.
_FULL_BYTES = 1024 * 1024


class NoSpaceError(Exception):
    """An append was refused: the disk is full, or would have less than its min free space."""


def is_no_space(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class SpaceBudget:
    """The bytes that appends may still use."""

    left = math.inf


class Space(SpaceBudget):
    """The disk space of one store. The event loop uses the budget; any thread calls `sample`."""

    def __init__(self, disk: Disk, root: Path, min_free: int) -> None:
        """With a `min_free` of 0, appends are refused only when the disk is full."""
        self._disk = disk
        self._root = root
        self.min_free = min_free
        self.free = 0
        # Less than `min_free` is free: appends are refused.
        self.is_low = False
        # A write failed for lack of space.
        self.is_full = False
        self.refused_messages = 0
        # The largest append refused for its size alone; 0 if there is none.
        self._refused_size = 0
        self.sample()

    def sample(self) -> None:
        try:
            self.free = self._disk.free_bytes(self._root)
        except OSError as error:
            logger.error("cannot read the free space of %s: %s", self._root, error)
            return
        if self.is_full and self.free >= _FULL_BYTES:
            self.is_full = False
            logger.info("the disk has space again: %d bytes are free", self.free)
        if not self.min_free:
            return
        # A margin, so that appends do not alternate between refused and accepted.
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
                "the disk has %d bytes free, less than min_free_disk (%d): appends to file "
                "streams are refused, except to streams that overwrite their oldest data and are "
                "near their max size",
                self.free,
                self.min_free,
            )
        else:
            logger.info("the disk has %d bytes free: appends are accepted again", self.free)

    def note_full(self, needed: int) -> bool:
        """Called when a write of `needed` bytes failed; returns whether too few bytes were free.

        A full disk is logged once.
        """
        self.sample()
        if self.free < _FULL_BYTES and not self.is_full:
            self.is_full = True
            logger.error("the disk is full: %d bytes are free", self.free)
        return self.free < _FULL_BYTES + needed

    def refuse(self, messages: int, size: int = 0) -> NoSpaceError:
        """Counts refused messages and returns the error. `size`: the append exceeds the budget."""
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
