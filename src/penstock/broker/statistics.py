"""What the broker counts while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counted since the start, by the event loop only."""

    messages_appended: int = 0
    bytes_appended: int = 0
    messages_read: int = 0
    bytes_read: int = 0
    requests_failed: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    connections_dropped: int = 0
