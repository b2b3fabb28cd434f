"""Frames: a signed 32-bit length, a signed 8-bit operation, one CBOR map.

length     int32, big-endian: 1 + the size of the payload
operation  int8
payload    length - 1 bytes
"""

from __future__ import annotations

import struct

CONNECT_VERSION = 1
MAX_FRAME_BYTES = 1 << 30

LENGTH = struct.Struct(">i")
HEADER = struct.Struct(">ib")


def encode_frame(operation: int, *parts: bytes) -> bytes:
    """A frame whose payload is these parts, one after the other."""
    # One buffer, one write: the AWS Python client reads the length with a single read(4) and
    # takes a short read for the whole of it.
    return b"".join((HEADER.pack(sum(map(len, parts)) + 1, operation), *parts))
