"""Where a stream goes: the five export configurations and how each one is doing."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, TypeAlias

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
from penstock.model.status import StatusConfig


class ExportFormat(IntEnum):
    RAW_NOT_BATCHED = 0
    JSON_BATCHED = 1


class HTTPConfig(msgspec.Struct, rename="camel"):
    identifier: Name
    uri: Text
    batch_size: BatchOf500 | None = None
    batch_interval_millis: BatchIntervalMillis | None = None
    priority: Priority | None = None
    start_sequence_number: SequenceNumber | None = None
    disabled: bool | None = None
    export_format: ExportFormat | None = None


class IoTAnalyticsConfig(msgspec.Struct, rename="camel"):
    identifier: Name
    iot_channel: Text
    iot_msg_id_prefix: Annotated[str, Meta(max_length=32)] | None = None
    batch_size: BatchOf100 | None = None
    batch_interval_millis: BatchIntervalMillis | None = None
    priority: Priority | None = None
    start_sequence_number: SequenceNumber | None = None
    disabled: bool | None = None


class KinesisConfig(msgspec.Struct, rename="camel"):
    identifier: Name
    kinesis_stream_name: Text
    batch_size: BatchOf500 | None = None
    batch_interval_millis: BatchIntervalMillis | None = None
    priority: Priority | None = None
    start_sequence_number: SequenceNumber | None = None
    disabled: bool | None = None


class IoTSiteWiseConfig(msgspec.Struct, rename="camel"):
    identifier: Name
    batch_size: BatchOf10 | None = None
    batch_interval_millis: BatchIntervalMillis | None = None
    priority: Priority | None = None
    start_sequence_number: SequenceNumber | None = None
    disabled: bool | None = None


class S3ExportTaskExecutorConfig(msgspec.Struct, rename="camel"):
    identifier: Name
    size_threshold_for_multipart_upload_bytes: MultipartThreshold | None = None
    priority: Priority | None = None
    disabled: bool | None = None
    status_config: StatusConfig | None = None


ExportConfig: TypeAlias = (
    HTTPConfig | IoTAnalyticsConfig | KinesisConfig | IoTSiteWiseConfig | S3ExportTaskExecutorConfig
)


class ExportDefinition(msgspec.Struct, rename="camel"):
    http: list[HTTPConfig] | None = None
    iot_analytics: list[IoTAnalyticsConfig] | None = None
    kinesis: list[KinesisConfig] | None = None
    # The one key on the wire that does not follow the others' spelling.
    iot_sitewise: list[IoTSiteWiseConfig] | None = msgspec.field(default=None, name="IotSitewise")
    s3_task_executor: list[S3ExportTaskExecutorConfig] | None = None

    def configs(self) -> Iterator[ExportConfig]:
        """All export configurations of the stream, whatever their kind."""
        for group in (
            self.http,
            self.iot_analytics,
            self.kinesis,
            self.iot_sitewise,
            self.s3_task_executor,
        ):
            yield from group or ()


class ExportStatus(msgspec.Struct, rename="camel"):
    """How one export is doing; in the AWS SDKs it is `MessageStreamInfo.exportStatuses`."""

    export_config_identifier: str
    # -1 until something was exported, so that `newest > last exported` is right from the start.
    last_exported_sequence_number: int = -1
    last_export_time: int | None = None
    error_message: str = ""
    exported_bytes_from_stream: int = 0
    exported_messages_count: int = 0
