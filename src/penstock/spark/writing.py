"""Writers of format("penstock"), which append rows to streams.

Every row is stored at least once. Appends cannot be undone, so messages are stored twice if Spark
retries a task, or if a response is lost with the connection. The rows of a task keep their order
within each stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from penstock.client.blocking import StreamManagerClient
from penstock.errors import (
    InvalidRequestException,
    RequestPayloadTooLargeException,
    ResourceNotFoundException,
    SettingError,
)
from penstock.model import MessageStreamDefinition, Persistence, StrategyOnFull
from penstock.spark.json_rows import RowEncoder
from penstock.spark.options import WriteOptions
from penstock.spark.place import Place
from penstock.spark.python import freeze_gc

_PAYLOAD = "payload"
_STREAM = "stream"

# The options for the definition of a created stream.
_DEFINITION_OPTIONS = (
    "max_size",
    "stream_segment_size",
    "time_to_live_millis",
    "strategy_on_full",
    "persistence",
    "flush_on_write",
)


@dataclass(frozen=True)
class AppendedRows(WriterCommitMessage):
    """The result of a task: the number of appended rows."""

    count: int


class Layout:
    """The mapping from rows to messages and streams.

    Raises SettingError if the columns do not match the options.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._stream = options.stream
        self._stream_column = -1
        if options.stream is None:
            self._stream_column = _find_column(
                schema,
                _STREAM,
                (StringType,),
                "set option stream, or name the stream of each row in this column",
            )
        self._payloads: Callable[[pa.RecordBatch], list[bytes]]
        if options.payload == "json":
            self._payloads = RowEncoder(schema).encode
        else:
            column = _find_column(
                schema,
                _PAYLOAD,
                (BinaryType, StringType),
                'add one, such as to_json(struct("*")), or write each row as JSON with option '
                "payload=json",
            )
            self._payloads = lambda batch: _payloads_in(batch.column(column))

    def messages(self, batch: pa.RecordBatch) -> dict[str, list[bytes]]:
        """Returns the messages of the rows for each stream, in order."""
        payloads = self._payloads(batch)
        if self._stream is not None:
            return {self._stream: payloads}
        streams: list[Any] = batch.column(self._stream_column).to_pylist()
        if None in streams:
            raise ValueError("column stream is null in a row: expected the name of a stream")
        messages: dict[str, list[bytes]] = {}
        for stream, payload in zip(streams, payloads, strict=True):
            messages.setdefault(stream, []).append(payload)
        return messages


def _find_column(
    schema: StructType, wanted: str, kinds: tuple[type[DataType], ...], advice: str
) -> int:
    """Returns the index of a column; names of columns are case-insensitive in Spark."""
    for index, field in enumerate(schema.fields):
        if field.name.lower() != wanted:
            continue
        if not isinstance(field.dataType, kinds):
            expected = " or ".join(kind.typeName() for kind in kinds)
            raise SettingError(
                f"column {wanted} is {field.dataType.simpleString()}: expected {expected}; {advice}"
            )
        return index
    names = ", ".join(schema.names) or "none"
    raise SettingError(f"there is no column {wanted} (columns: {names}): {advice}")


def _payloads_in(column: pa.Array[Any]) -> list[bytes]:
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    payloads: list[Any] = column.to_pylist()
    if not all(payloads):
        problem = "null" if None in payloads else "empty"
        raise ValueError(
            f"column payload is {problem} in a row: expected 1 byte or more; remove these rows "
            'with .where("length(payload) > 0")'
        )
    return payloads


class _BaseWriter:
    """Common base of the batch and the streaming writer, created on the driver and run by tasks."""

    # Whether the driver waits for an unavailable broker. A batch query fails at once, because a
    # wrong port is more likely than a restart.
    _waits_for_broker: bool
    _expected_mode: str
    _rejected_mode: str

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SettingError(
                f"{self._rejected_mode} would replace stored messages, but streams are "
                f"append-only: expected {self._expected_mode}"
            )
        _check_definition(options)
        Layout(options, schema)
        self._options = options
        self._schema = schema
        self._place = Place.find(options, self._waits_for_broker)
        # Reports a wrong port, token or name of a stream before any task starts.
        with self._place.connect(self._waits_for_broker) as client:
            if options.stream is not None:
                self._check_stream(client, options.stream)

    # Any, because the type in PySpark is rows, although Arrow writers get batches.
    def write(self, iterator: Iterator[Any]) -> AppendedRows:
        freeze_gc()
        first: pa.RecordBatch | None = next(iterator, None)
        if first is None:
            return AppendedRows(0)
        layout = Layout(self._options, self._schema)
        count = 0
        with self._place.connect(wait=True) as client:
            for batch in chain((first,), iterator):
                for stream, payloads in layout.messages(batch).items():
                    self._append(client, stream, payloads)
                count += batch.num_rows
        return AppendedRows(count)

    def _append(self, client: StreamManagerClient, stream: str, payloads: list[bytes]) -> None:
        try:
            _append_in_parts(client, stream, payloads)
        except ResourceNotFoundException:
            self._create_stream(client, stream)
            _append_in_parts(client, stream, payloads)

    def _check_stream(self, client: StreamManagerClient, stream: str) -> None:
        try:
            client.describe_message_stream(stream)
        except ResourceNotFoundException:
            self._create_stream(client, stream)

    def _create_stream(self, client: StreamManagerClient, stream: str) -> None:
        if not self._options.create_stream:
            raise ResourceNotFoundException(
                f"the message stream {stream!r} does not exist: create it, or set option "
                "createStream=true"
            ) from None
        try:
            client.create_message_stream(_definition(self._options, stream))
        except InvalidRequestException:
            # Another task may have created it at the same time.
            if stream not in client.list_streams():
                raise


class PenstockWriter(_BaseWriter, DataSourceArrowWriter):
    """The batch writer."""

    _waits_for_broker = False
    _expected_mode = 'mode("append")'
    _rejected_mode = 'mode("overwrite")'


class PenstockStreamWriter(_BaseWriter, DataSourceStreamArrowWriter):
    """The streaming writer; Spark creates one for each micro-batch, and another to commit it."""

    _waits_for_broker = True
    _expected_mode = 'outputMode("append")'
    _rejected_mode = 'outputMode("complete")'


def _append_in_parts(client: StreamManagerClient, stream: str, payloads: list[bytes]) -> None:
    """Appends payloads, in smaller requests if one request exceeds the size of the stream."""
    try:
        client.append_messages(stream, payloads, retry=True)
    except RequestPayloadTooLargeException as error:
        remaining = payloads[error.appended :]
        if len(remaining) == 1:
            raise
        middle = len(remaining) // 2
        _append_in_parts(client, stream, remaining[:middle])
        _append_in_parts(client, stream, remaining[middle:])


def _check_definition(options: WriteOptions) -> None:
    if options.create_stream:
        return
    default = WriteOptions()
    names = dict(zip(options.__struct_fields__, options.__struct_encode_fields__, strict=True))
    for field in _DEFINITION_OPTIONS:
        if getattr(options, field) != getattr(default, field):
            raise SettingError(
                f"option {names[field]} is for a stream that Spark creates: it requires option "
                "createStream=true"
            )


def _definition(options: WriteOptions, stream: str) -> MessageStreamDefinition:
    given = {field: getattr(options, field) for field in _DEFINITION_OPTIONS}
    given["strategy_on_full"] = StrategyOnFull[options.strategy_on_full]
    given["persistence"] = Persistence[options.persistence]
    return MessageStreamDefinition(
        name=stream, **{field: value for field, value in given.items() if value is not None}
    )
