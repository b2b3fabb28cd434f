"""A Spark application without Spark SQL, on a small Java that leaves no files behind."""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from penstock.distribution import how_to_install
from penstock.spark.class_archive import ClassArchive
from penstock.spark.pyspark_internals import silence_accumulator_server
from penstock.spark.scratch import make_scratch
from penstock.spark.spark_session import start_context
from penstock.spark.web_page import SparkPage

logger = logging.getLogger(__name__)

SPARK_ERRORS = (Py4JError, PySparkException, OSError)

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
# Without performance data, which Java would sample 20 times a second and leave in a file.
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Xms16m -XX:MaxNewSize=16m"
)
_LOOPBACK = "127.0.0.1"
# Java may take so long to end when the application is discarded while Spark starts.
_JAVA_END_SECONDS = 3.0

# Errors of tasks whose Python is missing, has another version or lacks packages.
_UNFIT_PYTHON = re.compile(
    r"ModuleNotFoundError: No module named .*"
    r"|Cannot run program .*"
    r"|Python in worker has different version: [^,\n]*"
)


class SparkApplication:
    """One application. For one thread, but for `discard`."""

    def __init__(
        self, name: str, master: str, config: Mapping[str, str], *, has_page: bool
    ) -> None:
        """On this machine, `has_page` enables Spark's own page. On a cluster, Spark decides."""
        self._name = name
        self._master = master
        self._config = dict(config)
        self._has_page = has_page
        self._temporary = make_scratch()
        self._page = SparkPage()
        self._spark: SparkContext | None = None
        # The address of Spark's own page, if it has one.
        self.page_url: str | None = None

    def start(self) -> SparkContext:
        directory = Path(self._temporary.name)
        _choose_java(os.environ, directory)
        config = self._config
        is_local = self._master.startswith("local")
        if is_local:
            config.setdefault("spark.local.dir", str(directory))
            if self._has_page:
                config = {**_PAGE_SETTINGS, **self._page.settings, **config}
                # The page listens on the address that this variable names.
                os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        with _keeping_interrupts(), _temporary_files_in(directory):
            archive = ClassArchive(os.environ)
            spark = start_context(self._name, master=self._master, config=config, archive=archive)
        self._spark = spark
        # Errors of tasks are logged in one line, by `describe_error`.
        spark.setLogLevel("FATAL")
        silence_accumulator_server(spark)
        self.page_url = spark.uiWebUrl
        if self.page_url is not None and is_local:
            self.page_url = self._page.open(self.page_url)
        return spark

    def stop(self) -> None:
        self._page.close()
        try:
            if self._spark is not None:
                self._spark.stop()
        except (Py4JError, OSError):
            logger.debug("Spark was gone already")
        self._temporary.cleanup()

    def discard(self) -> None:
        """Ends Java and removes all files while Spark starts; from any thread."""
        _end_children(_JAVA_END_SECONDS)
        self._temporary.cleanup()


def archive_classes() -> Path:
    """Archives the classes that an application loads; the path of the archive."""
    archive = ClassArchive(os.environ, writes=True)
    with make_scratch() as scratch:
        _choose_java(os.environ, Path(scratch))
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        config = {**_PAGE_SETTINGS, **SparkPage().settings, "spark.local.dir": scratch}
        spark = start_context("penstock-classes", master="local[1]", config=config, archive=archive)
        spark.parallelize([1], 1).map(abs).collect()
        spark.stop()
        return archive.write()


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


@contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Spark would handle Ctrl-C itself, and cancel jobs."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
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


def _end_children(seconds: float) -> None:
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


def waits_for_cores(spark: SparkContext) -> bool:
    """Whether Spark has tasks to run and runs none of them.

    `spark.ui.liveUpdate.period` has to be 0: otherwise tasks that run may be missing for seconds.
    """
    tracker = spark.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    active = [stage.numActiveTasks for stage in stages if stage is not None]
    return bool(active) and not any(active)


# Errors


def is_java_gone(error: BaseException) -> bool:
    is_lost = isinstance(error, (Py4JError, ConnectionError))
    return is_lost and not isinstance(error, Py4JJavaError)


def describe_error(error: BaseException) -> str:
    """The message of an error of Spark in one line, without the stack trace."""
    text = _text_of(error)
    lines = [line for line in text.splitlines() if line.strip()] or [repr(error)]
    found = lines[0]
    if found.endswith("Traceback (most recent call last):"):
        # The error in Python stands below its traceback.
        found = next((line for line in lines[1:] if not line.startswith(" ")), found)
    if (problem := find_unfit_python(error)) is not None:
        found = (
            f"{problem}: workers need the same version of Python as the driver, with the same "
            f"packages ({how_to_install('spark')}); --conf spark.pyspark.python=PATH names it"
        )
    return found[:500]


def find_unfit_python(error: BaseException) -> str | None:
    """The reason why workers cannot run tasks with their Python, if an error is about that."""
    found = _UNFIT_PYTHON.search(_text_of(error))
    return found[0].strip().rstrip(".") if found is not None else None


def _text_of(error: BaseException) -> str:
    return str(error.java_exception if isinstance(error, Py4JJavaError) else error)
