"""Messages of a soak: each names its source and its number, and the rest of it follows from these.

So a message that is read back is checked byte for byte without a copy of it. The interpreters of
the AWS SDKs import this module too: it needs the standard library only.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

# Most messages are small; one of so many is large.
_LARGE_EVERY = 97
_SMALL_BYTES, _LARGE_BYTES = 400, 16_384


class MessageId(NamedTuple):
    """Which message it is: sources count their messages from 0."""

    source: str
    counter: int


def make_payload(source: str, counter: int) -> bytes:
    """The bytes of a message. `source` holds no blank."""
    header = f"{source} {counter} ".encode()
    digest = hashlib.blake2b(header, digest_size=32).digest()
    limit = _LARGE_BYTES if digest[0] % _LARGE_EVERY == 0 else _SMALL_BYTES
    size = int.from_bytes(digest[1:5], "little") % limit
    return header + (digest * (size // len(digest) + 1))[:size]


def identify(payload: bytes) -> MessageId | None:
    """Which message these bytes are; None if they are not exactly one of a soak."""
    parts = payload.split(b" ", 2)
    if len(parts) != 3 or not parts[1].isdigit() or len(parts[1]) > 18:
        return None
    try:
        found = MessageId(parts[0].decode("ascii"), int(parts[1]))
    except UnicodeDecodeError:
        return None
    return found if make_payload(*found) == payload else None
