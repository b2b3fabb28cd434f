"""Channels, where exports to IoT Analytics go: Parquet files, named in `penstock.model.channel`.

Each message is in a channel once, also if its delivery is repeated, with another end, after a crash
at any point. It rests on this: the directory of a message follows from the message, and a delivery
that begins with a number means that the export has confirmed nothing from there on. So whatever a
directory holds of this number and of higher ones was left behind, and goes away: first the files
that begin there or later, then, with the rename that brings the messages, the rest of a file that
begins earlier. No rename ever takes away a lower number.

A delivery that hangs may lose its lease: another task delivers the same messages, and more, while
the first one is about to write. So a delivery writes under a lock of its export, and only if the
broker confirms the lease under that lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.model import IoTAnalyticsConfig
from penstock.model.channel import (
    CHANNELS_DIRECTORY,
    SECONDS_PER_DAY,
    ChannelFile,
    abbreviate,
    date_directory,
    day_of,
    is_channel_name,
    message_id,
)
from penstock.pipeline.destinations.destination import (
    Answer,
    Call,
    Destination,
    Export,
    Messages,
    UnavailableError,
)

# A file that is smaller is written anew with what comes next, instead of having another beside it.
SMALL_FILE_BYTES = 64 * 1024

_COLUMNS: dict[str, pa.DataType] = {
    "message_id": pa.string(),
    "stream": pa.string(),
    "sequence_number": pa.int64(),
    "ingest_time": pa.timestamp("us", "UTC"),
    "payload": pa.binary(),
}
_SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _COLUMNS.items()])
_NUMBER = _SCHEMA.get_field_index("sequence_number")
_COMPRESSION: Literal["zstd", "snappy"] = "zstd" if pa.Codec.is_available("zstd") else "snappy"


class _Rows(NamedTuple):
    day: int
    numbers: Sequence[int]
    ingest_times: Sequence[int]
    payloads: Sequence[bytes]


class Files:
    """The file system as a channel sees it. Each of these may be the last before a crash."""

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            self.make_directory(path.parent)
            path.mkdir(exist_ok=True)
            self.sync_directory(path.parent)

    def write(self, path: Path, table: pa.Table) -> None:
        pq.write_table(
            table,
            path,
            compression=_COMPRESSION,
            use_dictionary=["stream"],  # type: ignore[arg-type] # its stubs know no list
            write_statistics=["stream", "sequence_number", "ingest_time"],
        )

    def sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        self.sync(path)

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """BlockingIOError if another has the lock, be it in this process."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        path.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


class ChannelDestination(Destination):
    """A channel, for one export."""

    def __init__(
        self,
        export: Export,
        files: Files | None = None,
    ) -> None:
        assert isinstance(export.config, IoTAnalyticsConfig)
        self._channel = export.config.iot_channel
        self._prefix = export.config.iot_msg_id_prefix or ""
        self._stream = export.stream
        self._stream_id = export.stream_id
        self._export = abbreviate(export.config.identifier)
        self._channels = export.settings.channels
        self._root = export.root
        self._holds_lease = export.holds_lease
        self._files = files or Files()

    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        end = min(start + limit, len(messages.numbers))
        times = messages.ingest_times[start:end]
        day = day_of(times[0])
        midnight, next_midnight = (which * SECONDS_PER_DAY * 1000 for which in (day, day + 1))
        others = (place for place, at in enumerate(times) if not midnight <= at < next_midnight)
        count = next(others, len(times))
        payloads = messages.payloads[start : start + count]
        rows = _Rows(day, messages.numbers[start : start + count], times[:count], payloads)
        return Call(start, start + count, {}, rows, sum(map(len, payloads)))

    def send(self, call: Call) -> Answer:
        rows: _Rows = call.content
        channel = self._find_directory()
        directory = channel / date_directory(rows.day)
        try:
            self._files.make_directory(directory)
            with self._files.locked(channel / f"{self._own}lock"):
                if not self._holds_lease():
                    raise UnavailableError(
                        f"the channel {self._channel}: another task delivers these messages"
                    )
                self._write(directory, rows)
        except BlockingIOError:
            raise UnavailableError(
                f"the channel {self._channel}: an earlier delivery is still writing to it"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise UnavailableError(f"the channel {self._channel} in {directory}: {error}") from None
        return Answer()

    def close(self) -> None:
        """Nothing: no file stays open."""

    def _find_directory(self) -> Path:
        if not is_channel_name(self._channel):
            raise UnavailableError(
                f"iotChannel is {self._channel!r}: expected up to 128 of a-z, A-Z, 0-9 and _"
            )
        if self._channels:
            return Path(self._channels) / self._channel
        if self._root is None:
            raise UnavailableError(
                "there is no directory for channels: the broker is on another machine; set "
                "PENSTOCK_CHANNELS to a directory that the pipeline can reach"
            )
        return Path(self._root) / CHANNELS_DIRECTORY / self._channel

    def _write(self, directory: Path, rows: _Rows) -> None:
        files = self._files
        first = rows.numbers[0]
        earlier = self._clear(directory, first)
        table = self._make_table(rows)
        target = directory / ChannelFile(self._stream_id, self._export, first).name
        if earlier is not None and _is_to_be_replaced(earlier, first):
            target = earlier
            kept = pq.read_table(earlier, schema=_SCHEMA, memory_map=False, partitioning=None)
            kept = kept.filter(pc.field("sequence_number") < first)
            table = pa.concat_tables([kept, table])
        temporary = directory / f"{self._own}{uuid4().hex}"
        files.write(temporary, table)
        files.sync(temporary)
        files.rename(temporary, target)
        files.sync_directory(directory)

    @property
    def _own(self) -> str:
        """How the names of files begin that no reader is to see."""
        return f".{self._stream_id}-{self._export}-"

    def _clear(self, directory: Path, first: int) -> Path | None:
        """Removes what begins with this number or later; the last file that begins earlier."""
        earlier: ChannelFile | None = None
        removed = False
        for path in list(directory.iterdir()):
            file = ChannelFile.parse(path.name)
            if file is None:
                # Of a delivery that ended in the middle: or it would stay for ever.
                if path.name.startswith(self._own):
                    self._files.remove(path)
            elif file[:2] == (self._stream_id, self._export):
                if file.first >= first:
                    self._files.remove(path)
                    removed = True
                elif earlier is None or file.first > earlier.first:
                    earlier = file
        if removed:
            # Or after a power cut both these files and the one that replaces them could be there.
            self._files.sync_directory(directory)
        return None if earlier is None else directory / earlier.name

    def _make_table(self, rows: _Rows) -> pa.Table:
        count = len(rows.numbers)
        times = pa.array(rows.ingest_times, pa.timestamp("ms", "UTC"))
        ids = [message_id(self._prefix, self._stream, number) for number in rows.numbers]
        columns: list[pa.Array[Any]] = [
            pa.array(ids, pa.string()),
            pa.array([self._stream] * count, pa.string()),
            pa.array(rows.numbers, pa.int64()),
            times.cast(pa.timestamp("us", "UTC")),
            pa.array(rows.payloads, pa.binary()),
        ]
        return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _is_to_be_replaced(path: Path, first: int) -> bool:
    """Whether a file is small enough to grow, or has numbers that were left behind."""
    if path.stat().st_size < SMALL_FILE_BYTES:
        return True
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        statistics: Any = metadata.row_group(group).column(_NUMBER).statistics
        if statistics is None or statistics.max >= first:
            return True
    return False
