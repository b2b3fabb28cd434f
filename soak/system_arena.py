"""`penstock up` with the pipeline on Spark and a sandbox: kills of all processes, outages."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil

from penstock import (
    ExportDefinition,
    ExportFormat,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    S3ExportTaskExecutorConfig,
    StatusConfig,
    StatusLevel,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.errors import StreamManagerException
from penstock.sandbox.client import SandboxClient
from soak.arrivals import Arrivals, Collector, Entries, Objects, read_channel
from soak.checks import Defect, Finding, Found, compare, compare_arrivals
from soak.files import FileProducer, compare_tasks, describe_failures, read_statuses
from soak.ledger import Ledger, StreamLedger
from soak.load import ClientProducer, Load
from soak.messages import MessageId
from soak.plan import SoakLimits, SystemEvent, SystemStep, plan_system_steps
from soak.processes import BrokerAddress, Program, SoakError, free_port, wait_for
from soak.reading import read_stream
from soak.report import Tally
from soak.sensors import ALIAS, SensorProducer, compare_entries, identify_entry
from soak.small_disk import SmallDisk
from soak.verification import verify_store
from tests.support import QUICK_JAVA

DISK_BYTES = 1 << 30
# A soak appends less than this.
_STREAM_BYTES = 1 << 28
_STRICT, _REFUSING = "soak-strict", "soak-refusing"
_SINK, _CHANNEL, _BUCKET = "soak", "soak", "soak-files"
_STREAMS = ("measured", "logged")
_FILES, _STATUSES, _SENSORS = "files", "statuses", "sensors"
_EXPORTED = (*_STREAMS, _FILES, _SENSORS)
# Max records of a Kinesis call.
_CALL_RECORDS = 500
# Max entries of a SiteWise call.
_CALL_ENTRIES = 10
_PIPELINE_SECONDS = 180.0
_DRAIN_SECONDS = 400.0
_CHILD_SECONDS = 60.0
_S3_WRITES = ("PutObject", "UploadPart", "CreateMultipartUpload", "CompleteMultipartUpload")
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")


class SystemArena:
    def __init__(
        self, scratch: Path, seed: int, tally: Tally, limits: SoakLimits, disk: SmallDisk | None
    ) -> None:
        self._seed = seed
        self._tally = tally
        self._limits = limits
        self._disk = disk
        self._root = (disk.directory if disk is not None else scratch) / "system"
        self._files_directory = scratch / "files"
        self._files_directory.mkdir()
        cloud_port = free_port()
        self._cloud = SandboxClient(f"http://127.0.0.1:{cloud_port}")
        self._sandbox = Program(
            "sandbox",
            [
                *("sandbox", "--port", str(cloud_port), "--bucket", _BUCKET),
                *("--kinesis-stream", _STRICT, "--kinesis-stream", _REFUSING),
            ],
            "penstock sandbox ready",
            scratch / "sandbox.log",
            {},
        )
        self.address = BrokerAddress(self._root, free_port())
        self._up = Program(
            "up",
            [
                *("up", "--root", str(self._root), "--port", str(self.address.port)),
                *("--http-port", str(free_port())),
            ],
            "penstock ready",
            scratch / "up.log",
            {
                **self._cloud.variables,
                "SPARK_SUBMIT_OPTS": QUICK_JAVA,
                "PENSTOCK_SPARK_PAGE": "false",
            },
        )
        self._ledger = Ledger()
        self._load = Load()
        self._streams: dict[str, StreamLedger] = {}
        self._arrivals = {
            "kinesis, strict order": Arrivals(self._cloud, "kinesis", _STRICT),
            "kinesis, refusing": Arrivals(self._cloud, "kinesis", _REFUSING),
            "http": Arrivals(self._cloud, "http", _SINK),
        }
        self._objects = Objects(self._cloud, _BUCKET)
        self._entries = Entries(self._cloud, ALIAS)
        self._sensor = SensorProducer(self.address, _SENSORS, pause_seconds=0.2)
        self._files = FileProducer(
            self.address, _FILES, _BUCKET, self._files_directory, seed, pause_seconds=2.0
        )

    def run(self) -> None:
        with contextlib.ExitStack() as cleaning:
            # In reverse order, and each one also after an error of another.
            cleaning.callback(self._kill_everything)
            cleaning.callback(self._load.end)
            cleaning.callback(self._files.end)
            self._sandbox.start()
            self._start_up()
            self._create_streams()
            self._files.start()
            self._load.resume()
            self._wait_for_pipeline()
            steps = plan_system_steps(self._seed, has_small_disk=self._disk is not None)
            for step in self._limits.bound(steps):
                self._wait(step.pause_seconds)
                self._perform(step)
                self._pull()
            self._finish()

    # Start

    def _start_up(self) -> None:
        self._up.start()

    def _client(self) -> StreamManagerClient:
        return StreamManagerClient(
            "127.0.0.1", self.address.port, token=self.address.token, reconnect_timeout=60
        )

    def _create_streams(self) -> None:
        exports = {
            "measured": ExportDefinition(
                kinesis=[KinesisConfig("strict", _STRICT)],
                iot_analytics=[IoTAnalyticsConfig("channel", _CHANNEL)],
            ),
            "logged": ExportDefinition(
                kinesis=[KinesisConfig("refusing", _REFUSING)],
                http=[
                    HTTPConfig(
                        "http",
                        self._cloud.http_url(_SINK),
                        export_format=ExportFormat.JSON_BATCHED,
                    )
                ],
            ),
        }
        with self._client() as client:
            for name, definition in exports.items():
                self._create(client, name, definition)
                self._streams[name] = self._ledger.add(name)
                source = self._streams[name].add_source()
                self._load.add(ClientProducer(self.address, [source], 80, self._seed))
            self._create(client, _STATUSES, ExportDefinition())
            config = S3ExportTaskExecutorConfig(
                "to-s3", status_config=StatusConfig(StatusLevel.INFO, _STATUSES)
            )
            self._create(client, _FILES, ExportDefinition(s3_task_executor=[config]))
            sitewise = [IoTSiteWiseConfig("sitewise")]
            self._create(client, _SENSORS, ExportDefinition(iot_sitewise=sitewise))
        self._load.add_other(self._sensor)

    def _create(self, client: StreamManagerClient, name: str, exports: ExportDefinition) -> None:
        client.create_message_stream(
            MessageStreamDefinition(
                name=name,
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                max_size=_STREAM_BYTES,
                export_definition=exports,
            )
        )
        self._tally.count("definition changes")

    def _wait_for_pipeline(self) -> None:
        arrivals = self._arrivals["kinesis, strict order"]
        wait_for(arrivals.pull, "no message was exported", _PIPELINE_SECONDS)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._limits.is_over:
            time.sleep(0.1)

    # Faults

    def _perform(self, step: SystemStep) -> None:
        random = Random(step.number)
        done = True
        match step.event:
            case SystemEvent.OUTAGE:
                self._begin_outage(step)
            case SystemEvent.KILL_UP | SystemEvent.TERMINATE_UP:
                self._restart_up(is_killed=step.event is SystemEvent.KILL_UP)
            case SystemEvent.FULL_DISK:
                self._fill_disk(step.outage_seconds)
            case SystemEvent.PAUSE_EXPORTS:
                done = self._pause_exports(random.choice(_STREAMS), step.outage_seconds)
            case SystemEvent.KILL_SANDBOX:
                self._restart_sandbox()
            case SystemEvent.KILL_BROKER | SystemEvent.TERMINATE_BROKER:
                done = _end(self._find("serve"), random, step.event is SystemEvent.KILL_BROKER)
            case SystemEvent.KILL_PIPELINE | SystemEvent.TERMINATE_PIPELINE:
                done = _end(
                    self._find("pipeline", "--supervised"),
                    random,
                    step.event is SystemEvent.KILL_PIPELINE,
                )
            case SystemEvent.KILL_JAVA:
                done = _end(self._find("SparkSubmit"), random, True)
            case SystemEvent.KILL_WORKER:
                done = _end(self._find("pyspark"), random, True)
        if done:
            self._tally.count(step.event)

    def _begin_outage(self, step: SystemStep) -> None:
        fault = {"service": step.service, "forMillis": int(step.outage_seconds * 1000)}
        if "refuseEvery" in step.outage and step.service in ("kinesis", "*"):
            # Refused records arrive after later ones, so the strict stream does not get this fault.
            fault |= {"service": "kinesis", "name": _REFUSING}
        fault |= step.outage
        service = str(fault.pop("service"))
        with contextlib.suppress(OSError):
            self._cloud.set_fault(service, **fault)
            self._tally.count(f"outage: {', '.join(step.outage)}")

    def _fill_disk(self, seconds: float) -> None:
        """Fills the disk, also for export progress and channels."""
        assert self._disk is not None
        self._disk.fill(0)
        self._wait(seconds)
        self._disk.free()

    def _pause_exports(self, name: str, seconds: float) -> bool:
        """Pauses and resumes exports; returns False if the broker is not available."""
        try:
            with self._client() as client:
                self._set_disabled(client, name, disabled=True)
                self._wait(seconds)
                self._set_disabled(client, name, disabled=False)
        except (OSError, StreamManagerException):
            return False
        return True

    def _set_disabled(self, client: StreamManagerClient, name: str, *, disabled: bool) -> None:
        definition = client.describe_message_stream(name).definition
        for config in definition.exports():
            config.disabled = disabled
        client.update_message_stream(definition)
        self._tally.count("definition changes")

    def _find(self, *words: str) -> list[psutil.Process]:
        """Returns descendants of `up` whose command lines have these words."""
        found = []
        for child in self._up.children():
            with contextlib.suppress(psutil.Error):
                command = " ".join(child.cmdline())
                if all(word in command for word in words):
                    found.append(child)
        return found

    def _restart_up(self, *, is_killed: bool) -> None:
        children = self._up.children()
        if is_killed:
            self._up.kill()
        elif code := self._up.terminate():
            self._tally.add_findings(
                [Finding(Defect.WRONG, "up", f"exit code {code} after SIGTERM")]
            )
        # All descendants must end with `up`.
        _, alive = psutil.wait_procs(children, _CHILD_SECONDS)
        if alive:
            names = ", ".join(str(child) for child in alive)
            self._tally.add_findings(
                [Finding(Defect.WRONG, "up", f"these processes did not end with it: {names}")]
            )
            for child in alive:
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self._start_up()

    def _restart_sandbox(self) -> None:
        with self._arrivals_stopped():
            self._sandbox.kill()
        for collector in self._collectors():
            collector.reset()
        self._sandbox.start()

    @contextmanager
    def _arrivals_stopped(self) -> Iterator[None]:
        """Collects all arrivals and stops further ones: the sandbox keeps its records in memory."""
        for service in ("kinesis", "http", "iotsitewise"):
            self._cloud.set_fault(service, down=True)
        for operation in _S3_WRITES:
            self._cloud.set_fault("s3", operation=operation, down=True)
        # Wait for calls that began before these faults.
        quiet = 0
        while quiet < 3:
            quiet = 0 if self._pull() else quiet + 1
            time.sleep(0.2)
        yield

    def _pull(self) -> int:
        """Collects new records; returns their number."""
        count = 0
        for collector in self._collectors():
            # An outage also affects reads of objects.
            with contextlib.suppress(OSError):
                count += collector.pull()
        return count

    def _collectors(self) -> list[Collector]:
        return [*self._arrivals.values(), self._objects, self._entries]

    # Final checks

    def _finish(self) -> None:
        self._files.end()
        self._load.pause()
        self._drain()
        stored = self._check_streams()
        self._check_arrivals(stored)
        self._check_tasks()
        self._check_entries()
        if code := self._up.terminate():
            self._tally.add_findings(
                [Finding(Defect.WRONG, "up", f"exit code {code} after SIGTERM")]
            )
        self._check_log()
        verify_store(self._root, {}, self._tally)
        self._tally.count("appends answered", self._ledger.answers)
        self._tally.count("appends answered", len(self._files.tasks) + len(self._sensor.answered))
        self._tally.count("S3 tasks", len(self._files.tasks))

    def _drain(self) -> None:
        """Waits until all messages are exported, or a timeout. Checks report missing ones later."""
        self._cloud.clear_faults()
        with self._client() as client:
            deadline = time.monotonic() + _DRAIN_SECONDS
            for name in _EXPORTED:
                # Resuming a failed export ends its back-off.
                self._set_disabled(client, name, disabled=True)
                self._set_disabled(client, name, disabled=False)
            while time.monotonic() < deadline:
                self._pull()
                if all(_is_exported(client, name) for name in _EXPORTED):
                    break
                time.sleep(0.5)
            else:
                self._tally.add_findings(
                    [
                        Finding(
                            Defect.WRONG,
                            "exports",
                            f"not finished after {_DRAIN_SECONDS:.0f} seconds",
                        )
                    ]
                )
        self._pull()

    def _check_streams(self) -> dict[str, Found]:
        stored = {}
        with self.address.connect() as connection:
            for name, ledger in self._streams.items():
                stored[name] = read_stream(connection, name)
                self._tally.add_result(compare(name, ledger.expected(), stored[name]))
        return stored

    def _check_arrivals(self, stored: dict[str, Found]) -> None:
        measured, logged = (_messages(stored[name]) for name in _STREAMS)
        channel = read_channel(self._root / "channels", _CHANNEL)
        for name, exported, arrived, displacement in (
            ("kinesis, strict order", measured, None, 0),
            ("kinesis, refusing", logged, None, _CALL_RECORDS),
            ("http", logged, None, 0),
            ("channel", measured, channel.get("measured", []), 0),
        ):
            is_channel = arrived is not None
            arrivals = self._arrivals[name].messages if arrived is None else arrived
            self._tally.add_findings(
                compare_arrivals(
                    name,
                    exported,
                    arrivals,
                    max_displacement=displacement,
                    exactly_once=is_channel,
                )
            )
            self._tally.count(f"arrivals: {name}", len(arrivals))
            self._tally.count(
                "repeated arrivals (allowed but in channels)", len(arrivals) - len(set(arrivals))
            )

    def _check_tasks(self) -> None:
        with self._client() as client:
            payloads = [message.payload for message in client.read_all(_STATUSES)]
        statuses = read_statuses(payloads, _FILES)
        findings = compare_tasks(_FILES, self._files.tasks, statuses, self._objects.digests)
        if findings and (reasons := describe_failures(payloads)):
            self._tally.add_note(f"failed tasks: {reasons}")
        self._tally.add_findings(findings)
        self._tally.add_findings(
            Finding(Defect.REUSED, _FILES, f"{number} was assigned to two tasks")
            for number in self._files.reused
        )

    def _check_entries(self) -> None:
        with self._client() as client:
            stored = {
                message.sequence_number: identify_entry(json.loads(message.payload))
                for message in client.read_all(_SENSORS)
            }
        self._tally.add_findings(compare_entries(_SENSORS, self._sensor.answered, stored))
        # SiteWise may refuse single entries of a call.
        self._tally.add_findings(
            compare_arrivals(
                "sitewise", stored, self._entries.messages, max_displacement=_CALL_ENTRIES
            )
        )
        self._tally.count("arrivals: sitewise", len(self._entries.messages))

    def _check_log(self) -> None:
        lines = self._up.log.read_text().splitlines()
        self._tally.count("lines of up's log", len(lines))
        unmarked = sum(not _LOG_LINE.match(line) for line in lines)
        self._tally.count("lines of up's log without time and level", unmarked)

    def _kill_everything(self) -> None:
        children = self._up.children() if self._up.is_running else []
        self._up.kill()
        self._sandbox.kill()
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()


def _end(processes: list[psutil.Process], random: Random, is_killed: bool) -> bool:
    """Ends a random process; returns False if there is none."""
    if not processes:
        return False
    process = random.choice(processes)
    try:
        process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
    except psutil.Error:
        return False
    return True


def _messages(found: Found) -> dict[int, MessageId]:
    return {number: it for number, it in found.messages.items() if it is not None}


def _is_exported(client: StreamManagerClient, name: str) -> bool:
    try:
        info = client.describe_message_stream(name)
    except (OSError, StreamManagerException) as error:
        raise SoakError(f"the broker does not respond during the final checks: {error}") from None
    newest = info.storage_status.newest_sequence_number
    return all(it.last_exported_sequence_number >= newest for it in info.export_statuses)
