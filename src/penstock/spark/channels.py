"""spark.read of a channel: the Parquet files that an export to IoT Analytics has written.

It needs no broker. The driver and the tasks must have access to the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client.endpoint import find_root
from penstock.discovery import default_root, find_config, read_config
from penstock.errors import ResourceNotFoundException, SettingError
from penstock.model.channel_file import (
    CHANNELS_DIRECTORY,
    DATE_PREFIX,
    ChannelFile,
    is_channel_name,
)
from penstock.spark.options import ChannelReadOptions
from penstock.spark.python import freeze_gc

_CHANNELS_VARIABLE = "PENSTOCK_CHANNELS"
_COLUMNS = ["message_id", "stream", "sequence_number", "ingest_time", "payload"]
_SET_CHANNELS = "set option channels to the directory of all channels"

# The minimum for a task: its start takes about 50 milliseconds.
_MIN_TASK_BYTES = 8 * 1024 * 1024
_BATCH_ROWS = 16_384


class PartFile(NamedTuple):
    """A file of a channel."""

    path: str
    size: int


class ChannelTask(InputPartition):
    """The files that one Spark task reads."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)

    def __repr__(self) -> str:
        return f"<ChannelTask {len(self.paths)} files from {self.paths[0]}>"


class ChannelReader(DataSourceReader):
    """Lists files on the driver and reads them in tasks."""

    def __init__(self, options: ChannelReadOptions) -> None:
        if not is_channel_name(options.channel):
            raise SettingError(
                f"option channel is {options.channel!r}: expected up to 128 of a-z, A-Z, 0-9 and _"
            )
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        channels = find_channels(self._options, os.environ)
        parts = list_parts(channels, self._options.channel)
        return plan_tasks(parts, self._options.min_partitions, os.cpu_count() or 1)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_gc()
        if isinstance(partition, ChannelTask):  # Spark adds an empty partition if there is none
            for path in partition.paths:
                yield from _read_file(path)


def find_channels(options: ChannelReadOptions, environment: Mapping[str, str]) -> Path:
    """Returns the directory of all channels; the default is the directory of the pipeline."""
    if options.channels:
        return Path(options.channels).absolute()
    if options.root:
        return Path(options.root).absolute() / CHANNELS_DIRECTORY
    table = read_config(find_config(environment))
    channels = environment.get(_CHANNELS_VARIABLE) or table.get("channels")
    if isinstance(channels, str) and channels:
        return Path(channels).absolute()
    root = find_root(environment, table) or default_root()
    return root.absolute() / CHANNELS_DIRECTORY


def list_parts(channels: Path, name: str) -> list[PartFile]:
    """Returns the files of a channel by date; ResourceNotFoundException for an unknown channel."""
    if not (channels / name).is_dir():
        existing = channels.iterdir() if channels.is_dir() else ()
        names = sorted(path.name for path in existing if is_channel_name(path.name))
        raise ResourceNotFoundException(
            f"there is no channel {name} in {channels}: "
            + (f"expected one of {', '.join(names)}" if names else _SET_CHANNELS)
        )
    found = []
    for day in sorted((channels / name).glob(f"{DATE_PREFIX}*")):
        for entry in sorted(os.scandir(day), key=lambda entry: entry.name):
            if ChannelFile.parse(entry.name) is None:
                continue
            try:
                found.append(PartFile(entry.path, entry.stat().st_size))
            except FileNotFoundError:
                continue  # its delivery was not confirmed, and a retry replaces the file
    return found


def plan_tasks(parts: Sequence[PartFile], min_partitions: int, cores: int) -> list[ChannelTask]:
    """Plans tasks of about equal size: one for each core, or fewer for little data."""
    total = sum(part.size for part in parts)
    share = max(min(total // min_partitions, max(total // cores, _MIN_TASK_BYTES)), 1)
    tasks: list[list[str]] = []
    free = 0
    for part in parts:
        # A task may exceed its share by half of a file.
        if not tasks or free < part.size // 2:
            tasks.append([])
            free = share
        tasks[-1].append(part.path)
        free -= part.size
    return [ChannelTask(task) for task in tasks]


def _read_file(path: str) -> Iterator[pa.RecordBatch]:
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        # Its delivery was not confirmed, and a retry replaces the file.
        return
    with file:
        yield from file.iter_batches(_BATCH_ROWS, columns=_COLUMNS)
