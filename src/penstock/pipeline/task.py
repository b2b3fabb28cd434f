"""A resident task: it requests work from the broker, delivers it in threads, and reports.

It runs in a Python worker of Spark for minutes. Its leases survive a restart of the broker. If the
task dies, its leases expire, and other tasks deliver the same messages again.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.broker.logs import set_up_worker_logs
from penstock.client.internal import InternalClient
from penstock.discovery import is_root_of
from penstock.errors import InvalidRequestException, StreamManagerException
from penstock.model.export_definition import S3_TASK_EXECUTOR
from penstock.model.exporting import (
    URGENT_PRIORITY,
    AnyWork,
    DeliveryReport,
    ExportPlan,
    MessageSlice,
    PipelineDescription,
)
from penstock.pipeline.destinations import import_destination
from penstock.pipeline.destinations.destination import DestinationSettings
from penstock.pipeline.job import Job
from penstock.pipeline.threads import JobThreads
from penstock.spark.place import Place
from penstock.spark.python import freeze_gc

logger = logging.getLogger(__name__)

_LEASE_MILLIS = 15_000
# The broker answers as soon as work is due. Each request renews leases.
_WAIT_MILLIS = 4_000
# While all threads are busy, the task requests urgent work only.
_BUSY_WAIT_MILLIS = 50
# The maximum time to wait for the reports of new jobs, so that the next request contains them.
_GATHER_SECONDS = 0.025
# A slower job no longer counts against the number of threads, because it may hang.
_SLOW_SECONDS = 0.25
_MAX_JOBS = 256
# Message bytes in all jobs. The task requests a slice of the minimum size even if all jobs hang.
_MAX_BYTES = 64 * 1024 * 1024
_MIN_ROOM = 256 * 1024
# The pause after a failed request.
_RETRY_SECONDS = 1.0


class TaskSpec(NamedTuple):
    """The parameters of a task, which can be pickled."""

    place: Place
    pipeline: str
    task: str
    about: PipelineDescription
    settings: DestinationSettings
    # The number of exports that are delivered at the same time.
    threads: int
    # The task ends after this time, so that a cluster can rebalance.
    life_seconds: float
    # The task ends earlier after this time without a backlog; None: no limit.
    idle_seconds: float | None
    # The timeout for running calls when the task ends.
    finish_seconds: float
    # Variables of the driver that destinations read.
    environment: dict[str, str]

    def __repr__(self) -> str:
        # Spark may log this: variables may be secret.
        return f"<TaskSpec {self.task} of {self.pipeline}>"


def run_tasks(specs: Iterable[TaskSpec]) -> Iterator[int]:
    """Runs tasks in a Spark worker, and yields the number of jobs of each."""
    freeze_gc()
    set_up_worker_logs()
    for spec in specs:
        for name, value in spec.environment.items():
            os.environ.setdefault(name, value)
        yield ResidentTask(spec).run()


class ResidentTask:
    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self._count = 0
        # The broker's directory if it is on this machine, and its instance.
        self._root: str | None = None
        self._instance = ""
        # This instance of the broker has the description of the pipeline.
        self._is_described = False
        # The last request failed.
        self._has_failed = False
        self._threads = JobThreads(max_idle=spec.threads)
        # Guards `_jobs`, `_reports` and `_is_gathering`.
        self._condition = threading.Condition()
        # By lease.
        self._jobs: dict[str, Job] = {}
        # Final reports for the next request.
        self._reports: list[DeliveryReport] = []
        # The next request waits for reports.
        self._is_gathering = False
        # Reports have their own connection, because requests for work wait for seconds.
        self._client: InternalClient
        self._reporting: InternalClient

    def run(self) -> int:
        connect = self._spec.place.connect
        with connect(wait=True) as self._client, connect(wait=True) as self._reporting:
            try:
                self._serve()
                self._finish()
            finally:
                self._threads.close()
        return self._count

    def _serve(self) -> None:
        """Requests and delivers work until the task has to end."""
        spec = self._spec
        needed_at = time.monotonic()
        ends_at = needed_at + spec.life_seconds
        while True:
            now = time.monotonic()
            is_idle = spec.idle_seconds is not None and now - needed_at > spec.idle_seconds
            # The task waits for long uploads, but for a limited time, because a job may hang.
            is_late = now > ends_at + spec.life_seconds
            if is_late or ((is_idle or now > ends_at) and not self._has_slow_jobs(now)):
                return
            try:
                plan = self._request_work(now)
            except (StreamManagerException, OSError) as error:
                if not self._has_failed:
                    logger.warning("cannot get work from the broker: %s", error)
                self._has_failed = True
                time.sleep(_RETRY_SECONDS)
                continue
            self._has_failed = False
            if plan.waiting:
                needed_at = now
            with self._condition:
                self._is_gathering = bool(plan.work)
            for work in plan.work:
                self._start(work)
            if plan.stops:
                return
            if plan.work:
                self._gather_reports(has_backlog=plan.waiting > 0)

    def _has_slow_jobs(self, now: float) -> bool:
        with self._condition:
            return any(now - job.began >= _SLOW_SECONDS for job in self._jobs.values())

    def _gather_reports(self, *, has_backlog: bool) -> None:
        """Waits briefly until all jobs have ended, or with a backlog until a job has ended."""
        with self._condition:
            count = len(self._jobs)
            self._condition.wait_for(
                lambda: not self._jobs or (has_backlog and len(self._jobs) < count),
                _GATHER_SECONDS,
            )

    def _request_work(self, now: float) -> ExportPlan:
        spec = self._spec
        with self._condition:
            jobs = list(self._jobs.values())
        quick = sum(now - job.began < _SLOW_SECONDS for job in jobs)
        free = min(spec.threads - quick, _MAX_JOBS - len(jobs))
        is_busy = free <= 0
        plan = self._send_request(
            max_slices=max(free, 1),
            max_bytes=max(_MAX_BYTES - sum(job.size for job in jobs), _MIN_ROOM),
            max_priority=URGENT_PRIORITY if is_busy else None,
            wait_millis=_BUSY_WAIT_MILLIS if is_busy else _WAIT_MILLIS,
            about=None if self._is_described else spec.about,
        )
        # A new instance of the broker gets the description with the next request.
        self._is_described = not self._is_described or plan.instance == self._instance
        if plan.instance != self._instance:
            self._instance = plan.instance
            self._root = plan.root if is_root_of(plan.root, plan.instance) else None
        return plan

    def _send_request(self, **options: Any) -> ExportPlan:
        """Renews the leases of all jobs, and sends their reports. Keeps the reports if it fails."""
        with self._condition:
            leases = [job.lease for job in self._jobs.values() if not job.is_lost]
            reports = list(self._reports)
            self._is_gathering = False
        try:
            plan = self._client.plan_exports(
                self._spec.pipeline,
                self._spec.task,
                lease_millis=_LEASE_MILLIS,
                holding=leases,
                reports=reports,
                **options,
            )
        except InvalidRequestException:
            self._send_separately(reports)
            raise
        with self._condition:
            del self._reports[: len(reports)]
            for lease in self._jobs.keys() & {*plan.lost, *plan.ending}:
                self._jobs[lease].stop(is_lost=lease in plan.lost)
        return plan

    def _send_separately(self, reports: list[DeliveryReport]) -> None:
        """Drops reports that the broker refuses: they would block all other requests."""
        for report in reports:
            try:
                self._reporting.commit_exports([report])
            except InvalidRequestException as error:
                logger.error(
                    "the broker refuses a report about stream %r: %s", report.stream, error
                )
            with self._condition:
                self._reports.remove(report)

    def _start(self, work: AnyWork) -> None:
        # If an import fails, the job fails as well, and reports the error.
        with suppress(Exception):
            _import_modules(work.kind if isinstance(work, MessageSlice) else S3_TASK_EXECUTOR)
        job = Job(work, self._root, self._client, self._report, self._spec.settings)
        with self._condition:
            self._jobs[job.lease] = job
            self._count += 1
        self._threads.start(functools.partial(self._run, job))

    def _run(self, job: Job) -> None:
        try:
            job.run()
        finally:
            with self._condition:
                self._jobs.pop(job.lease, None)
                self._condition.notify_all()

    def _report(self, report: DeliveryReport) -> bool:
        """Whether the broker accepts a report; called by threads of jobs."""
        # The answer to a request for work does not list accepted reports. Only the deletion of
        # files needs that list. A request with long reports might be too large.
        is_short = not (report.events or report.skipped or report.uploads)
        if report.is_final and is_short:
            with self._condition:
                if self._is_gathering:
                    self._reports.append(report)
                    return True
        return report.lease in self._reporting.commit_exports([report]).accepted

    def _finish(self) -> None:
        """Waits for running calls, sends the last reports, and renews leases in the meantime."""
        deadline = time.monotonic() + self._spec.finish_seconds
        with self._condition:
            for job in self._jobs.values():
                job.stop()
        while (seconds := deadline - time.monotonic()) > 0:
            with self._condition:
                self._condition.wait_for(lambda: not self._jobs, min(seconds, _LEASE_MILLIS / 5000))
                if not self._reports and all(job.is_lost for job in self._jobs.values()):
                    return
            with suppress(StreamManagerException, OSError):
                self._send_request(max_slices=0)


@functools.cache
def _import_modules(kind: str) -> None:
    """Imports the modules for this kind of export, which takes up to a second.

    Only one thread imports: threads that import the same modules at once may deadlock.
    """
    if kind == S3_TASK_EXECUTOR:
        importlib.import_module("penstock.pipeline.uploads.task_delivery")
    else:
        import_destination(kind)
