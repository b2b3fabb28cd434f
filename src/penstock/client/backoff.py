"""Pauses between retries."""

from __future__ import annotations

import random
from collections.abc import Iterator

_FIRST_SECONDS = 0.05
_MAX_SECONDS = 5.0


def delays(first: float = _FIRST_SECONDS, max_seconds: float = _MAX_SECONDS) -> Iterator[float]:
    """Yields endless pauses that double up to a maximum, with jitter between clients."""
    delay = first
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        delay = min(delay * 2, max_seconds)
