"""The file system of the store.

All writes and syncs of segments, the journal and the progress log use a `Disk`, so that tests can
pass one that fills up, fails, or loses unsynced data. SQLite and salvage write their own files.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from penstock.store.pool import FilePool


class Disk:
    """The real disk. Its methods raise only OSError."""

    @cached_property
    def pool(self) -> FilePool:
        """The open segment files."""
        return FilePool()

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        """Reads `size` bytes, or fewer at the end of the file."""
        data = os.pread(descriptor, size, position)
        if len(data) == size:
            return data
        parts = [data]
        while data and (size := size - len(data)):
            position += len(data)
            data = os.pread(descriptor, size, position)
            parts.append(data)
        return b"".join(parts)

    def map(self, descriptor: int) -> mmap.mmap | bytes:
        """Maps a whole file. The file must not change while it is mapped."""
        if self.size(descriptor) == 0:
            return b""
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)

    def write(self, descriptor: int, data: bytes, position: int) -> None:
        written = os.pwrite(descriptor, data, position)
        # When the disk fills up, the first write is short, and only the next one fails.
        while written < len(data):
            view = memoryview(data)[written:]
            written += os.pwrite(descriptor, view, position + written)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def free_bytes(self, directory: Path) -> int:
        """Free bytes for unprivileged programs."""
        system = os.statvfs(directory)
        return system.f_bavail * system.f_frsize

    def replace(self, path: Path, data: bytes) -> None:
        """Replaces a file atomically: after a crash it has its old contents or `data`."""
        self.replace_all({path: data})

    def replace_all(self, files: Mapping[Path, bytes]) -> None:
        """Replaces files in different directories, with fewer syncs than separate replacements."""
        temporaries = {path: path.with_suffix(path.suffix + ".new") for path in files}
        for path, temporary in temporaries.items():
            with temporary.open("wb") as file:
                file.write(files[path])
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in temporaries.items():
            temporary.replace(path)
        # In a journaling file system, the first sync of a directory also syncs the others.
        for directory in {path.parent for path in files}:
            self.sync_directory(directory)
