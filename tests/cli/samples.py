"""A definition with every field, and definition files in each format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from penstock.model import (
    ExportDefinition,
    ExportFormat,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    Persistence,
    S3ExportTaskExecutorConfig,
    StatusConfig,
    StatusLevel,
    StrategyOnFull,
)

# A definition with every field.
FULL = MessageStreamDefinition(
    name="full",
    max_size=1_000_000_000,
    stream_segment_size=1 << 20,
    time_to_live_millis=3_600_000,
    strategy_on_full=StrategyOnFull.OverwriteOldestData,
    persistence=Persistence.Memory,
    flush_on_write=True,
    export_definition=ExportDefinition(
        http=[HTTPConfig("h", "http://x/?a=b", 1, 60_000, 1, 2, True, ExportFormat.JSON_BATCHED)],
        iot_analytics=[IoTAnalyticsConfig("i", "channel", "prefix", 2, 60_001, 2, 3, False)],
        kinesis=[
            KinesisConfig("k1", "stream", 3, 60_002, 3, 4, False),
            KinesisConfig("k2", "stream"),
        ],
        iot_sitewise=[IoTSiteWiseConfig("w", 4, 60_003, 4, 5, True)],
        s3_task_executor=[
            S3ExportTaskExecutorConfig(
                "s", 5_242_880, 5, False, StatusConfig(StatusLevel.DEBUG, "statuses")
            )
        ],
    ),
)

SNAKE_CASE_TOML = """
name = "full"
max_size = 1_000_000_000
stream_segment_size = 1048576
time_to_live_millis = 3600000
strategy_on_full = "OverwriteOldestData"
persistence = "Memory"
flush_on_write = true

[[export_definition.http]]
identifier = "h"
uri = "http://x/?a=b"
batch_size = 1
batch_interval_millis = 60000
priority = 1
start_sequence_number = 2
disabled = true
export_format = "JSON_BATCHED"

[[export_definition.iot_analytics]]
identifier = "i"
iot_channel = "channel"
iot_msg_id_prefix = "prefix"
batch_size = 2
batch_interval_millis = 60001
priority = 2
start_sequence_number = 3
disabled = false

[[export_definition.kinesis]]
identifier = "k1"
kinesis_stream_name = "stream"
batch_size = 3
batch_interval_millis = 60002
priority = 3
start_sequence_number = 4
disabled = false

[[export_definition.kinesis]]
identifier = "k2"
kinesis_stream_name = "stream"

[[export_definition.iot_sitewise]]
identifier = "w"
batch_size = 4
batch_interval_millis = 60003
priority = 4
start_sequence_number = 5
disabled = true

[[export_definition.s3_task_executor]]
identifier = "s"
size_threshold_for_multipart_upload_bytes = 5242880
priority = 5
disabled = false

[export_definition.s3_task_executor.status_config]
status_level = "DEBUG"
status_stream_name = "statuses"
"""


def in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {in_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return json.dumps(value)


def write(directory: Path, extension: str, plain: Any) -> str:
    """Writes a file in the format of the extension, and returns its path."""
    path = directory / f"definition.{extension}"
    if extension == "toml":
        text = "\n".join(f"{name} = {in_toml(item)}" for name, item in plain.items())
    elif extension == "json":
        text = json.dumps(plain)
    else:
        text = yaml.safe_dump(plain)
    path.write_text(text)
    return str(path)
