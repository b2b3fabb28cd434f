"""A small tmpfs for tests of full disks. Needs permission to mount."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import Self

_libc = ctypes.CDLL(None, use_errno=True)
_UNMOUNT_SECONDS = 20.0
MNT_DETACH = 2


def mount(source: str, target: Path, kind: str, options: str) -> None:
    """Mounts a file system. Raises OSError if this is not allowed."""
    if _libc.mount(source.encode(), str(target).encode(), kind.encode(), 0, options.encode()):
        _raise(target)


def unmount(target: Path) -> None:
    """Unmounts. Waits for programs that use the mount, and detaches it after a timeout."""
    deadline = time.monotonic() + _UNMOUNT_SECONDS
    while _libc.umount2(str(target).encode(), 0):
        if time.monotonic() > deadline:
            _libc.umount2(str(target).encode(), MNT_DETACH)
            _raise(target)
        time.sleep(0.02)


def _raise(target: Path) -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), str(target))


class SmallDisk:
    """A tmpfs of a fixed size, which a filler file makes full."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        self._size = size
        self._filler = directory / "filler"

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        mount("soak", self.directory, "tmpfs", f"size={self._size},mode=0700")
        return self

    def __exit__(self, *_: object) -> None:
        unmount(self.directory)

    def free_bytes(self) -> int:
        state = os.statvfs(self.directory)
        return state.f_bavail * state.f_frsize

    def fill(self, leave: int) -> None:
        """Fills the disk except for `leave` bytes."""
        with self._filler.open("ab") as file:
            size = max(self.free_bytes() - leave, 0)
            if size:
                position = self._filler.stat().st_size
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), position, size)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


def can_mount(scratch: Path) -> bool:
    """Returns whether this process may mount file systems."""
    target = scratch / "mount-test"
    target.mkdir(parents=True, exist_ok=True)
    try:
        mount("soak", target, "tmpfs", "size=64k")
    except OSError:
        return False
    else:
        unmount(target)
        return True
    finally:
        target.rmdir()
