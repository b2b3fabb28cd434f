"""The driver of a pipeline: it starts resident tasks on Spark, scales and restarts them."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from penstock.broker.settings import Settings
from penstock.client.backoff import delays
from penstock.client.blocking import StreamManagerClient
from penstock.errors import SettingError, StreamManagerException
from penstock.model.exporting import ExportPlan, PipelineDescription
from penstock.pipeline.destinations.destination import DestinationSettings
from penstock.pipeline.scratch import make_scratch
from penstock.pipeline.spark_page import SparkPage
from penstock.pipeline.task import TaskSpec, run_tasks
from penstock.spark.class_archive import ClassArchive
from penstock.spark.place import Place
from penstock.spark.session import start_context

logger = logging.getLogger(__name__)

_SETTINGS = {
    # Two tasks with the same leases would be in each other's way.
    "spark.speculation": "false",
    # The driver restarts tasks itself.
    "spark.task.maxFailures": "1",
    # Otherwise the start of a task may stay invisible for seconds to the driver, which looks
    # whether Spark has started its tasks.
    "spark.ui.liveUpdate.period": "0",
}
# Spark's own page keeps what it shows in memory.
_PAGE_SETTINGS = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.ui.killEnabled": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "100",
}
# The minimum that Spark accepts.
_HEAP = "512m"
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms16m -XX:MaxNewSize=16m"
_LOOPBACK = "127.0.0.1"

# The name under which the driver asks the broker.
_DRIVER = "driver"
_LOOK_SECONDS = 1.0
# How often the driver looks whether tasks have ended.
_WATCH_SECONDS = 0.25
# Until the first task is ready.
_FIRST_LOOK_SECONDS = 0.1
# Another task starts when exports were due at so many looks in a row and no task had them.
_LOOKS_BEFORE_SCALING = 3
_TASK_LIFE_SECONDS = 600.0
# Tasks beside the first one end when there was no backlog for so long.
_IDLE_SECONDS = 30.0
# A call that runs when the pipeline stops may take so long; a longer one is given up.
_FINISH_SECONDS = 6.0
# Java may take so long to end when the pipeline stops while Spark starts.
_JAVA_END_SECONDS = 3.0
# A task that ran so long has recovered from the failure of the one before it.
_RECOVERED_SECONDS = 60.0
# After so many failures in a row Spark itself does not work.
_MAX_FAILURES = 5
# Tasks that Spark has not started while none was connected for so long wait for cores.
_NO_CORES_SECONDS = 10.0

# Errors of tasks whose Python is missing, has another version or lacks packages.
_UNFIT_PYTHON = re.compile(
    r"ModuleNotFoundError: No module named .*"
    r"|Cannot run program .*"
    r"|Python in worker has different version: [^,\n]*"
)


class PipelineFailedError(Exception):
    """Spark is gone, or cannot be used: the pipeline has to be restarted."""


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
    """Looks every second how much is due. In a thread, which waits while the broker is gone."""

    def __init__(self, place: Place, pipeline: str) -> None:
        self._place = place
        self._pipeline = pipeline
        self._wakes = threading.Event()
        self._stops = False
        # The latest answer.
        self.plan: ExportPlan | None = None
        # The number of answers.
        self.looks = 0
        # The last request was answered.
        self.is_answered = False
        # No task is connected, and the broker gives no work to those that connect.
        self.has_stopped_all = False
        threading.Thread(target=self._run, daemon=True).start()

    def stop_tasks(self) -> None:
        """All tasks of the pipeline are to end."""
        self._stops = True
        self._wakes.set()

    def _run(self) -> None:
        client: StreamManagerClient | None = None
        while True:
            stops = self._stops
            try:
                client = client or self._place.connect(patient=True)
                self.plan = client.plan_exports(
                    self._pipeline, _DRIVER, lease_millis=1000, max_slices=0, stops=stops
                )
                self.has_stopped_all = stops and self.plan.tasks == 0
                self.looks += 1
                self.is_answered = True
            except (StreamManagerException, SettingError, OSError) as error:
                # Without its address file, a broker that restarts cannot be found for a moment.
                self.is_answered = False
                logger.debug("the broker does not answer: %s", error)
            is_ready = self.plan is not None and self.plan.tasks > 0
            self._wakes.wait(_LOOK_SECONDS if is_ready else _FIRST_LOOK_SECONDS)
            self._wakes.clear()


class TaskDemand:
    """Decides from looks at the broker whether another task is needed."""

    def __init__(self) -> None:
        self._looks = 0

    def needs_task(self, plan: ExportPlan, started_tasks: int) -> bool:
        # A task that has just started has a backlog to deliver, which it may do alone.
        is_pending = plan.waiting > 0 and plan.tasks >= started_tasks
        self._looks = self._looks + 1 if is_pending else 0
        return self._looks >= _LOOKS_BEFORE_SCALING


class TaskAbsence:
    """Measures for how long no task has been connected to a broker that answers."""

    def __init__(self) -> None:
        self._instance = ""
        self._since = 0.0

    def seconds(self, plan: ExportPlan, now: float) -> float:
        # Running tasks take a moment to reconnect to a broker that was restarted.
        if plan.tasks or plan.instance != self._instance:
            self._instance = plan.instance
            self._since = now
        return now - self._since


class Pipeline:
    """One Spark application. For one thread, but for `ask_to_stop`."""

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
        self._config = dict(config or {})
        self._stops = threading.Event()
        self._has_begun = threading.Event()
        self._temporary = make_scratch()
        self._directory = Path(self._temporary.name)
        self._id = secrets.token_hex(8)
        self._about = PipelineDescription(started=time.time_ns() // 1_000_000)
        self._page = SparkPage()
        self._threads: list[_TaskThread] = []
        self._task_count = 0
        # A task has been connected.
        self._is_ready = False
        self._failures = 0
        self._pauses = delays()
        self._restart_at = 0.0

    @property
    def _is_local(self) -> bool:
        return self._master.startswith("local")

    def ask_to_stop(self) -> None:
        """From any thread."""
        self._stops.set()

    @property
    def has_begun(self) -> bool:
        """Whether deliveries may be in flight that should finish."""
        return self._has_begun.is_set()

    def discard(self) -> None:
        """Ends Java and removes the files of a pipeline that has not begun; from any thread."""
        end_children(_JAVA_END_SECONDS)
        self._temporary.cleanup()

    def run(self, ready: Callable[[], None]) -> None:
        """Exports until it is asked to stop; PipelineFailedError if that is not possible."""
        with self._temporary:
            try:
                self._run(ready)
            except (Py4JError, PySparkException, OSError) as error:
                # A stop may end Java as well.
                if not self._stops.is_set():
                    raise PipelineFailedError(_explain(error)) from None

    def _run(self, ready: Callable[[], None]) -> None:
        spark = self._start_spark()
        try:
            watch = _BrokerWatch(self._place, self._id)
            self._has_begun.set()
            self._watch(spark, watch, ready)
            self._finish(watch)
        finally:
            self._page.close()
            _stop(spark)

    def _start_spark(self) -> SparkContext:
        _choose_java(os.environ, self._directory)
        config = {**_SETTINGS, **self._config}
        if self._is_local:
            config.setdefault("spark.local.dir", str(self._directory))
            if self._settings.spark_page:
                config = {**_PAGE_SETTINGS, **self._page.settings, **config}
                # The page listens on the address that this variable names.
                os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        with _keeping_interrupts(), _temporary_files_in(self._directory):
            archive = ClassArchive(os.environ)
            spark = start_context(
                "penstock-pipeline", master=self._master, config=config, archive=archive
            )
        # The driver logs errors of tasks itself, in one line.
        spark.setLogLevel("FATAL")
        # It prints a traceback when Java is gone.
        server = spark._accumulatorServer  # noqa: SLF001
        server.handle_error = _ignore  # type: ignore[assignment,method-assign]
        page = spark.uiWebUrl
        if page is not None and self._is_local:
            page = self._page.open(page)
        self._about = PipelineDescription(
            started=self._about.started,
            spark_version=spark.version,
            master=self._master,
            spark_page=page,
        )
        return spark

    # Tasks

    def _watch(self, spark: SparkContext, watch: _BrokerWatch, ready: Callable[[], None]) -> None:
        looks = 0
        demand = TaskDemand()
        absence = TaskAbsence()
        is_short_of_cores = False
        self._start_task(spark, idle_seconds=None)
        while not self._stops.wait(_WATCH_SECONDS if self._is_ready else _FIRST_LOOK_SECONDS):
            self._restart_ended(spark, is_broker_there=watch.is_answered)
            plan = watch.plan
            if plan is None or watch.looks == looks:
                continue
            looks = watch.looks
            if plan.tasks and not self._is_ready:
                self._is_ready = True
                ready()
            if demand.needs_task(plan, len(self._threads)) and self._may_scale(spark):
                self._start_task(spark, idle_seconds=_IDLE_SECONDS)
            absent_seconds = absence.seconds(plan, time.monotonic())
            waits_for_cores = absent_seconds > _NO_CORES_SECONDS and _waits_for_cores(spark)
            if waits_for_cores and not is_short_of_cores:
                logger.warning(
                    "Spark has no cores for the tasks of this pipeline: it waits for other "
                    "applications on %s to end, or for more workers",
                    self._master,
                )
            is_short_of_cores = waits_for_cores

    def _may_scale(self, spark: SparkContext) -> bool:
        return len(self._threads) < max(spark.defaultParallelism, 1)

    def _restart_ended(self, spark: SparkContext, *, is_broker_there: bool) -> None:
        """Removes tasks that have ended, and keeps one running."""
        for thread in [each for each in self._threads if not each.is_alive]:
            self._threads.remove(thread)
            if thread.error is not None:
                self._note_failure(thread, is_broker_there=is_broker_there)
        if not self._threads and time.monotonic() >= self._restart_at:
            self._start_task(spark, idle_seconds=None)

    def _note_failure(self, thread: _TaskThread, *, is_broker_there: bool) -> None:
        assert thread.error is not None
        if isinstance(thread.error, Py4JError) and not isinstance(thread.error, Py4JJavaError):
            raise thread.error  # Java is gone
        if time.monotonic() - thread.began > _RECOVERED_SECONDS:
            self._failures = 0
            self._pauses = delays()
        # Without the broker, the failure of a task says nothing about Spark.
        self._failures += is_broker_there
        # A cluster whose Python is not fit for tasks does not recover by itself.
        is_unfit = not self._is_ready and _find_unfit_python(_text_of(thread.error)) is not None
        if is_unfit or self._failures == _MAX_FAILURES:
            raise thread.error
        logger.warning("task %s ended: %s", thread.name, first_line(thread.error))
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
        """Lets deliveries finish that are in flight: they need not be repeated."""
        deadline = time.monotonic() + _FINISH_SECONDS + 2
        watch.stop_tasks()
        while self._threads and time.monotonic() < deadline:
            # Spark may wait for cores. A task that has not connected has nothing in flight.
            if not self._is_ready and watch.has_stopped_all:
                return
            self._threads[0].join(_FIRST_LOOK_SECONDS)
            self._threads = [thread for thread in self._threads if thread.is_alive]


def archive_classes() -> Path:
    """Archives the classes that a pipeline loads; the path of the archive."""
    archive = ClassArchive(os.environ, writes=True)
    with make_scratch() as scratch:
        _choose_java(os.environ, Path(scratch))
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        config = {**_SETTINGS, **_PAGE_SETTINGS, **SparkPage().settings, "spark.local.dir": scratch}
        spark = start_context("penstock-classes", master="local[1]", config=config, archive=archive)
        spark.parallelize([1], 1).map(abs).collect()
        _stop(spark)
        return archive.write()


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


@contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Spark would handle Ctrl-C itself, and cancel deliveries."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """PySpark would leave files in the usual directory when it is ended while Java starts."""
    usual = tempfile.tempdir
    tempfile.tempdir = str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = usual


def end_children(seconds: float) -> None:
    """Ends the processes that this one has started, and waits for them.

    On Linux. Elsewhere Java ends by itself, seconds after this process.
    """
    deadline = time.monotonic() + seconds
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            # A process may have been waited for elsewhere.
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGTERM)
                while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                    time.sleep(0.01)


def _waits_for_cores(spark: SparkContext) -> bool:
    """Whether Spark has tasks to run and runs none of them."""
    tracker = spark.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    active = [stage.numActiveTasks for stage in stages if stage is not None]
    return bool(active) and not any(active)


def _stop(spark: SparkContext) -> None:
    try:
        spark.stop()
    except (Py4JError, OSError):
        logger.debug("Spark was gone already")


def _choose_java(environment: MutableMapping[str, str], scratch: Path) -> None:
    """Settings for a small Java; those of the user take precedence.

    All work is done in Python: a larger heap and better compiled code would gain nothing.
    """
    environment.setdefault("SPARK_DRIVER_MEMORY", _HEAP)
    # Java leaves unpacked libraries there.
    usual = f'{_JAVA_OPTIONS} -Djava.io.tmpdir="{scratch}"'
    # Of two equal options the last one counts.
    chosen = environment.get("SPARK_SUBMIT_OPTS", "")
    environment["SPARK_SUBMIT_OPTS"] = f"{usual} {chosen}".rstrip()


def _ignore(*_: object) -> None:
    pass


def _explain(error: Exception) -> str:
    if isinstance(error, (Py4JError, ConnectionError)) and not isinstance(error, Py4JJavaError):
        return "Spark ended: its Java is gone"
    return f"Spark failed: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """The message of an error of Spark, without the stack trace."""
    text = _text_of(error)
    lines = [line for line in text.splitlines() if line.strip()] or [repr(error)]
    found = lines[0]
    if found.endswith("Traceback (most recent call last):"):
        # The error in Python stands below its traceback.
        found = next((line for line in lines[1:] if not line.startswith(" ")), found)
    if (problem := _find_unfit_python(text)) is not None:
        found = (
            f"{problem}: workers need the same version of Python as the driver, with the same "
            "packages (pip install 'penstock[spark]'); --conf spark.pyspark.python=PATH names it"
        )
    return found[:500]


def _find_unfit_python(text: str) -> str | None:
    """The reason why workers cannot run tasks with their Python, if an error is about that."""
    found = _UNFIT_PYTHON.search(text)
    return found[0].strip().rstrip(".") if found is not None else None


def _text_of(error: BaseException) -> str:
    return str(error.java_exception if isinstance(error, Py4JJavaError) else error)
