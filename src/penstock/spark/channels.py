"""spark.read of a channel: the Parquet files that an export to IoT Analytics has written.

No broker is needed for it, but a file system on which the driver and the tasks find the files.
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

# A task costs some fifty milliseconds before it reads anything; less than this is not worth one.
_MIN_BYTES = 8 * 1024 * 1024
_BATCH_ROWS = 16_384


class Part(NamedTuple):
    """A file of a channel."""

    path: str
    size: int


class ChannelTask(InputPartition):
    """What one Spark task reads."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)

    def __repr__(self) -> str:
        return f"<ChannelTask {len(self.paths)} files from {self.paths[0]}>"


class ChannelReader(DataSourceReader):
    """Looks for files on the driver, and reads them where Spark takes it to."""

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
        if isinstance(partition, ChannelTask):  # Spark makes up one of its own where there is none
            for path in partition.paths:
                yield from _read_file(path)


def find_channels(options: ChannelReadOptions, environment: Mapping[str, str]) -> Path:
    """The directory of all channels, where the pipeline puts it unless told otherwise."""
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


def list_parts(channels: Path, name: str) -> list[Part]:
    """The files of a channel by their dates; ResourceNotFoundException if there is no such one."""
    if not (channels / name).is_dir():
        there = channels.iterdir() if channels.is_dir() else ()
        names = sorted(path.name for path in there if is_channel_name(path.name))
        raise ResourceNotFoundException(
            f"there is no channel {name} in {channels}: there "
            + (f"are {', '.join(names)}" if names else "is none; name its directory with channels")
        )
    found = []
    for day in sorted((channels / name).glob(f"{DATE_PREFIX}*")):
        for entry in sorted(os.scandir(day), key=lambda entry: entry.name):
            if ChannelFile.parse(entry.name) is None:
                continue
            try:
                found.append(Part(entry.path, entry.stat().st_size))
            except FileNotFoundError:
                continue  # it was never confirmed, and its delivery is being repeated
    return found


def plan_tasks(parts: Sequence[Part], min_partitions: int, cores: int) -> list[ChannelTask]:
    """Tasks of about equal size, as many as there are cores, or fewer if that is not worth it."""
    total = sum(part.size for part in parts)
    share = max(min(total // min_partitions, max(total // cores, _MIN_BYTES)), 1)
    tasks: list[list[str]] = []
    room = 0
    for part in parts:
        # Half of a file may stand over.
        if not tasks or room < part.size // 2:
            tasks.append([])
            room = share
        tasks[-1].append(part.path)
        room -= part.size
    return [ChannelTask(task) for task in tasks]


def _read_file(path: str) -> Iterator[pa.RecordBatch]:
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        # It was never confirmed, and its delivery is being repeated.
        return
    with file:
        yield from file.iter_batches(_BATCH_ROWS, columns=_COLUMNS)
