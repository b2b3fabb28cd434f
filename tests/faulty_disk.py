"""A disk that fills up, fails, and loses unsynced data in a power cut.

Files are real, so the store runs unchanged. For each file the disk tracks the data that a real disk
could have after a power cut: the contents at the last sync, and any part of later writes, in any
order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from penstock.store.files import Disk
from penstock.store.pool import FilePool

_PIECE_BYTES = 512


class _FaultyFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.synced = b""
        self.writes: list[tuple[int, bytes]] = []


class FaultyDisk(Disk):
    def __init__(self) -> None:
        self._open_files: dict[int, _FaultyFile] = {}
        self._files: dict[Path, _FaultyFile] = {}
        self._listed: set[Path] = set()
        self._removed: dict[Path, _FaultyFile] = {}
        self.room: int | None = None
        self.fails: Callable[[str, Path], bool] = lambda _action, _path: False

    # Faults

    def fill(self, room: int) -> None:
        """Lets `room` more bytes be written. Further writes fail."""
        self.room = room

    def mend(self) -> None:
        self.room = None
        self.fails = lambda _action, _path: False

    def _maybe_fail(self, action: str, path: Path) -> None:
        if self.fails(action, path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def kill(self) -> None:
        """Closes all files, like the end of a process."""
        for descriptor in list(self._open_files):
            self.close(descriptor)
        self.pool = FilePool(self.pool.capacity)

    def power_cut(self, random: Random) -> None:
        """Gives every file contents that it may have after a power cut."""
        self.kill()
        for path, file in self._removed.items():
            # An unsynced removal may be lost.
            if path in self._listed and path not in self._files and random.random() < 0.5:
                self._files[path] = file
        for path, file in list(self._files.items()):
            if not path.parent.exists():
                del self._files[path]
                continue
            if path not in self._listed and random.random() < 0.5:
                path.unlink(missing_ok=True)
                del self._files[path]
                continue
            file.synced = _survivor(file, random)
            file.writes = []
            path.write_bytes(file.synced)
        self._listed = set(self._files)
        self._removed = {}

    # Operations of a disk

    def create(self, path: Path) -> int:
        self._maybe_fail("create", path)
        descriptor = super().create(path)
        file = self._files[path] = _FaultyFile(path)
        self._open_files[descriptor] = file
        return descriptor

    def open(self, path: Path) -> int:
        self._maybe_fail("open", path)
        descriptor = super().open(path)
        if path not in self._files:
            self._files[path] = self._found(path)
        self._open_files[descriptor] = self._files[path]
        return descriptor

    def _found(self, path: Path) -> _FaultyFile:
        file = _FaultyFile(path)
        file.synced = path.read_bytes()
        self._listed.add(path)
        return file

    def close(self, descriptor: int) -> None:
        self._open_files.pop(descriptor, None)
        super().close(descriptor)

    def write(self, descriptor: int, data: bytes, position: int) -> None:
        file = self._open_files[descriptor]
        self._maybe_fail("write", file.path)
        fits = data
        if self.room is not None:
            grown = position + len(data) - self.size(descriptor)
            if grown > self.room:
                fits = data[: max(len(data) - grown + self.room, 0)]
            self.room -= max(min(grown, self.room), 0)
        super().write(descriptor, fits, position)
        file.writes.append((position, bytes(fits)))
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.path))

    def truncate(self, descriptor: int, size: int) -> None:
        file = self._open_files[descriptor]
        self._maybe_fail("truncate", file.path)
        super().truncate(descriptor, size)
        file.synced = file.synced[:size]
        file.writes = [(at, data[: size - at]) for at, data in file.writes if at < size]

    def sync(self, descriptor: int) -> None:
        file = self._open_files[descriptor]
        self._maybe_fail("sync", file.path)
        super().sync(descriptor)
        file.synced = file.path.read_bytes() if file.path.exists() else b""
        file.writes = []

    def sync_directory(self, path: Path) -> None:
        self._maybe_fail("sync directory", path)
        self._listed |= {file for file in self._files if file.parent == path}
        self._listed -= {file for file in self._removed if file not in self._files}
        self._removed = {
            file: state for file, state in self._removed.items() if file.parent != path
        }

    def remove(self, path: Path) -> None:
        self._maybe_fail("remove", path)
        super().remove(path)
        file = self._files.pop(path, None)
        if file is not None:
            self._removed[path] = file


def _survivor(file: _FaultyFile, random: Random) -> bytes:
    """The synced contents with any pieces of later writes, and zeros where one is missing."""
    contents = bytearray(file.synced)
    for position, data in file.writes:
        for start in range(0, len(data), _PIECE_BYTES):
            outcome = random.choice(("written", "written", "missing", "zeros"))
            if outcome == "missing":
                continue
            piece = data[start : start + _PIECE_BYTES]
            at = position + start
            if len(contents) < at:
                contents.extend(bytes(at - len(contents)))
            contents[at : at + len(piece)] = piece if outcome == "written" else bytes(len(piece))
    return bytes(contents)
