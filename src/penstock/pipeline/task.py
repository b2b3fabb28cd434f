"""A resident task: it asks the broker for work, delivers it in threads, and reports.

It runs in a Python worker of Spark for minutes. A broker that is restarted finds its leases again;
when the task dies, its leases expire and other tasks deliver the same messages again.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from penstock.broker.logs import set_up_worker_logs
from penstock.client.blocking import StreamManagerClient
from penstock.errors import StreamManagerException
from penstock.model.exporting import (
    AnyWork,
    DeliveryReport,
    ExportPlan,
    MessageSlice,
    PipelineDescription,
    TaskSlice,
)
from penstock.pipeline.destinations import import_destination
from penstock.pipeline.destinations.destination import DestinationSettings
from penstock.pipeline.job import Job
from penstock.root import is_root_of
from penstock.spark.place import Place
from penstock.spark.python import settle_worker

logger = logging.getLogger(__name__)

_LEASE_MILLIS = 15_000
# The broker answers at once when something is due. Asking again renews leases.
_WAIT_MILLIS = 4_000
# While all threads are busy, the task asks for urgent work only.
_BUSY_WAIT_MILLIS = 50
# The task waits so long for its jobs before it asks again: one request reports and asks.
_GATHER_SECONDS = 0.025
_URGENT_PRIORITY = 3
# A job that takes longer no longer counts against the number of threads: it may hang.
_SLOW_SECONDS = 1.0
_MAX_JOBS = 256
# Of the messages of all jobs. Jobs that hang do not keep others from slices of the minimum size.
_MAX_BYTES = 64 * 1024 * 1024
_MIN_ROOM = 256 * 1024
# Before a retry when the broker refuses a plan.
_RETRY_SECONDS = 1.0


class TaskSpec(NamedTuple):
    """What the driver tells a task, in values that can be pickled."""

    place: Place
    pipeline: str
    task: str
    about: PipelineDescription
    settings: DestinationSettings
    # The number of exports that are delivered at the same time.
    threads: int
    # The task ends after so many seconds, so that a cluster can rebalance.
    life_seconds: float
    # It ends earlier when other tasks could have done its work for so many seconds; None: it does
    # not.
    idle_seconds: float | None
    # Seconds for calls that run when the task ends.
    finish_seconds: float
    # Variables of the driver that destinations read.
    environment: dict[str, str]

    def __repr__(self) -> str:
        # Without the variables, some of which are secret: Spark may log this.
        return f"<TaskSpec {self.task} of {self.pipeline}>"


def run_tasks(specs: Iterable[TaskSpec]) -> Iterator[int]:
    """For Spark: runs a task to its end, and gives the number of its jobs."""
    settle_worker()
    set_up_worker_logs()
    for spec in specs:
        for name, value in spec.environment.items():
            os.environ.setdefault(name, value)
        yield ResidentTask(spec).run()


class ResidentTask:
    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self._condition = threading.Condition()
        # By lease.
        self._jobs: dict[str, Job] = {}
        self._count = 0
        self._root: str | None = None
        self._instance = ""
        # The last request for work failed.
        self._has_failed = False
        # The run of the broker to which the task has described its pipeline.
        self._described_to = ""
        # Final reports that the next request for work takes along.
        self._reports: list[DeliveryReport] = []
        # The next request is not sent yet, and waits for reports.
        self._is_gathering = False
        self._reporting: StreamManagerClient

    def run(self) -> int:
        place = self._spec.place
        # A request for work waits nearly all the time. The threads of jobs get the answers to their
        # reports sooner on another connection.
        with place.connect(patient=True) as client, place.connect(patient=True) as self._reporting:
            self._serve(client)
            self._finish(client)
        return self._count

    def _serve(self, client: StreamManagerClient) -> None:
        """Asks and delivers until the task is to end."""
        spec = self._spec
        now = time.monotonic()
        ends_at = now + spec.life_seconds
        needed_at = now
        while True:
            now = time.monotonic()
            is_idle = spec.idle_seconds is not None and now - needed_at > spec.idle_seconds
            # A long upload may end meanwhile; a job that hangs is not waited for any longer.
            is_late = now > ends_at + spec.life_seconds
            if is_late or ((is_idle or now > ends_at) and not self._has_slow_jobs(now)):
                return
            plan = self._ask(client, now)
            if plan is None:
                time.sleep(_RETRY_SECONDS)
                continue
            if plan.waiting:
                needed_at = now
            self._is_gathering = bool(plan.work)
            for work in plan.work:
                self._start(work, client)
            if plan.stops:
                return
            if plan.work:
                self._gather_reports(has_backlog=plan.waiting > 0)

    def _gather_reports(self, *, has_backlog: bool) -> None:
        """Waits a moment until all jobs have ended; with a backlog, until one has."""
        with self._condition:
            count = len(self._jobs)
            self._condition.wait_for(
                lambda: not self._jobs or (has_backlog and len(self._jobs) < count),
                _GATHER_SECONDS,
            )

    def _ask(self, client: StreamManagerClient, now: float) -> ExportPlan | None:
        spec = self._spec
        with self._condition:
            jobs = list(self._jobs.values())
            reports = list(self._reports)
            self._is_gathering = False
        quick = sum(now - job.began < _SLOW_SECONDS for job in jobs)
        free = min(spec.threads - quick, _MAX_JOBS - len(jobs))
        room = max(_MAX_BYTES - sum(job.size for job in jobs), _MIN_ROOM)
        is_busy = free <= 0
        is_described = bool(self._instance) and self._described_to == self._instance
        about = None if is_described else spec.about
        try:
            plan = client.plan_exports(
                spec.pipeline,
                spec.task,
                lease_millis=_LEASE_MILLIS,
                holding=[job.lease for job in jobs if not job.is_lost],
                reports=reports,
                max_slices=max(free, 1),
                max_bytes=room,
                max_priority=_URGENT_PRIORITY if is_busy else None,
                wait_millis=_BUSY_WAIT_MILLIS if is_busy else _WAIT_MILLIS,
                about=about,
            )
        except (StreamManagerException, OSError) as error:
            if not self._has_failed:
                logger.warning("the broker gives no work: %s", error)
            self._has_failed = True
            return None
        self._has_failed = False
        with self._condition:
            del self._reports[: len(reports)]
        if about is not None:
            self._described_to = plan.instance
        self._stop(plan.lost, is_lost=True)
        self._stop(plan.ending, is_lost=False)
        if plan.instance != self._instance:
            self._instance = plan.instance
            self._root = plan.root if is_root_of(plan.root, plan.instance) else None
        return plan

    def _has_slow_jobs(self, now: float) -> bool:
        with self._condition:
            return any(now - job.began >= _SLOW_SECONDS for job in self._jobs.values())

    def _stop(self, leases: Iterable[str], *, is_lost: bool) -> None:
        with self._condition:
            for lease in leases:
                if lease in self._jobs:
                    self._jobs[lease].stop(is_lost=is_lost)

    def _report(self, report: DeliveryReport) -> bool:
        """Whether the broker accepts a report; in the thread of a job."""
        # The answer to a request for work does not say which reports were accepted: only files
        # that may be deleted depend on that. A request with long reports might be too large.
        if report.is_final and not (report.events or report.skipped):
            with self._condition:
                if self._is_gathering:
                    self._reports.append(report)
                    return True
        return report.lease in self._reporting.commit_exports([report]).accepted

    def _start(self, work: AnyWork, client: StreamManagerClient) -> None:
        prepare_imports(work)
        job = Job(work, self._root, client, self._report, self._spec.settings)
        with self._condition:
            self._jobs[job.lease] = job
            self._count += 1
        # A daemon: a call that hangs does not keep the worker from ending.
        threading.Thread(target=self._run, args=(job,), name="penstock-job", daemon=True).start()

    def _run(self, job: Job) -> None:
        try:
            job.run()
        finally:
            with self._condition:
                self._jobs.pop(job.lease, None)
                self._condition.notify_all()

    def _finish(self, client: StreamManagerClient) -> None:
        """Ends jobs after the calls that they have begun, and renews their leases meanwhile."""
        deadline = time.monotonic() + self._spec.finish_seconds
        with self._condition:
            for job in self._jobs.values():
                job.stop()
        while (seconds := deadline - time.monotonic()) > 0:
            with self._condition:
                self._condition.wait_for(lambda: not self._jobs, min(seconds, _LEASE_MILLIS / 5000))
                leases = [job.lease for job in self._jobs.values() if not job.is_lost]
                reports = list(self._reports)
                self._is_gathering = False
            if not leases and not reports:
                return
            with suppress(StreamManagerException, OSError):
                client.plan_exports(
                    self._spec.pipeline,
                    self._spec.task,
                    lease_millis=_LEASE_MILLIS,
                    holding=leases,
                    reports=reports,
                    max_slices=0,
                )
                with self._condition:
                    del self._reports[: len(reports)]


def prepare_imports(work: AnyWork) -> None:
    """Imports what the first delivery of a kind needs, which takes up to a second.

    In the thread that asks: threads that import the same modules at once may deadlock.
    """
    # The job reports an import that fails.
    with suppress(Exception):
        if isinstance(work, MessageSlice) and not isinstance(work, TaskSlice):
            import_destination(work.kind)
        else:
            importlib.import_module("penstock.pipeline.uploads.task_delivery")
