"""A bounded pool of open segment files.

A process has a limited number of descriptors, and a stream needs two for each segment that it
writes or reads. The pool keeps the files of recently used segments open, across all streams, and
closes others when it is full.

The thread that appends and reads is the owner of the pool, and the only one that evicts: a file
is never closed between the owner's check that it is open and its use. So an append needs no lock.
Files that another thread is syncing are not evicted.

Eviction does not sync. The next sync reopens a file that was closed with unsynced bytes. Linux
reports an unreported failed writeback to the next descriptor that is opened, as long as the inode
is in memory, which is the case within a sync interval.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

# Used until the broker sets a capacity from its descriptor limit.
DEFAULT_CAPACITY = 256

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def lacks_descriptors(error: BaseException) -> bool:
    """Whether the process or the system has too many open files, which is not damage."""
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS


class Pooled(Protocol):
    # Set by each use, cleared by the eviction scan.
    is_used: bool

    def evict(self) -> bool:
        """Closes the files, unless another thread syncs them; returns whether they were closed."""


class FilePool:
    """Segments whose files are open. A clock algorithm selects the segment to evict."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        # In segments: each has two descriptors.
        self.capacity = capacity
        self._open: OrderedDict[Pooled, None] = OrderedDict()
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __len__(self) -> int:
        return len(self._open)

    def bind(self) -> None:
        """Makes the calling thread the owner. Until then, every thread may evict."""
        self._owner = threading.get_ident()

    def open(self, files: Pooled, open_files: Callable[[], None]) -> None:
        """Opens files, evicting others if needed; raises OSError if no descriptor is left."""
        while len(self._open) >= self.capacity and self._evict():
            pass
        while True:
            try:
                open_files()
                break
            except OSError as error:
                # Other parts of the process may use more descriptors than planned.
                if not lacks_descriptors(error) or not self._evict():
                    raise
        # Only a second use protects a file: a scan of many streams does not evict busy files.
        files.is_used = False
        if len(self._open) >= self.capacity and not self._may_evict():
            # Another thread created the files. The owner reopens them when it uses them.
            files.evict()
            return
        with self._lock:
            self._open[files] = None

    def discard(self, files: Pooled) -> None:
        """Removes closed files. Called from any thread."""
        with self._lock:
            self._open.pop(files, None)

    def _may_evict(self) -> bool:
        return self._owner in (None, threading.get_ident())

    def _evict(self) -> bool:
        """Closes the files of one segment; returns False if none may be closed."""
        if not self._may_evict():
            return False
        with self._lock:
            # Two rounds: the first one clears the marks.
            for _ in range(2 * len(self._open)):
                files = next(iter(self._open))
                if not files.is_used and files.evict():
                    del self._open[files]
                    return True
                files.is_used = False
                self._open.move_to_end(files)
        return False
