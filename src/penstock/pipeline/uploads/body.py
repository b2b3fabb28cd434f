"""What a call to S3 carries of a file, and its digest.

A small one is in memory. A large one is read while it is sent, after it was read once for its
digest: memory stays the same whatever the file's size, and S3 refuses what has changed in between.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, cast

from penstock.pipeline.uploads.input_files import InputFile
from penstock.store.record import crc32

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MAX_IN_MEMORY = 16 * 1024 * 1024
_PIECE = 1024 * 1024


class Body:
    """Bytes [start, start + size) of a file.

    `go_on` is asked again and again while a large one is sent, and raises to end that.
    """

    def __init__(
        self, file: InputFile, start: int, size: int, go_on: Callable[[], None] = lambda: None
    ) -> None:
        self.size = size
        self.content: bytes | IO[bytes]
        if size <= _MAX_IN_MEMORY:
            self.content = file.read(start, size)
            digest = crc32(self.content)
        else:
            digest = 0
            for place in range(start, start + size, _PIECE):
                digest = crc32(file.read(place, min(_PIECE, start + size - place)), digest)
                go_on()
            # boto3 takes it for a file: it has the methods that a request needs.
            self.content = cast("IO[bytes]", _Window(file, start, size, go_on))
        # CRC-32, which S3 compares as well as any other, and which takes the least time.
        self.digest = base64.b64encode(digest.to_bytes(4, "big")).decode()

    def rewind(self) -> None:
        """Before each call: a call that failed has read some of it."""
        if isinstance(self.content, _Window):
            self.content.seek(0)
            self.content.problem = None

    @property
    def problem(self) -> Exception | None:
        """Why it could not be read while it was sent: what boto3 raises then tells nothing."""
        return self.content.problem if isinstance(self.content, _Window) else None


class _Window(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: InputFile, start: int, size: int, go_on: Callable[[], None]) -> None:
        self._file = file
        self._start = start
        self._size = size
        self._go_on = go_on
        self._position = 0
        self.problem: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), max(self._size - self._position, 0))
        try:
            self._go_on()
            view[:length] = self._file.read(self._start + self._position, length)
        except Exception as problem:
            self.problem = problem
            raise
        self._position += length
        return length
