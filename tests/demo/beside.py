"""Parts of the demo that run beside a test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import StreamManagerClient
from tests.support import running

Lines = queue.SimpleQueue[str]


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs it for as long as the block lasts; it has to end soon after."""
    is_over = threading.Event()
    with running(lambda: work(is_over)):
        try:
            yield
        finally:
            is_over.set()


def newest(client: StreamManagerClient, name: str) -> int:
    """The newest number of a stream; -1 if it has none, or is not there."""
    streams = client.statistics().streams
    return max((it.newest_sequence_number for it in streams if it.name == name), default=-1)
