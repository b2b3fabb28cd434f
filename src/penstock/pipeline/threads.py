"""Daemon threads for jobs. Idle threads are reused, because starting a thread costs more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class JobThreads:
    """Starts a thread if none is idle, so that a job that hangs delays no other job.

    The threads are daemons, so that the process can end while a call hangs.
    """

    def __init__(self, max_idle: int) -> None:
        self._max_idle = max_idle
        # Guards the number of threads that wait for a job, or have one in the queue.
        self._lock = threading.Lock()
        self._idle = 0
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    @property
    def idle_count(self) -> int:
        return self._idle

    def start(self, job: Callable[[], None]) -> None:
        """Runs a job, which must not raise, in a thread."""
        with self._lock:
            is_idle = self._idle > 0
            self._idle -= is_idle
        if is_idle:
            self._queue.put(job)
        else:
            threading.Thread(target=self._serve, args=(job,), daemon=True).start()

    def close(self) -> None:
        """Ends idle threads, and others after their jobs."""
        with self._lock:
            self._max_idle = 0
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._queue.put(None)

    def _serve(self, job: Callable[[], None] | None) -> None:
        thread = threading.current_thread()
        while job is not None:
            thread.name = "penstock-job"
            job()
            thread.name = "penstock-idle"
            with self._lock:
                if self._idle >= self._max_idle:
                    return
                self._idle += 1
            job = self._queue.get()
