"""Status messages: what a status stream says about S3 tasks."""

from __future__ import annotations

import msgspec

from penstock.model.limits import Name
from penstock.model.s3_task import S3ExportTaskDefinition
from penstock.model.value import REQUIRED, Choice, Value


class EventType(Choice):
    S3Task = 0


class Status(Choice):
    Success = 0
    Failure = 1
    InProgress = 2
    Warning = 3
    Canceled = 4


class StatusLevel(Choice):
    """From the least to the most verbose."""

    ERROR = 0
    WARN = 1
    INFO = 2
    DEBUG = 3
    TRACE = 4


class StatusConfig(Value):
    status_level: StatusLevel | None = None
    status_stream_name: Name | None = None


class StatusContext(Value):
    # camelCase on the wire, where `rename` would read `s3` as a word of its own.
    s3_export_task_definition: S3ExportTaskDefinition | None = msgspec.field(
        default=None, name="s3ExportTaskDefinition"
    )
    export_identifier: str | None = None
    stream_name: str | None = None
    sequence_number: int | None = None


class StatusMessage(Value):
    event_type: EventType = REQUIRED
    status_level: StatusLevel | None = None
    status: Status = REQUIRED
    status_context: StatusContext | None = None
    message: str | None = None
    timestamp_epoch_ms: int | None = None
