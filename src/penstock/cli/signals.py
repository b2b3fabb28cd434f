"""Signals that ask a command to end."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterable


def call_at_signal(numbers: Iterable[signal.Signals], function: Callable[[], None]) -> None:
    """Calls the function in a thread of its own when the first of the signals arrives.

    For the main thread. A handler runs there between any two steps of whatever runs, which may hold
    a lock. An event has one too: set by the handler of a thread that is about to wait for it, it
    would never be set.
    """
    arrived: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait_for_signal() -> None:
        arrived.get()
        function()

    threading.Thread(target=wait_for_signal, daemon=True).start()
    for number in numbers:
        # To put something into a queue of this kind is allowed in a handler.
        signal.signal(number, lambda *_: arrived.put(None))
