"""Exports of a stream: the configurations of each kind, and the status of an export.

The fields of `ExportDefinition` define the kinds: the name of a list is the kind of its exports.
`docs/exports.md` lists the steps to add a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, TypeAlias, get_args

import msgspec
from msgspec import Meta

from penstock.model.limits import (
    BatchIntervalMillis,
    BatchOf10,
    BatchOf100,
    BatchOf500,
    MultipartThreshold,
    Name,
    Priority,
    SequenceNumber,
    Text,
)
from penstock.model.status_message import StatusConfig
from penstock.model.value import REQUIRED, Choice, Value


class ExportFormat(Choice):
    """The body of an HTTP request.

    Attributes:
        RAW_NOT_BATCHED: The payload of one message.
        JSON_BATCHED: A JSON array with the messages of a batch, payloads in base64.
    """

    RAW_NOT_BATCHED = 0
    JSON_BATCHED = 1


class BaseExportConfig(Value):
    """The base class of all configurations of exports."""

    # The name of the kind that users see.
    label: ClassVar[str]
    # The max number of messages in one call, and in a batch by default.
    max_batch_size: ClassVar[int]

    @property
    def destination(self) -> str:
        """The destination as a text for users, without secrets."""
        return self.label


class HTTPConfig(BaseExportConfig):
    """An export to an HTTP server.

    Attributes:
        identifier: The name of the export, unique in its stream.
        uri: The URL for POST requests.
        batch_size: Messages in a batch, at most 500.
        batch_interval_millis: A batch that is not full is sent after this time, at least a minute.
        priority: 1 (the most urgent) to 10; less urgent than 10 by default.
        start_sequence_number: Earlier messages are not exported.
        disabled: Pauses the export.
        export_format: One request per message by default.
    """

    label: ClassVar[str] = "HTTP"
    max_batch_size: ClassVar[int] = 500

    identifier: Name = REQUIRED
    uri: Text = REQUIRED
    batch_size: BatchOf500 | None = None
    batch_interval_millis: BatchIntervalMillis | None = None
    priority: Priority | None = None
    start_sequence_number: SequenceNumber | None = None
    disabled: bool | None = None
    export_format: ExportFormat | None = None

    @property
    def destination(self) -> str:
        return f"HTTP {hide_user(self.uri)}"


class IoTAnalyticsConfig(BaseExportConfig):
    """An export to a channel of Parquet files.

    Attributes:
        identifier: The name of the export, unique in its stream.
        iot_channel: The name of the channel.
        iot_msg_id_prefix: The prefix of message ids, at most 32 characters.
        batch_size: Messages in a batch, at most 100.
        batch_interval_millis: A batch that is not full is sent after this time, at least a minute.
        priority: 1 (the most urgent) to 10; less urgent than 10 by default.
        start_sequence_number: Earlier messages are not exported.
        disabled: Pauses the export.
    """

    label: ClassVar[str] = "Channel"
    max_batch_size: ClassVar[int] = 100

    identifier: Name = REQUIRED
    iot_channel: Text = REQUIRED
    iot_msg_id_prefix: Annotated[str, Meta(max_length=32)] | None = None
    batch_size: BatchOf100 | None = None
    batch_interval_millis: BatchIntervalMillis | None = None
    priority: Priority | None = None
    start_sequence_number: SequenceNumber | None = None
    disabled: bool | None = None

    @property
    def destination(self) -> str:
        return f"channel {self.iot_channel}"


class KinesisConfig(BaseExportConfig):
    """An export to a Kinesis data stream.

    Attributes:
        identifier: The name of the export, unique in its stream.
        kinesis_stream_name: The data stream.
        batch_size: Messages in a batch, at most 500.
        batch_interval_millis: A batch that is not full is sent after this time, at least a minute.
        priority: 1 (the most urgent) to 10; less urgent than 10 by default.
        start_sequence_number: Earlier messages are not exported.
        disabled: Pauses the export.
    """

    label: ClassVar[str] = "Kinesis"
    max_batch_size: ClassVar[int] = 500

    identifier: Name = REQUIRED
    kinesis_stream_name: Text = REQUIRED
    batch_size: BatchOf500 | None = None
    batch_interval_millis: BatchIntervalMillis | None = None
    priority: Priority | None = None
    start_sequence_number: SequenceNumber | None = None
    disabled: bool | None = None

    @property
    def destination(self) -> str:
        return f"Kinesis {self.kinesis_stream_name}"


class IoTSiteWiseConfig(BaseExportConfig):
    """An export to IoT SiteWise. Each message is a `PutAssetPropertyValueEntry` as JSON.

    Attributes:
        identifier: The name of the export, unique in its stream.
        batch_size: Messages in a batch, at most 10.
        batch_interval_millis: A batch that is not full is sent after this time, at least a minute.
        priority: 1 (the most urgent) to 10; less urgent than 10 by default.
        start_sequence_number: Earlier messages are not exported.
        disabled: Pauses the export.
    """

    label: ClassVar[str] = "SiteWise"
    max_batch_size: ClassVar[int] = 10

    identifier: Name = REQUIRED
    batch_size: BatchOf10 | None = None
    batch_interval_millis: BatchIntervalMillis | None = None
    priority: Priority | None = None
    start_sequence_number: SequenceNumber | None = None
    disabled: bool | None = None


class S3ExportTaskExecutorConfig(BaseExportConfig):
    """An export of files to S3. Each message is an `S3ExportTaskDefinition` as JSON.

    Attributes:
        identifier: The name of the export, unique in its stream.
        size_threshold_for_multipart_upload_bytes: Larger files are uploaded in parts; 5 MiB by
            default, which is the minimum.
        priority: 1 (the most urgent) to 10; less urgent than 10 by default.
        disabled: Pauses the export.
        status_config: The status stream for results.
    """

    label: ClassVar[str] = "S3"
    # A message is one task.
    max_batch_size: ClassVar[int] = 1

    identifier: Name = REQUIRED
    size_threshold_for_multipart_upload_bytes: MultipartThreshold | None = None
    priority: Priority | None = None
    disabled: bool | None = None
    status_config: StatusConfig | None = None


ExportConfig: TypeAlias = (
    HTTPConfig | IoTAnalyticsConfig | KinesisConfig | IoTSiteWiseConfig | S3ExportTaskExecutorConfig
)


def batch_size_of(config: ExportConfig) -> int:
    """The number of messages in a full batch."""
    return getattr(config, "batch_size", None) or config.max_batch_size


def hide_user(uri: str) -> str:
    """The URI without its user and password, which not all readers may see."""
    scheme, colon, rest = uri.partition("://")
    address, slash, path = rest.partition("/")
    user, at, host = address.rpartition("@")
    return f"{scheme}{colon}{'…' if user else ''}{at}{host}{slash}{path}"


class ExportDefinition(Value):
    """The exports of a stream, by kind. A stream may have several of each.

    Attributes:
        http: To HTTP servers.
        iot_analytics: To channels of Parquet files.
        kinesis: To Kinesis data streams.
        iot_sitewise: To IoT SiteWise.
        s3_task_executor: Files to S3.
    """

    http: list[HTTPConfig] | None = None
    iot_analytics: list[IoTAnalyticsConfig] | None = None
    kinesis: list[KinesisConfig] | None = None
    # The only key on the wire with another spelling.
    iot_sitewise: list[IoTSiteWiseConfig] | None = msgspec.field(default=None, name="IotSitewise")
    s3_task_executor: list[S3ExportTaskExecutorConfig] | None = None

    def configs(self) -> Iterator[ExportConfig]:
        """All export configurations of the stream."""
        return (config for _, config in self.configs_by_kind())

    def configs_by_kind(self) -> Iterator[tuple[str, ExportConfig]]:
        """All export configurations, each with the name of its list."""
        for kind in self.__struct_fields__:
            for config in getattr(self, kind) or ():
                yield kind, config


# The kind of export for S3 tasks, which are uploads of files. All others export messages.
S3_TASK_EXECUTOR = "s3_task_executor"


def _config_type(field: msgspec.structs.FieldInfo) -> type[ExportConfig]:
    """The type of the configurations in a list, from the annotation `list[…] | None`."""
    found: type[ExportConfig] = get_args(get_args(field.type)[0])[0]
    return found


# The type of the configurations in each list, by the name of the list.
CONFIG_OF_KIND: dict[str, type[ExportConfig]] = {
    field.name: _config_type(field) for field in msgspec.structs.fields(ExportDefinition)
}


class ExportStatus(Value):
    """The status of one export; in the AWS SDKs it is `MessageStreamInfo.exportStatuses`."""

    export_config_identifier: str = REQUIRED
    # -1 before the first export, so that `newest > last exported` is correct from the start.
    last_exported_sequence_number: int = -1
    last_export_time: int | None = None
    error_message: str = ""
    exported_bytes_from_stream: int = 0
    exported_messages_count: int = 0


def messages_behind(config: ExportConfig, last_exported: int, oldest: int, newest: int) -> int:
    """The number of stored messages that are not exported.

    Messages before the start of the export and evicted messages do not count.
    """
    return max(newest + 1 - next_number(config, last_exported, oldest), 0)


def next_number(config: ExportConfig, last_exported: int, oldest: int) -> int:
    """The sequence number of the next message of an export."""
    start = getattr(config, "start_sequence_number", None) or 0
    return max(last_exported + 1, start, oldest)
