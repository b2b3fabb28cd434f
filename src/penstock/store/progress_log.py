"""A log of export progress until the catalog stores it, so that a killed broker loses none.

The catalog stores progress later, with many changes in one transaction. Until then this
log has a record of each change. Records are not synced: they survive a crash of the process, like
appends without flush on write.

There are two files. One gets new records while the records of the other are stored in the catalog;
then the other file is truncated. A record, little-endian: the size of its contents (uint32), their
CRC-32 (uint32), and the contents in MessagePack: the stream id and the fields of ExportProgress.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct

import msgspec

from penstock.store.files import Disk
from penstock.store.record import crc32
from penstock.store.rows import ExportProgress

logger = logging.getLogger(__name__)

_HEADER = Struct("<II")
_decode = msgspec.msgpack.Decoder(tuple[str, ExportProgress]).decode


class _ProgressFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = None
        self.size = 0


class ProgressLog:
    """Appends records. Called from the event loop only."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._current, self._other = (_ProgressFile(path) for path in _paths(root))

    def append(self, progress: Iterable[tuple[str, ExportProgress]]) -> None:
        """Appends progress, each with the id of its stream. Raises OSError if a write fails."""
        data = b"".join(map(_encode, progress))
        file = self._current
        if file.descriptor is None:
            self._disk.remove(file.path)
            file.descriptor = self._disk.create(file.path)
        self._disk.write(file.descriptor, data, file.size)
        file.size += len(data)

    def rotate(self) -> None:
        """Switches to the other file, before the catalog stores all records."""
        if not self._other.size:
            self._current, self._other = self._other, self._current

    def clear_rotated(self) -> None:
        """Removes the records from before the last rotation, which the catalog has stored."""
        file = self._other
        if file.size and file.descriptor is not None:
            self._disk.truncate(file.descriptor, 0)
            file.size = 0

    def close(self, *, is_stored: bool) -> None:
        """Closes the files, and removes them if the catalog has stored all records."""
        for file in (self._current, self._other):
            if file.descriptor is not None:
                self._disk.close(file.descriptor)
                file.descriptor = None
                if is_stored:
                    self._disk.remove(file.path)


def read_progress(disk: Disk, root: Path) -> Iterator[tuple[str, ExportProgress]]:
    """The intact records, each with the id of its stream."""
    for path in _paths(root):
        try:
            descriptor = disk.open(path)
            try:
                data = disk.read(descriptor, disk.size(descriptor), 0)
            finally:
                disk.close(descriptor)
        except FileNotFoundError:
            continue
        except OSError as error:
            # Messages whose progress is lost are exported again.
            logger.error("cannot read export progress in %s: %s", path, error)
            continue
        position = 0
        while position + _HEADER.size <= len(data):
            size, checksum = _HEADER.unpack_from(data, position)
            position += _HEADER.size
            contents = data[position : position + size]
            # A power cut may leave a part of a record, or zeros.
            if not size or len(contents) < size or crc32(contents) != checksum:
                break
            position += size
            try:
                yield _decode(contents)
            except msgspec.MsgspecError as error:
                logger.error("a record in %s is not export progress: %s", path, error)


def remove_progress(disk: Disk, root: Path) -> None:
    """Removes the files, whose records the catalog has stored."""
    for path in _paths(root):
        disk.remove(path)


def _paths(root: Path) -> tuple[Path, Path]:
    return root / "progress.0", root / "progress.1"


def _encode(progress: tuple[str, ExportProgress]) -> bytes:
    contents = msgspec.msgpack.encode(progress)
    return _HEADER.pack(len(contents), crc32(contents)) + contents
