"""Messages of a soak: each contains its source and its counter, which determine its bytes.

So messages can be checked byte for byte without copies of them. The Python of the AWS SDK imports
this module too, so it uses only the standard library.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

# One message in this many is large.
_LARGE_EVERY = 97
_SMALL_BYTES, _LARGE_BYTES = 400, 16_384


class MessageId(NamedTuple):
    """The identity of a message. Each source counts its messages from 0."""

    source: str
    counter: int


def make_payload(source: str, counter: int) -> bytes:
    """Returns the bytes of a message. `source` has no blanks."""
    header = f"{source} {counter} ".encode()
    digest = hashlib.blake2b(header, digest_size=32).digest()
    limit = _LARGE_BYTES if digest[0] % _LARGE_EVERY == 0 else _SMALL_BYTES
    size = int.from_bytes(digest[1:5], "little") % limit
    return header + (digest * (size // len(digest) + 1))[:size]


def identify(payload: bytes) -> MessageId | None:
    """Returns the identity of a message; None if its bytes are not exactly those of a message."""
    parts = payload.split(b" ", 2)
    if len(parts) != 3 or not parts[1].isdigit() or len(parts[1]) > 18:
        return None
    try:
        found = MessageId(parts[0].decode("ascii"), int(parts[1]))
    except UnicodeDecodeError:
        return None
    return found if make_payload(*found) == payload else None
