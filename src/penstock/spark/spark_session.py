"""A Spark session that is set up for this machine, and format("penstock") made known to one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from penstock.spark.class_archive import ClassArchive
from penstock.spark.java import find_java, java_home_for_spark
from penstock.spark.pyspark_internals import start_java
from penstock.spark.python import worker_python

_LOOPBACK = "127.0.0.1"
_LOCAL_SETTINGS = {
    # Without a network between its parts nothing has to listen to one. The web pages would, on all
    # addresses, whatever the driver is bound to.
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.ui.enabled": "false",
    # Between Java and Python: with the usual 64 KiB, each batch of messages takes dozens of turns.
    "spark.buffer.size": str(2**20),
}
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_REGISTERED = "penstock.registered"
_PYTHON_VARIABLE = "PYSPARK_PYTHON"
_QUIET_LOGS = Path(__file__).with_name("log4j2.properties")

# A query that is stopped in the middle of a batch looks for the reason in the error's text, with a
# pattern that goes so deep that it overflows the usual stacks.
_STACK_SIZE = "-Xss4m"
# Spark looks whether a value is null before it gets one from Arrow, which would look once more.
_NO_NULL_CHECK = "-Darrow.enable_null_check_for_get=false"

_MIN_HEAP_MB = 512
_MAX_HEAP_MB = 4096


def session(
    app_name: str | None = None,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session that knows format("penstock"): the one that runs, or one that fits this machine.

    Without a master Spark runs in this process's own Java, on all cores. What is set elsewhere
    (spark-submit, spark-defaults.conf, Spark's variables) is kept, and `config` wins over all.
    """
    asked = {}
    if app_name is not None:
        asked["spark.app.name"] = app_name
    if master is not None:
        asked["spark.master"] = master
    asked.update(config or {})

    if _is_running() or "SPARK_REMOTE" in os.environ or "spark.remote" in asked:
        only_asked = SparkConf(loadDefaults=False).setAll(list(asked.items()))
        spark = SparkSession.builder.config(conf=only_asked).getOrCreate()
    else:
        spark = _start(asked)
    register(spark)
    return spark


def start_context(
    app_name: str, *, master: str, config: Mapping[str, str], archive: ClassArchive
) -> SparkContext:
    """A SparkContext that is set up as `session` does it, without Spark SQL, which is large."""
    asked = {"spark.app.name": app_name, "spark.master": master, **config}
    return SparkContext.getOrCreate(_start_java(asked, archive))


def register(spark: SparkSession) -> None:
    """Makes format("penstock") known to a session; once or many times."""
    from penstock.spark.source import SCHEMA, PenstockDataSource

    # Spark warns when a source is replaced. Its settings live and die with the session, as the
    # sources that it knows do.
    if spark.conf.get(_REGISTERED, None) is None:
        if SparkSession.getActiveSession() is not spark:
            # It looks for the name in the session of this thread, which this makes the right one.
            spark.createDataFrame([], SCHEMA)
        spark.dataSource.register(PenstockDataSource)
        spark.conf.set(_REGISTERED, "true")


def heap_megabytes(total_memory_bytes: int) -> int:
    """How much of the memory is for Java's heap; Python's workers and the broker need some too."""
    quarter = total_memory_bytes // 4 // 2**20
    return min(max(quarter, _MIN_HEAP_MB), _MAX_HEAP_MB)


def memory_bytes(root: Path = Path("/")) -> int:
    """The memory of this machine, or of the container or service that this process runs in."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _memory_limits(root):
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            found.append(int(path.read_text()))
    return min(found)


def _memory_limits(root: Path) -> Iterator[Path]:
    """Where limits may be: in the control group of this process, and all that it is part of."""
    groups = root / "proc" / "self" / "cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, path = line.split(":", 2)
        mount = root / "sys" / "fs" / "cgroup"
        if not controllers:
            name = "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        for group in accumulate(Path(path).parts[1:], Path.joinpath, initial=mount):
            yield group / name


def _is_running() -> bool:
    try:
        SparkSession.active()
    except PySparkRuntimeError:
        return False
    return True


def _start(asked: dict[str, str]) -> SparkSession:
    known = _start_java(asked)
    spark = SparkSession.builder.config(conf=known).getOrCreate()
    if _is_local(known) and not known.contains(_SHUFFLE_PARTITIONS):
        spark.conf.set(_SHUFFLE_PARTITIONS, spark.sparkContext.defaultParallelism)
    return spark


def _is_local(conf: SparkConf) -> bool:
    return conf.get("spark.master", "").startswith("local")


def _start_java(asked: dict[str, str], archive: ClassArchive | None = None) -> SparkConf:
    """Starts Java, and gives the settings of a context in it."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java
        start_java()
    else:
        asked = {"spark.app.name": "penstock", "spark.ui.showConsoleProgress": "false", **asked}
        with _temporary_variables(_variables_for_java(os.environ, archive)):
            start_java(SparkConf().setAll(list(asked.items())))
    # Only now, with all files and variables read by Spark itself, is it known what the master is.
    known = SparkConf().setAll(list(asked.items()))
    if _is_local(known):
        for name, value in _LOCAL_SETTINGS.items():
            known.setIfMissing(name, value)
    _choose_python(known, os.environ)
    return known


def _choose_python(settings: SparkConf, environment: MutableMapping[str, str]) -> None:
    """Sets the variable that names the Python of workers.

    PySpark reads this variable and not the setting, which takes precedence as with spark-submit.
    """
    chosen = settings.get("spark.pyspark.python", "")
    if chosen:
        environment[_PYTHON_VARIABLE] = chosen
    elif _is_local(settings) and _PYTHON_VARIABLE not in environment:
        # Another Python would not find what this one has installed. On other machines there may be
        # none at this path: what a cluster's workers are is for those who set it up.
        environment[_PYTHON_VARIABLE] = str(worker_python(sys.executable, environment))


def _variables_for_java(
    environment: Mapping[str, str], archive: ClassArchive | None = None
) -> dict[str, str]:
    """What Java is started with, as variables: unlike settings, they hide nothing of the user's."""
    java_home = find_java(environment).home
    variables = {
        "JAVA_HOME": str(java_home_for_spark(java_home, environment)),
        "PYSPARK_DRIVER_PYTHON": environment.get("PYSPARK_DRIVER_PYTHON", sys.executable),
        "SPARK_DRIVER_MEMORY": environment.get(
            "SPARK_DRIVER_MEMORY", f"{heap_megabytes(memory_bytes())}m"
        ),
    }
    options = [_STACK_SIZE, _NO_NULL_CHECK]
    if not _has_log_settings(environment):
        options.append(f"-Dlog4j2.configurationFile={_QUIET_LOGS.as_uri()}")
    if archive is not None:
        options += archive.options(java_home)
    # Of two the last one counts.
    options.append(environment.get("SPARK_SUBMIT_OPTS", ""))
    variables["SPARK_SUBMIT_OPTS"] = " ".join(options)
    return variables


@contextmanager
def _temporary_variables(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _has_log_settings(environment: Mapping[str, str]) -> bool:
    spark_home = environment.get("SPARK_HOME") or pyspark.__path__[0]
    directory = Path(environment.get("SPARK_CONF_DIR") or Path(spark_home, "conf"))
    return any(directory.glob("log4j2.*"))
