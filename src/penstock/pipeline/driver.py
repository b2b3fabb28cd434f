"""The driver of a pipeline: it starts, scales and restarts resident tasks on Spark."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping

from pyspark import SparkContext

from penstock.client.backoff import delays
from penstock.client.internal import InternalClient
from penstock.errors import SettingError, StreamManagerException
from penstock.model.exporting import ExportPlan, PipelineDescription
from penstock.pipeline.destinations.destination import DestinationSettings
from penstock.pipeline.task import TaskSpec, run_tasks
from penstock.settings import Settings
from penstock.spark.application import (
    SPARK_ERRORS,
    SparkApplication,
    describe_error,
    find_python_problem,
    has_java_ended,
    waits_for_cores,
)
from penstock.spark.place import Place

logger = logging.getLogger(__name__)

_SETTINGS = {
    # Two tasks with the same leases would conflict.
    "spark.speculation": "false",
    # The driver restarts tasks itself.
    "spark.task.maxFailures": "1",
    # Otherwise Spark reports the start of a task up to seconds late.
    "spark.ui.liveUpdate.period": "0",
}

# The task name in the driver's requests to the broker.
_DRIVER = "driver"
_POLL_SECONDS = 1.0
# The interval at which the driver checks whether tasks have ended.
_WATCH_SECONDS = 0.25
# Both intervals until the first task is ready.
_FIRST_POLL_SECONDS = 0.1
# Another task starts when exports were due and not leased in this many consecutive polls.
_POLLS_BEFORE_SCALING = 3
_TASK_LIFE_SECONDS = 600.0
# Additional tasks end after this time without a backlog.
_IDLE_SECONDS = 30.0
# The timeout for running calls when the pipeline stops.
_FINISH_SECONDS = 6.0
# A task that ran longer resets the count of failures.
_RECOVERED_SECONDS = 60.0
# After this many consecutive failures, the pipeline fails.
_MAX_FAILURES = 5
# If no task connects within this time, tasks that Spark has not started lack cores.
_NO_CORES_SECONDS = 10.0


class PipelineFailedError(Exception):
    """Spark has ended, or cannot be used: the pipeline has to be restarted."""


class _TaskThread:
    """A Spark job with one resident task. Its thread ends with the task."""

    def __init__(self, spark: SparkContext, spec: TaskSpec) -> None:
        self.name = spec.task
        self.began = time.monotonic()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(spark, spec), daemon=True)
        self._thread.start()

    def _run(self, spark: SparkContext, spec: TaskSpec) -> None:
        try:
            spark.setJobDescription(f"exports, task {spec.task}")
            spark.parallelize([spec], 1).mapPartitions(run_tasks).collect()
        except Exception as error:  # noqa: BLE001 - the driver's thread handles it
            self.error = error

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(max(seconds, 0.0))


class _BrokerWatch:
    """Polls the broker every second for due work, in a thread; waits if it is unavailable."""

    def __init__(self, place: Place, pipeline: str) -> None:
        self._place = place
        self._pipeline = pipeline
        self._wakes = threading.Event()
        self._stops = False
        # The latest answer.
        self.plan: ExportPlan | None = None
        # The number of answers.
        self.polls = 0
        # The broker answered the last request.
        self.is_broker_available = False
        # No task is connected, and tasks that connect get no work.
        self.has_stopped_all = False
        threading.Thread(target=self._run, daemon=True).start()

    def stop_tasks(self) -> None:
        """Makes all tasks of the pipeline end."""
        self._stops = True
        self._wakes.set()

    def _run(self) -> None:
        client: InternalClient | None = None
        while True:
            stops = self._stops
            try:
                client = client or self._place.connect(wait=True)
                self.plan = client.plan_exports(
                    self._pipeline, _DRIVER, lease_millis=1000, max_slices=0, stops=stops
                )
                self.has_stopped_all = stops and self.plan.tasks == 0
                self.polls += 1
                self.is_broker_available = True
            except (StreamManagerException, SettingError, OSError) as error:
                # A broker that restarts has no address file for a moment.
                self.is_broker_available = False
                logger.debug("the broker does not answer: %s", error)
            is_ready = self.plan is not None and self.plan.tasks > 0
            self._wakes.wait(_POLL_SECONDS if is_ready else _FIRST_POLL_SECONDS)
            self._wakes.clear()


class TaskDemand:
    """Decides from polls of the broker whether another task is needed."""

    def __init__(self) -> None:
        self._polls = 0

    def needs_task(self, plan: ExportPlan, started_tasks: int) -> bool:
        # A task that has just started has a backlog to deliver, which it may do alone.
        is_pending = plan.waiting > 0 and plan.tasks >= started_tasks
        self._polls = self._polls + 1 if is_pending else 0
        return self._polls >= _POLLS_BEFORE_SCALING


class TaskAbsence:
    """Measures how long no task has been connected to an available broker."""

    def __init__(self) -> None:
        self._instance = ""
        self._since = 0.0

    def seconds(self, plan: ExportPlan, now: float) -> float:
        # Running tasks take a moment to reconnect to a broker that was restarted.
        if plan.tasks or plan.instance != self._instance:
            self._instance = plan.instance
            self._since = now
        return now - self._since


class PipelineDriver:
    """One Spark application. Called by one thread, except for `request_stop` and `discard`."""

    def __init__(
        self,
        place: Place,
        settings: Settings,
        *,
        master: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._place = place
        self._settings = settings
        self._master = master or "local[*]"
        self._application = SparkApplication(
            "penstock-pipeline",
            self._master,
            {**_SETTINGS, **(config or {})},
            has_page=settings.spark_page,
        )
        self._stops = threading.Event()
        self._has_begun = threading.Event()
        self._id = secrets.token_hex(8)
        self._about = PipelineDescription(started=time.time_ns() // 1_000_000)
        self._threads: list[_TaskThread] = []
        self._task_count = 0
        # A task has been connected.
        self._is_ready = False
        self._failures = 0
        self._pauses = delays()
        self._restart_at = 0.0

    def request_stop(self) -> None:
        """Makes `run` return. May be called from any thread."""
        self._stops.set()

    @property
    def has_begun(self) -> bool:
        """Whether deliveries may be in flight."""
        return self._has_begun.is_set()

    def discard(self) -> None:
        """Ends Java and removes the files of a pipeline that has not begun; from any thread."""
        self._application.discard()

    def run(self, ready: Callable[[], None]) -> None:
        """Exports until a stop is requested. Raises PipelineFailedError."""
        try:
            spark = self._application.start()
            self._about = PipelineDescription(
                started=self._about.started,
                spark_version=spark.version,
                master=self._master,
                spark_page=self._application.page_url,
            )
            watch = _BrokerWatch(self._place, self._id)
            self._has_begun.set()
            self._watch(spark, watch, ready)
            self._finish(watch)
        except SPARK_ERRORS as error:
            # A stop may also end Java.
            if not self._stops.is_set():
                raise PipelineFailedError(_explain(error)) from None
        finally:
            self._application.stop()

    # Tasks

    def _watch(self, spark: SparkContext, watch: _BrokerWatch, ready: Callable[[], None]) -> None:
        polls = 0
        demand = TaskDemand()
        absence = TaskAbsence()
        is_short_of_cores = False
        self._start_task(spark, idle_seconds=None)
        while not self._stops.wait(_WATCH_SECONDS if self._is_ready else _FIRST_POLL_SECONDS):
            self._restart_ended(spark, is_broker_available=watch.is_broker_available)
            plan = watch.plan
            if plan is None or watch.polls == polls:
                continue
            polls = watch.polls
            if plan.tasks and not self._is_ready:
                self._is_ready = True
                ready()
            if demand.needs_task(plan, len(self._threads)) and self._may_scale(spark):
                self._start_task(spark, idle_seconds=_IDLE_SECONDS)
            absent_seconds = absence.seconds(plan, time.monotonic())
            lacks_cores = absent_seconds > _NO_CORES_SECONDS and waits_for_cores(spark)
            if lacks_cores and not is_short_of_cores:
                logger.warning(
                    "Spark has no cores for the tasks of this pipeline: it waits for other "
                    "applications on %s to end, or for more workers",
                    self._master,
                )
            is_short_of_cores = lacks_cores

    def _may_scale(self, spark: SparkContext) -> bool:
        return len(self._threads) < max(spark.defaultParallelism, 1)

    def _restart_ended(self, spark: SparkContext, *, is_broker_available: bool) -> None:
        """Removes tasks that have ended, and starts a task if none is left."""
        for thread in [each for each in self._threads if not each.is_alive]:
            self._threads.remove(thread)
            if thread.error is not None:
                self._note_failure(thread, is_broker_available=is_broker_available)
        if not self._threads and time.monotonic() >= self._restart_at:
            self._start_task(spark, idle_seconds=None)

    def _note_failure(self, thread: _TaskThread, *, is_broker_available: bool) -> None:
        assert thread.error is not None
        if has_java_ended(thread.error):
            raise thread.error
        if time.monotonic() - thread.began > _RECOVERED_SECONDS:
            self._failures = 0
            self._pauses = delays()
        # If the broker is unavailable, the failure may not be an error of Spark.
        self._failures += is_broker_available
        # A cluster with an unsuitable Python does not recover.
        is_unsuitable = not self._is_ready and find_python_problem(thread.error) is not None
        if is_unsuitable or self._failures == _MAX_FAILURES:
            raise thread.error
        logger.warning("task %s ended: %s", thread.name, describe_error(thread.error))
        self._restart_at = time.monotonic() + next(self._pauses)

    def _start_task(self, spark: SparkContext, *, idle_seconds: float | None) -> None:
        self._task_count += 1
        spec = TaskSpec(
            place=self._place,
            pipeline=self._id,
            task=str(self._task_count),
            about=self._about,
            settings=destination_settings(self._settings),
            threads=self._settings.exporter_thread_pool_size,
            life_seconds=_TASK_LIFE_SECONDS,
            idle_seconds=idle_seconds,
            finish_seconds=_FINISH_SECONDS,
            environment={
                name: value for name, value in os.environ.items() if name.startswith("AWS_")
            },
        )
        self._threads.append(_TaskThread(spark, spec))

    def _finish(self, watch: _BrokerWatch) -> None:
        """Waits for deliveries in flight, so that they are not repeated."""
        deadline = time.monotonic() + _FINISH_SECONDS + 2
        watch.stop_tasks()
        while self._threads and time.monotonic() < deadline:
            # Spark may wait for cores. A task that has not connected has nothing in flight.
            if not self._is_ready and watch.has_stopped_all:
                return
            self._threads[0].join(_FIRST_POLL_SECONDS)
            self._threads = [thread for thread in self._threads if thread.is_alive]


def destination_settings(settings: Settings) -> DestinationSettings:
    return DestinationSettings(
        kinesis_inter_call_delay_ms=settings.exporter_kinesis_inter_call_delay_ms,
        kinesis_partition_key=settings.kinesis_partition_key,
        kinesis_large_records=settings.kinesis_large_records,
        channels=settings.channels,
        read_only_directories=settings.read_only_directories,
        s3_min_part_bytes=settings.exporter_s3_destination_multipart_upload_min_part_size_bytes,
        s3_tasks_at_once=settings.s3_tasks_at_once,
        s3_parts_at_once=settings.s3_parts_at_once,
        s3_key_time_zone=settings.s3_key_time_zone,
        s3_delete_uploaded_files=settings.s3_delete_uploaded_files,
    )


def _explain(error: Exception) -> str:
    if has_java_ended(error):
        return "Spark ended: its Java process has ended"
    return f"Spark failed: {describe_error(error)}"
