"""A Spark cluster on this machine: a master, two workers and their executors.

The driver is a separate process. Executors read and write streams, and get the address of the
broker from the driver only.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import boto3
import psutil
import pyspark
import pytest
from botocore.config import Config

from penstock import (
    ExportDefinition,
    HTTPConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.sandbox.local_sandbox import Sandbox
from penstock.spark.java import find_java, java_home_for_spark
from penstock.spark.python import worker_python
from tests.exports.backlog import Backlog
from tests.exports.programs import PipelineProcess, end_amid_deliveries
from tests.support import (
    QUICK_JAVA,
    TIMEOUT_S,
    BrokerProcess,
    bare_environment,
    run_program,
    wait_until,
)

pytestmark = pytest.mark.full

SPARK_HOME = Path(pyspark.__path__[0])

# Words in the command lines of processes.
_EXECUTOR = "CoarseGrainedExecutorBackend"
_TASK = "pyspark.worker"

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
    return {"rows": rows, "read from the broker": client.statistics().messages_read - before}


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
    worker_pids: list[int]
    environment: dict[str, str]

    def processes(self, worker_pid: int, word: str = "") -> list[psutil.Process]:
        """Returns descendants of a worker whose command lines have this word."""
        found = []
        for child in psutil.Process(worker_pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # also raised for a process that has just ended
                if word in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def find_task(self) -> int:
        """Returns the worker that runs the only task of a pipeline."""
        pids = self.worker_pids
        (found,) = wait_until(lambda: [pid for pid in pids if self.processes(pid, _TASK)])
        return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cluster"
    path.mkdir()
    return path


@pytest.fixture
def environment(directory: Path) -> dict[str, str]:
    """The environment of the cluster, without other variables of Spark and Java."""
    variables = bare_environment(XDG_CACHE_HOME=str(directory / "cache"))
    java_home = java_home_for_spark(find_java(variables).home, variables)
    return variables | {
        "JAVA_HOME": str(java_home),
        # Avoids the zipped PySpark, which each process would compile.
        "PYSPARK_PYTHON": str(worker_python(sys.executable, variables)),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": QUICK_JAVA,
    }


@pytest.fixture
def cluster(environment: dict[str, str], directory: Path) -> Iterator[Cluster]:
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    resources = ("--cores", "1", "--memory", "1g")
    with ExitStack() as processes:

        def start(name: str, *words: str) -> tuple[int, Path]:
            log = directory / f"{name}.log"
            command = [str(SPARK_HOME / "bin" / "spark-class"), *words]
            process = processes.enter_context(running_group(command, environment, log))
            return process.pid, log

        _, log = start("master", "org.apache.spark.deploy.master.Master", *here)
        master = wait_for_line(log, r"Starting Spark master at (spark://\S+)")
        workers = []
        for name in ("left", "right"):
            words = (*here, *resources, "--work-dir", str(directory / name), master)
            workers.append(start(name, "org.apache.spark.deploy.worker.Worker", *words))
        for _, log in workers:
            wait_for_line(log, "Successfully registered with master")
        yield Cluster(master, [pid for pid, _ in workers], environment)


@contextmanager
def running_group(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process; kills it and its descendants at the end of the block."""
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
        # Python workers have their own process groups, and end with their executor.
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(children, TIMEOUT_S)
        assert not alive


def wait_for_line(log: Path, pattern: str) -> str:
    lines: list[str] = wait_until(lambda: re.findall(pattern, log.read_text()), pattern, TIMEOUT_S)
    return lines[0]


def run_driver(cluster: Cluster, broker: BrokerProcess, directory: Path) -> dict[str, Any]:
    """Runs the driver program; returns the facts that it prints."""
    script = directory / "driver.py"
    script.write_text(DRIVER)
    words = (cluster.master, broker.root, directory / "checkpoint", QUICK_JAVA)
    finished = run_program(
        sys.executable,
        script,
        *words,
        cwd=directory,
        env=cluster.environment,
        seconds=TIMEOUT_S,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    facts: dict[str, Any] = json.loads(finished.stdout)
    return facts


def test_executors_read_and_write_streams(cluster: Cluster, tmp_path: Path) -> None:
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
            assert set(cluster.worker_pids) & set(task["parents"])
            assert facts["driver"] not in task["parents"]
        rows = [list(row) for row in enumerate(readings)]
        assert facts["files"] == {"rows": rows, "read from the broker": 0}
        assert facts["wire"] == {"rows": rows, "read from the broker": 100}

        def payloads(stream: str) -> list[str]:
            return [message.payload.decode() for message in client.read_all(stream)]

        assert sorted(payloads("shouted")) == sorted(map(str.upper, readings))
        assert sorted(payloads("copied")) == sorted([*readings, "one more"])


class ClusterExports:
    """A broker, a sandbox, and a pipeline that uses all cores of the cluster."""

    def __init__(self, cluster: Cluster, cloud: Sandbox, directory: Path) -> None:
        self.cloud = cloud
        self.broker = BrokerProcess(directory / "root")
        self._variables = {
            name: cluster.environment[name] for name in ("JAVA_HOME", "SPARK_LOCAL_IP")
        }
        # A killed Java process leaves files in this directory.
        java_options = f"{QUICK_JAVA} -Djava.io.tmpdir={directory}"
        self._flags = (
            *("--master", cluster.master),
            *("--conf", "spark.executor.memory=512m"),
            *("--conf", f"spark.executor.extraJavaOptions={java_options}"),
        )
        self._python = cluster.environment["PYSPARK_PYTHON"]

    @contextmanager
    def running(self) -> Iterator[Self]:
        with (
            self.broker,
            self.make_pipeline("first", self._python) as self.pipeline,
            StreamManagerClient(root=self.broker.root) as self.client,
        ):
            yield self

    def make_pipeline(self, name: str, python: str) -> PipelineProcess:
        return PipelineProcess(
            self.broker.root,
            *("--broker", f"127.0.0.1:{self.broker.port}"),
            *self._flags,
            *("--conf", f"spark.pyspark.python={python}"),
            name=name,
            **self._variables,
            **self.cloud.variables,
        )

    def make_backlog(self) -> Backlog:
        session = boto3.Session("key", "secret", region_name="us-east-1")
        kinesis = session.client("kinesis", endpoint_url=self.cloud.url, config=Config())
        return Backlog(self.broker, self.cloud, kinesis)

    def check_log(self) -> None:
        """Checks that the first pipeline has logged only lost executors."""
        for line in self.pipeline.log_lines:
            assert re.search("task . ended: .*ExecutorLostFailure", line), line


@pytest.fixture
def exports(cluster: Cluster, directory: Path) -> Iterator[ClusterExports]:
    with Sandbox() as cloud, ClusterExports(cluster, cloud, directory).running() as started:
        yield started


def test_exports_survive_a_killed_executor_and_worker_and_end_cleanly(
    cluster: Cluster, exports: ClusterExports
) -> None:
    backlog = exports.make_backlog()
    (executor,) = cluster.processes(cluster.find_task(), _EXECUTOR)
    # Options of --conf arrive. Credentials come from the driver, not from the environment.
    assert "-Xmx512M" in executor.cmdline()
    assert not [name for name in executor.environ() if name.startswith("AWS_")]

    exported = backlog.last_exported
    executor.kill()
    backlog.check_all_arrive(exported)
    exports.check_log()

    backlog = exports.make_backlog()
    killed = cluster.find_task()
    (other,) = set(cluster.worker_pids) - {killed}
    started = cluster.processes(killed)
    (executor,) = cluster.processes(killed, _EXECUTOR)
    exported = backlog.last_exported
    psutil.Process(killed).kill()
    executor.kill()
    cluster.worker_pids.remove(killed)
    backlog.check_all_arrive(exported)

    assert cluster.find_task() == other
    wait_until(lambda: not any(process.is_running() for process in started))
    exports.check_log()

    config = HTTPConfig("h", uri=exports.cloud.http_url("the-end"))
    exports.client.create_message_stream(
        MessageStreamDefinition(
            name="ending",
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(http=[config]),
        )
    )
    end_amid_deliveries(
        *(exports.pipeline, signal.SIGINT, exports.client, exports.cloud),
        *("ending", "the-end", lambda: cluster.processes(other)),
    )
    exports.check_log()


def test_pipeline_waits_for_cores_and_reports_a_missing_package(
    cluster: Cluster, exports: ClusterExports, directory: Path
) -> None:
    cluster.find_task()  # the first pipeline has all cores
    venv.create(directory / "bare")
    second = exports.make_pipeline("second", str(directory / "bare" / "bin" / "python"))
    second.launch()
    try:
        wait_until(lambda: second.log)
        (line,) = second.log_lines
        assert "Spark has no cores for the tasks of this pipeline: it waits for other" in line

        exports.pipeline.stop()

        assert second.wait_for_end() == 1
    finally:
        if second.process is not None:
            second.kill()
    (line,) = [line for line in second.log_lines if "no cores" not in line]
    assert line.startswith("penstock: Spark failed: ModuleNotFoundError: No module named '")
    assert "pip install 'penstock-streams[spark]'" in line
    assert list(second.temporary.iterdir()) == []
