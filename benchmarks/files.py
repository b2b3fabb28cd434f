"""Files through S3 tasks to an object store on this machine: how much, and with how much memory.

The peer is what a program without a stream manager does: boto3's `upload_file`, with the settings
that it comes with, from one process.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from benchmarks.clients import WrongAnswerError
from benchmarks.exports import PipelineServer
from benchmarks.processes import memory_bytes
from benchmarks.report import Comparison, Unit
from benchmarks.servers import Penstock, running
from benchmarks.timing import Figure, Scale, Workload, measure_rates
from penstock import (
    ExportDefinition,
    MessageStreamDefinition,
    NotEnoughMessagesException,
    Persistence,
    ReadMessagesOptions,
    S3ExportTaskExecutorConfig,
    StatusConfig,
    StatusLevel,
    StrategyOnFull,
    StreamManagerClient,
)
from tests.object_store import ObjectStore

UPLOAD_FILE = "boto3, upload_file"

_BUCKET = "benchmark"
_SMALL_BYTES = 20_000
_PIECE = bytes(1_000_000)
_MIN_RATIO = 0.9
_STREAMS = 4
_TIMEOUT_SECONDS = 600.0
_WAIT_MILLIS = 30_000
_POLL_SECONDS = 0.1


class FileBench:
    """A broker, a pipeline and an object store that run, and files to upload."""

    def __init__(
        self, directory: Path, broker: Penstock, pipeline: PipelineServer, store: ObjectStore
    ) -> None:
        self.broker = broker
        self.pipeline = pipeline
        self.s3 = store.client()
        self.s3.create_bucket(Bucket=_BUCKET)
        self.client = StreamManagerClient(root=broker.root)
        self._directory = directory
        self._names = count()

    def write(self, name: str, size: int) -> Path:
        path = self._directory / name
        with path.open("wb") as file:
            # Digests take as long for these as for others.
            for _ in range(size // len(_PIECE)):
                file.write(_PIECE)
            file.write(os.urandom(size % len(_PIECE)))
        return path

    def plan(self, paths: list[Path]) -> str:
        """A stream with a task for each file, which is paused."""
        name = f"files-{next(self._names)}"
        self.client.create_message_stream(
            MessageStreamDefinition(
                name=_statuses_of(name),
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                persistence=Persistence.Memory,
            )
        )
        config = S3ExportTaskExecutorConfig(
            "s", disabled=True, status_config=StatusConfig(StatusLevel.INFO, _statuses_of(name))
        )
        self.client.create_message_stream(
            MessageStreamDefinition(
                name=name,
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                export_definition=ExportDefinition(s3_task_executor=[config]),
            )
        )
        self.client.append_messages(
            name,
            [
                json.dumps(
                    {"inputUrl": path.as_uri(), "bucket": _BUCKET, "key": f"{name}/{path.name}"}
                ).encode()
                for path in paths
            ],
        )
        return name

    def upload(self, *names: str) -> None:
        for name in names:
            definition = self.client.describe_message_stream(name).definition
            for config in definition.export_definition.s3_task_executor or []:
                config.disabled = False
            self.client.update_message_stream(definition)
        for name in names:
            self._wait_for(name)

    def _wait_for(self, name: str) -> None:
        """Until all is uploaded: there is a status for each, of which the last is waited for."""
        last = self.client.describe_message_stream(name).storage_status.newest_sequence_number
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        options = ReadMessagesOptions(
            desired_start_sequence_number=last, read_timeout_millis=_WAIT_MILLIS
        )
        while time.monotonic() < deadline:
            with suppress(NotEnoughMessagesException):
                self.client.read_messages(_statuses_of(name), options)
                break
        # The status comes first, and then it is stored that all is done.
        while time.monotonic() < deadline:
            status = self.client.describe_message_stream(name).export_statuses[0]
            if status.error_message:
                raise WrongAnswerError(status.error_message)
            if status.last_exported_sequence_number == last:
                return
        raise WrongAnswerError("files do not arrive")

    def drop(self, *names: str) -> None:
        for name in names:
            with suppress(Exception):
                self.client.delete_message_stream(name)
                self.client.delete_message_stream(_statuses_of(name))


def _statuses_of(name: str) -> str:
    return f"{name}-statuses"


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    store = ObjectStore(directory / "store")
    broker = Penstock(directory / "penstock")
    with store, running(broker):
        pipeline = PipelineServer(directory / "pipeline", broker, store.variables)
        with running(pipeline):
            bench = FileBench(directory, broker, pipeline, store)
            try:
                yield _compare_small(bench, scale)
                yield _compare_large(bench, scale)
                yield _measure_memory(bench, scale)
            finally:
                bench.client.close()


def _compare_small(bench: FileBench, scale: Scale) -> Comparison:
    paths = [bench.write(f"small-{number}", _SMALL_BYTES) for number in range(scale.files)]
    one: list[str] = []
    many: list[str] = []

    def prepare_one() -> None:
        bench.drop(*one)
        one[:] = [bench.plan(paths)]

    def prepare_many() -> None:
        bench.drop(*many)
        many[:] = [bench.plan(paths[start::_STREAMS]) for start in range(_STREAMS)]

    def loop() -> None:
        for path in paths:
            bench.s3.upload_file(str(path), _BUCKET, f"loop/{path.name}")

    figures = measure_rates(
        [
            Workload("Penstock, one stream", lambda: bench.upload(*one), prepare_one),
            Workload(f"Penstock, {_STREAMS} streams", lambda: bench.upload(*many), prepare_many),
            Workload(UPLOAD_FILE, loop),
        ],
        len(paths),
        scale.repetitions,
    )
    bench.drop(*one, *many)
    return Comparison.of_rates(
        "files-small",
        f"Files of {_SMALL_BYTES // 1000} kB to S3, one after the other",
        figures,
        {UPLOAD_FILE: _MIN_RATIO},
        unit=Unit.FILE_RATE,
    )


def _compare_large(bench: FileBench, scale: Scale) -> Comparison:
    path = bench.write("large", scale.file_megabytes * 1_000_000)
    names: list[str] = []

    def prepare() -> None:
        bench.drop(*names)
        names[:] = [bench.plan([path])]

    figures = measure_rates(
        [
            Workload("Penstock", lambda: bench.upload(*names), prepare),
            Workload(UPLOAD_FILE, lambda: bench.s3.upload_file(str(path), _BUCKET, "loop/large")),
        ],
        scale.file_megabytes,
        scale.repetitions,
    )
    bench.drop(*names)
    return Comparison.of_rates(
        "files-large",
        f"One file of {scale.file_megabytes} MB to S3",
        figures,
        {UPLOAD_FILE: _MIN_RATIO},
        unit=Unit.BYTE_RATE,
    )


def _measure_memory(bench: FileBench, scale: Scale) -> Comparison:
    """The pipeline and the broker, at most, while a file is uploaded that has twice the size."""
    path = bench.write("larger", 2 * scale.file_megabytes * 1_000_000)
    name = bench.plan([path])
    before = _memory(bench)
    most = [before]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_POLL_SECONDS):
            most.append(_memory(bench))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        bench.upload(name)
    finally:
        is_over.set()
        watcher.join()
    bench.drop(name)
    return Comparison(
        "files-memory",
        f"Memory of broker and pipeline while {2 * scale.file_megabytes} MB are uploaded",
        Unit.MEGABYTES,
        {
            "Penstock, before": Figure((before / 1e6,)),
            "Penstock, at most": Figure((max(most) / 1e6,)),
        },
    )


def _memory(bench: FileBench) -> float:
    return memory_bytes((*bench.pipeline.processes(), bench.broker.process()))
