"""A Spark session configured for this machine, and the registration of format("penstock")."""

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
from penstock.spark.pyspark_internals import register_source, start_java
from penstock.spark.python import worker_python

_LOOPBACK = "127.0.0.1"
_LOCAL_SETTINGS = {
    # A local Spark needs no network. The web pages would listen on all addresses, even if the
    # driver is bound to loopback.
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.ui.enabled": "false",
    # The buffer between Java and Python. With the default of 64 KiB, each batch of messages takes
    # dozens of transfers.
    "spark.buffer.size": str(2**20),
}
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_REGISTERED = "penstock.registered"
_PYTHON_VARIABLE = "PYSPARK_PYTHON"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

# If a query is stopped during a batch, Spark matches the error's text with a recursive pattern,
# which overflows stacks of the default size.
_STACK_SIZE = "-Xss4m"
# Spark checks for null before it gets a value from Arrow, so Arrow's check is redundant.
_NO_NULL_CHECK = "-Darrow.enable_null_check_for_get=false"

_MIN_HEAP_MB = 512
_MAX_HEAP_MB = 4096


def session(
    app_name: str | None = None,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Returns the running session, or starts one for this machine, with format("penstock").

    Without a master, Spark runs locally on all cores. Settings from elsewhere (spark-submit,
    spark-defaults.conf, Spark's variables) are kept, but `config` has precedence.
    """
    requested = {}
    if app_name is not None:
        requested["spark.app.name"] = app_name
    if master is not None:
        requested["spark.master"] = master
    requested.update(config or {})

    if _is_running() or "SPARK_REMOTE" in os.environ or "spark.remote" in requested:
        conf = SparkConf(loadDefaults=False).setAll(list(requested.items()))
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    else:
        spark = _start(requested)
    register(spark)
    return spark


def start_context(
    app_name: str, *, master: str, config: Mapping[str, str], archive: ClassArchive
) -> SparkContext:
    """Starts a SparkContext with the settings of `session`, but without Spark SQL."""
    requested = {"spark.app.name": app_name, "spark.master": master, **config}
    return SparkContext.getOrCreate(_start_java(requested, archive))


def register(spark: SparkSession) -> None:
    """Registers format("penstock") in a session; repeated calls have no effect."""
    from penstock.spark.source import SCHEMA, PenstockDataSource

    # Spark warns if a source is replaced. The setting lives as long as the source: in the session.
    if spark.conf.get(_REGISTERED, None) is None:
        if SparkSession.getActiveSession() is not spark:
            # Sources are registered in the active session; this activates the session.
            spark.createDataFrame([], SCHEMA)
        register_source(spark, PenstockDataSource)
        spark.conf.set(_REGISTERED, "true")


def heap_megabytes(total_memory_bytes: int) -> int:
    """Returns the size of Java's heap, which leaves memory for Python workers and the broker."""
    quarter = total_memory_bytes // 4 // 2**20
    return min(max(quarter, _MIN_HEAP_MB), _MAX_HEAP_MB)


def memory_bytes(root: Path = Path("/")) -> int:
    """Returns the memory of this machine, or the limit of this process's container or service."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _memory_limits(root):
        with suppress(OSError, ValueError):  # the file is missing, or has "max"
            limits.append(int(path.read_text()))
    return min(limits)


def _memory_limits(root: Path) -> Iterator[Path]:
    """Yields the limit files of this process's control group and of its parent groups."""
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


def _start(requested: dict[str, str]) -> SparkSession:
    conf = _start_java(requested)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if _is_local(conf) and not conf.contains(_SHUFFLE_PARTITIONS):
        spark.conf.set(_SHUFFLE_PARTITIONS, spark.sparkContext.defaultParallelism)
    return spark


def _is_local(conf: SparkConf) -> bool:
    return conf.get("spark.master", "").startswith("local")


def _start_java(requested: dict[str, str], archive: ClassArchive | None = None) -> SparkConf:
    """Starts Java, and returns the settings of a context in it."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java
        start_java()
    else:
        defaults = {"spark.app.name": "penstock", "spark.ui.showConsoleProgress": "false"}
        requested = defaults | requested
        with _temporary_variables(_variables_for_java(os.environ, archive)):
            start_java(SparkConf().setAll(list(requested.items())))
    # The master is known only after Java has read all of Spark's files and variables.
    conf = SparkConf().setAll(list(requested.items()))
    if _is_local(conf):
        for name, value in _LOCAL_SETTINGS.items():
            conf.setIfMissing(name, value)
    _choose_python(conf, os.environ)
    return conf


def _choose_python(settings: SparkConf, environment: MutableMapping[str, str]) -> None:
    """Sets the variable that names the Python of workers.

    PySpark ignores the setting `spark.pyspark.python`. As in spark-submit, it overrides the
    variable.
    """
    python = settings.get("spark.pyspark.python", "")
    if python:
        environment[_PYTHON_VARIABLE] = python
    elif _is_local(settings) and _PYTHON_VARIABLE not in environment:
        # Another Python would lack these packages. On a cluster this path may not exist.
        environment[_PYTHON_VARIABLE] = str(worker_python(sys.executable, environment))


def _variables_for_java(
    environment: Mapping[str, str], archive: ClassArchive | None = None
) -> dict[str, str]:
    """Returns variables for the start of Java; unlike settings, they override no user settings."""
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
        options.append(f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}")
    if archive is not None:
        options += archive.options(java_home)
    # If an option occurs twice, the last one takes effect.
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
