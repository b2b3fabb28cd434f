"""The contract between broker and pipeline: leased work and delivery reports."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.model.limits import Name, SequenceNumber
from penstock.model.status_message import Status
from penstock.model.storage import SegmentSummary

MAX_SKIPPED = 4096
MAX_ARRIVED = 1024
MAX_REASON_LENGTH = 2048
# Exports of priority 1 to 3 do not gather messages, and start even if all threads are busy.
URGENT_PRIORITY = 3
MAX_PAUSE_MILLIS = 24 * 3600 * 1000

# A count in one report. The limit keeps sums of counts within 64 bits.
Count = Annotated[int, Meta(ge=0, le=2**48)]


class ExportState(StrEnum):
    """The state of an export for users."""

    # All messages are exported.
    up_to_date = "up-to-date"
    # Messages wait for their batch to fill, or for the end of the batch interval.
    waiting = "waiting"
    # Messages can be delivered, and no task has leased them.
    due = "due"
    # A task delivers messages.
    exporting = "exporting"
    # The last delivery failed; the next one follows after a pause.
    failing = "failing"
    paused = "paused"


class Upload(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A multipart upload, with all data to continue or to abort it."""

    # The number of the S3 task.
    sequence_number: SequenceNumber
    bucket: str
    key: str
    # Empty until S3 has answered: it is unknown whether the upload exists.
    upload_id: str = ""
    # In milliseconds since 1970.
    began: int
    # Identifies the content of the file: parts of a changed file are never added.
    fingerprint: str
    size: int
    part_size: int
    # The ETag of each part; empty for a part that has not arrived.
    parts: list[str] = []

    @property
    def arrived_parts(self) -> int:
        return sum(map(bool, self.parts))


class TaskEvent(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A status of an S3 task, for the status stream of its export."""

    sequence_number: SequenceNumber
    status: Status
    message: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)]
    # In milliseconds since 1970.
    time: int
    # The task with its field names on the wire; None if the message is not a task.
    task: dict[str, Any] | None = None

    @property
    def ends_task(self) -> bool:
        return self.status in (Status.Success, Status.Failure, Status.Canceled)


class PipelineDescription(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A pipeline as status and dashboard show it."""

    # In milliseconds since 1970.
    started: int
    spark_version: Annotated[str, Meta(max_length=64)] = ""
    # Spark's master URL.
    master: Annotated[str, Meta(max_length=255)] = ""
    # The URL of Spark's web UI; None if it is disabled.
    spark_page: Annotated[str, Meta(max_length=255)] | None = None


class Work(msgspec.Struct, frozen=True, rename="camel", kw_only=True, tag_field="work"):
    """Work for one export, leased to one task of a pipeline."""

    lease: str
    stream: str
    identifier: str


class MessageSlice(Work, frozen=True, rename="camel", kw_only=True, tag="messages"):
    """Messages [first, end) of a stream, for one destination."""

    stream_id: str
    # The name of the configuration's list in the export definition, and the configuration.
    kind: str
    config: dict[str, Any]
    first: int
    end: int
    # Messages of the slice that have arrived in an earlier delivery.
    arrived: list[int]
    has_files: bool
    segments: list[SegmentSummary]
    # The approximate size of all messages in bytes.
    size: int = 0


class TaskSlice(MessageSlice, frozen=True, rename="camel", kw_only=True, tag="tasks"):
    """S3 tasks [first, end) of a stream to execute."""

    # Uploads that have begun.
    uploads: list[Upload] = []
    # In milliseconds. Older tasks are canceled.
    time_to_live: int | None = None
    # True if the bandwidth is limited: bytes must be reserved before they are sent.
    is_metered: bool = False


class UploadAbort(Work, frozen=True, rename="camel", kw_only=True, tag="abort"):
    """An upload to abort: no task continues it, and S3 bills its parts until it is aborted."""

    upload: Upload

    @property
    def first(self) -> int:
        return self.upload.sequence_number


AnyWork = MessageSlice | TaskSlice | UploadAbort


class ExportPlan(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Work for a task, the most urgent first."""

    # The broker's directory, and an id to verify that it is on the same machine.
    root: str
    instance: str
    work: list[AnyWork]
    # The number of exports that are due and not leased.
    waiting: int = 0
    # The number of tasks of the pipeline that are connected.
    tasks: int = 0
    # Leases that have ended: their reports are not accepted.
    lost: list[str] = []
    # Leases of paused exports: their deliveries end after the calls in flight.
    ending: list[str] = []
    # The pipeline is stopping: the task ends after its deliveries are reported.
    stops: bool = False


class SkippedMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message that its destination can never accept, and the reason."""

    sequence_number: SequenceNumber
    reason: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)]


class DeliveryReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The result of work since the lease began, or since the previous report."""

    lease: str
    stream: Name
    stream_id: str = ""
    identifier: Name
    # The end of the previous report.
    first: SequenceNumber = 0
    # All messages below this number have arrived or were skipped.
    settled_end: SequenceNumber = 0
    # Messages above `settled_end` that have arrived or were skipped.
    arrived: Annotated[list[SequenceNumber], Meta(max_length=MAX_ARRIVED)] = []
    exported_messages: Count = 0
    exported_bytes: Count = 0
    skipped: Annotated[list[SkippedMessage], Meta(max_length=MAX_SKIPPED)] = []
    # The number of messages below `settled_end` that could not be read: damaged or dropped.
    missing: Count = 0
    # Bytes on the wire, including failed calls.
    sent_bytes: Count = 0
    # Why the delivery ended early; empty if it is complete or was stopped.
    error: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)] = ""
    # The minimum time before the next delivery.
    pause_millis: Annotated[int, Meta(ge=0, le=MAX_PAUSE_MILLIS)] = 0
    # For S3 tasks: events in order, all unfinished uploads, and uploads that could not be aborted.
    events: Annotated[list[TaskEvent], Meta(max_length=16_384)] = []
    uploads: Annotated[list[Upload], Meta(max_length=1024)] = []
    abandoned: Annotated[list[Upload], Meta(max_length=1024)] = []
    # The lease ends; otherwise more reports follow.
    is_final: bool = True


class ReservedBandwidth(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The broker's answer to a reservation of bandwidth for a file."""

    # True if the bytes may be sent.
    is_granted: bool
    # False if the lease has ended: no bytes may be sent.
    is_held: bool


class CommittedReports(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The broker's answer to reports."""

    # The leases of the reports that were accepted.
    accepted: frozenset[str]
