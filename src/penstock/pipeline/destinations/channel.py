"""Channels, the destination of exports to IoT Analytics: Parquet files, see `model.channel_file`.

A channel has each message exactly once, even if a delivery is repeated with another end after a
crash. The message alone determines its directory. A delivery begins with the first message that is
not exported: messages in the directory with this sequence number or a higher one are left over from
a failed delivery. They are removed in two steps. First, files that begin at this number or later
are deleted. Then the rename that adds the new messages replaces the file that begins earlier. The
new file keeps all messages with lower numbers.

A delivery that hangs may lose its lease. Before it continues, another task may deliver the same
messages. So a delivery locks its export, and then writes only if the broker confirms the lease.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.model import IoTAnalyticsConfig
from penstock.model.channel_file import (
    CHANNELS_DIRECTORY,
    ChannelFile,
    abbreviate,
    date_directory,
    day_of,
    is_channel_name,
    message_id,
)
from penstock.pipeline.destinations.destination import (
    CallResult,
    Destination,
    DestinationCall,
    ExportContext,
    Messages,
    UnavailableError,
)

# A smaller file is rewritten with the next messages, instead of adding another file.
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


class Files:
    """File operations. Tests simulate a crash after each operation."""

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            self.make_directory(path.parent)
            path.mkdir(exist_ok=True)
            self.sync(path.parent)

    def write(self, path: Path, table: pa.Table) -> None:
        pq.write_table(
            table,
            path,
            compression=_COMPRESSION,
            use_dictionary=["stream"],  # type: ignore[arg-type] # its stubs allow no list
            write_statistics=["stream", "sequence_number", "ingest_time"],
        )

    def sync(self, path: Path) -> None:
        """Syncs a file or a directory."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Raises BlockingIOError if a process, including this one, has the lock."""
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

    def __init__(self, export: ExportContext, files: Files | None = None) -> None:
        assert isinstance(export.config, IoTAnalyticsConfig)
        self._export = export
        self._channel = export.config.iot_channel
        self._prefix = export.config.iot_msg_id_prefix or ""
        # Names of files of this export begin with these.
        self._owner = export.stream_id, abbreviate(export.config.identifier)
        # Readers ignore files whose names begin with a dot.
        self._hidden = f".{'-'.join(self._owner)}-"
        self._files = files or Files()

    def prepare(self, messages: Messages) -> DestinationCall:
        """A call with messages of one day."""
        times = messages.ingest_times
        day = day_of(times[0])
        count = next((place for place, at in enumerate(times) if day_of(at) != day), len(times))
        rows = messages.pick(range(count))
        return DestinationCall(count, rows.numbers, rows, sum(map(len, rows.payloads)))

    def send(self, call: DestinationCall) -> CallResult:
        rows: Messages = call.content
        channel = self._find_channels() / self._channel
        directory = channel / date_directory(day_of(rows.ingest_times[0]))
        try:
            self._files.make_directory(directory)
            with self._files.locked(channel / f"{self._hidden}lock"):
                if not self._export.holds_lease():
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
        return CallResult()

    def _find_channels(self) -> Path:
        if not is_channel_name(self._channel):
            raise UnavailableError(
                f"iotChannel is {self._channel!r}: expected up to 128 of a-z, A-Z, 0-9 and _"
            )
        if self._export.settings.channels:
            return Path(self._export.settings.channels)
        if self._export.root is None:
            raise UnavailableError(
                "there is no directory for channels: the broker is on another machine; set "
                "PENSTOCK_CHANNELS to a directory that the pipeline can reach"
            )
        return Path(self._export.root, CHANNELS_DIRECTORY)

    def _write(self, directory: Path, rows: Messages) -> None:
        files = self._files
        first = rows.numbers[0]
        target = self._clear(directory, first)
        table = self._make_table(rows)
        if target is not None and _needs_rewrite(target, first):
            kept = pq.read_table(target, schema=_SCHEMA, memory_map=False, partitioning=None)
            table = pa.concat_tables([kept.filter(pc.field("sequence_number") < first), table])
        else:
            target = directory / ChannelFile(*self._owner, first).name
        temporary = directory / f"{self._hidden}{uuid4().hex}"
        files.write(temporary, table)
        files.sync(temporary)
        files.rename(temporary, target)
        files.sync(directory)

    def _clear(self, directory: Path, first: int) -> Path | None:
        """Removes files that begin with this number or later; returns the last earlier file."""
        own: dict[int, Path] = {}
        for path in list(directory.iterdir()):
            file = ChannelFile.parse(path.name)
            if path.name.startswith(self._hidden):
                # Left over from a crash.
                self._files.remove(path)
            elif file is not None and file[:2] == self._owner:
                own[file.first] = path
        stale = [path for number, path in own.items() if number >= first]
        for path in stale:
            self._files.remove(path)
        if stale:
            # Otherwise a power cut could restore them beside the file that replaces them.
            self._files.sync(directory)
        earlier = [number for number in own if number < first]
        return own[max(earlier)] if earlier else None

    def _make_table(self, rows: Messages) -> pa.Table:
        stream = self._export.stream
        columns: dict[str, Any] = {
            "message_id": [message_id(self._prefix, stream, number) for number in rows.numbers],
            "stream": [stream] * len(rows.numbers),
            "sequence_number": rows.numbers,
            "ingest_time": pa.array(rows.ingest_times, pa.timestamp("ms", "UTC")),
            "payload": rows.payloads,
        }
        return pa.table(columns, schema=_SCHEMA)


def _needs_rewrite(path: Path, first: int) -> bool:
    """Whether a file is small, or has messages left over from a failed delivery."""
    if path.stat().st_size < SMALL_FILE_BYTES:
        return True
    metadata = pq.read_metadata(path)
    # Numbers ascend: the last group has the highest.
    statistics: Any = metadata.row_group(metadata.num_row_groups - 1).column(_NUMBER).statistics
    return statistics is None or bool(statistics.max >= first)
