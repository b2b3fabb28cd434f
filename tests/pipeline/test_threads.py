from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from penstock.pipeline.threads import JobThreads
from tests.support import wait_until

TIMEOUT_SECONDS = 60.0


class Jobs:
    """Jobs that run until they may end, and the thread of each."""

    def __init__(self, threads: JobThreads) -> None:
        self._threads = threads
        self.workers: list[threading.Thread] = []

    def start(self) -> Callable[[], None]:
        """Starts a job, and returns a function that ends it."""
        has_begun, may_end = threading.Event(), threading.Event()

        def run() -> None:
            self.workers.append(threading.current_thread())
            has_begun.set()
            may_end.wait(TIMEOUT_SECONDS)

        self._threads.start(run)
        assert has_begun.wait(TIMEOUT_SECONDS)
        return may_end.set

    def wait_until_idle(self, number: int) -> None:
        wait_until(lambda: self.workers[number].name == "penstock-idle")
        # The thread has the name before it counts as idle.
        wait_until(lambda: self._threads._idle > 0)


def test_idle_thread_is_reused() -> None:
    threads = JobThreads(max_idle=2)
    jobs = Jobs(threads)
    jobs.start()()
    jobs.wait_until_idle(0)
    jobs.start()()
    assert jobs.workers[0] is jobs.workers[1]
    threads.close()
    wait_until(lambda: not jobs.workers[0].is_alive())


def test_hanging_job_delays_no_other_job() -> None:
    threads = JobThreads(max_idle=1)
    jobs = Jobs(threads)
    ends = [jobs.start() for _ in range(50)]
    assert len(set(jobs.workers)) == 50
    for end in ends:
        end()
    # One thread stays idle; the others end.
    wait_until(lambda: threads._idle == 1)
    wait_until(lambda: sum(each.is_alive() for each in jobs.workers) == 1)
    threads.close()
    wait_until(lambda: not any(each.is_alive() for each in jobs.workers))


def test_threads_of_running_jobs_end_after_close() -> None:
    threads = JobThreads(max_idle=4)
    jobs = Jobs(threads)
    end = jobs.start()
    threads.close()
    assert jobs.workers[0].is_alive()
    end()
    wait_until(lambda: not jobs.workers[0].is_alive())


def test_idle_thread_keeps_no_job() -> None:
    class Job:
        def __call__(self) -> None:
            ended.release()

    threads = JobThreads(max_idle=1)
    ended = threading.Semaphore(0)
    kept: list[weakref.ref[Job]] = []
    for _ in range(3):
        job = Job()
        kept.append(weakref.ref(job))
        threads.start(job)
        del job
        assert ended.acquire(timeout=TIMEOUT_SECONDS)
        wait_until(lambda: threads._idle == 1)
    assert [each() for each in kept] == [None, None, None]
    threads.close()


def test_all_threads_are_daemons() -> None:
    threads = JobThreads(max_idle=1)
    jobs = Jobs(threads)
    end = jobs.start()
    assert jobs.workers[0].daemon
    end()
    threads.close()
