"""Status messages: the messages of a status stream about S3 tasks."""

from __future__ import annotations

import msgspec

from penstock.model.limits import Name
from penstock.model.s3_task import S3ExportTaskDefinition
from penstock.model.value import REQUIRED, Choice, Value


class EventType(Choice):
    """The subject of a status message.

    Attributes:
        S3Task: An S3 task.
    """

    S3Task = 0


class Status(Choice):
    """The state of an S3 task.

    Attributes:
        Success: The file is uploaded.
        Failure: The task can never succeed, for example because the file is missing.
        InProgress: The upload is running.
        Warning: An unfinished upload could not be aborted; the abort is retried.
        Canceled: The stream or the export was deleted, or the stream has evicted the task.
    """

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
    """The status messages of an S3 export.

    Attributes:
        status_level: The level of the messages; INFO by default.
        status_stream_name: The stream of the status messages.
    """

    status_level: StatusLevel | None = None
    status_stream_name: Name | None = None


class StatusContext(Value):
    """The task that a status message is about.

    Attributes:
        s3_export_task_definition: The task.
        export_identifier: The export that executes it.
        stream_name: The stream of the task.
        sequence_number: The message of the task.
    """

    # The name on the wire; `rename` would treat `s3` as a separate word.
    s3_export_task_definition: S3ExportTaskDefinition | None = msgspec.field(
        default=None, name="s3ExportTaskDefinition"
    )
    export_identifier: str | None = None
    stream_name: str | None = None
    sequence_number: int | None = None


class StatusMessage(Value):
    """A message of a status stream, as JSON.

    Attributes:
        event_type: Always `EventType.S3Task`.
        status_level: The level of the message.
        status: The state of the task.
        status_context: The task.
        message: Details, such as the error.
        timestamp_epoch_ms: In milliseconds since 1970.
    """

    event_type: EventType = REQUIRED
    status_level: StatusLevel | None = None
    status: Status = REQUIRED
    status_context: StatusContext | None = None
    message: str | None = None
    timestamp_epoch_ms: int | None = None
