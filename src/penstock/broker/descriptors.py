"""Divides the broker's file descriptors between segments, HTTP and clients."""

from __future__ import annotations

import contextlib
import logging
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger(__name__)

# The catalog, the journal, listeners, the event loop, and files that are open briefly.
_OWN_DESCRIPTORS = 48
# Connections above the limit, which stay open until the client has read the error.
_REFUSED_CONNECTIONS = 16
_MIN_SEGMENTS, _MAX_SEGMENTS = 4, 16_384
_MIN_HTTP_CONNECTIONS, _MAX_HTTP_CONNECTIONS = 8, 256
_MIN_CONNECTIONS = 16
# The budget without a limit.
_UNLIMITED = 1 << 20
_LOG_SECONDS = 60.0

HOW_TO_RAISE = "raise the limit (`ulimit -Hn`, or LimitNOFILE= of the service)"


class DescriptorBudget(NamedTuple):
    # Segments whose files are kept open; each needs two descriptors.
    segments: int
    http_connections: int
    connections: int


def plan_budget(limit: int, max_connections: int) -> DescriptorBudget:
    """Divides a limit: a quarter for segments, an eighth for HTTP, the rest for clients."""
    if limit == resource.RLIM_INFINITY:
        limit = _UNLIMITED
    shared = max(limit - _OWN_DESCRIPTORS - _REFUSED_CONNECTIONS, 0)
    segments = min(max(shared // 8, _MIN_SEGMENTS), _MAX_SEGMENTS)
    http = min(max(shared // 8, _MIN_HTTP_CONNECTIONS), _MAX_HTTP_CONNECTIONS)
    connections = max(shared - 2 * segments - http, _MIN_CONNECTIONS)
    return DescriptorBudget(segments, http, min(connections, max_connections))


def raise_limit() -> int:
    """Raises the soft limit to the hard limit; returns the new soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


class Shortages:
    """Counts and logs refusals of file descriptors by the system."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._logged_at: float | None = None

    def note(self, failure: str, error: OSError) -> str:
        """Counts a refusal and logs it, at most once a minute; returns the error for clients."""
        self.count += 1
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        now = self._clock()
        if self._logged_at is None or now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            logger.error(
                "%s: %s; the limit of open files is %d: close connections, or %s",
                failure,
                error.strerror,
                limit,
                HOW_TO_RAISE,
            )
        return (
            f"the server has no file descriptors left ({error.strerror}; its limit is {limit}): "
            "try again later"
        )
