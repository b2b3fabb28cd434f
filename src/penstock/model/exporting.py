"""The contract between broker and pipeline: work that is due, and reports about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.model.limits import Name, SequenceNumber
from penstock.model.status import Status
from penstock.model.storage import SegmentSummary

MAX_SKIPPED = 4096
MAX_ARRIVED = 1024
MAX_REASON_LENGTH = 2048


class ExportState(StrEnum):
    """What an export is doing."""

    # All messages are exported.
    up_to_date = "up-to-date"
    # Messages wait for their batch to fill, or for the next moment at which exports are gathered.
    waiting = "waiting"
    # Messages may leave, and no task has them.
    due = "due"
    # A task delivers.
    exporting = "exporting"
    # The last delivery failed; the next one follows after a pause.
    failing = "failing"
    paused = "paused"


class Upload(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A multipart upload that has begun: what it takes to continue or to abort it."""

    # Of its task.
    sequence_number: SequenceNumber
    bucket: str
    key: str
    # S3's name for it. Empty until S3 has answered: then the upload may exist or not.
    upload_id: str = ""
    # In milliseconds since 1970.
    began: int
    # Identifies the contents of the file; parts of a changed file are never added.
    fingerprint: str
    size: int
    part_size: int
    # The ETag of each part, empty for a part that has not arrived.
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
    # The task as it was appended, under its names on the wire; None if the message is no task.
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
    # Spark's own page; None if there is none.
    spark_page: Annotated[str, Meta(max_length=255)] | None = None


class Work(msgspec.Struct, frozen=True, rename="camel", kw_only=True, tag_field="work"):
    """Something to do for one export, leased to one task of a pipeline."""

    lease: str
    stream: str
    identifier: str


class MessageSlice(Work, frozen=True, rename="camel", kw_only=True, tag="messages"):
    """Messages [first, end) of a stream, to be sent to one destination."""

    stream_id: str
    # The name of the configuration's list in the export definition, and the configuration.
    kind: str
    config: dict[str, Any]
    first: int
    end: int
    # Messages of the slice that have arrived in an earlier attempt.
    arrived: list[int]
    has_files: bool
    segments: list[SegmentSummary]
    # About how many bytes its messages have.
    size: int = 0


class TaskSlice(MessageSlice, frozen=True, rename="camel", kw_only=True, tag="tasks"):
    """S3 tasks [first, end) of a stream, to be carried out."""

    # Uploads that have begun.
    uploads: list[Upload] = []
    # Tasks that are older are canceled, in milliseconds.
    time_to_live: int | None = None
    # The bandwidth is limited: bytes have to be reserved before they are sent.
    is_metered: bool = False


class UploadAbort(Work, frozen=True, rename="camel", kw_only=True, tag="abort"):
    """An upload that no task continues. S3 keeps and bills its parts until it is aborted."""

    upload: Upload

    @property
    def first(self) -> int:
        return self.upload.sequence_number


AnyWork = MessageSlice | TaskSlice | UploadAbort


class ExportPlan(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Work for a task, the most urgent first."""

    # The broker's directory, and the id by which a program on the same machine recognizes it.
    root: str
    instance: str
    work: list[AnyWork]
    # The number of exports that are due and that no task has.
    waiting: int = 0
    # The number of tasks of the pipeline that are connected.
    tasks: int = 0
    # Leases that the task no longer holds: reports about them are not accepted.
    lost: list[str] = []
    # Leases of paused exports: their deliveries end after the calls that they have begun.
    ending: list[str] = []
    # The pipeline is stopping: the task ends when its deliveries are reported.
    stops: bool = False


class SkippedMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message that its destination never accepts, and why."""

    sequence_number: SequenceNumber
    reason: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)]


class DeliveryReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The result of work since it was leased, or since the report before."""

    lease: str
    stream: Name
    stream_id: str = ""
    identifier: Name
    # The first message that earlier reports have not settled.
    first: SequenceNumber = 0
    # All messages below have arrived or were skipped.
    settled_end: SequenceNumber = 0
    # Messages behind it that have arrived or were skipped.
    arrived: Annotated[list[SequenceNumber], Meta(max_length=MAX_ARRIVED)] = []
    exported_messages: Annotated[int, Meta(ge=0)] = 0
    exported_bytes: Annotated[int, Meta(ge=0)] = 0
    skipped: Annotated[list[SkippedMessage], Meta(max_length=MAX_SKIPPED)] = []
    # The number of messages below `settled_end` that could not be read: damaged or dropped.
    missing: Annotated[int, Meta(ge=0)] = 0
    # Bytes on the wire, also of calls that failed.
    sent_bytes: Annotated[int, Meta(ge=0)] = 0
    # Why the delivery ended early; empty if it did not.
    error: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)] = ""
    # The minimum time before the next delivery.
    pause_millis: Annotated[int, Meta(ge=0)] = 0
    # S3 tasks: their events, in order; all uploads that have begun and not ended; uploads that
    # could not be aborted.
    events: Annotated[list[TaskEvent], Meta(max_length=16_384)] = []
    uploads: Annotated[list[Upload], Meta(max_length=1024)] = []
    abandoned: Annotated[list[Upload], Meta(max_length=1024)] = []
    # False: more reports follow, and the task keeps the lease.
    is_final: bool = True


class ReservedBandwidth(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The broker's answer to a task that wants to send bytes of a file."""

    # The bytes may be sent.
    is_granted: bool
    # False: the lease has ended, and nothing may be sent for it.
    is_held: bool


class CommittedReports(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The broker's answer to reports."""

    # The leases of the reports that were accepted.
    accepted: frozenset[str]
