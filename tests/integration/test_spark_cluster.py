"""A real Spark cluster on this machine: a master, a worker, and executors that the worker starts.

The driver is a program in a process of its own. What it reads and writes is read and written by
the executors, which know of the broker only what the driver tells them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyspark
import pytest

from penstock import (
    ExportDefinition,
    HTTPConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.sandbox.server import Sandbox
from penstock.spark.java import find_java, java_home_for_spark
from penstock.spark.python import worker_python
from tests.exports.programs import PipelineProcess, has_exported
from tests.support import (
    PATIENCE_S,
    QUICK_JAVA,
    BrokerProcess,
    bare_environment,
    run_program,
    wait_until,
)

SPARK_HOME = Path(pyspark.__path__[0])

DRIVER = """
import json
import sys

import psutil
from pyspark.sql import functions as F

import penstock.spark
from penstock import StreamManagerClient

master, root, checkpoint, java_options = sys.argv[1:]
client = StreamManagerClient(root=root)
spark = penstock.spark.session(
    "cluster",
    master=master,
    config={
        "spark.executor.extraJavaOptions": java_options,
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
    },
)


def read(**options):
    options = {"root": root, "stream": "readings", "minPartitions": 4, **options}
    return spark.read.format("penstock").options(**options).load()


def save(rows, stream):
    options = {"root": root, "stream": stream, "createStream": True}
    rows.write.format("penstock").mode("append").options(**options).save()


def collect(via):
    before = client.statistics().messages_read
    rows = [(row.sequence_number, row.payload.decode()) for row in read(via=via).collect()]
    return {"rows": rows, "asked of the broker": client.statistics().messages_read - before}


def describe(rows):
    parents = [process.pid for process in psutil.Process().parents()]
    return [{"parents": parents, "rows": len(list(rows))}]


facts = {
    "driver": spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(),
    "tasks": read().rdd.mapPartitions(describe).collect(),
    "files": collect("files"),
    "wire": collect("wire"),
}

save(read().select(F.upper(F.col("payload").cast("string")).alias("payload")), "shouted")

messages = spark.readStream.format("penstock").options(
    root=root, stream="readings", startingPosition="earliest"
)
copy = (
    messages.load()
    .writeStream.format("penstock")
    .options(root=root, stream="copied", createStream=True, checkpointLocation=checkpoint)
    .trigger(availableNow=True)
)
copy.start().awaitTermination()
client.append_message("readings", b"one more")
copy.start().awaitTermination()

spark.stop()
print(json.dumps(facts))
"""


class Cluster(NamedTuple):
    master: str
    worker_pid: int
    environment: dict[str, str]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def environment(directory: Path) -> dict[str, str]:
    """That of somebody who has set no variables of Spark and Java but these."""
    variables = bare_environment(XDG_CACHE_HOME=str(directory / "cache"))
    java_home = java_home_for_spark(find_java(variables).home, variables)
    return variables | {
        "JAVA_HOME": str(java_home),
        # Without the zipped PySpark, which each of a dozen processes would compile.
        "PYSPARK_PYTHON": str(worker_python(sys.executable, variables)),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": QUICK_JAVA,
    }


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str], directory: Path) -> Iterator[Cluster]:
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    resources = ("--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"))
    with ExitStack() as processes:

        def start(name: str, *words: str) -> tuple[int, Path]:
            log = directory / f"{name}.log"
            command = [str(SPARK_HOME / "bin" / "spark-class"), *words]
            process = processes.enter_context(running_group(command, environment, log))
            return process.pid, log

        _, log = start("master", "org.apache.spark.deploy.master.Master", *here)
        master = wait_for_line(log, r"Starting Spark master at (spark://\S+)")
        worker_pid, log = start(
            "worker", "org.apache.spark.deploy.worker.Worker", *here, *resources, master
        )
        wait_for_line(log, "Successfully registered with master")
        yield Cluster(master, worker_pid, environment)


@contextmanager
def running_group(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with all that it has started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Workers of Python have groups of their own; they end when their executor does.
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(children, PATIENCE_S)
        assert not alive


def find_children(pid: int, word: str) -> list[psutil.Process]:
    """Descendants of a process in whose command lines a word is."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # also of one that has just ended
            if word in " ".join(child.cmdline()):
                found.append(child)
    return found


def wait_for_line(log: Path, pattern: str) -> str:
    lines: list[str] = wait_until(lambda: re.findall(pattern, log.read_text()), pattern, PATIENCE_S)
    return lines[0]


def run_driver(cluster: Cluster, broker: BrokerProcess, directory: Path) -> dict[str, Any]:
    """What it has found out, which is all that it printed."""
    script = directory / "driver.py"
    script.write_text(DRIVER)
    words = (cluster.master, broker.root, directory / "checkpoint", QUICK_JAVA)
    finished = run_program(
        sys.executable,
        script,
        *words,
        cwd=directory,
        env=cluster.environment,
        seconds=PATIENCE_S,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    facts: dict[str, Any] = json.loads(finished.stdout)
    return facts


@pytest.mark.full
def test_the_executors_of_a_cluster_read_and_write_streams(
    cluster: Cluster, tmp_path: Path
) -> None:
    readings = [f"reading {number}" for number in range(100)]
    with (
        BrokerProcess(tmp_path / "root") as broker,
        StreamManagerClient(root=broker.root) as client,
    ):
        client.create_message_stream(
            MessageStreamDefinition(
                name="readings", strategy_on_full=StrategyOnFull.OverwriteOldestData
            )
        )
        client.append_messages("readings", [reading.encode() for reading in readings])

        facts = run_driver(cluster, broker, tmp_path)

        assert sum(task["rows"] for task in facts["tasks"]) == 100
        for task in facts["tasks"]:
            assert cluster.worker_pid in task["parents"]
            assert facts["driver"] not in task["parents"]
        rows = [list(row) for row in enumerate(readings)]
        assert facts["files"] == {"rows": rows, "asked of the broker": 0}
        assert facts["wire"] == {"rows": rows, "asked of the broker": 100}

        def payloads(stream: str) -> list[str]:
            return [message.payload.decode() for message in client.read_all(stream)]

        assert sorted(payloads("shouted")) == sorted(map(str.upper, readings))
        assert sorted(payloads("copied")) == sorted([*readings, "one more"])


class ClusterExports:
    """A broker with one export, and a pipeline whose tasks run on the executors of the cluster."""

    def __init__(self, cluster: Cluster, cloud: Sandbox, root: Path) -> None:
        self._cloud = cloud
        self.broker = BrokerProcess(root)
        variables = {
            name: cluster.environment[name]
            for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
        }
        self._variables = {**variables, **cloud.variables}
        self._flags = (
            *("--master", cluster.master),
            *("--conf", "spark.executor.memory=512m"),
            *("--conf", f"spark.executor.extraJavaOptions={QUICK_JAVA}"),
        )

    @contextmanager
    def running(self) -> Iterator[StreamManagerClient]:
        with self.broker, StreamManagerClient(root=self.broker.root) as client:
            config = HTTPConfig("h", uri=self._cloud.http_url("readings"))
            client.create_message_stream(
                MessageStreamDefinition(
                    name="readings",
                    strategy_on_full=StrategyOnFull.OverwriteOldestData,
                    export_definition=ExportDefinition(http=[config]),
                )
            )
            with self.pipeline("first"):
                yield client

    def pipeline(self, name: str) -> PipelineProcess:
        flags = ("--broker", f"127.0.0.1:{self.broker.port}", *self._flags)
        return PipelineProcess(self.broker.root, *flags, name=name, **self._variables)

    def check_arrival(self, client: StreamManagerClient, messages: list[bytes]) -> None:
        last = len(messages) - 1
        wait_until(lambda: has_exported(client, "readings", "h", last), "all of it", PATIENCE_S)
        assert list(dict.fromkeys(self._cloud.payloads("http", "readings"))) == messages


def test_the_executors_of_a_cluster_deliver_exports_also_after_one_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    messages = [b"%d" % number for number in range(20)]
    with Sandbox() as cloud:
        exports = ClusterExports(cluster, cloud, tmp_path / "root")
        with exports.running() as client:
            client.append_messages("readings", messages)
            exports.check_arrival(client, messages)
            assert find_children(cluster.worker_pid, "pyspark.worker")

            (executor,) = find_children(cluster.worker_pid, "CoarseGrainedExecutorBackend")
            executor.kill()
            more = [b"%d" % number for number in range(20, 40)]
            client.append_messages("readings", more)
            exports.check_arrival(client, messages + more)

            # The first pipeline has all cores of the cluster.
            second = exports.pipeline("second")
            second.launch()
            wait_until(lambda: "Spark has no cores for the tasks" in second.log, "the warning")
            second.kill()
