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
    """Encodes a frame whose payload is the concatenated parts."""
    # One buffer and one write: the AWS Python client reads the length with a single read(4), and
    # fails on a short read.
    return b"".join((HEADER.pack(sum(map(len, parts)) + 1, operation), *parts))
