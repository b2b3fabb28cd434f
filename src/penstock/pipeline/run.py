"""The pipeline as a program: Spark with a query for each lane, until it is told to stop."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock.spark
from penstock.broker.settings import Settings
from penstock.client.backoff import delays
from penstock.model.exporting import Lane, PipelineDescription
from penstock.pipeline.destinations.destination import DestinationSettings
from penstock.pipeline.lanes import LIMITS
from penstock.pipeline.options import PipelineOptions, encode_place
from penstock.pipeline.scratch import make_scratch
from penstock.pipeline.signals import Signals
from penstock.pipeline.source import FORMAT, ExportsDataSource
from penstock.pipeline.spark_page import SparkPage
from penstock.spark.place import Place

logger = logging.getLogger(__name__)

_SETTINGS = {
    # A batch without slices is of no use.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Nothing depends on checkpoints: see `penstock.pipeline.planning`.
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    # The first progress, which may be without data, tells that a lane works.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    # A query that waits for a broker that is away does not notice that it is to stop.
    "spark.sql.streaming.stopTimeout": "5s",
}
# Spark's own page keeps what it shows in memory: the last minutes are enough.
_PAGE_SETTINGS = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.ui.killEnabled": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.ui.retainedQueries": "10",
}
_HEAP = "512m"
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.2
# What is under way when it stops may take so long; one that hangs is not waited for.
_FINISH_SECONDS = LIMITS[Lane.steady].longest + 5
# A query that ran so long has recovered from what ended the one before it.
_WELL_SECONDS = 60.0
# After so many starts in vain it is Spark itself that does not work.
_MOST_FAILURES = 5


class PipelineFailedError(Exception):
    """Spark is gone, or cannot be used: the pipeline has to be started anew."""


class _Running(NamedTuple):
    query: StreamingQuery
    began: float


class Pipeline:
    """The queries of all lanes in one Spark session. For one thread, but for `ask_to_stop`."""

    def __init__(
        self,
        place: Place,
        settings: Settings,
        *,
        master: str | None = None,
        checkpoint: Path | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._place = place
        self._settings = settings
        self._master = master
        self._config = dict(config or {})
        self._stops = threading.Event()
        self._has_begun = threading.Event()
        self._temporary = make_scratch()
        self._directory = Path(self._temporary.name)
        self._checkpoint = checkpoint
        self._id = secrets.token_hex(8)
        self._started = time.time_ns() // 1_000_000
        self._about: PipelineDescription | None = None
        self._page = SparkPage()

    def ask_to_stop(self) -> None:
        """From any thread."""
        self._stops.set()

    @property
    def has_begun(self) -> bool:
        """Whether something may be under way that should come to its end."""
        return self._has_begun.is_set()

    def discard(self) -> None:
        """Leaves nothing behind of one that has not begun; from any thread."""
        self._temporary.cleanup()

    def run(self, ready: Callable[[], None]) -> None:
        """Exports until it is asked to stop; PipelineFailedError if that is not possible."""
        with self._temporary:
            try:
                self._run(ready)
            except (Py4JError, PySparkException, OSError) as error:
                # Whoever stops it may have stopped Java as well.
                if not self._stops.is_set():
                    raise PipelineFailedError(_explain(error)) from None

    def _run(self, ready: Callable[[], None]) -> None:
        spark = self._start_spark()
        queries: dict[Lane, _Running] = {}
        try:
            queries[Lane.steady] = self._start(spark, Lane.steady)
            self._has_begun.set()
            self._watch(spark, queries, ready)
            self._finish(queries)
        finally:
            self._page.close()
            _stop(spark)

    def _start_spark(self) -> SparkSession:
        _choose_java(os.environ, self._directory)
        cores = os.cpu_count() or 1
        # One more for each lane beside the first: what hangs in one must not hold up another.
        master = self._master or f"local[{cores + len(LIMITS) - 1}]"
        config = {**_SETTINGS, **self._config}
        if master.startswith("local"):
            config.setdefault("spark.local.dir", str(self._directory))
        if self._settings.spark_page and master.startswith("local"):
            config = {**_PAGE_SETTINGS, **self._page.settings, **config}
            # Nothing else decides where the page listens.
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        with _keeping_interrupts():
            spark = penstock.spark.session("penstock-pipeline", master=master, config=config)
        # What ends a query is told by us, in one line.
        spark.sparkContext.setLogLevel("FATAL")
        # It prints a traceback when Java is gone.
        server = spark.sparkContext._accumulatorServer  # noqa: SLF001
        server.handle_error = _ignore  # type: ignore[assignment,method-assign]
        spark.dataSource.register(ExportsDataSource)
        page = spark.sparkContext.uiWebUrl
        if page is not None and master.startswith("local"):
            page = self._page.open(page)
        self._about = PipelineDescription(
            started=self._started,
            spark_version=spark.version,
            master=master,
            spark_page=page,
        )
        return spark

    def _start(self, spark: SparkSession, lane: Lane) -> _Running:
        options = self._options(lane).to_spark()
        checkpoint = self._checkpoint or self._directory
        rows = spark.readStream.format(FORMAT).options(**options).load()
        query = (
            rows.writeStream.format(FORMAT)
            .options(**options)
            .queryName(f"exports-{lane.value}")
            .option("checkpointLocation", str(checkpoint / lane.value))
            .start()
        )
        return _Running(query, time.monotonic())

    def _options(self, lane: Lane) -> PipelineOptions:
        settings = self._settings
        return PipelineOptions(
            pipeline=self._id,
            lane=lane.value,
            broker=encode_place(self._place),
            signals=str(self._directory),
            threads=LIMITS[lane].threads or settings.exporter_thread_pool_size,
            about=self._about,
            settings=DestinationSettings(
                kinesis_inter_call_delay_ms=settings.exporter_kinesis_inter_call_delay_ms,
                kinesis_partition_key=settings.kinesis_partition_key,
                kinesis_large_records=settings.kinesis_large_records,
                channels=settings.channels,
                read_only_directories=settings.read_only_directories,
                s3_min_part_bytes=(
                    settings.exporter_s3_destination_multipart_upload_min_part_size_bytes
                ),
                s3_tasks_at_once=settings.s3_tasks_at_once,
                s3_parts_at_once=settings.s3_parts_at_once,
                s3_key_time_zone=settings.s3_key_time_zone,
                s3_delete_uploaded_files=settings.s3_delete_uploaded_files,
            ),
        )

    @property
    def _signals(self) -> Signals:
        return Signals(self._directory)

    def _watch(
        self, spark: SparkSession, queries: dict[Lane, _Running], ready: Callable[[], None]
    ) -> None:
        """Starts queries again that ended, which a task that dies makes them do.

        A lane is begun when it has exports: each takes memory, and many never need but one.
        """
        pauses = delays()
        failures = 0
        is_ready = False
        while not self._stops.wait(_LOOK_SECONDS):
            # The first batch takes seconds; from then on it is fast.
            if not is_ready and queries[Lane.steady].query.lastProgress is not None:
                is_ready = True
                ready()
            for lane in LIMITS:
                running = queries.get(lane)
                if running is None and not self._signals.is_wanted(lane):
                    continue
                if running is not None:
                    if running.query.isActive:
                        continue
                    logger.warning("lane %s ended: %s", lane.value, _reason(running.query))
                    if time.monotonic() - running.began > _WELL_SECONDS:
                        pauses = delays()
                    if self._stops.wait(next(pauses)):
                        return
                try:
                    queries[lane] = self._start(spark, lane)
                    failures = 0
                except (Py4JJavaError, PySparkException) as error:
                    # Spark finds out about a Python process that is gone when it needs it.
                    failures += 1
                    if failures == _MOST_FAILURES:
                        raise
                    logger.warning("lane %s did not start: %s", lane.value, first_line(error))

    def _finish(self, queries: dict[Lane, _Running]) -> None:
        """Lets batches end that are under way: what they deliver need not be delivered twice."""
        self._signals.ask_to_stop()
        deadline = time.monotonic() + _FINISH_SECONDS
        for lane, running in queries.items():
            while running.query.isActive and time.monotonic() < deadline:
                if self._signals.has_stopped(lane):
                    break
                time.sleep(_LOOK_SECONDS / 4)
            running.query.stop()


@contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Spark would take Ctrl-C for itself, and cancel what is being delivered."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except (Py4JError, OSError):
        logger.debug("Spark was gone already")


def _choose_java(environment: MutableMapping[str, str], scratch: Path) -> None:
    """A Java that is small and soon as fast as it gets; what the user has set is kept.

    Nearly all that a pipeline does is done in Python: better code and more memory for Java's part
    would go unnoticed, and cost a small machine a good share of what it has.
    """
    environment.setdefault("SPARK_DRIVER_MEMORY", _HEAP)
    # Java leaves libraries there that it has unpacked.
    usual = f'{_JAVA_OPTIONS} -Djava.io.tmpdir="{scratch}"'
    # Of two the last one counts.
    chosen = environment.get("SPARK_SUBMIT_OPTS", "")
    environment["SPARK_SUBMIT_OPTS"] = f"{usual} {chosen}".rstrip()


def _ignore(*_: object) -> None:
    pass


def _reason(query: StreamingQuery) -> str:
    error = query.exception()
    return first_line(error) if error is not None else "no reason was given"


def _explain(error: Exception) -> str:
    # What Java itself has to say is the other kind of error.
    if isinstance(error, (Py4JError, ConnectionError)) and not isinstance(error, Py4JJavaError):
        return "Spark ended: its Java is gone"
    return f"Spark failed: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """What Spark says of an error, without where it happened."""
    text = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
    lines = [line for line in text.splitlines() if line.strip()] or [repr(error)]
    found = lines[0]
    if found.endswith("Traceback (most recent call last):"):
        # What happened in Python stands behind where it happened.
        found = next((line for line in lines[1:] if not line.startswith(" ")), found)
    return found[:500]
