"""Runs parts of the demo in the background of a test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import StreamManagerClient
from tests.support import running

Lines = queue.SimpleQueue[str]


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs `work` until the end of the block. It must end when its event is set."""
    stopping = threading.Event()
    with running(lambda: work(stopping)):
        try:
            yield
        finally:
            stopping.set()


def newest(client: StreamManagerClient, name: str) -> int:
    """The newest sequence number of a stream; -1 if it is empty or does not exist."""
    streams = client.statistics().streams
    return max((it.newest_sequence_number for it in streams if it.name == name), default=-1)
