"""The data model of Stream Manager under the names of the AWS Python SDK: values, no I/O."""

from penstock.model.asset_property import (
    AssetPropertyValue,
    PutAssetPropertyValueEntry,
    Quality,
    TimeInNanos,
    Variant,
)
from penstock.model.export_definition import (
    ExportConfig,
    ExportDefinition,
    ExportFormat,
    ExportStatus,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    S3ExportTaskExecutorConfig,
)
from penstock.model.message import Message, ReadMessagesOptions
from penstock.model.s3_task import S3ExportTaskDefinition
from penstock.model.statistics import ExportStatistics, Statistics, StreamStatistics
from penstock.model.status_message import (
    EventType,
    Status,
    StatusConfig,
    StatusContext,
    StatusLevel,
    StatusMessage,
)
from penstock.model.stream_definition import (
    MessageStreamDefinition,
    MessageStreamInfo,
    Persistence,
    StorageStatus,
    StrategyOnFull,
)
from penstock.model.validation import from_wire as from_wire
from penstock.model.validation import to_wire as to_wire

__all__ = [
    "AssetPropertyValue",
    "EventType",
    "ExportConfig",
    "ExportDefinition",
    "ExportFormat",
    "ExportStatistics",
    "ExportStatus",
    "HTTPConfig",
    "IoTAnalyticsConfig",
    "IoTSiteWiseConfig",
    "KinesisConfig",
    "Message",
    "MessageStreamDefinition",
    "MessageStreamInfo",
    "Persistence",
    "PutAssetPropertyValueEntry",
    "Quality",
    "ReadMessagesOptions",
    "S3ExportTaskDefinition",
    "S3ExportTaskExecutorConfig",
    "Statistics",
    "Status",
    "StatusConfig",
    "StatusContext",
    "StatusLevel",
    "StatusMessage",
    "StorageStatus",
    "StrategyOnFull",
    "StreamStatistics",
    "TimeInNanos",
    "Variant",
]
