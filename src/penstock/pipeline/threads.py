"""Daemon threads for jobs. Starting a thread takes longer than waking an idle one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class JobThreads:
    """Starts a thread if none is idle, so that a job that hangs delays no other job.

    The threads are daemons, so that the process can end while a call hangs.
    """

    def __init__(self, max_idle: int) -> None:
        # Guards the fields below.
        self._lock = threading.Lock()
        self._max_idle = max_idle
        # The number of waiting threads, minus the jobs in the queue.
        self._idle = 0
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def start(self, job: Callable[[], None]) -> None:
        """Runs a job, which must not raise, in a thread."""
        with self._lock:
            is_idle = self._idle > 0
            self._idle -= is_idle
        # Not an argument of the thread, because the thread would keep the job in memory.
        self._queue.put(job)
        if not is_idle:
            threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Ends idle threads, and others after their jobs."""
        with self._lock:
            self._max_idle = 0
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._queue.put(None)

    def _serve(self) -> None:
        thread = threading.current_thread()
        while (job := self._queue.get()) is not None:
            thread.name = "penstock-job"
            job()
            # Frees the messages of the job while the thread is idle.
            del job
            thread.name = "penstock-idle"
            with self._lock:
                if self._idle >= self._max_idle:
                    return
                self._idle += 1
