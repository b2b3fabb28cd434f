"""A Spark application without Spark SQL, in a small JVM whose files are removed at the end."""

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

# The web page of Spark keeps jobs and stages in memory.
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
# Without performance data, which Java samples 20 times a second and writes to a file.
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Xms16m -XX:MaxNewSize=16m"
)
_LOOPBACK = "127.0.0.1"
# The time that Java has to end when the application is discarded while Spark starts.
_JAVA_END_SECONDS = 3.0

# Errors of tasks whose Python is missing, has another version or lacks packages.
_PYTHON_PROBLEM = re.compile(
    r"ModuleNotFoundError: No module named .*"
    r"|Cannot run program .*"
    r"|Python in worker has different version: [^,\n]*"
)


class SparkApplication:
    """A Spark application. Not thread-safe, except for `discard`."""

    def __init__(
        self, name: str, master: str, config: Mapping[str, str], *, has_page: bool
    ) -> None:
        """`has_page` enables the web page of Spark with a local master; a cluster ignores it."""
        self._name = name
        self._master = master
        self._config = dict(config)
        self._has_page = has_page
        self._temporary = make_scratch()
        self._page = SparkPage()
        self._spark: SparkContext | None = None
        # The address of the web page of Spark, if it is enabled.
        self.page_url: str | None = None

    def start(self) -> SparkContext:
        directory = Path(self._temporary.name)
        _configure_java(os.environ, directory)
        config = self._config
        is_local = self._master.startswith("local")
        if is_local:
            config.setdefault("spark.local.dir", str(directory))
            if self._has_page:
                config = {**_PAGE_SETTINGS, **self._page.settings, **config}
                # The web page listens on this address.
                os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        with _preserve_interrupt_handler(), _temporary_files_in(directory):
            archive = ClassArchive(os.environ)
            spark = start_context(self._name, master=self._master, config=config, archive=archive)
        self._spark = spark
        # The caller logs errors of tasks in one line, see `describe_error`.
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
            logger.debug("Spark had already ended")
        self._temporary.cleanup()

    def discard(self) -> None:
        """Ends Java and removes all files while Spark starts. Thread-safe."""
        _end_children(_JAVA_END_SECONDS)
        self._temporary.cleanup()


def archive_classes() -> Path:
    """Archives the classes that an application loads, and returns the path of the archive."""
    archive = ClassArchive(os.environ, writes=True)
    with make_scratch() as scratch:
        _configure_java(os.environ, Path(scratch))
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        config = {**_PAGE_SETTINGS, **SparkPage().settings, "spark.local.dir": scratch}
        spark = start_context("penstock-classes", master="local[1]", config=config, archive=archive)
        spark.parallelize([1], 1).map(abs).collect()
        spark.stop()
        return archive.write()


def _configure_java(environment: MutableMapping[str, str], scratch: Path) -> None:
    """Sets variables for a small JVM; settings of the user take precedence.

    All work is done in Python, so a larger heap and better compiled code have no effect.
    """
    environment.setdefault("SPARK_DRIVER_MEMORY", _HEAP)
    # Java leaves unpacked libraries in this directory.
    defaults = f'{_JAVA_OPTIONS} -Djava.io.tmpdir="{scratch}"'
    # If an option occurs twice, the last one takes effect.
    user_options = environment.get("SPARK_SUBMIT_OPTS", "")
    environment["SPARK_SUBMIT_OPTS"] = f"{defaults} {user_options}".rstrip()


@contextmanager
def _preserve_interrupt_handler() -> Iterator[None]:
    """Restores the handler of SIGINT, which Spark replaces by a handler that cancels jobs."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """Sets the directory of temporary files. PySpark leaves files if it ends while Java starts."""
    previous = tempfile.tempdir
    tempfile.tempdir = str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = previous


def _end_children(timeout: float) -> None:
    """Ends the child processes and waits for them.

    Only on Linux. On other systems Java ends seconds after this process.
    """
    deadline = time.monotonic() + timeout
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            # Another thread may have waited for the process.
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGTERM)
                while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                    time.sleep(0.01)


def waits_for_cores(spark: SparkContext) -> bool:
    """Whether Spark has pending tasks and none is running.

    Requires `spark.ui.liveUpdate.period` 0; otherwise running tasks are reported seconds late.
    """
    tracker = spark.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    active = [stage.numActiveTasks for stage in stages if stage is not None]
    return bool(active) and not any(active)


# Errors


def has_java_ended(error: BaseException) -> bool:
    is_lost = isinstance(error, (Py4JError, ConnectionError))
    return is_lost and not isinstance(error, Py4JJavaError)


def describe_error(error: BaseException) -> str:
    """Returns the message of a Spark error in one line, without the stack trace."""
    text = _text_of(error)
    lines = [line for line in text.splitlines() if line.strip()] or [repr(error)]
    description = lines[0]
    if description.endswith("Traceback (most recent call last):"):
        # The Python error follows its traceback.
        description = next((line for line in lines[1:] if not line.startswith(" ")), description)
    if (problem := find_python_problem(error)) is not None:
        description = (
            f"{problem}: workers need the same version of Python as the driver, with the same "
            f"packages ({how_to_install('spark')}); set it with --conf spark.pyspark.python=PATH"
        )
    return description[:500]


def find_python_problem(error: BaseException) -> str | None:
    """Returns the reason why the Python of workers cannot run tasks, or None for other errors."""
    found = _PYTHON_PROBLEM.search(_text_of(error))
    return found[0].strip().rstrip(".") if found is not None else None


def _text_of(error: BaseException) -> str:
    return str(error.java_exception if isinstance(error, Py4JJavaError) else error)
