"""PNG files, of the simplest kind: three bytes a pixel, and nothing but the pixels."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Eight bits for each of red, green and blue; the one compression and filter method; not interlaced.
_KIND = bytes([8, 2, 0, 0, 0])
# In front of each row: it is stored as it is.
_UNFILTERED = b"\0"


def encode_png(rows: Sequence[bytes | bytearray]) -> bytes:
    """A picture from its rows, the topmost first, each with red, green and blue of its pixels."""
    size = struct.pack(">II", len(rows[0]) // 3, len(rows))
    pixels = zlib.compress(b"".join(_UNFILTERED + row for row in rows))
    chunks = ((b"IHDR", size + _KIND), (b"IDAT", pixels), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
