"""Handles the signals that stop a command."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterable


def call_at_signal(numbers: Iterable[signal.Signals], function: Callable[[], None]) -> None:
    """Calls the function in its own thread when the first of the signals arrives.

    Call it in the main thread. A signal handler runs there between any two steps, and the
    interrupted code may hold a lock that the function needs. `threading.Event` has such a lock:
    setting it in a handler can deadlock with a wait in the main thread.
    """
    arrived: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait_for_signal() -> None:
        arrived.get()
        function()

    threading.Thread(target=wait_for_signal, daemon=True).start()
    for number in numbers:
        # SimpleQueue.put is reentrant: it is safe in a handler.
        signal.signal(number, lambda *_: arrived.put(None))
