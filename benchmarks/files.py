"""Throughput and memory of S3 tasks that upload files to an object store on this machine.

The peer is a program without a stream manager: boto3's `upload_file` with default settings, in one
process.
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
    """A running broker, pipeline and object store, and files to upload."""

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
            # Digests of zeros take as long as digests of other bytes.
            for _ in range(size // len(_PIECE)):
                file.write(_PIECE)
            file.write(os.urandom(size % len(_PIECE)))
        return path

    def create_tasks(self, paths: list[Path]) -> str:
        """Creates a stream with a task for each file and a paused export."""
        name = f"files-{next(self._names)}"
        self.client.create_message_stream(
            MessageStreamDefinition(
                name=_status_stream(name),
                strategy_on_full=StrategyOnFull.OverwriteOldestData,
                persistence=Persistence.Memory,
            )
        )
        config = S3ExportTaskExecutorConfig(
            "s", disabled=True, status_config=StatusConfig(StatusLevel.INFO, _status_stream(name))
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
        """Waits until all files are uploaded, which the status of the last task shows."""
        last = self.client.describe_message_stream(name).storage_status.newest_sequence_number
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        options = ReadMessagesOptions(
            desired_start_sequence_number=last, read_timeout_millis=_WAIT_MILLIS
        )
        while time.monotonic() < deadline:
            with suppress(NotEnoughMessagesException):
                self.client.read_messages(_status_stream(name), options)
                break
        # The status is written before the progress is stored.
        while time.monotonic() < deadline:
            status = self.client.describe_message_stream(name).export_statuses[0]
            if status.error_message:
                raise WrongAnswerError(status.error_message)
            if status.last_exported_sequence_number == last:
                return
        raise WrongAnswerError("timed out: files do not arrive")

    def delete_streams(self, *names: str) -> None:
        for name in names:
            with suppress(Exception):
                self.client.delete_message_stream(name)
                self.client.delete_message_stream(_status_stream(name))


def _status_stream(name: str) -> str:
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
        bench.delete_streams(*one)
        one[:] = [bench.create_tasks(paths)]

    def prepare_many() -> None:
        bench.delete_streams(*many)
        many[:] = [bench.create_tasks(paths[start::_STREAMS]) for start in range(_STREAMS)]

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
    bench.delete_streams(*one, *many)
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
        bench.delete_streams(*names)
        names[:] = [bench.create_tasks([path])]

    figures = measure_rates(
        [
            Workload("Penstock", lambda: bench.upload(*names), prepare),
            Workload(UPLOAD_FILE, lambda: bench.s3.upload_file(str(path), _BUCKET, "loop/large")),
        ],
        scale.file_megabytes,
        scale.repetitions,
    )
    bench.delete_streams(*names)
    return Comparison.of_rates(
        "files-large",
        f"One file of {scale.file_megabytes} MB to S3",
        figures,
        {UPLOAD_FILE: _MIN_RATIO},
        unit=Unit.BYTE_RATE,
    )


def _measure_memory(bench: FileBench, scale: Scale) -> Comparison:
    """Measures the peak memory of broker and pipeline during an upload of twice the size."""
    path = bench.write("larger", 2 * scale.file_megabytes * 1_000_000)
    name = bench.create_tasks([path])
    before = _memory_bytes(bench)
    samples = [before]
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(_POLL_SECONDS):
            samples.append(_memory_bytes(bench))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        bench.upload(name)
    finally:
        is_over.set()
        sampler.join()
    bench.delete_streams(name)
    return Comparison(
        "files-memory",
        f"Memory of broker and pipeline while {2 * scale.file_megabytes} MB are uploaded",
        Unit.MEGABYTES,
        {
            "Penstock, before": Figure((before / 1e6,)),
            "Penstock, peak": Figure((max(samples) / 1e6,)),
        },
    )


def _memory_bytes(bench: FileBench) -> float:
    return memory_bytes((*bench.pipeline.processes(), bench.broker.process()))
